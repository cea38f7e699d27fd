"""`pb_utils.InferenceResponse`, and its conversion to the engine's response."""

# ruff: noqa: SLF001 - the public names of these classes are Triton's own, the others are ours
from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from nbtriton.backends.base import BackendRequest, Response
from nbtriton.backends.compiling import mypyc_attr
from nbtriton.backends.python.api.errors import TritonError, TritonModelException, as_engine_error
from nbtriton.backends.python.api.pybind import incompatible, warn_newer
from nbtriton.backends.python.core.tensor import Tensor, leaving
from nbtriton.model.tensors import Array

__all__ = [
    "COMPACT",
    "InferenceResponse",
    "answer_of",
    "check_parameters",
    "to_engine_response",
]

# Final: rule 13 of docs/compiled.md.
_new_tensor: Final = Tensor.__new__
_ndarray: Final = np.ndarray

# Triton's JSON form of parameters, for models that compare the text.
COMPACT = (",", ":")


@mypyc_attr(allow_interpreted_subclasses=True, serializable=True)
class InferenceResponse:
    """The response to one request.

    Parameters
    ----------
    output_tensors : sequence of Tensor
    error : TritonError, optional
        Fails this request alone; the tensors are then ignored.
    parameters : dict, optional
        bool, int or str values by name. Newer versions of Triton have it, 2.51 refuses it.
    """

    __slots__ = ("_error", "_output_tensors", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> None:
        given: Sequence[Any] = output_tensors  # of any type: models are not typed
        if type(given) is not list and isinstance(given, (set, Iterator)):
            raise incompatible("", "a list of Tensor", given)
        for tensor in given:
            if tensor is None:
                raise TritonModelException(
                    "Output tensor for inference response should not be empty."
                )
            if not isinstance(tensor, Tensor):
                raise incompatible("", "a list of Tensor", tensor)
        if error is not None and not isinstance(error, TritonError):
            raise incompatible("", "error: TritonError", error)
        self._output_tensors = list(output_tensors)
        self._error = error
        self._parameters: Mapping[str, bool | int | str] = {}
        if parameters is not None:
            warn_newer("pb_utils.InferenceResponse(parameters=…)", "response-parameters")
            self._parameters = check_parameters(parameters)

    def output_tensors(self) -> list[Tensor]:
        """Return the tensors."""
        return self._output_tensors

    def has_error(self) -> bool:
        """Return True if the request failed."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error or None."""
        return self._error

    def parameters(self) -> str:
        """Return the response parameters as JSON."""
        return json.dumps(dict(self._parameters), separators=COMPACT)


def answer_of(
    outputs: Mapping[str, Array], parameters: Mapping[str, bool | int | str]
) -> InferenceResponse:
    """Return the response of another model from valid arrays and parameters."""
    tensors: list[Tensor] = []
    for name, array in outputs.items():
        # Tensor._wrap, inlined: this is on the path of every call of another model.
        tensor = _new_tensor(Tensor)
        tensor._name = name
        tensor._array = array
        tensors.append(tensor)
    response = InferenceResponse.__new__(InferenceResponse)
    response._output_tensors = tensors
    response._error = None
    response._parameters = parameters
    return response


def to_engine_response(
    response: InferenceResponse, request: BackendRequest, foreign: list[Array]
) -> Response:
    """Return the engine's form of a response: copies of the requested outputs, or the error alone.

    Outputs are not copied if the receiver copies them. Outputs that are no numpy arrays are added to
    `foreign`: a GPU may still have to write them.
    """
    if response._error is not None:
        return Response(error=as_engine_error(response._error), parameters=response._parameters)
    requested = request.requested_outputs
    copied = request.copies_outputs
    outputs: dict[str, Array] = {}
    for tensor in response._output_tensors:
        name = tensor._name
        if name in requested and name not in outputs:  # the first of a name, which clients read
            outputs[name] = array = tensor._array if copied else leaving(tensor._array)
            if type(array) is not _ndarray:
                foreign.append(array)
    return Response(outputs, None, response._parameters)


def check_parameters(parameters: Any) -> dict[str, Any]:
    """Return a copy of request or response parameters, or raise TritonModelException with Triton's texts."""
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect N8pybind114dictE, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(
                f"Expect parameters keys to have type str, found type {type(key)}"
            )
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}"
            )
    return dict(parameters)
