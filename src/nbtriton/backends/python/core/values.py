"""`pb_utils.Tensor` and `pb_utils.InferenceResponse`, and how they leave a model as the engine's response."""

# ruff: noqa: SLF001 - the public names of these classes are Triton's own, the others are ours
from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from nbtriton.backends.base import BackendRequest, Response
from nbtriton.backends.compiling import mypyc_attr
from nbtriton.backends.python.api.dlpack import CPU, from_dlpack
from nbtriton.backends.python.api.pybind import (
    TritonError,
    TritonModelException,
    as_engine_error,
    as_text,
    incompatible,
    warn_newer,
)
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.model.tensors import (
    Array,
    as_bytes_array,
    copy_of,
    datatype_number,
    datatype_of,
    is_on_device,
    to_numpy,
    to_torch,
)

# Final: rule 13 of docs/compiled.md.
_ndarray: Final = np.ndarray

_NO_NAME = "Tensor name cannot be an empty string."
_NO_STRINGS = "DLPack does not have support for string tensors."
_NO_BF16 = (
    "Tensor dtype is BF16 and cannot be converted to NumPy. "
    "Use to_dlpack() and from_dlpack() instead."
)


@mypyc_attr(allow_interpreted_subclasses=True, serializable=True)
class Tensor:
    """A named tensor.

    Parameters
    ----------
    name : str
    numpy_array : numpy.ndarray
        Used without a copy if it is contiguous in C order, else copied. For BYTES an object or ``S`` array.

    Raises
    ------
    TypeError
        Not a numpy array (other libraries' arrays: `from_dlpack`).
    TritonModelException
        An empty name, or a dtype that Triton does not have.
    """

    __slots__ = ("_array", "_name")

    # Triton accepts neither by keyword under these names. The compiled core accepts every parameter by its
    # name despite the "/"; hence pybind11's names.
    def __init__(self, arg0: str | bytes, arg1: np.ndarray[Any, Any], /) -> None:
        name, numpy_array = arg0, arg1
        if not isinstance(numpy_array, _ndarray):
            raise incompatible("", "Tensor(name: str, numpy_array: numpy.ndarray)", numpy_array)
        if not name:
            raise TritonModelException(_NO_NAME)
        try:
            datatype_of(numpy_array)
        except InvalidArgumentError:
            raise TritonModelException("NumPy dtype is not supported.") from None
        self._name = name if type(name) is str else as_text(name)
        self._array: Array = (
            numpy_array if numpy_array.flags.c_contiguous else np.ascontiguousarray(numpy_array)
        )

    @classmethod
    def _wrap(cls, name: str, array: Array) -> Tensor:
        """Make a tensor of any kind of array, without validation."""
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._array = array
        return tensor

    @staticmethod
    def from_dlpack(name: str | bytes, tensor: object) -> Tensor:
        """Make a tensor from a DLPack capsule or an object with ``__dlpack__``, without a copy."""
        if not name:
            raise TritonModelException(_NO_NAME)
        if isinstance(tensor, Tensor):
            return Tensor._wrap(as_text(name), tensor._array)
        array = tensor if isinstance(tensor, _ndarray) else from_dlpack(tensor)
        if isinstance(array, _ndarray):
            return Tensor(name, array)
        return Tensor._wrap(as_text(name), array)

    def name(self) -> str:
        """Return the tensor's name."""
        return self._name

    def as_numpy(self) -> np.ndarray[Any, Any]:
        """Return the data as a numpy array: the tensor's own memory.

        The memory of an input belongs to the model, and is contiguous and writable; it is read-only if the
        configuration has the parameter READ_ONLY_INPUTS.

        Raises
        ------
        TritonModelException
            The tensor is on a GPU, or BF16.
        """
        array = self._array
        if type(array) is not _ndarray:
            if is_on_device(array):
                raise TritonModelException(
                    "Tensor is stored in GPU and cannot be converted to NumPy."
                )
            if datatype_of(array) == "BF16":
                raise TritonModelException(_NO_BF16)
            array = self._array = to_numpy(array)
        elif array.dtype.kind == "V" and datatype_of(array) == "BF16":
            raise TritonModelException(_NO_BF16)
        return array

    def shape(self) -> list[int]:
        """Return the shape."""
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        """Return the number of the datatype, an argument of `triton_to_numpy_type`."""
        return datatype_number(datatype_of(self._array))

    def is_cpu(self) -> bool:
        """Return True if the data is in host memory."""
        return not is_on_device(self._array)

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule of the same memory; of a copy if that is read-only."""
        return self.__dlpack__()

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        array = self._array
        if isinstance(array, _ndarray):
            if array.dtype.kind in "OS":
                raise TritonModelException(_NO_STRINGS)
            if array.dtype.kind == "V":
                array = to_torch(array)
            elif not array.flags.writeable:  # not expressible in a capsule
                array = array.copy()
        return array.__dlpack__(stream=stream, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        if isinstance(self._array, _ndarray):
            return (CPU, 0)
        kind, index = self._array.__dlpack_device__()
        return (int(kind), int(index))

    def __repr__(self) -> str:
        return f"Tensor({self._name!r}, {datatype_of(self._array)}, {self.shape()})"


def wire_array(array: Array) -> Array:
    """Return the array with BYTES of any form as an object array of `bytes`."""
    if type(array) is _ndarray:
        kind: str = array.dtype.kind
        if kind in ("O", "S"):
            return as_bytes_array(array)
    return array


def leaving(array: Array) -> Array:
    """Return an output for its receiver: a copy, as the model may reuse its own memory.

    It may keep the array and send it again, send one as two outputs, or a part of its input.
    """
    if type(array) is _ndarray and array.dtype.kind not in ("O", "S"):
        return array.copy()
    sent = wire_array(array)
    return sent if sent is not array else copy_of(array)


# Final: rule 13 of docs/compiled.md.
_new_tensor: Final = Tensor.__new__

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

    Outputs are not copied if the receiver copies them. Outputs that are not numpy arrays are added to
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
