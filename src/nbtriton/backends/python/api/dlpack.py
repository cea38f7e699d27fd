"""Arrays of other libraries by DLPack: from capsules, and from objects with ``__dlpack__``."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from nbtriton.backends.python.api.pybind import TritonModelException
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.common.packages import needed
from nbtriton.model.tensors import Array, datatype_of, is_on_device, kind_of

CPU = 1  # kDLCPU
_OF_NUMPY = (0, 1, 2, 5, 6)  # kDLInt, kDLUInt, kDLFloat, kDLComplex, kDLBool


def from_dlpack(source: Any) -> Array:
    """Return the array in a capsule or behind ``__dlpack__``, in the same memory.

    A numpy array for data in host memory with a datatype of numpy's, else torch's or the library's own.

    Raises
    ------
    TritonModelException
        The value is neither of the two, the capsule was used, or the tensor is not contiguous in C order.
    UnsupportedError
        Torch is needed and not installed.
    """
    if type(source).__name__ == "PyCapsule":
        capsule = _Capsule(source)
        if capsule.on_host and capsule.type_code in _OF_NUMPY:
            array = np.from_dlpack(capsule)
            _check_contiguous(bool(array.flags.c_contiguous))
            return np.asarray(_Writable(array))
        return _from_torch(source)
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
        pass  # an unknown library: through the protocol itself
    device_type = int(source.__dlpack_device__()[0])
    if device_type == CPU:
        return np.from_dlpack(source)
    return _from_torch(source)


class _Capsule:
    """A capsule as an object of DLPack's protocol, for NumPy."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule
        try:
            address = _pointer(capsule, b"dltensor")
        except ValueError:
            raise TritonModelException(_USED) from None
        # DLTensor: void *data, int32 device_type, int32 device_id, int32 ndim, uint8 code, uint8 bits, …
        self._device = tuple((ctypes.c_int32 * 2).from_address(address + _POINTER))
        self.type_code = ctypes.c_uint8.from_address(address + _POINTER + 12).value

    @property
    def on_host(self) -> bool:
        return bool(self._device[0] == CPU)

    def __dlpack__(self, **_options: object) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, ...]:
        return self._device


class _Writable:
    """The memory of an array that NumPy shows as read-only since the capsule does not say."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        self.__array_interface__ = {
            **array.__array_interface__, "data": (array.ctypes.data, False),
        }  # fmt: skip


_POINTER = ctypes.sizeof(ctypes.c_void_p)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_USED = "from_dlpack needs an unused capsule named 'dltensor'."


def _from_torch(source: Any) -> Array:
    """Import by torch, which reads capsules of all devices and datatypes."""
    with needed("from_dlpack of a capsule, or of a tensor on a GPU,"):
        from torch.utils.dlpack import from_dlpack
    try:
        tensor = from_dlpack(source)
    except RuntimeError:
        raise TritonModelException(_USED) from None
    _check_contiguous(tensor.is_contiguous())
    on_host = not is_on_device(tensor) and datatype_of(tensor) != "BF16"
    return tensor.numpy() if on_host else tensor


def _check_contiguous(contiguous: bool) -> None:
    if not contiguous:
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in "
            "C-Order are supported."
        )
