"""Arrays of numpy, torch, CuPy and simulated GPUs: kind, datatype, shape, size, and conversions between them.

Everything here runs once or more per request, so the common case (numpy, a known dtype) takes one
dictionary look-up. The other libraries are used only if they have already been imported.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from nbtriton.common.errors import InternalError, InvalidArgumentError, UnsupportedError
from nbtriton.common.packages import needed
from nbtriton.model.tensors.datatypes import NUMPY_DTYPES, numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

# A numpy.ndarray, torch.Tensor, cupy.ndarray or array of a simulated GPU. Any: torch and CuPy may not be installed.
Array: TypeAlias = Any

# Final: rule 13 of docs/compiled.md.
_ndarray: Final = np.ndarray
# numpy dtypes from the start; torch's are added with the first torch tensor.
_BY_DTYPE: Final[dict[object, str]] = {dtype: name for name, dtype in NUMPY_DTYPES.items()}
# Types of arrays seen so far; those of torch and CuPy cannot be named here.
_BY_TYPE: Final[dict[type, str]] = {_ndarray: "numpy"}

# Kinds that are never on the host.
_ON_DEVICE: Final = ("cupy", "simulated")
# Up to this number of elements numpy copies an array without releasing the GIL.
_NUMPY_KEEPS_GIL: Final = 500
# Up to this number of bytes (0.1 ms) a copy ends long before a thread gives up the GIL (5 ms).
_JOINED_BYTES: Final = 1 << 20


def kind_of(array: Array) -> str:
    """Return ``"numpy"``, ``"torch"``, ``"cupy"`` or ``"simulated"``; InvalidArgumentError for anything else."""
    kind = kind_or_none(array)
    if kind is None:
        raise InvalidArgumentError(
            f"expected a numpy, torch or CuPy array, found type '{type(array).__name__}'"
        )
    return kind


def datatype_of(array: Array) -> str:
    """Return the protocol datatype of an array.

    Parameters
    ----------
    array : Array

    Returns
    -------
    str
        Such as ``"FP32"``; ``"BYTES"`` for numpy object and ``S`` arrays.

    Raises
    ------
    InvalidArgumentError
        It is not an array, or Triton has no such datatype (complex, ``U``, datetime, float8, …).
    """
    try:
        return _BY_DTYPE[array.dtype]
    except (AttributeError, KeyError, TypeError):
        return _datatype_of_rare(array)


def shape_of(array: Array) -> tuple[int, ...]:
    """Return the shape as a tuple of ints."""
    return tuple(array.shape)


def nbytes_of(array: Array) -> int:
    """Return the size in bytes; for BYTES the size of the serialized form."""
    if type(array) is _ndarray and array.dtype.kind == "O":
        return sum(4 + len(item) for item in array.flat)
    return int(array.nbytes)


def is_on_device(array: Array) -> bool:
    """Return True if the data is in GPU memory."""
    if type(array) is _ndarray:
        return False
    kind = kind_of(array)
    return kind in _ON_DEVICE or (kind == "torch" and array.device.type != "cpu")


def format_shape(shape: Sequence[int]) -> str:
    """Return a shape as Triton prints it: ``[1,4]``."""
    return "[" + ",".join(str(dim) for dim in shape) + "]"


def to_numpy(array: Array) -> np.ndarray[Any, Any]:
    """Return the array on the host as numpy; a view where no conversion is needed.

    Raises
    ------
    UnsupportedError
        BF16 without the ml_dtypes package.
    """
    if type(array) is _ndarray:
        return array
    kind = kind_of(array)
    if kind == "numpy":
        return np.asarray(array)
    if kind in _ON_DEVICE:
        return np.asarray(array.get())
    torch = sys.modules["torch"]
    if array.dtype is torch.bfloat16:
        return bits_of(array).view(numpy_dtype("BF16"))
    # One call instead of five (detach, cpu, ...), which take 18 us where torch's code is not in the
    # processor's cache: after a batch it is not.
    result: np.ndarray[Any, Any] = array.numpy(force=True)
    return result


def bits_of(array: Array) -> np.ndarray[Any, Any]:
    """Return a BF16 tensor on the host as INT16 of the same bits: NumPy itself has no such dtype."""
    if type(array) is _ndarray:
        return array.view(np.int16)
    bits: np.ndarray[Any, Any] = array.detach().view(sys.modules["torch"].int16).numpy(force=True)
    return bits


def of_bits(bits: np.ndarray[Any, Any]) -> Array:
    """Return the BF16 tensor of such integers in the same memory: torch's, or of ml_dtypes without torch."""
    try:
        import torch
    except ImportError:
        return bits.view(numpy_dtype("BF16"))
    return torch.from_numpy(bits).view(torch.bfloat16)


