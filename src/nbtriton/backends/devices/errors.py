"""Errors of devices: their memory does not suffice; work cannot be captured."""

from __future__ import annotations

from nbtriton.backends.devices.base import Memory
from nbtriton.common.errors import InternalError

__all__ = ["CaptureError", "OutOfMemoryError"]

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


class CaptureError(InternalError):
    """Work cannot be captured as a graph; it can still be done one operation at a time."""


class OutOfMemoryError(InternalError):
    """An array does not fit into the memory of a device; nothing else is harmed."""

    def __init__(self, device: str, nbytes: int, memory: Memory) -> None:
        used = ", ".join(
            f"{owner} {_size(taken)}"
            for owner, taken in sorted(memory.by_owner.items(), key=lambda item: -item[1])[:5]
        )
        super().__init__(
            f"CUDA out of memory. Tried to allocate {_size(nbytes)} on {device}, which has a total "
            f"capacity of {_size(memory.total_bytes)} of which {_size(memory.free_bytes)} is free.",
            hint=f"in use: {used or 'nothing'}",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return InternalError, (self.message,)


def _size(nbytes: int) -> str:
    for unit, name in _UNITS:
        if nbytes >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes} bytes"
