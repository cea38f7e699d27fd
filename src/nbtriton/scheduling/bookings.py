"""The times at which a part of a device is taken: a copy engine, or what computes."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

__all__ = ["Bookings"]

# Pieces of work that are remembered: what is added may begin before some of them.
_REMEMBERED: Final = 1024


class Bookings:
    """The work of a unit that does one thing at a time, and that need not come in the order of its beginnings."""

    __slots__ = ("_begins", "_ends")

    def __init__(self) -> None:
        self._begins: list[int] = []  # ascending
        self._ends: list[int] = []

    def book(self, earliest: int, duration: int) -> int:
        """Take the first time from `earliest` on at which the unit is free for so long; return its end.

        Work that waits for something keeps nothing else from the unit meanwhile. Work that takes no time
        needs no unit.
        """
        if not duration:
            return earliest
        begins, ends = self._begins, self._ends
        at = bisect_right(ends, earliest)
        start = earliest
        while at < len(begins) and start + duration > begins[at]:
            start = max(start, ends[at])
            at += 1
        begins.insert(at, start)
        ends.insert(at, start + duration)
        if len(begins) > _REMEMBERED:
            del begins[: _REMEMBERED // 2]
            del ends[: _REMEMBERED // 2]
        return start + duration
