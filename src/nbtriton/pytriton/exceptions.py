"""PyTriton's errors, as errors of nbtriton: they carry Triton's status."""

from __future__ import annotations

from nbtriton.errors import TritonError

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
    """A name, tensor or result is not what it has to be."""

    status = "INVALID_ARG"


class PyTritonInvalidOperationError(PyTritonError):
    """The operation is not possible now, such as a second model of one name."""

    status = "ALREADY_EXISTS"


class PyTritonBadParameterError(PyTritonError):
    """A parameter has a value that cannot be."""

    status = "INVALID_ARG"


class PyTritonModelConfigError(PyTritonError):
    """The configuration of a model is wrong."""

    status = "INVALID_ARG"


class PyTritonUnrecoverableError(PyTritonError):
    """For an inference function to raise when it can answer no more: its Triton stops."""

    status = "INTERNAL"


class PyTritonRuntimeError(PyTritonError):
    """Any other error."""

    status = "INTERNAL"
