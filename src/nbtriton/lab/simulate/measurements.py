"""The measurements of a model in several turns, and the numbers of a profile that follow from them."""

from __future__ import annotations

import os
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from nbtriton.common.errors import UnavailableError
from nbtriton.lab.perf.sample import Sample
from nbtriton.lab.simulate.model_profile import ServicePoint
from nbtriton.runtime.engine.core.snapshot import BatchRecord

if TYPE_CHECKING:
    from nbtriton.serving.server import Server


Time = TypeVar("Time", int, float)
Numbers = Sequence[int] | npt.NDArray[np.float64]

# Number of quantiles that describe a distribution of times.
_PARTS = 100


def mean(values: Sequence[float]) -> float:
    """Return the mean, 0 for an empty sequence."""
    return fmean(values) if values else 0.0


def upper_median(values: Sequence[float]) -> float:
    """Return the upper median, 0 for an empty sequence."""
    return sorted(values)[len(values) // 2] if values else 0.0


def trimmed(values: Sequence[float]) -> list[float]:
    """Return the values without the highest hundredth, the effect of other programs."""
    ordered = sorted(values)
    return ordered[: max(1, len(ordered) - len(ordered) // 100)]


def without_stalls(
    values: Sequence[Time], beyond: float | None = None
) -> tuple[list[Time], list[Time]]:
    """Return the values, and those that were left out, both ascending: the highest tenth, where they are stalls.

    A thread that has lost its core waits for it for milliseconds, which adds to the few executions of a profile what
    it does not add to the thousands of a load.

    Parameters
    ----------
    values : sequence of int or float
    beyond : float, optional
        How much longer than the median a stall is; by default more than the median.
    """
    ordered = sorted(values)
    usual = upper_median(ordered)
    limit = usual + (usual if beyond is None else beyond)
    keep = max(bisect_right(ordered, limit), len(ordered) - max(1, len(ordered) // 10))
    return ordered[:keep], ordered[keep:]


def beyond_chance(differences: Sequence[float]) -> float:
    """Return the mean of differences, times the share of its square that is not the square of its standard error.

    Executions that follow each other are slow together, so their number says little about how certain a mean is; the
    differences of several turns do.
    """
    usual = mean(differences)
    if len(differences) < 2 or usual <= 0:
        return 0.0
    return usual * max(0.0, 1 - (stdev(differences) / usual) ** 2 / len(differences))


def relative_losses(
    plain: Sequence[int], crowded: Sequence[int], gather_ns: float
) -> tuple[float, ...]:
    """Return the losses under contention by quantile, as factors of the mean loss.

    A plain time plus the loss of the same quantile has the distribution of the crowded times.
    """
    lost = added_quantiles(crowded, np.asarray(plain) + gather_ns)
    usual = fmean(lost)
    if not usual:
        return (1.0,)
    return tuple(round(each / usual, 3) for each in lost)


def added_quantiles(times: Numbers, plain: Numbers) -> tuple[float, ...]:
    """Return the differences between the quantiles of times and of plain times, not below 0.

    A plain time plus the difference of the same quantile has the distribution of the times.
    """
    shares = (np.arange(_PARTS) + 0.5) / _PARTS
    adds = np.maximum(np.quantile(times, shares) - np.quantile(plain, shares), 0.0)
    return tuple(float(each) for each in adds)


def fitted_line(gaps: Mapping[int, Sequence[int]]) -> tuple[float, float]:
    """Return the slope and the intercept of a line through the gaps by number of requests."""
    points = [(count, upper_median(gaps_ns), len(gaps_ns)) for count, gaps_ns in gaps.items()]
    weight = sum(each for _, _, each in points)
    if not weight:
        return 0.0, 0.0
    x = sum(count * each for count, _, each in points) / weight
    y = sum(gap * each for _, gap, each in points) / weight
    spread = sum((count - x) ** 2 * each for count, _, each in points)
    if not spread:
        return y / (x + 1), y / (x + 1)
    slope = sum((count - x) * (gap - y) * each for count, gap, each in points) / spread
    slope = min(max(slope, 0.0), y / x)
    return slope, y - slope * x


@dataclass(slots=True)
class ModelMeasurements:
    """The measurements of one model; times in ns.

    Parameters
    ----------
    alone : mapping of int to list of list of int
        Execution times of one request at a time, by rows and turn.
    busy : mapping of int to list of (float, float)
        Wall and processor seconds of those executions, by rows.
    gathered : list of float
        Additional time of each further request of a batch, by turn.
    queued, idle, whole : mapping of int to list of int
        Of executions after an idle time, by that time in us: queue time, actual idle time, and queue time
        plus execution time.
    plain, crowded : mapping of int to list of list of int
        By concurrent executions and turn: execution times of full batches of one request, and those of full batches
        of many requests.
    gaps : mapping of int to list of int
        By concurrent executions: the gaps between the latter.
    details : dict
        Further fields of the profile.
    """

    alone: dict[int, list[list[int]]] = field(default_factory=lambda: defaultdict(list))
    busy: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    gathered: list[float] = field(default_factory=list)
    queued: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    idle: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    whole: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    plain: dict[int, list[list[int]]] = field(default_factory=lambda: defaultdict(list))
    crowded: dict[int, list[list[int]]] = field(default_factory=lambda: defaultdict(list))
    gaps: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    details: dict[str, Any] = field(default_factory=dict)

    def add_after_idle(self, idle_us: int, executions: Sequence[BatchRecord], rows: int) -> None:
        """Add executions of an instance, in the order of their begin, that were to follow this idle time.

        Only those with these rows count whose requests arrived after the end of the execution before.
        """
        last_ns = 0
        for record in executions:
            arrival_ns = record.start_ns - record.queue_ns
            if last_ns and arrival_ns > last_ns and record.batch_size == rows:
                self.queued[idle_us].append(record.queue_ns)
                self.idle[idle_us].append(record.start_ns - last_ns)
                self.whole[idle_us].append(record.end_ns - arrival_ns)
            last_ns = max(last_ns, record.end_ns)

    def all_alone(self, rows: int) -> list[int]:
        """Return the times of all turns."""
        return [time_ns for turn in self.alone.get(rows, ()) for time_ns in turn]

    def clean(self) -> None:
        """Leave out the stalls of executions that other programs caused."""
        for found in (self.alone, self.plain, self.crowded):
            for turns in found.values():
                turns[:] = [without_stalls(times_ns)[0] for times_ns in turns]

    @property
    def drift(self) -> tuple[float, float]:
        """The fastest and the slowest turn's execution times, as factors of the mean of all turns.

        Turns of a few executions each differ by chance, too, which is as uncertain.
        """
        ratios: dict[int, list[float]] = defaultdict(list)
        for rows, turns in self.alone.items():
            usual = mean(self.all_alone(rows))
            for turn, times_ns in enumerate(turns):
                ratios[turn].append(mean(times_ns) / usual)
        means = [mean(each) for each in ratios.values()] or [1.0]
        return min(1.0, *means), max(1.0, *means)

    @property
    def cores(self) -> float:
        """Cores that an execution of the largest batch keeps busy."""
        if not self.busy:
            return 0.0
        took_s, used_s = map(sum, zip(*self.busy[max(self.busy)], strict=True))
        return min(max(0.0, used_s / took_s), float(os.cpu_count() or 1))

    def gather_ns(self, requests: int) -> float:
        """Return the additional time of each further request of a batch, at most its time alone.

        Nor more than full batches of so many requests took longer than those of one, in the same turn: these are
        measured beside each other, while a batch of `gathered` was compared with an execution some seconds before.
        """
        if not self.gathered:
            return 0.0
        most_ns = [upper_median(self.all_alone(rows)) for rows in self.alone]
        longer_ns = [
            upper_median(many) - upper_median(one)
            # An interrupt may have come between the two.
            for one, many in zip(self.plain.get(1, ()), self.crowded.get(1, ()), strict=False)
            if one and many
        ]
        if longer_ns and requests > 1:
            most_ns.append(max(0.0, median(longer_ns)) / (requests - 1))
        return min(median(self.gathered), *most_ns)

    @property
    def wake_ns(self) -> float | None:
        """Start latency of a sleeping instance: the lower ones; `idle_us` contains the others."""
        for queued in self.queued.values():
            return min(float(sorted(queued)[len(queued) // 4]), sys.getswitchinterval() * 1e9)
        return None

    def idle_us(self, rows: int) -> tuple[tuple[float, tuple[float, ...]], ...]:
        """Return the additional times of executions with these rows after idle times."""
        wake_ns = round(self.wake_ns or 0)
        # Of a hundred executions one stall would be the tail of them all: `merged` counts stalls.
        longest_ns = max((upper_median(self.all_alone(each)) for each in self.alone), default=0)

        def usual(times_ns: list[int]) -> list[int]:
            return without_stalls(times_ns, longest_ns)[0]

        plain = usual(self.all_alone(rows))
        additions = []
        for idle_us, whole in self.whole.items():
            adds = added_quantiles([time_ns - wake_ns for time_ns in usual(whole)], plain)
            really_us = upper_median(self.idle[idle_us]) / 1000
            additions.append((really_us, tuple(round(ns / 1000, 3) for ns in adds)))
        return tuple(sorted(additions))


# Times kept of a point: its 99th percentile is then that of the executions.
_TIMES = 200
# Fewer executions than this make no point.
_FEWEST = 8


def executions_of(server: Server, model: str, sample: Sample) -> list[BatchRecord]:
    """Return the executions of a sample's load, in the order of their begin.

    The recorder keeps only the last milliseconds of short executions. Executions after the sample's end
    therefore count too: its load was the same until it had stopped.
    """
    records = [record for record in server.batches(model) if sample.start_ns <= record.start_ns]
    return sorted(records, key=lambda record: record.start_ns)


def points_of(executions: Sequence[BatchRecord], rows: int, at_once: int) -> list[ServicePoint]:
    """Return the point of a batch size and a number of concurrent executions, or none.

    Concurrent are the executions that run in the middle of one, itself included.
    """
    starts = [record.start_ns for record in executions]
    ends = sorted(record.end_ns for record in executions)
    times_ns = []
    for record in executions:
        middle = (record.start_ns + record.end_ns) // 2
        running = bisect_left(starts, middle) - bisect_left(ends, middle)
        if record.batch_size == rows and running == at_once and not record.failed:
            times_ns.append(record.end_ns - record.start_ns)
    if not times_ns:
        return []
    return [ServicePoint(rows, at_once, thinned(times_ns, len(times_ns)), len(times_ns))]


def times_of(executions: Sequence[BatchRecord], rows: int) -> list[int]:
    """Return the times of the executions of a batch size, in ns."""
    return [
        record.end_ns - record.start_ns
        for record in executions
        if max(1, record.batch_size) == rows and not record.failed
    ]


def thinned(times_ns: Sequence[float], most: int = _TIMES) -> tuple[float, ...]:
    """Return equally likely times in microseconds, ascending; at most a number of them."""
    ordered = sorted(times_ns)
    count = len(ordered)
    if count > most:
        ordered = [ordered[int((k + 0.5) / most * count)] for k in range(most)]
    return tuple(round(ns / 1000, 3) for ns in ordered)


def merged(
    points: Sequence[ServicePoint], *, disturbed: bool, client: bool = False
) -> tuple[ServicePoint, ...]:
    """Merge the points of several turns: one for each batch size and concurrency, ascending.

    Every execution has the same weight, so that a slow second of one turn is part of the times. Points of
    several concurrent executions with few measurements are dropped. Stalls are kept apart: of a machine that other
    programs disturbed all of them, else those that add more than any point's median. Each point has too few of these to
    say how frequent they are; all points together have more. Of points whose spread is a `client`'s, and whose mean is the
    server's, none is kept apart: without it the mean would be another one.
    """
    by_key: dict[tuple[int, int], list[float]] = defaultdict(list)
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for point in points:
        by_key[point.at_once, point.rows] += point.times_us
        counts[point.at_once, point.rows] += point.executions
    for key, count in counts.items():
        if key[0] > 1 and count < _FEWEST:
            del by_key[key]
    longest_us = max(map(upper_median, by_key.values()), default=0.0)
    result = []
    for (at_once, rows), times_us in sorted(by_key.items()):
        beyond_us = None if disturbed else longest_us
        kept_us, stalls_us = (times_us, []) if client else without_stalls(times_us, beyond_us)
        kept = thinned([us * 1000 for us in kept_us])
        result.append(ServicePoint(rows, at_once, kept, counts[at_once, rows], tuple(stalls_us)))
    return tuple(result)


def without_executions(model: str) -> UnavailableError:
    """Return the error of a model of which no execution was measured."""
    return UnavailableError(
        f"no execution of '{model}' could be measured: its batches held requests of others",
        hint="profile it while nothing else is sent to it",
    )


def gaps_of(executions: Sequence[BatchRecord]) -> dict[int, list[int]]:
    """Return the idle times of an instance between executions, in ns, by the rows of the earlier one."""
    last: dict[str, BatchRecord] = {}
    gaps: dict[int, list[int]] = defaultdict(list)
    for record in executions:
        before = last.get(record.instance)
        if before is not None:
            gaps[max(1, before.batch_size)].append(record.start_ns - before.end_ns)
        last[record.instance] = record
    return gaps
