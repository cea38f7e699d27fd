"""The times at which a unit of a device is busy: a copy engine, or the compute units."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

# Pieces of work that are remembered: new work may begin before some of them.
_REMEMBERED: Final = 1024


class Bookings:
    """The work of a unit that does one thing at a time. Work may be added in any order of start times."""

    __slots__ = ("_begins", "_ends")

    def __init__(self) -> None:
        self._begins: list[int] = []  # ascending
        self._ends: list[int] = []

    def book(self, earliest: int, duration: int) -> int:
        """Book the first gap from `earliest` on that is long enough; return its end.

        While a piece of work waits for something, the unit is free for others. Work that takes no
        time needs no unit.
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
