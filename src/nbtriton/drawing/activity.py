"""The activity of a server's models over the last seconds, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lane:
    """One instance: its share of busy time before each sample and in the whole span, and the batch that it is running."""

    name: str
    busy: tuple[float, ...]
    batch_size: int = 0
    executions: int = 0
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelActivity:
    """One model over a span of time.

    Attributes
    ----------
    ages_s : tuple of float
        The age of each sample, oldest first.
    queued, executing : int
        Requests that are waiting and running now.
    depths : tuple of float
        The most waiting requests since the previous sample; for an ensemble, which has no queue, those in flight.
    bins : tuple of (str, int)
        Batch sizes and their executions.
    bins_since : str
        The span of those executions, in words.
    infer_per_s, queue_ms, compute_ms : float
        Over the span; the last two are means per request, NaN without requests.
    rate_over : str
        The period that `infer_per_s` is a mean over, in words.
    drawn_inferences : int
        Inferences within the samples; ``peak_per_s`` is the most within one second, 0 while inferences come.
    quiet_s : float
        Time since the newest inference within the samples; infinite without one.
    stalled_s : float
        For how long requests have been in flight without one ending; 0 if none are.
    mean_batch : float
        Rows per execution, over all that `execution_count` counts; 0 without.
    changes : tuple of (float, str)
        How many seconds ago its configuration changed, and what it changed to.
    shares : tuple of (str, float)
        The steps of an ensemble, and their shares of its requests' time, 0 to 1; NaN where none is recorded.
    """

    name: str
    version: int = 1
    state: str = "READY"
    reason: str = ""
    platform: str = ""
    ages_s: tuple[float, ...] = ()
    depths: tuple[float, ...] = ()
    queued: int = 0
    executing: int = 0
    lanes: tuple[Lane, ...] = ()
    bins: tuple[tuple[str, int], ...] = ()
    bins_since: str = "since load"
    infer_per_s: float = 0.0
    queue_ms: float = math.nan
    compute_ms: float = math.nan
    rate_over: str = "inferences per second"
    drawn_inferences: int = 0
    peak_per_s: float = 0.0
    quiet_s: float = math.inf
    stalled_s: float = 0.0
    inference_count: int = 0
    execution_count: int = 0
    fail_count: int = 0
    mean_batch: float = 0.0
    changes: tuple[tuple[float, str], ...] = ()
    shares: tuple[tuple[str, float], ...] = ()

    @property
    def busy(self) -> float:
        """The share of time in which its instances were busy, 0 to 1."""
        return sum(lane.share for lane in self.lanes) / len(self.lanes) if self.lanes else 0.0


def batch_bins(max_batch_size: int) -> tuple[tuple[int, int], ...]:
    """Return the first and last batch size of each bar: single sizes up to 12, else doubling."""
    top = max(1, max_batch_size)
    if top <= 12:
        return tuple((size, size) for size in range(1, top + 1))
    bins, first = [(1, 1)], 2
    while first <= top:
        last = min(top, 2 * (first - 1))
        bins.append((first, last))
        first = last + 1
    return tuple(bins)


def bin_counts(
    bins: Sequence[tuple[int, int]], sizes: Mapping[int, int]
) -> tuple[tuple[str, int], ...]:
    """Sum executions per bar; sizes beyond the last bar count in it."""
    totals = [0] * len(bins)
    for size, executions in sizes.items():
        at = next((i for i, (_, last) in enumerate(bins) if size <= last), len(bins) - 1)
        totals[at] += executions
    names = (str(a) if a == b else f"{a}\u2013{b}" for a, b in bins)
    return tuple(zip(names, totals, strict=True))
