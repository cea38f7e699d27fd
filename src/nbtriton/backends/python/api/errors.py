"""`pb_utils.TritonError`, which is a value, and `pb_utils.TritonModelException`, which is raised."""

from __future__ import annotations

from nbtriton.backends.python.api.pybind import BoundEnum, as_text, incompatible
from nbtriton.common import errors

__all__ = ["TritonError", "TritonErrorCode", "TritonModelException", "as_engine_error"]


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
