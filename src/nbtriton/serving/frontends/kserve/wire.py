"""Tensors of a client as arrays, and outputs as bytes, for every protocol.

Arrays view the client's bytes where possible. Datatype, shape and size are checked against the bytes
before memory is allocated.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from nbtriton.common.errors import (
    InternalError,
    InvalidArgumentError,
    TritonError,
    UnsupportedError,
)
from nbtriton.common.packages import needed
from nbtriton.model import tensors

if TYPE_CHECKING:
    from nbtriton.runtime.engine import ModelSignature
    from nbtriton.serving.frontends.kserve.shared_memory import Lease

# Datatypes whose bytes numpy can view.
DTYPES = {
    name: tensors.numpy_dtype(name) for name in tensors.DATATYPES if name not in ("BYTES", "BF16")
}
# Or a torch tensor of bytes, for shared memory on a GPU.
Data = bytes | memoryview | np.ndarray[Any, Any] | Any

_LENGTH_SIZE = 4
# Limit of the elements of a BYTES tensor: freeing that many objects takes 80 ms, in which no other thread runs.
MOST_STRINGS = 1 << 22
# A numpy array has no more dimensions.
_MOST_DIMENSIONS = 64
_HUGE = 1 << 64


class BrokenStringError(InvalidArgumentError):
    """A string's length exceeds its bytes; in Triton only the model's backend notices."""


@dataclass(slots=True)
class WireInput:
    """One input tensor of a request.

    Parameters
    ----------
    name : str
        Name of the input.
    datatype : str
        As sent; may be unknown.
    shape : tuple of int
        As sent; not negative.
    data : bytes-like or list of bytes
        The tensor's bytes in the protocol's layout, or the elements of a BYTES tensor.
    label : str
        Name in messages about the size, if it differs.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Data | list[bytes]
    label: str = ""


_STOL = re.compile(r"\s*([+-]?\d+)")
_INT64_MAX = (1 << 63) - 1


