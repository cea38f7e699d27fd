"""The preferred memory of the outputs of a call to another model."""

from __future__ import annotations

from operator import index

from nbtriton.backends.python.api.pybind import BoundEnum, incompatible
from nbtriton.model.tensors import Array, is_on_device, to_numpy, to_torch

__all__ = ["MemoryType", "PreferredMemory", "place"]


class MemoryType(BoundEnum):
    """The kind of memory of a tensor."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class PreferredMemory:
    """The preferred memory of the outputs of a call to another model."""

    __slots__ = ("device_id", "memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        if not isinstance(preferred_memory_type, MemoryType):
            expected = "preferred_memory_type: TRITONSERVER_MEMORY_CPU or TRITONSERVER_MEMORY_GPU"
            raise incompatible("", expected, preferred_memory_type)
        self.memory_type = preferred_memory_type
        self.device_id = index(preferred_device_id)


def place(array: Array, preferred: PreferredMemory) -> Array:
    """Return an array in the preferred memory."""
    if preferred.memory_type is MemoryType.TRITONSERVER_MEMORY_CPU:
        return to_numpy(array) if is_on_device(array) else array
    # Without a GPU everything is in host memory, as in Triton's CPU builds.
    try:
        import torch
    except ImportError:
        return array
    if is_on_device(array) or not torch.cuda.is_available():
        return array
    return to_torch(array, f"cuda:{preferred.device_id}")
