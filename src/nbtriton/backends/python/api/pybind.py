"""Triton's C++ module as a model sees it: arguments and enums as pybind11's, errors, preferred memory, the logger."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterable
from enum import Enum
from operator import index
from typing import NoReturn

from nbtriton.backends.python.running import current
from nbtriton.common import errors
from nbtriton.model.tensors import Array, is_on_device, to_numpy, to_torch


class BoundEnum(Enum):
    """An enum whose members equal their numbers and have no order; their text is their name."""

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, int) and other == self.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


def incompatible(function: str, expected: str, found: object) -> TypeError:
    """Return the error for an argument of the wrong type; an empty function name means the constructor."""
    what = (
        f"{function}(): incompatible function"
        if function
        else "__init__(): incompatible constructor"
    )
    return TypeError(f"{what} arguments. Expected {expected}, found type {type(found).__name__}")


def as_text(value: str | bytes | bytearray) -> str:
    """Return text; ``bytes``, such as a BYTES tensor's element, may name a model.

    Parameters
    ----------
    value : str, bytes or bytearray
        Bytes that are not UTF-8 are replaced: such a name is not found, and reported readably.

    Raises
    ------
    TypeError
        Another type.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="replace")
    raise TypeError(
        f"incompatible function arguments. Expected str or bytes, found type {type(value).__name__}"
    )


def as_texts(values: Iterable[str | bytes | bytearray]) -> list[str]:
    """Return each of several texts as `as_text` does."""
    return [value if type(value) is str else as_text(value) for value in values]


def warn_newer(what: str, difference: str) -> None:
    """Warn of a feature that Triton 2.51 refuses and newer versions have, once per line of the model.

    Parameters
    ----------
    what : str
        The model's code.
    difference : str
        The section of ``docs/differences.md`` about it.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - no other way leads to the caller's line
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("nbtriton."):
        frame = frame.f_back
    warnings.warn_explicit(
        f"{what} needs a newer version of Triton: 2.51 refuses it (docs/differences.md: {difference})",
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


class TritonErrorCode(BoundEnum):
    """Triton's status codes, by the numbers of its C API."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


TritonErrorCode.__name__ = "__ErrorCode"  # its name in Triton's module


class TritonModelException(Exception):  # noqa: N818 - Triton's name
    """The exception of every call of this API; a model raises it to fail its batch."""


class TritonError:
    """The error of one response; not an exception.

    Parameters
    ----------
    message : str
    code : TritonError.UNKNOWN, .INTERNAL, …, optional
    """

    __slots__ = ("_code", "_message")

    UNKNOWN = TritonErrorCode.UNKNOWN
    INTERNAL = TritonErrorCode.INTERNAL
    NOT_FOUND = TritonErrorCode.NOT_FOUND
    INVALID_ARG = TritonErrorCode.INVALID_ARG
    UNAVAILABLE = TritonErrorCode.UNAVAILABLE
    UNSUPPORTED = TritonErrorCode.UNSUPPORTED
    ALREADY_EXISTS = TritonErrorCode.ALREADY_EXISTS
    CANCELLED = TritonErrorCode.CANCELLED

    def __init__(self, message: str, code: TritonErrorCode = TritonErrorCode.INTERNAL) -> None:
        self._message = as_text(message)
        if not isinstance(code, TritonErrorCode):
            raise incompatible("", "code: TritonError.INTERNAL or the like", code)
        self._code = code

    def message(self) -> str:
        """Return the text."""
        return self._message

    def code(self) -> TritonErrorCode:
        """Return the status code."""
        return self._code

    def __str__(self) -> str:
        return self._message

    def __repr__(self) -> str:
        return f"TritonError({self._message!r}, {self._code.name})"


def as_engine_error(error: TritonError) -> errors.TritonError:
    """Return the engine's error of the same status and text."""
    return errors.error_from_status(error.code().name, error.message())


class MemoryType(BoundEnum):
    """The kind of memory of a tensor."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class PreferredMemory:
    """The preferred memory of the outputs of a call to another model."""

    __slots__ = ("device_id", "memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        if not isinstance(preferred_memory_type, MemoryType):
            expected = "preferred_memory_type: TRITONSERVER_MEMORY_CPU or TRITONSERVER_MEMORY_GPU"
            raise incompatible("", expected, preferred_memory_type)
        self.memory_type = preferred_memory_type
        self.device_id = index(preferred_device_id)


def place(array: Array, preferred: PreferredMemory) -> Array:
    """Return an array in the preferred memory."""
    if preferred.memory_type is MemoryType.TRITONSERVER_MEMORY_CPU:
        return to_numpy(array) if is_on_device(array) else array
    # Without a GPU everything is in host memory, as in Triton's CPU builds.
    try:
        import torch
    except ImportError:
        return array
    if is_on_device(array) or not torch.cuda.is_available():
        return array
    return to_torch(array, f"cuda:{preferred.device_id}")


class LogLevel(BoundEnum):
    """Triton's log levels."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


_LEVELS = {
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.VERBOSE: logging.DEBUG,
}


class Logger:
    """Logs to the Python logger ``nbtriton.model.<name>``; VERBOSE is its DEBUG level."""

    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    def __init__(self) -> NoReturn:
        raise TypeError("c_python_backend_utils.Logger: No constructor defined!")

    @staticmethod
    def log(message: str, level: LogLevel = LogLevel.INFO) -> None:
        """Log a line at a level."""
        if not isinstance(level, LogLevel):
            raise incompatible("log", "level: LogLevel", level)
        _write(message, level)

    @staticmethod
    def log_info(message: str) -> None:
        """Log a line of information."""
        _write(message, LogLevel.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log a warning."""
        _write(message, LogLevel.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        """Log an error."""
        _write(message, LogLevel.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log a line that is dropped unless the logger's level is DEBUG."""
        _write(message, LogLevel.VERBOSE)


# Set in the class body, the name would hide the type in its annotations.
Logger.LogLevel = LogLevel  # type: ignore[attr-defined]


def _write(message: str, level: LogLevel) -> None:
    running = current()
    name = running.model_name if running is not None else "model"
    # 3: this function and its caller are not the model.
    logging.getLogger(f"nbtriton.model.{name}").log(
        _LEVELS[level], "%s", as_text(message), stacklevel=3
    )
