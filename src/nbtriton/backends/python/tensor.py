"""`pb_utils.Tensor`: a named array, as a model sees it."""

# ruff: noqa: SLF001 - the public names of these classes are Triton's own, the others are ours
from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterable, Sequence
from sys import getrefcount
from typing import Any, Protocol

import numpy as np

from nbtriton.backends.python.errors import TritonModelException
from nbtriton.backends.python.text import as_text
from nbtriton.backends.synchronize import wait_for_outputs
from nbtriton.errors import InvalidArgumentError, UnsupportedError
from nbtriton.tensors import (
    Array,
    as_bytes_array,
    datatype_number,
    datatype_of,
    is_on_device,
    kind_of,
    to_numpy,
    to_torch,
)

__all__ = ["Tensor", "own_outputs", "wire_array"]

_CPU = 1  # kDLCPU
_NO_STRINGS = "DLPack does not have support for string tensors."
_NO_BF16 = (
    "Tensor dtype is BF16 and cannot be converted to NumPy. "
    "Use to_dlpack() and from_dlpack() instead."
)


class Tensor:
    """A named tensor.

    Parameters
    ----------
    name : str
    numpy_array : numpy.ndarray
        Used as it is, not copied. For BYTES an object or ``S`` array.

    Raises
    ------
    TypeError
        Not a numpy array (other libraries' arrays: `from_dlpack`).
    TritonModelException
        A dtype that Triton does not have.
    """

    __slots__ = ("_array", "_name")

    def __init__(self, name: str, numpy_array: np.ndarray[Any, Any]) -> None:
        if not isinstance(numpy_array, np.ndarray):
            raise TypeError(
                "__init__(): incompatible constructor arguments. Expected Tensor(name: str, "
                f"numpy_array: numpy.ndarray), found type {type(numpy_array).__name__}"
            )
        try:
            datatype_of(numpy_array)
        except InvalidArgumentError:
            raise TritonModelException("NumPy dtype is not supported.") from None
        self._name = name if type(name) is str else as_text(name)
        self._array: Array = numpy_array

    @classmethod
    def _wrap(cls, name: str, array: Array) -> Tensor:
        """Make a tensor of any kind of array that is known to be good."""
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._array = array
        return tensor

    @staticmethod
    def from_dlpack(name: str, tensor: object) -> Tensor:
        """Make a tensor from a DLPack capsule or an object with ``__dlpack__``, without a copy."""
        return Tensor._wrap(as_text(name), _import(tensor))

    def name(self) -> str:
        """Return the tensor's name."""
        return self._name

    def as_numpy(self) -> np.ndarray[Any, Any]:
        """Return the data as a writable numpy array: the tensor's own memory where that is writable.

        Raises
        ------
        TritonModelException
            The tensor is on a GPU, or BF16.
        """
        array = self._array
        if type(array) is not np.ndarray:
            if is_on_device(array):
                raise TritonModelException(
                    "Tensor is stored in GPU and cannot be converted to NumPy."
                )
            if datatype_of(array) == "BF16":
                raise TritonModelException(_NO_BF16)
            array = self._array = to_numpy(array)
        elif array.dtype.kind == "V" and datatype_of(array) == "BF16":
            raise TritonModelException(_NO_BF16)
        if not array.flags.writeable:
            # Models may work in place, and whoever made this array read-only relies on it.
            array = self._array = array.copy()
        return array

    def shape(self) -> list[int]:
        """Return the shape."""
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        """Return the number of the datatype, as `triton_to_numpy_type` takes it."""
        return datatype_number(datatype_of(self._array))

    def is_cpu(self) -> bool:
        """Return True if the data is in host memory."""
        return not is_on_device(self._array)

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule of the same memory."""
        return self.__dlpack__()

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        array = self._array
        if isinstance(array, np.ndarray):
            if array.dtype.kind in "OS":
                raise TritonModelException(_NO_STRINGS)
            if array.dtype.kind == "V":
                array = to_torch(array)
            elif not array.flags.writeable:
                array = self.as_numpy()
        return array.__dlpack__(stream=stream, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        if isinstance(self._array, np.ndarray):
            return (_CPU, 0)
        kind, index = self._array.__dlpack_device__()
        return (int(kind), int(index))

    def __repr__(self) -> str:
        return f"Tensor({self._name!r}, {datatype_of(self._array)}, {self.shape()})"


def wire_array(array: Array) -> Array:
    """Return the array as it leaves the model: BYTES of any form as an object array of `bytes`."""
    if type(array) is np.ndarray and array.dtype.kind in "OS":
        return as_bytes_array(array)
    return array


class Holder(Protocol):
    """Something of ours that refers to arrays which a model may send, and leaves them alone."""

    def count_references(self, counts: dict[int, int]) -> None:
        """Add the references to each array, by its id.

        A `Tensor` that holds one of them is entered with 1: sent itself, it is no further reference.
        """
        ...


def own_outputs(tensors: Sequence[Tensor], holders: Iterable[Holder] = ()) -> None:
    """Make outputs fit to leave the model: nobody else writes to them, and they are all written.

    In Triton outputs leave the process, so a model may send a buffer that it reuses, or its input.
    Here they are handed over as they are; the reference counts tell when that is not safe, and
    then a numpy array is copied. Call it when ``execute`` has returned and its local variables are
    gone. Tensors of other libraries have counts of their own and are not copied; those on a GPU
    are waited for.

    Parameters
    ----------
    tensors : sequence of Tensor
    holders : iterable of Holder
        What refers to arrays and shall not touch them again: a model that passes an input on
        shares it with nobody else.
    """
    for tensor in tensors:
        array = tensor._array
        if (
            type(array) is not np.ndarray
            or array.base is not None
            or getrefcount(array) > _ARRAY_COUNT
        ):
            array = None
            _look_closer(tensors, holders)
            return


def _look_closer(tensors: Sequence[Tensor], holders: Iterable[Holder]) -> None:
    views: list[Tensor] = []
    others: list[Tensor] = []
    foreign: list[Array] = []
    for tensor in tensors:
        array = tensor._array
        if type(array) is not np.ndarray:
            foreign.append(array)
        elif getrefcount(array) > _ARRAY_COUNT:
            others.append(tensor)
        elif array.base is not None:
            views.append(tensor)
    if foreign:
        wait_for_outputs(foreign)
    array = None
    if others:
        ours: dict[int, int] = {}
        for holder in holders:
            holder.count_references(ours)
        for tensor in others:
            array = tensor._array
            held = ours.get(id(array), 0) - ours.get(id(tensor), 0)
            if getrefcount(array) > _ARRAY_COUNT + held:
                tensor._array = array.copy()
            elif array.base is not None:
                views.append(tensor)
        array = None
    if views:
        _own_views(views)


def _own_views(tensors: Sequence[Tensor]) -> None:
    """Copy those views whose base somebody else refers to; those of one batch share theirs."""
    bases = Counter([id(tensor._array.base) for tensor in tensors])
    shared = [
        tensor
        for tensor in tensors
        if _base_count(tensor) > _BASE_COUNT + bases[id(tensor._array.base)] - 1
    ]
    for tensor in shared:
        tensor._array = tensor._array.copy()


def _base_count(tensor: Tensor) -> int:
    base = tensor._array.base
    return getrefcount(base)


def _array_count() -> int:
    tensor = Tensor._wrap("", np.empty(1))
    array = tensor._array
    return getrefcount(array)


# Measured, because interpreters differ in how many references a call itself holds.
_ARRAY_COUNT = _array_count()
_BASE_COUNT = _base_count(Tensor._wrap("", np.empty(1)[:]))


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


def _import(source: Any) -> Array:
    if isinstance(source, Tensor):
        return source._array
    if isinstance(source, np.ndarray):
        return Tensor("", source)._array
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
    array = np.from_dlpack(source) if device_type == _CPU else _torch_from_dlpack(source)
    return _import(array)


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
    if head.device_type != _CPU or head.dtype_code == _DL_BFLOAT:
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