def read_version(text: str) -> int:
    """Return a request's model version, -1 for none (KS9).

    Raises
    ------
    InvalidArgumentError
        The version is not a number, or negative.
    """
    if not text:
        return -1
    found = _STOL.match(text)
    # Python refuses to read thousands of digits.
    if found is None or len(found[1].lstrip("+-0")) > 19 or int(found[1]) > _INT64_MAX:
        raise InvalidArgumentError(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    version = int(found[1])
    if version < 0:  # 0 is refused too, but later, as in Triton
        raise InvalidArgumentError(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return version


def log_prefix(request_id: str) -> str:
    """Return the beginning of Triton's messages about one request."""
    return f"[request id: {request_id or '<id_unknown>'}] "


def duplicate_input(name: str, request_id: str) -> InvalidArgumentError:
    """Return the error of a request with two inputs of one name."""
    return InvalidArgumentError(f"{log_prefix(request_id)}input '{name}' already exists in request")


def element_count(shape: Sequence[int]) -> int:
    """Return Triton's number of elements of a shape: 0 for no dimensions."""
    return _product(shape) if shape else 0


def _product(shape: Sequence[int]) -> int:
    """Return the product of dimensions, up to 2^64: there may be a million of them."""
    if len(shape) <= _MOST_DIMENSIONS:
        return math.prod(shape)
    found = 0 if 0 in shape else 1
    for dim in shape:
        found = min(found * dim, _HUGE)
    return found


def check_strings(count: int) -> None:
    """Check the number of elements of a BYTES tensor; raises InvalidArgumentError."""
    if count > MOST_STRINGS:
        raise InvalidArgumentError(f"a BYTES tensor has more than {MOST_STRINGS} elements")


def arrays_of(
    signature: ModelSignature,
    inputs: Sequence[WireInput],
    *,
    request_id: str = "",
    outputs: Sequence[str] = (),
) -> dict[str, tensors.Array]:
    """Return the inputs as arrays that view the client's bytes.

    Parameters
    ----------
    signature : ModelSignature
        Signature of the model, for messages only: the engine checks the arrays again.
    inputs : sequence of WireInput
        With different names.
    request_id : str
    outputs : sequence of str
        Requested outputs: an unknown output is the first error, as in Triton.

    Raises
    ------
    InvalidArgumentError
        The bytes do not match datatype and shape, with Triton's text. An error of the engine about
        datatype or shape comes first, as in Triton.
    """
    arrays: dict[str, tensors.Array] = {}
    for tensor in inputs:
        dtype = DTYPES.get(tensor.datatype)
        data = tensor.data
        if dtype is not None and not isinstance(data, list):
            size = len(data) if isinstance(data, bytes) else data.nbytes
            if _product(tensor.shape) * dtype.itemsize == size:
                arrays[tensor.name] = _view(tensor.shape, dtype, data)
                continue
        try:
            array = None if dtype is not None else _rare(tensor)
        except TritonError:  # also a ValueError
            raise
        except ValueError:
            raise _too_large(tensor.shape) from None
        if array is None:
            _refuse(signature, inputs, request_id, outputs)
        arrays[tensor.name] = array
    return arrays


def _view(shape: tuple[int, ...], dtype: np.dtype[Any], data: Data) -> tensors.Array:
    try:
        if type(data) is np.ndarray:
            return data.reshape(shape)
        if _is_device(data):
            return _device_view(shape, dtype, data)
        if dtype.kind == "b":
            # Any byte except 0 is true; numpy's bool is defined only for 0 and 1.
            return np.ndarray(shape, np.uint8, data) != 0
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, data)
    except (
        ValueError
    ):  # an empty shape with a dimension beyond numpy's limit, or too many dimensions
        raise _too_large(shape) from None
    return array if array.flags.aligned else array.copy()


def _is_device(data: object) -> bool:
    return not isinstance(data, bytes | memoryview | np.ndarray | list)


def _device_view(shape: tuple[int, ...], dtype: np.dtype[Any], data: Any) -> tensors.Array:
    """Return bytes on a GPU as a tensor; torch's types have numpy's names."""
    torch = sys.modules["torch"]
    if dtype.kind == "b":
        return (data != 0).reshape(shape)
    if data.data_ptr() % dtype.itemsize:
        data = data.clone()
    return data.view(getattr(torch, dtype.name)).reshape(shape)


def _rare(tensor: WireInput) -> tensors.Array | None:
    """Return an array of BYTES or BF16; None if the bytes do not fit the shape."""
    count = _product(tensor.shape)
    if _is_device(tensor.data):
        data: Any = tensor.data
        if tensor.datatype == "BF16" and data.nbytes == count * 2:
            return data.clone().view(sys.modules["torch"].bfloat16).reshape(tensor.shape)
        # BYTES become Python objects on the host.
        host = data.cpu().numpy().data
        return _rare(WireInput(tensor.name, tensor.datatype, tensor.shape, host, tensor.label))
    if tensor.datatype == "BYTES":
        return _bytes_array(tensor, count)
    if tensor.datatype == "BF16" and not isinstance(tensor.data, list):
        raw = np.frombuffer(tensor.data, np.int16) if _size(tensor.data) == count * 2 else None
        if raw is None:
            return None
        try:
            return raw.view(tensors.numpy_dtype("BF16")).reshape(tensor.shape)
        except UnsupportedError:  # no ml_dtypes: only torch has BF16
            with needed("a BF16 tensor"):
                import torch

            return torch.from_numpy(raw.copy()).view(torch.bfloat16).reshape(tensor.shape)
    return None


def _bytes_array(tensor: WireInput, count: int) -> np.ndarray[Any, Any] | None:
    check_strings(count)
    if isinstance(tensor.data, list):
        if len(tensor.data) != count:
            return None
        array = np.empty(count, dtype=object)
        array[:] = tensor.data
    else:
        try:
            array = tensors.deserialize_bytes(_view_of(tensor.data), count)
        except InvalidArgumentError:
            return None
        if len(array) != count:
            return None
    return array.reshape(tensor.shape)


def _refuse(
    signature: ModelSignature, inputs: Sequence[WireInput], request_id: str, outputs: Sequence[str]
) -> NoReturn:
    """Raise the first error of datatype, shape or bytes."""
    by_name = {tensor.name: tensor for tensor in inputs}
    claims = {
        tensor.name: (
            tensor.datatype if tensor.datatype in tensors.DATATYPES else "<invalid>",
            tensor.shape,
        )
        for tensor in inputs
    }
    model = signature.name
    prefix = log_prefix(request_id)
    signature.faults.check(
        claims,
        outputs,
        request_id,
        lambda name, count: _check_bytes(by_name[name], count, model, prefix),
    )
    raise InvalidArgumentError(f"the inputs of a request to '{model}' could not be read")


def _check_bytes(tensor: WireInput, count: int, model: str, prefix: str) -> None:
    """Compare the bytes of an input with `count` elements of the model's datatype."""
    if tensor.datatype == "BYTES":
        _check_strings(tensor, count, model, prefix)
        return
    expected = count * (2 if tensor.datatype == "BF16" else DTYPES[tensor.datatype].itemsize)
    found = _size(tensor.data)
    if expected != found:
        raise InvalidArgumentError(
            f"{prefix}input byte size mismatch for input '{tensor.label or tensor.name}' for model "
            f"'{model}'. Expected {expected}, got {found}"
        )


def _view_of(data: Data) -> memoryview:
    if _is_device(data):
        device: Any = data
        data = device.cpu().numpy()
    return (data.data if isinstance(data, np.ndarray) else memoryview(data)).cast("B")


def _check_strings(tensor: WireInput, count: int, model: str, prefix: str) -> None:
    """Check a BYTES tensor as Triton does; raise the first error."""
    about = f"inference input '{tensor.label or tensor.name}'"
    data = tensor.data
    view = memoryview(b"") if isinstance(data, list) else _view_of(data)
    found = len(data) if isinstance(data, list) else 0
    offset = 0
    cut = ""
    while offset < len(view):
        if len(view) - offset < _LENGTH_SIZE:
            raise InvalidArgumentError(
                f"{prefix}incomplete string length indicator for {about} for model '{model}', "
                f"expecting {_LENGTH_SIZE} bytes but only {len(view) - offset} bytes available. "
                "Please make sure the string length indicator is in one buffer."
            )
        length = int.from_bytes(view[offset : offset + _LENGTH_SIZE], "little")
        offset += _LENGTH_SIZE
        found += 1
        if found > count:
            break
        if len(view) - offset < length:
            cut = (
                f"incomplete string data for {about}, expecting string of length {length} but "
                f"only {len(view) - offset} bytes available"
            )
        offset += length
    if found > count:
        raise InvalidArgumentError(
            f"{prefix}unexpected number of string elements {count + 1} for {about} for model "
            f"'{model}', expecting {count}"
        )
    if found < count:
        raise InvalidArgumentError(
            f"{prefix}expected {count} string elements for {about} for model '{model}', got {found}"
        )
    if cut:
        raise BrokenStringError(cut)


def _too_large(shape: Sequence[int]) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"shape {tensors.format_shape(shape)} has too many or too large dimensions"
    )


