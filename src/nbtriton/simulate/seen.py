"""The measurements of a model so far, in several turns, and the numbers that follow from them."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from nbtriton.simulate.estimates import added_quantiles, upper_median

__all__ = ["Seen"]


@dataclass(slots=True)
class Seen:
    """The measurements of one model so far; times in ns.

    Parameters
    ----------
    alone : mapping of int to list of list of int
        Execution times of one request at a time, by rows and turn.
    busy : mapping of int to list of (float, float)
        Seconds of those executions and of the processor for them, by rows.
    gathered : list of float
        What each further request of a batch adds, by turn.
    queued, idle, whole : mapping of int to list of int
        Of executions after an idle time, by that time in us: in the queue, really idle, both together.
    plain, crowded, gaps : mapping of int to list of int
        By executions at once: execution times of full batches of one request, and of many; between
        those.
    details : dict
        Further fields of the profile.
    """

    alone: dict[int, list[list[int]]] = field(default_factory=lambda: defaultdict(list))
    busy: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    gathered: list[float] = field(default_factory=list)
    queued: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    idle: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    whole: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    plain: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    crowded: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    gaps: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    details: dict[str, Any] = field(default_factory=dict)

    def all_alone(self, rows: int) -> list[int]:
        """Return the times of all turns."""
        return [took for turn in self.alone.get(rows, ()) for took in turn]

    @property
    def cores(self) -> float:
        """Cores that an execution of the largest batch keeps busy."""
        if not self.busy:
            return 0.0
        took_s, used_s = map(sum, zip(*self.busy[max(self.busy)], strict=True))
        return min(max(0.0, used_s / took_s), float(os.cpu_count() or 1))

    @property
    def gather_ns(self) -> float:
        """What each further request of a batch adds: no more than it takes alone."""
        if not self.gathered:
            return 0.0
        return min(
            median(self.gathered), *(upper_median(self.all_alone(rows)) for rows in self.alone)
        )

    @property
    def wake_ns(self) -> float | None:
        """Until a sleeping instance begins; the quicker ones, the others are in what idle times add."""
        for queued in self.queued.values():
            return min(float(sorted(queued)[len(queued) // 4]), sys.getswitchinterval() * 1e9)
        return None

    def idle_us(self, rows: int) -> tuple[tuple[float, tuple[float, ...]], ...]:
        """Return the additional time of executions with these rows after idle times."""
        wake_ns = round(self.wake_ns or 0)
        plain = self.all_alone(rows)
        found = []
        for idle_us, whole in self.whole.items():
            adds = added_quantiles([took - wake_ns for took in whole], plain)
            really_us = upper_median(self.idle[idle_us]) / 1000
            found.append((really_us, tuple(round(ns / 1000, 3) for ns in adds)))
        return tuple(sorted(found))
