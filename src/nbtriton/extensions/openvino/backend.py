"""The openvino backend: models that OpenVINO reads (its own format, ONNX and others), on the host."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, ClassVar

from nbtriton.backends.base import Backend, BackendInstance, InstanceContext, ModelContext
from nbtriton.backends.parameters import integer_value
from nbtriton.common.errors import InternalError, InvalidArgumentError, UnavailableError
from nbtriton.extensions.openvino.complete import complete
from nbtriton.extensions.openvino.configure import configured
from nbtriton.extensions.openvino.core.instance import OpenVinoInstance
from nbtriton.extensions.openvino.options import options, properties
from nbtriton.extensions.openvino.runtime import import_openvino, runtime_errors
from nbtriton.model.config import ModelConfig

# Setting for the max_batch_size of a model that batches by its layouts, and whose configuration has none.
DEFAULT_MAX_BATCH_SIZE = "default-max-batch-size"


class OpenVinoBackend(Backend):
    """Runs models by OpenVINO, as Triton's backend of the same name does.

    Instances of a version share one compiled model.
    """

    name: ClassVar[str] = "openvino"
    settings: ClassVar[tuple[str, ...]] = (DEFAULT_MAX_BATCH_SIZE,)
    packages: ClassVar[tuple[str, ...]] = ("openvino",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._core: Any = None
        self._model: Any = None  # as read
        self._fitted: Any = None  # changed to match its configuration
        self._compiled: Any = None

    @classmethod
    def accepts(cls, source: object) -> bool:
        """Return True for a path to an ``.xml`` file, and for an ``openvino.Model``."""
        if isinstance(source, Path):
            return source.suffix == ".xml"
        return type(source).__module__.partition(".")[0] == "openvino"

    def prefers_gpu(self) -> bool:
        """Return False, as in Triton."""
        return False

    def complete_config(self, context: ModelContext) -> ModelConfig:
        """Fill inputs, outputs and batching; see `nbtriton.extensions.openvino.complete`."""
        size = integer_value(context.settings.get(DEFAULT_MAX_BATCH_SIZE, "4"))
        return complete(context.config, self._read(context), size)

    def check(self, context: ModelContext) -> None:
        """Change the model to match its configuration; see `nbtriton.extensions.openvino.configure`."""
        self._fit(context)
        properties(context.config)

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance.

        Raises
        ------
        InvalidArgumentError
            Any kind but KIND_CPU, or a wrong parameter, with Triton's text.
        InternalError
            OpenVINO cannot compile the model, with its own text.
        """
        model = context.model
        if context.kind != "KIND_CPU":
            raise InvalidArgumentError(
                f"unable to load model '{model.name}', Triton openVINO backend supports only CPU "
                "device",
                hint="KIND_CPU; the parameter TARGET_DEVICE names one of OpenVINO's devices",
            )
        chosen = options(model.config)
        with self._lock:
            if self._compiled is None:
                fitted = self._fit(model)
                with runtime_errors("loading model"):
                    self._compiled = self._core.compile_model(
                        fitted, chosen.device, properties(model.config)
                    )
            return OpenVinoInstance(model.config, self._compiled, padding=chosen.padding)

    def served(self, context: ModelContext) -> object:
        """Return the path, or the original model of the notebook."""
        return context.source

    def close(self) -> None:
        """Release the weights."""
        self._core = self._model = self._fitted = self._compiled = None

    def _fit(self, context: ModelContext) -> Any:
        if self._fitted is None:
            reshape = options(context.config).reshape
            self._fitted = configured(self._read(context), context.config, reshape=reshape)
        return self._fitted

    def _read(self, context: ModelContext) -> Any:
        if self._core is None:
            self._core = import_openvino().Core()
            extension = options(context.config).extension
            if extension:
                with runtime_errors(" loading custom CPU extensions"):
                    self._core.add_extension(extension)
        if self._model is None:
            source = context.source
            if not isinstance(source, Path):
                if not self.accepts(source):
                    raise InternalError(f"the openvino backend cannot run {source!r}")
                self._model = source
                return source
            path = source / "model.xml" if (source / "model.xml").is_file() else source
            if not path.exists():
                raise UnavailableError(
                    f"unable to find '{path}' for model '{context.name}'",
                    hint="the file is model.xml (with model.bin), or default_model_filename",
                )
            with runtime_errors("reading model"):
                self._model = self._core.read_model(path)
        return self._model