def _size(data: Data | list[bytes]) -> int:
    if isinstance(data, list):
        return sum(_LENGTH_SIZE + len(item) for item in data)
    return len(data) if isinstance(data, bytes) else data.nbytes


def raw_input(signature: ModelSignature, body: bytes | memoryview) -> WireInput:
    """Return the whole body as the only input of a model, with a deduced shape.

    Raises
    ------
    InvalidArgumentError
        The model has several inputs, or the shape cannot be deduced.
    """
    prefix = log_prefix("")
    if len(signature.inputs) != 1:
        raise InvalidArgumentError(
            f"{prefix}Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(signature.inputs)} inputs in '{signature.name}' model configuration"
        )
    (spec,) = signature.inputs.values()
    batch = (1,) if signature.max_batch_size > 0 else ()
    variable = spec.dims.count(-1)
    if variable > 1:
        raise InvalidArgumentError(
            f"{prefix}The shape of the raw input '{spec.name}' can not be deduced because there "
            "are more than one variable-sized dimension"
        )
    fixed = math.prod(dim for dim in spec.dims if dim != -1)
    if spec.datatype == "BYTES":
        if variable or fixed != 1:
            raise InvalidArgumentError(
                f"{prefix}For BYTE datatype raw input '{spec.name}', the model must have input "
                "shape [1]"
            )
        return WireInput(spec.name, "BYTES", (*batch, *spec.dims), [bytes(body)])
    size = 2 if spec.datatype == "BF16" else DTYPES[spec.datatype].itemsize
    rest = len(body) // fixed // size if fixed else 0
    shape = (*batch, *(rest if dim == -1 else dim for dim in spec.dims))
    return WireInput(spec.name, spec.datatype, shape, body, label="raw_input")


