"""Condition of the machine during a measurement: use by other programs, and speed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from statistics import median

import numpy as np

from nbtriton.lab.perf.machine import Others

__all__ = ["Condition", "Watch", "speed_us"]

_ROUNDS = 15


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition of a machine over a time.

    Parameters
    ----------
    others : float
        Cores used by other programs and by other machines on the same processor.
    speed_us : float
        Processor time of a fixed piece of work, in microseconds.
    """

    others: float
    speed_us: float


class Watch:
    """Observation of the machine from its creation to `condition`."""

    def __init__(self) -> None:
        self._speed_us = speed_us()
        self._others = Others()

    def condition(self) -> Condition:
        """Return the machine's condition until now."""
        cores = self._others.cores
        return Condition(math.nan if cores is None else cores, (self._speed_us + speed_us()) / 2)


def speed_us() -> float:
    """Return the processor time of a fixed piece of work: Python, and memory beyond the caches."""
    values = np.ones(1 << 19, np.float64)  # 4 MiB
    found = []
    for _ in range(_ROUNDS):
        begin_ns = time.thread_time_ns()
        total = 0
        for number in range(10_000):
            total += number * number % 7
        values.sum()
        found.append((time.thread_time_ns() - begin_ns) / 1000)
    return median(found)
