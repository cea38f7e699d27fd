"""The instance of a worker, made from its description by the same code as in the engine's process."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import pickle
import platform
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

from nbtriton.backends.base import (
    Backend,
    BackendInstance,
    InstanceContext,
    ModelContext,
    ServerHandle,
)
from nbtriton.backends.python.model import PythonModel, install_pb_utils
from nbtriton.common.errors import InternalError
from nbtriton.runtime.workers import protocol

# For backends with as many threads as cores unless a number is set.
_THREADS = {"onnxruntime": "intra_op_thread_count", "openvino": "INFERENCE_NUM_THREADS"}


class InstanceFactory:
    """Completes a configuration, creates an instance, or one after the other."""

    def __init__(self) -> None:
        self._backend: Backend | None = None

    def create(self, description: Mapping[str, Any], server: ServerHandle) -> BackendInstance:
        """Create an instance.

        Parameters
        ----------
        description : mapping
            See `nbtriton.runtime.workers.backend`.
        server : ServerHandle
        """
        _check_version(description)
        asked = description["instance"]
        limits = description["limits"]
        bind(limits["cores"], limits["numa_node"])
        set_threads(limits["threads"])
        place = (asked["name"], asked["kind"], asked["device_id"])
        if "python" in description:
            model = _python_model(description)
            return model.create_instance(*place, server, model.modules())
        backend, context = self._open(description, server)
        key = _THREADS.get(description["backend"])
        if key is not None and key not in context.config.parameters:
            context.config.parameters[key].string_value = str(limits["threads"])
        backend.open(context)
        return backend.create_instance(InstanceContext(context, *place))

    def complete(self, description: Mapping[str, Any]) -> Any:
        """Complete a configuration, or check it against the model.

        Returns
        -------
        dict or None
            The result of `PythonModel.complete`.
        bytes
            The configuration's message, of any other model.
        """
        _check_version(description)
        if "python" in description:
            return _python_model(description).complete()[1]
        backend, context = self._open(description, None)
        if description["auto_complete"]:
            return backend.complete_config(context).SerializeToString()
        backend.check(context)
        return None

    def close(self) -> None:
        """Release the shared resources of the instances."""
        if self._backend is not None:
            self._backend.close()

    def _open(
        self, description: Mapping[str, Any], server: ServerHandle | None
    ) -> tuple[Backend, ModelContext]:
        # Needs protobuf, which the environment of a `TritonPythonModel` may lack.
        from nbtriton.backends.devices.device_set import DeviceSet
        from nbtriton.backends.registry import find_backend
        from nbtriton.model.config import ModelConfig

        config = ModelConfig.FromString(description["config"])
        example = description["example"]
        context = ModelContext(
            config.name,
            description["model_version"],
            config,
            _restored(description["source"]),
            _restored(description["directory"]),
            server,
            None if example is None else pickle.loads(example),  # noqa: S301 - of our own process
            description["settings"],
            DeviceSet(None).managed,
        )
        if self._backend is None:
            self._backend = find_backend(description["backend"], description["all_settings"])()
        return self._backend, context


def follow_levels(model: int, root: int) -> None:
    """Set the levels of the model's logger and of the root in the engine's process."""
    logging.getLogger("nbtriton").setLevel(model)
    logging.root.setLevel(root)


def _python_model(description: Mapping[str, Any]) -> PythonModel:
    install_pb_utils()
    values = {name: _restored(value) for name, value in description["python"].items()}
    return PythonModel(
        source=_restored(description["source"]),
        directory=_restored(description["directory"]),
        **values,
    )


def _restored(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    kind, content = value
    if kind == "path":
        return Path(content)
    from nbtriton.runtime.workers.carry import unpack

    return unpack(content)


def _check_version(description: Mapping[str, Any]) -> None:
    if description["version"] != protocol.VERSION:
        raise RuntimeError(
            f"this worker speaks version {protocol.VERSION} of the protocol, the engine version "
            f"{description['version']}"
        )


_MPOL_BIND: Final = 2
# Numbers of the system call set_mempolicy, for which libc has no function.
_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237}
# Variables that the libraries read at their import.
_VARIABLES: Final = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS",
)  # fmt: skip


def bind(cores: Collection[int], numa_node: int | None) -> None:
    """Bind this process and its children to cores and to the memory of a node.

    Parameters
    ----------
    cores : collection of int
        Empty for all.
    numa_node : int or None

    Raises
    ------
    InternalError
        The system refuses, with Triton's text.
    """
    if cores and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, cores)
        except OSError as error:
            raise InternalError(f"Unable to set NUMA thread affinity: {error.strerror}") from error
    if numa_node is not None:
        _bind_memory(numa_node)


def _bind_memory(node: int) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None or not sys.platform.startswith("linux"):
        return
    words = node // 64 + 1
    mask = (ctypes.c_ulong * words)()
    mask[node // 64] = 1 << node % 64
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than the given number.
    if libc.syscall(number, _MPOL_BIND, mask, ctypes.c_ulong(64 * words + 1)) != 0:
        text = os.strerror(ctypes.get_errno())
        raise InternalError(f"Unable to set NUMA memory policy: {text}")


def set_threads(count: int) -> None:
    """Set the number of threads of this process's libraries.

    It also holds for libraries imported later. Called on the executing thread: OpenMP keeps the number for
    each thread that starts others.
    """
    for name in _VARIABLES:
        os.environ[name] = str(count)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
    if "numpy" in sys.modules:
        with contextlib.suppress(ImportError):  # in an environment of the model's own
            from threadpoolctl import ThreadpoolController

            ThreadpoolController().limit(limits=count)


# Its arguments are a note's: its kind, and the values.
Note = Callable[[str, tuple[Any, ...]], None]

_FIELDS = (
    "name", "levelno", "levelname", "pathname", "filename", "module", "lineno", "funcName", "created",
    "msecs", "relativeCreated", "thread", "threadName", "process", "processName",
)  # fmt: skip


def redirect(note: Note) -> None:
    """Send log records and warnings to the engine's process."""
    root = logging.getLogger()
    root.handlers[:] = [_Records(note)]

    def show(message: object, category: type, filename: str, line: int, *_rest: object) -> None:
        note("warn", (str(message), category.__name__, filename, line))

    warnings.showwarning = show  # type: ignore[assignment]  # its rest is passed by position


class _Records(logging.Handler):
    def __init__(self, note: Note) -> None:
        super().__init__()
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields = {name: getattr(record, name) for name in _FIELDS}
            fields["msg"] = record.getMessage()
            if record.exc_info:
                fields["exc_text"] = logging.Formatter().formatException(record.exc_info)
            self._note("log", (fields,))
        except Exception:
            self.handleError(record)
