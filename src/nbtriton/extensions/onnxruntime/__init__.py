"""The onnxruntime backend. The package onnxruntime is imported with the first model."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, ClassVar

from nbtriton.backends.base import Backend, BackendInstance, InstanceContext, ModelContext
from nbtriton.backends.described import Model, check, complete, is_complete
from nbtriton.common.errors import InternalError, UnavailableError
from nbtriton.extensions.onnxruntime import runtime
from nbtriton.extensions.onnxruntime.instance import OnnxInstance
from nbtriton.model.config import ModelConfig, enum_name
from nbtriton.model.config.parameters import integer_value

__all__ = ["OnnxRuntimeBackend"]

# Setting for the max_batch_size of a batching model whose configuration has none; 4 by default.
DEFAULT_MAX_BATCH_SIZE = "default-max-batch-size"


class OnnxRuntimeBackend(Backend):
    """Runs ONNX models, as Triton's backend of the same name does.

    A version has one session per device, shared by all its instances, where Triton makes one per instance: several
    threads may run a session concurrently, with the same results, so that one copy of the weights and one thread
    pool suffice.
    """

    name: ClassVar[str] = "onnxruntime"
    platform: ClassVar[str] = "onnxruntime_onnx"
    settings: ClassVar[tuple[str, ...]] = (DEFAULT_MAX_BATCH_SIZE, *runtime.GLOBAL_THREADS)
    packages: ClassVar[tuple[str, ...]] = ("onnxruntime",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[int | None, Any] = {}  # by GPU, None for the host
        self._model: Model | None = None

    @classmethod
    def accepts(cls, source: object) -> bool:
        """Return True for a path to an ``.onnx`` file, an ``onnx.ModelProto``, and `bytes`."""
        if isinstance(source, Path):
            return source.suffix == ".onnx"
        # By class name: only the caller's code needs onnx.
        return isinstance(source, bytes | bytearray) or type(source).__name__ == "ModelProto"

    def prefers_gpu(self) -> bool:
        """Return True if the installed onnxruntime supports GPUs."""
        return runtime.has_provider(runtime.CUDA)

    def complete_config(self, context: ModelContext) -> ModelConfig:
        """Fill inputs, outputs and batching; see `nbtriton.backends.described`."""
        if is_complete(context.config):
            return context.config
        model = self._described(context)
        size = integer_value(context.settings.get(DEFAULT_MAX_BATCH_SIZE, "4"))
        return complete(context.config, model.inputs, model.outputs, max(0, size))

    def check(self, context: ModelContext) -> None:
        """Compare the configuration with the model; see `nbtriton.backends.described`."""
        check(context.config, self._described(context))

    def open(self, context: ModelContext) -> None:
        """Release the session for the model's description if no instance will run it."""
        kinds = {enum_name(group, "kind") for group in context.config.instance_group}
        if kinds == {"KIND_GPU"}:
            with self._lock:
                self._sessions.pop(None, None)

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance.

        Raises
        ------
        UnsupportedError
            KIND_GPU with an onnxruntime without CUDA.
        """
        config = context.model.config
        device_id = context.device_id if context.kind == "KIND_GPU" else None
        session = self._session(context.model, device_id)
        options = runtime.run_options(runtime.import_onnxruntime(), config)
        return OnnxInstance(config, session, self._described(context.model), options)

    def served(self, context: ModelContext) -> object:
        """Return the path, or the bytes of a model that is no file."""
        source = context.source
        return source if isinstance(source, Path) else _bytes_of(source)

    @classmethod
    def export(cls, served: bytes, folder: Path) -> str:
        """Write the bytes of a model."""
        (folder / "model.onnx").write_bytes(served)
        return "ONNX"

    def close(self) -> None:
        """Release the weights."""
        with self._lock:
            self._sessions.clear()

    def _described(self, context: ModelContext) -> Model:
        if self._model is None:
            session = self._session(context, None)
            self._model = Model(
                runtime.tensor_infos(session.get_inputs()),
                runtime.tensor_infos(session.get_outputs()),
                runtime.tensor_infos(session.get_overridable_initializers()),
            )
        return self._model

    def _session(self, context: ModelContext, device_id: int | None) -> Any:
        """Return the ``InferenceSession`` on a GPU, or on the host for None.

        Raises
        ------
        UnavailableError
            The file does not exist.
        InternalError
            ONNX Runtime cannot load the model, with its own text.
        InvalidArgumentError, UnsupportedError
            Invalid or unsupported options in the configuration.
        """
        with self._lock:
            if device_id not in self._sessions:
                self._sessions[device_id] = self._load(context, device_id)
            return self._sessions[device_id]

    def _load(self, context: ModelContext, device_id: int | None) -> Any:
        source = context.source
        # A file may have any name: a configuration chose the backend.
        if not isinstance(source, Path) and not self.accepts(source):
            raise InternalError(f"the onnxruntime backend cannot run {source!r}")
        ort = runtime.import_onnxruntime()
        options = runtime.session_options(ort, context.config)
        if runtime.uses_global_threads(ort, context.settings):
            options.use_per_session_threads = False
        chosen = runtime.providers(context.config, device_id)
        model = str(_file(source, context.name)) if isinstance(source, Path) else _bytes_of(source)
        try:
            return ort.InferenceSession(model, options, providers=chosen)
        except Exception as error:
            raise runtime.runtime_error(error) from error


def _bytes_of(source: Any) -> bytes:
    """Return a model object, serialized."""
    return bytes(source if isinstance(source, bytes | bytearray) else source.SerializeToString())


def _file(source: Path, model: str) -> Path:
    path = source / "model.onnx" if source.is_dir() else source
    if not path.is_file():
        raise UnavailableError(
            f"unable to find '{path}' for model instance '{model}'",
            hint="the file is model.onnx in the version's directory, or default_model_filename",
        )
    return path