def to_torch(array: Array, device: Any = None) -> Any:
    """Return the array as a torch tensor; a view where no conversion is needed.

    Parameters
    ----------
    array : Array
    device : torch.device or str, optional
        Where the result is placed; by default it stays where it is.

    Raises
    ------
    UnsupportedError
        BYTES: torch has no strings.

    Notes
    -----
    A read-only numpy array is copied: torch tensors are always writable, and a model that works in
    place would change memory that its owner declared constant.
    """
    kind = kind_of(array)
    if kind == "torch":
        tensor = array
    elif kind == "cupy":
        from torch.utils.dlpack import from_dlpack

        tensor = from_dlpack(array)
    else:
        import torch

        tensor = _numpy_to_torch(torch, to_numpy(array))
    if device is not None and tensor.device != device:
        import torch

        place = torch.device(device)
        # Not to the host: the copy would be read before it is complete.
        tensor = tensor.to(place, non_blocking=place.type != "cpu")
    return tensor


def to_kind(array: Array, kind: str) -> Array:
    """Return the array as ``"numpy"``, ``"torch"`` or ``"cupy"``, without a copy if possible."""
    if kind == "numpy":
        return to_numpy(array)
    if kind == "torch":
        return to_torch(array)
    if kind == "simulated":
        return array  # arrays made by a model on the host stay there
    if kind != "cupy":
        raise InvalidArgumentError(f"unknown kind of array '{kind}'", hint="numpy, torch or cupy")
    with needed("a CuPy array"):
        import cupy

    found = kind_of(array)
    if found == "cupy":
        return array
    if found == "torch":
        return cupy.from_dlpack(array.detach().cuda())
    return cupy.asarray(to_numpy(array))


def copy_of(array: Array) -> Array:
    """Return a copy of the same kind on the same device, writable and contiguous in C order."""
    if type(array) is _ndarray:
        return array.copy()
    kind = kind_of(array)
    if kind == "torch":
        torch = sys.modules["torch"]
        return array.detach().clone(memory_format=torch.contiguous_format)
    if kind == "cupy":
        with array.device:  # it copies to the current one
            return array.copy(order="C")
    if kind == "simulated":
        return array.copy()
    return np.array(array, order="C")


def own(array: Array, owned: bool) -> Array:
    """Return memory that belongs to the model: writable, contiguous in C order.

    Parameters
    ----------
    array : Array
    owned : bool
        The caller has the only reference: a suitable array is not copied.
    """
    if type(array) is _ndarray:
        return array if owned and array.flags.carray else array.copy()
    return array if owned and _is_plain(array) else copy_of(array)


def read_only(array: Array) -> Array:
    """Return the same memory for a model that only reads it, contiguous in C order.

    A numpy array comes back as a view that cannot be written to. No other library has such arrays:
    theirs come back as they are. What is not contiguous, or not aligned, is copied.
    """
    if type(array) is not _ndarray:
        return array if _is_contiguous(array) else copy_of(array)
    flags = array.flags
    view = array.view() if flags.c_contiguous and flags.aligned else array.copy()
    view.setflags(write=False)
    return view


def gather(arrays: Sequence[Array]) -> Array:
    """Join arrays along axis 0.

    Parameters
    ----------
    arrays : sequence of Array
        At least one; the same shape apart from axis 0. One array is returned itself, uncopied.
        Arrays of several kinds become torch tensors, on the device of the first array that is on one.

    Raises
    ------
    InvalidArgumentError
        The shapes differ; the message names all of them.
    """
    if len(arrays) == 1:
        return arrays[0]
    try:
        if all(type(array) is _ndarray for array in arrays):
            return _gather_numpy(arrays)
        kinds = {kind_of(array) for array in arrays}
        if kinds == {"cupy"}:
            return sys.modules["cupy"].concatenate(arrays)
        if kinds in ({"numpy"}, {"simulated"}):
            return np.concatenate(arrays)
        return _gather_torch(arrays)
    except (ValueError, RuntimeError) as error:
        if "out of memory" in str(error):
            raise InternalError(str(error).partition("\n")[0]) from error
        shapes = ", ".join(format_shape(shape_of(array)) for array in arrays)
        raise InvalidArgumentError(
            f"cannot join tensors of shapes {shapes} into one batch",
            hint="all dimensions but the first must be equal",
        ) from error


def scatter(array: Array, sizes: Sequence[int]) -> list[Array]:
    """Split an array along axis 0 into views.

    Parameters
    ----------
    array : Array
    sizes : sequence of int
        Lengths of the parts; they add up to ``array.shape[0]``.

    Raises
    ------
    InvalidArgumentError
        They do not.
    """
    shape = array.shape
    if not shape or shape[0] != sum(sizes):
        raise InvalidArgumentError(
            f"cannot split a tensor of shape {format_shape(shape)} into batches of "
            f"{', '.join(map(str, sizes))}",
            hint=f"the first dimension must be {sum(sizes)}",
        )
    if len(sizes) == 1:
        return [array]
    if type(array) is not _ndarray and kind_of(array) == "torch":
        return list(array.split(sizes))  # of 64 parts 26 us, one by one 66
    views = []
    start = 0
    for size in sizes:
        views.append(array[start : start + size])
        start += size
    return views


