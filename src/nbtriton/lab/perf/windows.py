"""Measurement windows: percentiles, stability, the verdict on a level, merging (PA3 to PA9).

Pure: a window is plain numbers, with times of any clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from statistics import fmean
from typing import Literal

from nbtriton.drawing.numbers import measure, percentile

# perf_analyzer judges, and reports, the last three windows.
STABLE_WINDOWS = 3
# What is said of an unstable level whose latency only grew. Five windows are in that order by chance once in 120 times.
DRIFT = "the latency grew from window to window"
_DRIFT_WINDOWS = 5
# PA14: a request is delayed if it was due before the sender's turn, and perf_analyzer warns above 1 % of
# them. It has several senders. A single sender that wakes from a 60 us timer sends the next of two close
# requests late by some microseconds, although it keeps up. A sender that cannot keep up exceeds any bound.
DELAYED_FROM_NS = 1_000_000
DELAY_WARNING = 0.01

# The last two are those of a simulated level.
Outcome = Literal[
    "stable", "unstable", "not judged", "over_limit", "failed", "empty", "interrupted", "predicted",
    "beyond the profile",
]  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class StreamWindow:
    """Responses of the requests that ended in a window, without empty final ones (PA4).

    Parameters
    ----------
    responses : int
    first_ns : sequence of int
        From a request to its first response, an entry for each request that had one.
    between_ns : sequence of int
        From each response to the next one of its request.
    """

    responses: int
    first_ns: Sequence[int]
    between_ns: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The requests that ended between two times (PA3: a request belongs to the window of its end).

    Parameters
    ----------
    start_ns, end_ns : int
        The bounds, from one monotonic clock.
    latencies_ns : sequence of int
        Last response minus start, one entry per successful request.
    errors : int
        Requests that ended with an error.
    first_error : str
        Text of the first error.
    lateness_ns : sequence of int
        Delay of each successful request after its due time at the sender's turn; 0 if in time, and in a
        closed loop.
    sequences : int
        Sequences whose last request was answered.
    stream : StreamWindow or None
        Responses of streams; None without streaming.
    """

    start_ns: int
    end_ns: int
    latencies_ns: Sequence[int]
    errors: int = 0
    first_error: str = ""
    lateness_ns: Sequence[int] = ()
    sequences: int = 0
    stream: StreamWindow | None = None

    @property
    def seconds(self) -> float:
        """Real length of the window in seconds (PA1)."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def requests_per_s(self) -> float:
        """Successful requests per second of real window."""
        return len(self.latencies_ns) / self.seconds if self.end_ns > self.start_ns else 0.0


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """The client's view of streams: responses and their times."""

    response_count: int
    responses_per_s: float
    first: LatencySummary
    between: LatencySummary


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Latencies of several requests in microseconds; nan without requests."""

    avg_us: float
    std_us: float
    p50_us: float
    p90_us: float
    p95_us: float
    p99_us: float
    percentile_us: float | None = None


def summarize(latencies_ns: Iterable[int], percent: float | None) -> LatencySummary:
    """Summarise latencies; the standard deviation is the population's (divisor n)."""
    pool = sorted(latencies_ns)
    mean_ns = fmean(pool) if pool else math.nan
    squares = sum((ns - mean_ns) ** 2 for ns in pool)
    return LatencySummary(
        avg_us=mean_ns / 1000,
        std_us=math.sqrt(squares / len(pool)) / 1000 if pool else math.nan,
        p50_us=percentile(pool, 50) / 1000,
        p90_us=percentile(pool, 90) / 1000,
        p95_us=percentile(pool, 95) / 1000,
        p99_us=percentile(pool, 99) / 1000,
        percentile_us=None if percent is None else percentile(pool, percent) / 1000,
    )


