"""Where the outputs of a call to another model are wanted."""

from __future__ import annotations

from enum import IntEnum

from nbtriton.tensors import Array, is_on_device, to_numpy, to_torch

__all__ = ["MemoryType", "PreferredMemory", "place"]


class MemoryType(IntEnum):
    """Where a tensor is wanted."""

    TRITONSERVER_MEMORY_CPU = 0
    TRITONSERVER_MEMORY_GPU = 2


class PreferredMemory:
    """Where the outputs of a call to another model are wanted."""

    __slots__ = ("_device_id", "_memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        self._memory_type = MemoryType(preferred_memory_type)
        self._device_id = preferred_device_id

    def preferred_memory_type(self) -> MemoryType:
        """Return the kind of memory."""
        return self._memory_type

    def preferred_device_id(self) -> int:
        """Return the device within that kind."""
        return self._device_id


def place(array: Array, preferred: PreferredMemory) -> Array:
    """Return an array in the memory that is preferred."""
    if preferred.preferred_memory_type() is MemoryType.TRITONSERVER_MEMORY_CPU:
        return to_numpy(array) if is_on_device(array) else array
    import torch

    # Without a GPU everything is in host memory, as in Triton's CPU builds.
    if is_on_device(array) or not torch.cuda.is_available():
        return array
    return to_torch(array, f"cuda:{preferred.preferred_device_id()}")
