"""Latency summaries: quantiles of the last minute, for Triton's summary metrics.

Values fall into buckets that grow by 1 %, so a quantile is off by at most half a percent and half a
microsecond (it is a whole number) under any load. Memory grows with the orders of magnitude, not
with the number of requests.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence
from time import monotonic_ns
from typing import Final

_GROWTH = math.log(1.01)
# As in prometheus-cpp, which Triton uses: a minute, in five parts that are dropped one by one.
_PARTS = 5
_PART_NS = 60_000_000_000 // _PARTS

# As in the names of the metrics.
STAGES: Final = (
    "request",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)


class SummaryReading:
    """A summary at one moment.

    Attributes
    ----------
    count, total : int
        Observations since the start, and their sum.
    """

    __slots__ = ("_buckets", "_size", "count", "total")

    def __init__(self, count: int, total: int, buckets: Counter[int]) -> None:
        self.count = count
        self.total = total
        self._buckets = sorted(buckets.items())
        self._size = sum(buckets.values())

    def quantile(self, rank: float) -> float:
        """Return a quantile of the last minute, NaN if nothing was observed in it."""
        left = max(1, math.ceil(rank * self._size))
        for bucket, number in self._buckets:
            left -= number
            if left <= 0:
                return _value(bucket)
        return math.nan


class Summary:
    """Count, sum and quantiles of whole numbers, none of them negative."""

    __slots__ = ("_began_ns", "_lock", "_parts", "count", "total")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: list[Counter[int]] = [Counter()]  # the newest first
        self._began_ns = monotonic_ns()
        self.count = 0
        self.total = 0

    def observe(self, value: int, now_ns: int) -> None:
        """Record one value."""
        with self._lock:
            self._turn(now_ns)
            self._parts[0][_bucket(value)] += 1
            self.count += 1
            self.total += value

    def read(self, now_ns: int) -> SummaryReading:
        """Return the count, the sum and the last minute's values."""
        with self._lock:
            self._turn(now_ns)
            together: Counter[int] = Counter()
            for part in self._parts:
                together.update(part)
            return SummaryReading(self.count, self.total, together)

    def _turn(self, now_ns: int) -> None:
        passed = (now_ns - self._began_ns) // _PART_NS
        if passed > 0:
            self._began_ns += passed * _PART_NS
            fresh: list[Counter[int]] = [Counter() for _ in range(min(passed, _PARTS))]
            self._parts = (fresh + self._parts)[:_PARTS]


class LatencySummaries:
    """The summaries of one model version, in microseconds.

    Parameters
    ----------
    cached : bool
        Whether its answers are cached: then no summary of whole requests exists, as in Triton,
        whose statistics record a lookup and the rest of a request at different times.
    """

    __slots__ = ("of",)

    def __init__(self, *, cached: bool) -> None:
        self.of = {stage: Summary() for stage in (STAGES[1:] if cached else STAGES[:5])}

    def record_execution(
        self, request_ns: int, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int
    ) -> None:
        """Record a request that an execution answered."""
        self.observe(
            tuple(zip(STAGES, (request_ns, queue_ns, input_ns, infer_ns, output_ns), strict=False))
        )

    def observe(self, stages: Sequence[tuple[str, int]]) -> None:
        """Record the nanoseconds of one request by stage."""
        now_ns = monotonic_ns()
        for stage, ns in stages:
            summary = self.of.get(stage)
            if summary is not None:
                summary.observe(max(0, ns) // 1000, now_ns)


def _bucket(value: int) -> int:
    return -1 if value < 1 else round(math.log(value) / _GROWTH)


def _value(bucket: int) -> float:
    return 0.0 if bucket < 0 else float(round(math.exp(bucket * _GROWTH)))
