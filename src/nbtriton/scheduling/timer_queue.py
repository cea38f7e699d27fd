"""Timers of a scheduler that waits for more than one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Item = TypeVar("Item")


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
