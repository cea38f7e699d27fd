"""The free slots of a sequence batcher's instances (SQ4)."""

from __future__ import annotations

from heapq import heappop, heappush


class FreeSlots:
    """The lowest slot number over all instances comes first; the heap orders equal numbers, as in Triton."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[_Slot] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, number: int, instance: int) -> None:
        """Add a slot of an instance."""
        heappush(self._heap, _Slot(number, instance))

    def pop(self) -> tuple[int, int]:
        """Remove the first slot; return its number and its instance."""
        slot = heappop(self._heap)
        return slot.number, slot.instance

    def remove_instance(self, instance: int) -> None:
        """Remove the slots of an instance, which gets no new sequence."""
        left: list[_Slot] = []
        while self._heap:  # one by one: these steps decide the order of equal numbers
            slot = heappop(self._heap)
            if slot.instance != instance:
                heappush(left, slot)
        self._heap = left


class _Slot:
    """A free slot. Only numbers are compared."""

    __slots__ = ("instance", "number")

    def __init__(self, number: int, instance: int) -> None:
        self.number = number
        self.instance = instance

    def __lt__(self, other: _Slot) -> bool:
        return self.number < other.number
