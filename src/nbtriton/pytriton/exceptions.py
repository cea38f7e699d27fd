"""PyTriton's errors, as nbtriton's errors with Triton's status."""

from __future__ import annotations

from nbtriton.common.errors import TritonError

__all__ = [
    "PyTritonBadParameterError",
    "PyTritonError",
    "PyTritonInvalidOperationError",
    "PyTritonModelConfigError",
    "PyTritonRuntimeError",
    "PyTritonUnrecoverableError",
    "PyTritonValidationError",
]


class PyTritonError(TritonError):
    """Base of PyTriton's errors."""


class PyTritonValidationError(PyTritonError):
    """A name, tensor or result is invalid."""

    status = "INVALID_ARG"


class PyTritonInvalidOperationError(PyTritonError):
    """The operation is not possible now, such as a second model of one name."""

    status = "ALREADY_EXISTS"


class PyTritonBadParameterError(PyTritonError):
    """A parameter has an invalid value."""

    status = "INVALID_ARG"


class PyTritonModelConfigError(PyTritonError):
    """The configuration of a model is invalid."""

    status = "INVALID_ARG"


class PyTritonUnrecoverableError(PyTritonError):
    """Raised by an inference function that can no longer run: its Triton stops."""

    status = "INTERNAL"


class PyTritonRuntimeError(PyTritonError):
    """Any other error."""

    status = "INTERNAL"
