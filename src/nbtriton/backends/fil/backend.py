"""The fil backend: forests and boosted trees of XGBoost, LightGBM, scikit-learn and cuML."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from nbtriton.backends.base import Backend, BackendInstance, InstanceContext, ModelContext
from nbtriton.backends.fil.check import check, complete, describe_object, row_width
from nbtriton.backends.fil.core.instance import ForestInstance
from nbtriton.backends.fil.forest import Forest, is_forest, load, model_file, treelite_model
from nbtriton.backends.fil.parameters import forest_parameters, model_type
from nbtriton.config import ModelConfig
from nbtriton.errors import InternalError, UnsupportedError

__all__ = ["FilBackend"]

_SUFFIXES = (".tl", ".ubj")


class FilBackend(Backend):
    """Runs tree models on the host by treelite, as Triton's Forest Inference Library backend does.

    Instances of a version share one model.
    """

    name: ClassVar[str] = "fil"
    packages: ClassVar[tuple[str, ...]] = ("treelite",)

    def __init__(self) -> None:
        self._model: Any = None
        self._forest: Forest | None = None

    @classmethod
    def accepts(cls, source: object) -> bool:
        """Return True for a path to a file of no other kind of model, and for ``treelite.Model``."""
        if isinstance(source, Path):
            return source.suffix in _SUFFIXES
        return type(source).__module__.partition(".")[0] == "treelite"

    @classmethod
    def missing(cls, source: object, config: ModelConfig) -> str:
        """Return what is missing: of a version's directory the file of its model type."""
        if isinstance(source, Path) and source.is_dir():
            source = model_file(source, model_type(config))
        return super().missing(source, config)

    def prefers_gpu(self) -> bool:
        """Return False: trees run on the host here."""
        return False

    def complete_config(self, context: ModelContext) -> ModelConfig:
        """Fill input and output, and of an object its parameters; see `nbtriton.backends.fil.check`."""
        config = context.config
        if not isinstance(context.source, Path):
            config = describe_object(config, self._read(context, config))
        return complete(config, self._open(context, config))

    def check(self, context: ModelContext) -> None:
        """Compare the configuration with the model; see `nbtriton.backends.fil.check`."""
        check(context.config, self._open(context, context.config))

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance.

        Raises
        ------
        UnsupportedError
            Any kind but KIND_CPU, with the text of a FIL backend that was built without CUDA.
        """
        if context.kind == "KIND_GPU":
            raise UnsupportedError(
                "KIND_GPU cannot be used in CPU-only build",
                hint="KIND_CPU runs the trees on the host",
            )
        model = context.model
        return ForestInstance(
            model.config, self._open(model, model.config), row_width(model.config)
        )

    def served(self, context: ModelContext) -> object:
        """Return the path, or treelite's model of an object."""
        source = context.source
        return source if isinstance(source, Path) else self._read(context, context.config)

    def close(self) -> None:
        """Release the model."""
        self._model = self._forest = None

    def _open(self, context: ModelContext, config: ModelConfig) -> Forest:
        if self._forest is None:
            parameters = forest_parameters(config)
            self._forest = Forest(self._read(context, config), parameters)
        return self._forest

    def _read(self, context: ModelContext, config: ModelConfig) -> Any:
        if self._model is None:
            source = context.source
            if isinstance(source, Path):
                self._model = load(source, forest_parameters(config))
            elif is_forest(source):
                self._model = treelite_model(source)
            else:
                raise InternalError(f"the fil backend cannot run {source!r}")
        return self._model
