"""The levels of a run: linear and binary search.

Each search is a generator: ``next`` gives the first level, ``send(passed)`` the one after a level that passed
or failed, and the end of the generator is the end of the search.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.lab.perf.loads import (
    Concurrency,
    Distribution,
    LevelRange,
    Levels,
    Load,
    PeriodicConcurrency,
    RecordedArrivals,
    RequestIntervals,
    RequestRate,
    level_values,
)

Search = Generator[float, bool, None]


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """The levels of every configuration and batch size, and the search through them."""

    mode: Literal["concurrency", "request_rate", "intervals", "periodic", "recording"]
    levels: Levels
    distribution: Distribution = "constant"
    intervals_us: tuple[int, ...] = ()
    binary: bool = False
    periodic: PeriodicConcurrency | None = None
    recorded: RecordedArrivals | None = None

    @property
    def whole(self) -> int:
        """The number of requests in a load with a fixed number; 0 for other loads."""
        if self.periodic is not None:
            return self.periodic.end
        return 0 if self.recorded is None else len(self.recorded.arrivals_ns)

    @property
    def count(self) -> int | None:
        """The largest number of levels; None where the search decides."""
        values = level_values(self.levels)
        return None if self.binary or values is None else len(values)

    def search(self) -> Search:
        """Begin a search through the levels."""
        if self.binary:
            assert isinstance(self.levels, LevelRange)
            return binary_search(self.levels, integral=self.mode == "concurrency")
        return linear_search(self.levels)

    def load(self, value: float) -> Load:
        """Return the load of one level."""
        match self.mode:
            case "concurrency":
                return Concurrency(int(value))
            case "request_rate":
                return RequestRate(value, self.distribution)
            case "intervals":
                return RequestIntervals(self.intervals_us)
            case "periodic":
                assert self.periodic is not None
                return self.periodic
            case "recording":
                assert self.recorded is not None
                return replace(self.recorded, value=value)


def linear_search(levels: Iterable[float]) -> Search:
    """Go through `levels` in order; the first that fails ends the search (PA9)."""
    for level in levels:
        if not (yield level):
            return


def binary_search(levels: LevelRange, *, integral: bool) -> Search:
    """Narrow down the highest level that passes (PA10).

    It ends at once unless the start passes and the end fails; then come midpoints, while the bracket is wider
    than the step. 1:8:2 where 4 fails visits 1, 8, 4, 2.
    """
    low, high = levels.start, levels.end
    if not (yield low) or (yield high):
        return
    while high - low > levels.step:
        middle = (low + high) // 2 if integral else (low + high) / 2
        if (yield middle):
            low = middle
        else:
            high = middle


def check_search(levels: Levels, *, binary: bool, latency_threshold_ms: float | None) -> None:
    """Refuse endless searches, with perf_analyzer's texts.

    Raises
    ------
    InvalidArgumentError
        Open end or binary search without a latency limit; binary search without a range.
    """
    is_open = isinstance(levels, LevelRange) and not levels.end
    if is_open and not latency_threshold_ms and not binary:
        raise InvalidArgumentError(
            "The end of the search range and the latency limit can not be both 0 (or 0.0) "
            "simultaneously",
            hint="give the range an end, or --latency-threshold (latency_threshold_ms)",
        )
    if not binary:
        return
    if not latency_threshold_ms:
        raise InvalidArgumentError(
            "The --latency-threshold cannot be 0 for binary search mode.",
            hint="give --latency-threshold (latency_threshold_ms)",
        )
    if not isinstance(levels, LevelRange):
        raise InvalidArgumentError(
            "binary search needs a range of levels with a start and an end",
            hint="write the concurrency as 1:64",
        )
    if not levels.end:
        raise InvalidArgumentError(
            "The end of the range can not be 0 (or 0.0) for binary search mode."
        )
    if levels.geometric:
        raise InvalidArgumentError(
            "binary search narrows down to a step; it has no use for a factor",
            hint='write the range as "start:end" or "start:end:step"',
        )
