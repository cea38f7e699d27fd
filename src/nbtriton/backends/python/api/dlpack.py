"""Arrays of other libraries by DLPack: from capsules, and from objects with ``__dlpack__``."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbtriton.backends.python.api.errors import TritonModelException
from nbtriton.errors import InvalidArgumentError
from nbtriton.packages import needed
from nbtriton.tensors import Array, datatype_of, is_on_device, kind_of

__all__ = ["CPU", "from_dlpack"]

CPU = 1  # kDLCPU


def from_dlpack(source: Any) -> Array:
    """Return the array in a capsule or behind ``__dlpack__``, in the same memory.

    A numpy array for data in host memory with a datatype of numpy's, else torch's or the library's own.

    Raises
    ------
    TritonModelException
        Neither of the two, a used capsule, or a tensor that is not contiguous in C order.
    UnsupportedError
        Torch is needed and not installed.
    """
    if type(source).__name__ == "PyCapsule":
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


def _from_torch(source: Any) -> Array:
    """Import by torch, which reads capsules of all devices and datatypes."""
    with needed("from_dlpack of a capsule, or of a tensor on a GPU,"):
        from torch.utils.dlpack import from_dlpack
    try:
        tensor = from_dlpack(source)
    except RuntimeError:
        raise TritonModelException(
            "from_dlpack needs an unused capsule named 'dltensor'."
        ) from None
    _check_contiguous(tensor.is_contiguous())
    on_host = not is_on_device(tensor) and datatype_of(tensor) != "BF16"
    return tensor.numpy() if on_host else tensor


def _check_contiguous(contiguous: bool) -> None:
    if not contiguous:
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in "
            "C-Order are supported."
        )
