"""What a sequence batcher orders by heaps: the free slots of its instances (SQ4), and its timers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Item = TypeVar("Item")


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


class TimerQueue(Generic[Item]):
    """Items ordered by the time at which they are due.

    Parameters
    ----------
    is_live : callable
        ``is_live(when, item)`` is false for an obsolete entry. Obsolete entries are skipped, and
        swept before they keep many items alive.
    """

    def __init__(self, is_live: Callable[[int, Item], bool]) -> None:
        self._is_live = is_live
        self._entries: list[tuple[int, int, Item]] = []
        self._count = 0
        self._sweep_at = 64

    def add(self, when: int, item: Item) -> None:
        """Schedule ``item`` for ``when``."""
        self._count += 1
        heappush(self._entries, (when, self._count, item))
        if len(self._entries) > self._sweep_at:
            self._entries = [entry for entry in self._entries if self._is_live(entry[0], entry[2])]
            heapify(self._entries)
            # Twice the rest: the cost of sweeping is constant per added entry.
            self._sweep_at = max(64, 2 * len(self._entries))

    def due(self, now: int) -> Iterator[Item]:
        """Pop the due items; the caller may add later ones while it iterates."""
        while self._entries and self._entries[0][0] <= now:
            when, _, item = heappop(self._entries)
            if self._is_live(when, item):
                yield item

    def next(self) -> int | None:
        """Return the time of the next live item, or None."""
        while self._entries and not self._is_live(self._entries[0][0], self._entries[0][2]):
            heappop(self._entries)
        return self._entries[0][0] if self._entries else None
