"""Recorded executions as points of a profile: times by batch size and by concurrent executions."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbtriton.common.errors import UnavailableError
from nbtriton.lab.perf.sample import Sample
from nbtriton.lab.simulate.measurements import without_stalls
from nbtriton.lab.simulate.model_profile import ServicePoint
from nbtriton.runtime.engine.core.snapshot import BatchRecord

if TYPE_CHECKING:
    from nbtriton.serving.server import Server

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
    return [ServicePoint(rows, at_once, thinned(times_ns), len(times_ns))]


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


def merged(points: Sequence[ServicePoint], *, disturbed: bool) -> tuple[ServicePoint, ...]:
    """Merge the points of several turns: one for each batch size and concurrency, ascending.

    Every execution has the same weight, so that a slow second of one turn is part of the times. Points of
    several concurrent executions with few measurements are dropped. Of a machine that other programs disturbed
    the stalls are kept apart.
    """
    by_key: dict[tuple[int, int], list[ServicePoint]] = defaultdict(list)
    for point in points:
        by_key[point.at_once, point.rows].append(point)
    result = []
    for (at_once, rows), turns in sorted(by_key.items()):
        times_ns = [round(us * 1000) for turn in turns for us in turn.times_us]
        count = sum(turn.executions for turn in turns)
        if at_once > 1 and count < _FEWEST:
            continue
        kept_ns, stalls_ns = without_stalls(times_ns) if disturbed else (times_ns, [])
        # Of both the same part, as all are equally likely together.
        stalls_us = thinned(stalls_ns, max(1, len(stalls_ns) * _TIMES // max(_TIMES, len(kept_ns))))
        result.append(ServicePoint(rows, at_once, thinned(kept_ns), count, stalls_us))
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
