"""One model version's sessions: one per device, shared by all its instances.

Triton makes a session per instance. Several threads may run a session concurrently, with the same results, so
that one copy of the weights and one thread pool suffice.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nbtriton.common.errors import UnavailableError
from nbtriton.extensions.onnxruntime.options import providers, session_options, uses_global_threads
from nbtriton.extensions.onnxruntime.runtime import import_onnxruntime, runtime_error
from nbtriton.model.config import ModelConfig


class Sessions:
    """The sessions of one version.

    Parameters
    ----------
    source : Path, bytes or onnx.ModelProto
        A file, a directory with a ``model.onnx`` (and files of weights), or the model itself.
    settings : mapping of str to str
        The server's for this backend.
    """

    def __init__(self, source: object, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self._source = source
        self._settings = settings
        self._lock = threading.Lock()
        self._by_device: dict[int | None, Any] = {}

    def on(self, config: ModelConfig, device_id: int | None) -> Any:
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
            if device_id not in self._by_device:
                self._by_device[device_id] = self._load(config, device_id)
            return self._by_device[device_id]

    def drop(self, device_id: int | None) -> None:
        """Release one session."""
        with self._lock:
            self._by_device.pop(device_id, None)

    def close(self) -> None:
        """Release all sessions."""
        with self._lock:
            self._by_device.clear()

    def _load(self, config: ModelConfig, device_id: int | None) -> Any:
        ort = import_onnxruntime()
        options = session_options(ort, config)
        if uses_global_threads(ort, self._settings):
            options.use_per_session_threads = False
        chosen = providers(config, device_id)
        model: str | bytes
        if isinstance(self._source, Path):
            model = str(_file(self._source, config.name))
        else:
            model = model_bytes(self._source)
        try:
            return ort.InferenceSession(model, options, providers=chosen)
        except Exception as error:
            raise runtime_error(error) from error


def model_bytes(source: Any) -> bytes:
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
