"""GPU memory of another process by its CUDA IPC handle, as a torch tensor of bytes.

The driver is called through ctypes: torch cannot open the raw handles that Triton's clients send.
The driver is loaded when a client first registers such memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from typing import Any

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.common.packages import needed

__all__ = ["HANDLE_BYTES", "open_cuda_memory"]

HANDLE_BYTES = 64
_LAZY_ENABLE_PEER_ACCESS = 1
_REFUSED = "failed to register shared memory region: invalid args"


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class _Mapping:
    """Mapped memory, viewed by torch without a copy; the last view unmaps it."""

    def __init__(self, pointer: int, byte_size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (byte_size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 2,
        }


def open_cuda_memory(raw_handle: bytes, device_id: int, byte_size: int) -> Any:
    """Map memory of another process.

    Parameters
    ----------
    raw_handle : bytes
        A ``cudaIpcMemHandle_t``.
    device_id : int
        GPU of the memory.
    byte_size : int
        Size of the view.

    Returns
    -------
    torch.Tensor
        Shape ``[byte_size]``, uint8, on that GPU. The tensor and its views keep the mapping.

    Raises
    ------
    InvalidArgumentError
        The GPU does not exist, the handle cannot be opened, or the memory is smaller.
    """
    if len(raw_handle) != HANDLE_BYTES or byte_size <= 0:
        raise InvalidArgumentError(_REFUSED)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise InvalidArgumentError(_REFUSED, hint="this machine has no NVIDIA driver") from None
    with needed("CUDA shared memory"):
        import torch

    count = torch.cuda.device_count()
    if not 0 <= device_id < count:
        raise InvalidArgumentError(
            _REFUSED, hint=f"this machine has {count} GPUs; device_id is {device_id}"
        )
    with torch.cuda.device(device_id):
        torch.cuda.current_stream().synchronize()  # creates the device's context
        pointer = _open(driver, raw_handle)
        try:
            size = _size(driver, pointer)
            if byte_size > size:
                raise InvalidArgumentError(
                    _REFUSED, hint=f"byte_size is {byte_size}, the memory has {size} bytes"
                )
            mapping = _Mapping(pointer, byte_size)
        except BaseException:
            driver.cuIpcCloseMemHandle(ctypes.c_uint64(pointer))
            raise
        weakref.finalize(mapping, _close, driver, device_id, pointer)
        return torch.as_tensor(mapping, device=f"cuda:{device_id}")


def _open(driver: Any, raw_handle: bytes) -> int:
    pointer = ctypes.c_uint64()
    handle = _Handle.from_buffer_copy(raw_handle)
    driver.cuIpcOpenMemHandle_v2.argtypes = (
        ctypes.POINTER(ctypes.c_uint64),
        _Handle,
        ctypes.c_uint,
    )
    status = driver.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), handle, _LAZY_ENABLE_PEER_ACCESS)
    if status:
        raise InvalidArgumentError(_REFUSED, hint=f"the driver refuses the handle: error {status}")
    return pointer.value


def _size(driver: Any, pointer: int) -> int:
    """Return the number of bytes from an address to the end of its allocation."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    status = driver.cuMemGetAddressRange_v2(
        ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer)
    )
    return 0 if status else base.value + size.value - pointer


def _close(driver: Any, device_id: int, pointer: int) -> None:
    import torch

    # At the interpreter's end the driver may be unloaded already.
    with contextlib.suppress(RuntimeError), torch.cuda.device(device_id):
        driver.cuIpcCloseMemHandle(ctypes.c_uint64(pointer))
