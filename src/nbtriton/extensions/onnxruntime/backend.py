"""The onnxruntime backend: ONNX files, and ONNX models from Python, on the host or with CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from nbtriton.backends.base import Backend, BackendInstance, InstanceContext, ModelContext
from nbtriton.backends.described import Model, check, complete, is_complete
from nbtriton.backends.parameters import integer_value
from nbtriton.common.errors import InternalError
from nbtriton.extensions.onnxruntime.core.instance import OnnxInstance
from nbtriton.extensions.onnxruntime.options import CUDA, GLOBAL_THREADS, run_options
from nbtriton.extensions.onnxruntime.runtime import has_provider, import_onnxruntime, tensor_infos
from nbtriton.extensions.onnxruntime.sessions import Sessions, model_bytes
from nbtriton.model.config import ModelConfig, enum_name

# Setting for the max_batch_size of a batching model whose configuration has none; 4 by default.
DEFAULT_MAX_BATCH_SIZE = "default-max-batch-size"


class OnnxRuntimeBackend(Backend):
    """Runs ONNX models, as Triton's backend of the same name does."""

    name: ClassVar[str] = "onnxruntime"
    platform: ClassVar[str] = "onnxruntime_onnx"
    settings: ClassVar[tuple[str, ...]] = (DEFAULT_MAX_BATCH_SIZE, *GLOBAL_THREADS)
    packages: ClassVar[tuple[str, ...]] = ("onnxruntime",)

    def __init__(self) -> None:
        self._sessions: Sessions | None = None
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
        return has_provider(CUDA)

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
        if kinds == {"KIND_GPU"} and self._sessions is not None:
            self._sessions.drop(None)

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance.

        Raises
        ------
        UnsupportedError
            KIND_GPU with an onnxruntime without CUDA.
        """
        config = context.model.config
        device_id = context.device_id if context.kind == "KIND_GPU" else None
        session = self._of(context.model).on(config, device_id)
        options = run_options(import_onnxruntime(), config)
        return OnnxInstance(config, session, self._described(context.model), options)

    def served(self, context: ModelContext) -> object:
        """Return the path, or the bytes of a model that is no file."""
        source = context.source
        return source if isinstance(source, Path) else model_bytes(source)

    def close(self) -> None:
        """Release the weights."""
        if self._sessions is not None:
            self._sessions.close()
            self._sessions = None

    def _described(self, context: ModelContext) -> Model:
        if self._model is None:
            session = self._of(context).on(context.config, None)
            self._model = Model(
                tensor_infos(session.get_inputs()),
                tensor_infos(session.get_outputs()),
                tensor_infos(session.get_overridable_initializers()),
            )
        return self._model

    def _of(self, context: ModelContext) -> Sessions:
        if self._sessions is None:
            source = context.source
            # A file may have any name: a configuration chose the backend.
            if not isinstance(source, Path) and not self.accepts(source):
                raise InternalError(f"the onnxruntime backend cannot run {source!r}")
            self._sessions = Sessions(source, context.settings)
        return self._sessions