@dataclass(frozen=True, slots=True)
class StabilityRule:
    """The rule that ends a level (PA5 to PA9).

    Parameters
    ----------
    percentage : float
        Allowed spread of the last three windows (perf_analyzer's ``-s``).
    percentile : float or None
        Stabilise on this percentile instead of the mean.
    max_trials : int
        Most windows.
    latency_threshold_ms : float or None
        A level is over the limit if its stabilising latency reaches this.
    asynchronous : bool
        Senders do not wait for responses, so latency may grow forever at a steady throughput (PA7).
    single : bool
        One window, without a rule of stability (``request_count``).
    """

    percentage: float = 10.0
    percentile: float | None = None
    max_trials: int = 10
    latency_threshold_ms: float | None = None
    asynchronous: bool = False
    single: bool = False

    def latency_us(self, latencies_ns: Sequence[int]) -> float:
        """Return the stabilising latency in microseconds: the mean, or the chosen percentile."""
        if not len(latencies_ns):
            return math.nan
        if self.percentile is None:
            return fmean(latencies_ns) / 1000
        return percentile(sorted(latencies_ns), self.percentile) / 1000

    def over_limit(self, latencies_ns: Sequence[int]) -> bool:
        """Return whether the latency reaches the limit.

        perf_analyzer truncates the latency to whole milliseconds and compares with ``>=``. For its
        whole-numbered limits this is the plain comparison, which also serves limits below 1 ms.
        """
        limit = self.latency_threshold_ms
        return bool(limit) and self.latency_us(latencies_ns) / 1000 >= (limit or 0.0)


def is_stable(values: Sequence[float], percentage: float) -> bool:
    """Return whether max/min of the values is at most 1 + percentage/100, and none is 0 or missing (PA5)."""
    if not all(value > 0 for value in values):  # also false for nan
        return False
    return max(values) <= min(values) * (1 + percentage / 100)


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """The merged windows of one level (PA8): counts add up, latencies are pooled."""

    window_s: float
    request_count: int
    error_count: int
    first_error: str
    latency: LatencySummary
    shortest_ns: int
    lateness_ns: Sequence[int]
    sequence_count: int = 0
    stream: StreamSummary | None = None

    @property
    def delayed_fraction(self) -> float:
        """The share of requests that were sent late (PA14)."""
        late = self.lateness_ns
        return sum(ns > DELAYED_FROM_NS for ns in late) / len(late) if late else 0.0

    @property
    def lateness_avg_us(self) -> float:
        """Their mean delay."""
        return fmean(self.lateness_ns) / 1000 if self.lateness_ns else 0.0


def merge(windows: Sequence[Window], rule: StabilityRule) -> Measurement:
    """Merge windows into the measurement of a level."""
    pool = list(chain.from_iterable(w.latencies_ns for w in windows))
    return Measurement(
        window_s=sum(w.seconds for w in windows),
        request_count=len(pool),
        error_count=sum(w.errors for w in windows),
        first_error=next((w.first_error for w in windows if w.first_error), ""),
        latency=summarize(pool, rule.percentile),
        shortest_ns=min(pool, default=0),
        lateness_ns=list(chain.from_iterable(w.lateness_ns for w in windows)),
        sequence_count=sum(w.sequences for w in windows),
        stream=_merge_streams(windows, rule),
    )


