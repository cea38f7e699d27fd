"""Arrays of other libraries by DLPack: from capsules, and from what makes them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from nbtriton.backends.python.api.errors import TritonModelException
from nbtriton.errors import InvalidArgumentError, UnsupportedError
from nbtriton.tensors import Array, kind_of

__all__ = ["CPU", "from_dlpack"]

CPU = 1  # kDLCPU


class _Capsule:
    """A DLPack capsule with the device that it says it is on."""

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        self._capsule = capsule
        self._device = device

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


class _Writable:
    """Memory of a capsule, which says nothing about writing: numpy errs on the safe side."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


class _DLManagedTensorHead(ctypes.Structure):
    """The first fields of DLManagedTensor in dlpack.h: all that is needed to know the device."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype_code", ctypes.c_uint8),
        ("dtype_bits", ctypes.c_uint8),
    )


_DL_BFLOAT = 4


def from_dlpack(source: Any) -> Array:
    """Return the array in a capsule or behind ``__dlpack__``, in the same memory.

    A numpy array where the data is in host memory and numpy knows the datatype, else torch's or
    the library's own.

    Raises
    ------
    TritonModelException
        Neither of the two, a used capsule, or a tensor that is not contiguous in C order.
    UnsupportedError
        Torch is needed and not installed.
    """
    if type(source).__name__ == "PyCapsule":
        return _import_capsule(source)
    if not hasattr(source, "__dlpack__"):
        raise TritonModelException(
            f"from_dlpack needs a DLPack capsule or an object with __dlpack__, "
            f"found type {type(source).__name__}"
        )
    try:
        if kind_of(source) == "torch":
            _check_contiguous(source.is_contiguous())
            return source.detach()
        _check_contiguous(bool(source.flags.c_contiguous))
        return source
    except InvalidArgumentError:
        pass  # a library that nbtriton does not know: through the protocol itself
    device_type = int(source.__dlpack_device__()[0])
    if device_type == CPU:
        return np.from_dlpack(source)
    return from_dlpack(_torch_from_dlpack(source))


def _import_capsule(capsule: Any) -> Array:
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    try:
        address = get_pointer(capsule, b"dltensor")
    except ValueError:
        raise TritonModelException(
            "from_dlpack needs an unused capsule named 'dltensor'."
        ) from None
    head = _DLManagedTensorHead.from_address(address)
    if head.device_type != CPU or head.dtype_code == _DL_BFLOAT:
        array = _torch_from_dlpack(capsule)
        _check_contiguous(array.is_contiguous())
        return array
    array = np.from_dlpack(_Capsule(capsule, (head.device_type, head.device_id)))
    _check_contiguous(array.flags.c_contiguous)
    return array if array.flags.writeable else np.asarray(_Writable(array))


def _torch_from_dlpack(source: Any) -> Array:
    try:
        from torch.utils.dlpack import from_dlpack
    except ImportError:
        raise UnsupportedError("tensors on a GPU and BF16 tensors need torch") from None
    return from_dlpack(source)


def _check_contiguous(contiguous: bool) -> None:
    if not contiguous:
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in "
            "C-Order are supported."
        )
