"""The tensorflow backend: SavedModels on the host, if TensorFlow is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from nbtriton.backends.base import Backend, BackendInstance, InstanceContext, ModelContext
from nbtriton.backends.described import Model, TensorInfo, check, complete, is_complete
from nbtriton.backends.parameters import integer_value, text_parameter
from nbtriton.common.errors import InternalError, UnavailableError, UnsupportedError, nearest
from nbtriton.common.packages import needed
from nbtriton.extensions.tensorflow.core.instance import SavedModelInstance
from nbtriton.model.config import ModelConfig

__all__ = ["TensorFlowBackend"]

DEFAULT_MAX_BATCH_SIZE = "default-max-batch-size"
_FOLDER = "model.savedmodel"
_DATATYPES = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "string": "BYTES",
}  # fmt: skip


class TensorFlowBackend(Backend):
    """Runs SavedModels by TensorFlow; the instances of a version share one."""

    name: ClassVar[str] = "tensorflow"
    platform: ClassVar[str] = "tensorflow_savedmodel"
    settings: ClassVar[tuple[str, ...]] = (DEFAULT_MAX_BATCH_SIZE,)
    packages: ClassVar[tuple[str, ...]] = ("tensorflow",)

    def __init__(self) -> None:
        self._loaded: Any = None  # keeps the signature's variables alive
        self._signature: Any = None

    @classmethod
    def accepts(cls, source: object) -> bool:
        """Return True for a path to a SavedModel's folder."""
        return isinstance(source, Path) and (source / "saved_model.pb").is_file()

    @classmethod
    def missing(cls, source: object, config: ModelConfig) -> str:
        """Return the missing package or file; graphs of TensorFlow 1 never run here."""
        if config.platform == "tensorflow_graphdef":
            return "graphs of TensorFlow 1 do not run here"
        return super().missing(source, config)

    def prefers_gpu(self) -> bool:
        """Return False: TensorFlow places its operations by itself."""
        return False

    def complete_config(self, context: ModelContext) -> ModelConfig:
        """Fill inputs, outputs and batching from the signature."""
        if is_complete(context.config):
            return context.config
        model = _described(self._of(context))
        size = integer_value(context.settings.get(DEFAULT_MAX_BATCH_SIZE, "4"))
        return complete(context.config, model.inputs, model.outputs, max(0, size))

    def check(self, context: ModelContext) -> None:
        """Compare the configuration with the signature."""
        check(context.config, _described(self._of(context)))

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance.

        Raises
        ------
        UnsupportedError
            KIND_GPU.
        """
        if context.kind == "KIND_GPU":
            raise UnsupportedError(
                f"model '{context.model.name}' has an instance on a GPU, and TensorFlow runs on the "
                "host here",
                hint="KIND_CPU",
            )
        signature = self._of(context.model)
        return SavedModelInstance(context.model.config, signature, _tensorflow().constant)

    def close(self) -> None:
        """Release the weights."""
        self._loaded = self._signature = None

    def _of(self, context: ModelContext) -> Any:
        if self._signature is None:
            if not isinstance(context.source, Path):
                raise InternalError(f"the tensorflow backend cannot run {context.source!r}")
            self._loaded, self._signature = _load(context.source, context.config)
        return self._signature


def _tensorflow() -> Any:
    with needed("backend 'tensorflow'", package="tensorflow"):
        import tensorflow as tf
    return tf


def _load(source: Path, config: ModelConfig) -> tuple[Any, Any]:
    """Return a SavedModel and the signature that the configuration names."""
    if config.platform == "tensorflow_graphdef":
        raise UnsupportedError(
            f"model '{config.name}' is a graph of TensorFlow 1, which does not run here",
            hint="convert it to a SavedModel",
        )
    tensorflow = _tensorflow()
    path = source / _FOLDER if (source / _FOLDER).is_dir() else source
    if not path.exists():
        raise UnavailableError(f"unable to find '{path}' for model instance '{config.name}'")
    tag = text_parameter(config, "TF_GRAPH_TAG")
    try:
        loaded = tensorflow.saved_model.load(str(path), tags=None if tag is None else [tag])
    except Exception as error:
        raise InternalError(f"failed to load model '{config.name}': {error}") from error
    name = text_parameter(config, "TF_SIGNATURE_DEF") or "serving_default"
    if name not in loaded.signatures:
        raise InternalError(
            f"model '{config.name}' has no signature '{name}'",
            hint=nearest(name, list(loaded.signatures)),
        )
    return loaded, loaded.signatures[name]


def _described(signature: Any) -> Model:
    return Model(
        _infos(signature.structured_input_signature[1]), _infos(signature.structured_outputs), {}
    )


def _infos(tensors: Mapping[str, Any]) -> dict[str, TensorInfo]:
    infos = {}
    for name, tensor in tensors.items():
        datatype = _DATATYPES.get(tensor.dtype.name, "")
        known = tensor.shape.rank is not None
        dims = tuple(-1 if dim is None else int(dim) for dim in tensor.shape) if known else ()
        infos[name] = TensorInfo(datatype, tensor.dtype.name.upper(), dims)
    return infos