def _merge_streams(windows: Sequence[Window], rule: StabilityRule) -> StreamSummary | None:
    streams = [w.stream for w in windows if w.stream is not None]
    if not streams:
        return None
    seconds = sum(w.seconds for w in windows)
    responses = sum(stream.responses for stream in streams)
    return StreamSummary(
        response_count=responses,
        responses_per_s=responses / seconds if seconds else 0.0,
        first=summarize(chain.from_iterable(s.first_ns for s in streams), rule.percentile),
        between=summarize(chain.from_iterable(s.between_ns for s in streams), rule.percentile),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """The reason for the end of a level, the final windows, perf_analyzer's sentence, and why it may be unstable."""

    outcome: Outcome
    windows: tuple[Window, ...]
    message: str = ""
    cause: str = ""


@dataclass(slots=True, eq=False)
class LevelMeter:
    """Receives the windows of a level, and returns a verdict at its end.

    >>> meter = LevelMeter(StabilityRule(), label="concurrency 4")
    >>> meter.add(Window(0, 10**9, [10**6] * 100))  # not enough windows yet
    """

    rule: StabilityRule
    label: str
    windows: list[Window] = field(default_factory=list)

    def add(self, window: Window) -> Verdict | None:
        """Add the next window; return the verdict if the level has ended."""
        self.windows.append(window)
        last = tuple(self.windows[-STABLE_WINDOWS:])
        pools = [w.latencies_ns for w in last]
        if not any(len(w.latencies_ns) for w in self.windows) and window.errors:
            return Verdict("failed", last, f"every request failed: {window.first_error}")
        if self.rule.single:
            if not len(window.latencies_ns):
                return Verdict("empty", last, _EMPTY)
            return self._within_limit("not judged", last)
        steady = False
        if len(last) == STABLE_WINDOWS:
            if all(self.rule.over_limit(pool) for pool in pools):
                return Verdict("over_limit", last, self._limit_message())
            steady = is_stable([w.requests_per_s for w in last], self.rule.percentage)
            latencies = map(self.rule.latency_us, pools)
            if steady and is_stable(list(latencies), self.rule.percentage):
                return self._within_limit("stable", last)
        if len(self.windows) < self.rule.max_trials:
            return None
        if not any(len(pool) for pool in pools):
            return Verdict("empty", last, _EMPTY)
        if steady and self.rule.asynchronous:
            # perf_analyzer has a sentence for a request rate only.
            remedy = "Please try lowering the request rate."
            if self.label.startswith("concurrency"):
                remedy = "The level is stable in throughput only."
            return self._within_limit(
                "stable", last, f"Warning: Request latency is not stabilizing. {remedy}"
            )
        found = self._within_limit("unstable", last, self._unstable_message())
        return replace(found, cause=self._drift()) if found.outcome == "unstable" else found

    def cut(self, window: Window | None) -> Verdict:
        """End the level now; `window` is the unfinished one (PA15)."""
        if window is not None and (len(window.latencies_ns) or window.errors):
            self.windows.append(window)
        last = tuple(self.windows[-STABLE_WINDOWS:])
        return Verdict("interrupted", last, "interrupted before the level was stable")

    def _within_limit(self, outcome: Outcome, last: tuple[Window, ...], text: str = "") -> Verdict:
        if self.rule.over_limit([ns for w in last for ns in w.latencies_ns]):
            return Verdict("over_limit", last, self._limit_message())
        return Verdict(outcome, last, text)

    def _limit_message(self) -> str:
        limit = self.rule.latency_threshold_ms
        return f"Measured latency went over the set limit of {limit:g} msec."

    def _drift(self) -> str:
        """Return a sentence if the latency of the last windows only grew, which longer windows do not even out."""
        last = self.windows[-_DRIFT_WINDOWS:]
        means_ms = [self.rule.latency_us(w.latencies_ns) / 1000 for w in last]
        if len(last) < _DRIFT_WINDOWS or not all(one < two for one, two in pairwise(means_ms)):
            return ""
        return (
            f"{DRIFT}, from {measure(means_ms[0])} to {measure(means_ms[-1])} ms: longer windows would not even that "
            "out. The model becomes slower, or the machine does."
        )

    def _unstable_message(self) -> str:
        if not self.label.startswith("concurrency"):
            return "Failed to obtain stable measurement."
        return (
            f"Failed to obtain stable measurement within {self.rule.max_trials} measurement "
            f"windows for {self.label}. Please try to increase the --measurement-interval."
        )


_EMPTY = "No valid requests recorded within time interval. Please use a larger time window."
