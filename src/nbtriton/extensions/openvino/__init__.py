"""The openvino backend. The package openvino is imported with the first model."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from nbtriton.backends.base import Backend, BackendInstance, InstanceContext, ModelContext
from nbtriton.common.errors import InternalError, InvalidArgumentError, UnavailableError
from nbtriton.extensions.openvino.configuration import (
    complete,
    configured,
    import_openvino,
    runtime_errors,
)
from nbtriton.extensions.openvino.instance import OpenVinoInstance
from nbtriton.model.config import ModelConfig
from nbtriton.model.config.parameters import integer_value, text_parameter

__all__ = ["OpenVinoBackend"]

# Setting for the max_batch_size of a model that batches by its layouts, and whose configuration has none.
DEFAULT_MAX_BATCH_SIZE = "default-max-batch-size"
_HINTS = ("latency", "throughput", "cumulative_throughput")


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
        """Fill inputs, outputs and batching; see `nbtriton.extensions.openvino.configuration`."""
        size = integer_value(context.settings.get(DEFAULT_MAX_BATCH_SIZE, "4"))
        return complete(context.config, self._read(context), size)

    def check(self, context: ModelContext) -> None:
        """Change the model to match its configuration; see `nbtriton.extensions.openvino.configuration`."""
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
        device = (text_parameter(model.config, "TARGET_DEVICE") or "CPU").upper()
        padding = _is_yes(model.config, "ENABLE_BATCH_PADDING")
        with self._lock:
            if self._compiled is None:
                fitted = self._fit(model)
                with runtime_errors("loading model"):
                    self._compiled = self._core.compile_model(
                        fitted, device, properties(model.config)
                    )
            return OpenVinoInstance(model.config, self._compiled, padding=padding)

    @classmethod
    def files_beside(cls, path: Path) -> Sequence[str]:
        """Return the weights of a model in OpenVINO's own format."""
        weights = path.with_suffix(".bin")
        return (weights.name,) if path.suffix == ".xml" and weights.is_file() else ()

    @classmethod
    def export(cls, served: Any, folder: Path) -> str:
        """Write an ``openvino.Model`` in OpenVINO's own format: a model, and its weights beside it."""
        import_openvino().save_model(served, folder / "model.xml", compress_to_fp16=False)
        return "OpenVINO"

    def close(self) -> None:
        """Release the weights."""
        self._core = self._model = self._fitted = self._compiled = None

    def _fit(self, context: ModelContext) -> Any:
        if self._fitted is None:
            reshape = _is_yes(context.config, "RESHAPE_IO_LAYERS")
            self._fitted = configured(self._read(context), context.config, reshape=reshape)
        return self._fitted

    def _read(self, context: ModelContext) -> Any:
        if self._core is None:
            self._core = import_openvino().Core()
            extension = text_parameter(context.config, "CPU_EXTENSION_PATH")
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


# What Triton allows for each property, and the words of it that are no numbers.
_PROPERTIES = {
    "INFERENCE_NUM_THREADS": ("a non-negative number", ()),
    "COMPILATION_NUM_THREADS": ("a non-negative number", ()),
    "HINT_BF16": ("YES", ("yes",)),
    "NUM_STREAMS": ("either AUTO/NUMA/<int_value>", ("auto", "numa")),
    "PERFORMANCE_HINT": ("/".join(_HINTS).upper(), _HINTS),
}


def properties(config: ModelConfig) -> dict[str, str]:
    """Return OpenVINO's properties for the compilation of a model (OV1).

    Raises
    ------
    InvalidArgumentError
        A value that Triton does not allow, with its text.
    """
    result = {}
    for key, (expected, words) in _PROPERTIES.items():
        value = (text_parameter(config, key) or "").lower()
        is_number = "NUM_" in key and value.isascii() and value.isdigit()
        if value and value not in words and not is_number:
            raise InvalidArgumentError(
                f"expected the parameter '{key}' to be {expected}, got {value}"
            )
        if value:
            result[key] = value.upper()
    if result.pop("HINT_BF16", ""):
        result["INFERENCE_PRECISION_HINT"] = "bf16"
    return result


def _is_yes(config: ModelConfig, key: str) -> bool:
    return (text_parameter(config, key) or "").lower() == "yes"