def _is_plain(array: Array) -> bool:
    """Return True if an array of another library is writable and has the memory layout of a copy."""
    if not _is_contiguous(array):
        return False
    # An inference tensor, or one that wants a gradient, refuses to be changed in place.
    return kind_of(array) in _ON_DEVICE or not (array.is_inference() or array.requires_grad)


def _is_contiguous(array: Array) -> bool:
    """Return True if an array of another library is contiguous; False for a subclass of numpy's."""
    kind = kind_of(array)
    if kind == "torch":
        return bool(array.is_contiguous())
    return kind in _ON_DEVICE and bool(array.flags.c_contiguous)


def kind_or_none(array: object) -> str | None:
    """Return the kind of an array, None for anything else."""
    kind = _BY_TYPE.get(type(array))
    if kind is None and (kind := _kind_of_new(array)) is not None:
        _BY_TYPE[type(array)] = kind
    return kind


def add_kind(kind: str, array_type: type) -> None:
    """Name the kind of another type of arrays: that of simulated GPUs comes from an extension."""
    _BY_TYPE[array_type] = kind


def _kind_of_new(array: object) -> str | None:
    """Return the kind of an array of a type not seen so far; None if it is not an array."""
    if isinstance(array, _ndarray):
        return "numpy"
    torch = sys.modules.get("torch")
    # A module that is being imported is in sys.modules before it has its names.
    if torch is not None and isinstance(array, getattr(torch, "Tensor", ())):
        return "torch"
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, getattr(cupy, "ndarray", ())):
        return "cupy"
    return None


def _datatype_of_rare(array: Array) -> str:
    kind = kind_of(array)
    dtype = array.dtype
    name = None
    if kind == "torch":
        _add_torch_dtypes()
        name = _BY_DTYPE.get(dtype)
    elif dtype.kind == "S":
        name = "BYTES"
    elif dtype.name == "bfloat16":
        name = _BY_DTYPE[dtype] = "BF16"
    if name is None:
        hint = "encode the strings: array.astype(object)" if str(dtype).startswith("<U") else ""
        if not hint and kind == "numpy" and not dtype.isnative:
            hint = "make the byte order native: array.astype(array.dtype.newbyteorder('='))"
        raise InvalidArgumentError(f"dtype {dtype} has no Triton datatype", hint=hint)
    return name


def _add_torch_dtypes() -> None:
    torch = sys.modules["torch"]
    for name, dtype in NUMPY_DTYPES.items():
        if name != "BYTES":
            _BY_DTYPE[getattr(torch, dtype.name)] = name
    _BY_DTYPE[torch.bfloat16] = "BF16"


def _numpy_to_torch(torch: Any, array: np.ndarray[Any, Any]) -> Any:
    flags = array.flags
    kind = array.dtype.kind
    if kind in "OSU":
        raise UnsupportedError("torch has no string tensors", hint="keep BYTES tensors in numpy")
    if kind == "V" and array.dtype.name == "bfloat16":
        return _numpy_to_torch(torch, array.view(np.int16)).view(torch.bfloat16)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    elif not flags.writeable or (
        not flags.c_contiguous and any(stride < 0 for stride in array.strides)
    ):
        array = array.copy()
    return torch.from_numpy(array)


def _gather_numpy(arrays: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Join numpy arrays; medium-sized ones without releasing the GIL between them.

    `numpy.concatenate` releases it for each, and each time waits behind a thread that computes:
    64 rows took 5 to 60 ms beside one.
    """
    first = arrays[0]
    if first.size > _NUMPY_KEEPS_GIL and first.nbytes <= _JOINED_BYTES:
        try:
            (item,) = {array.shape[1:] for array in arrays}
            (dtype,) = {array.dtype for array in arrays}
            flat = bytearray().join(arrays)  # type: ignore[arg-type]  # buffers, unknown to its stubs
            return np.frombuffer(flat, dtype).reshape(-1, *item)
        except (TypeError, ValueError):  # of several dtypes, not contiguous, or not numbers
            pass
    return np.concatenate(arrays)


def _gather_torch(arrays: Sequence[Array]) -> Any:
    import torch

    tensors = [to_torch(array) for array in arrays]
    device = next((t.device for t in tensors if t.device.type != "cpu"), None)
    if device is not None:
        tensors = [to_torch(tensor, device) for tensor in tensors]
    return torch.cat(tensors)