def wire_bytes(array: tensors.Array) -> bytes:
    """Return a copy of an output's bytes in the protocol's layout, from any device."""
    if type(array) is np.ndarray:
        return tensors.serialize_bytes(array) if array.dtype.kind in "OSU" else array.tobytes()
    if tensors.kind_of(array) == "torch" and tensors.datatype_of(array) == "BF16":
        return tensors.bits_of(array).tobytes()
    return tensors.to_numpy(array).tobytes()


def write_shared(lease: Lease, array: tensors.Array, name: str) -> None:
    """Write an output's bytes to the beginning of a shared-memory region.

    Parameters
    ----------
    lease : Lease
        Destination.
    array : array
        The output. Data on the same GPU is copied on the GPU.
    name : str
        Name of the output, for messages.

    Raises
    ------
    InternalError
        The region is too small.
    InvalidArgumentError
        The region no longer exists.
    """
    if lease.tensor is not None:
        _write_device(lease.tensor, array, name)
        return
    if type(array) is np.ndarray and array.dtype.kind not in "OSU":
        data: memoryview | bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    else:
        data = wire_bytes(array)
    size = len(data)
    _check_room(lease.byte_size, size, name)
    lease.write(data)


def _write_device(region: Any, array: tensors.Array, name: str) -> None:
    torch = sys.modules["torch"]
    if tensors.kind_of(array) == "torch":
        data = array.detach().contiguous().reshape(-1).view(torch.uint8)
    else:
        data = torch.frombuffer(bytearray(wire_bytes(array)), dtype=torch.uint8)
    _check_room(region.nbytes, data.nbytes, name)
    region[: data.nbytes].copy_(data)
    if region.is_cuda:  # the client may read it as soon as it has the response
        torch.cuda.synchronize(region.device)


def _check_room(room: int, size: int, name: str) -> None:
    if room < size:
        raise InternalError(
            f"shared memory size specified with the request for output '{name}' ({room} "
            f"bytes) should be at least {size} bytes to hold the results"
        )


# Returns the class labels of a model, version and output.
Labels: TypeAlias = Callable[[str, int, str], Sequence[str]]

# BYTES too, on which Triton crashes.
_UNSUPPORTED = ("BOOL", "FP16", "BF16", "BYTES")


def classify(
    array: tensors.Array, count: int, batches: bool, labels: Sequence[str]
) -> np.ndarray[Any, Any]:
    """Return the `count` largest values of each batch entry, largest first.

    Parameters
    ----------
    array : array
        The output; the first dimension is the batch if the model batches.
    count : int
        Number of classes; at most all are returned.
    batches : bool
    labels : sequence of str
        By class index; may be shorter than the output or empty.

    Returns
    -------
    numpy.ndarray of object, shape [batch, count] or [count]
        BYTES ``value:index`` or ``value:index:label``; equal values in order of index.

    Raises
    ------
    InvalidArgumentError
        The datatype has no order in Triton.
    """
    datatype = tensors.datatype_of(array)
    if datatype in _UNSUPPORTED:
        raise InvalidArgumentError(
            f"class result not available for output due to unsupported type '{datatype}'"
        )
    host = tensors.to_numpy(array)
    batch = host.shape[0] if batches and host.ndim else 0
    size = math.prod(host.shape[1:] if batch else host.shape)
    rows = host.reshape(max(1, batch), size)
    kept = min(count, size)
    # A stable descending sort without negation, which unsigned numbers do not have.
    best = size - 1 - np.argsort(rows[:, ::-1], axis=1, kind="stable")[:, ::-1][:, :kept]
    values = np.take_along_axis(rows, best, axis=1)
    write = "{:f}".format if rows.dtype.kind == "f" else str
    out = np.empty(values.shape, dtype=object)
    out.reshape(-1)[:] = [
        _entry(write(value), index, labels)
        for value, index in zip(values.ravel().tolist(), best.ravel().tolist(), strict=True)
    ]
    return out if batch else out[0]


def _entry(value: str, index: int, labels: Sequence[str]) -> bytes:
    label = labels[index] if index < len(labels) else ""
    text = f"{value}:{index}:{label}" if label else f"{value}:{index}"
    return text.encode()
