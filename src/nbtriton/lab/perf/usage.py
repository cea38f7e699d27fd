"""Processor time and memory of this process per level, and whether the load generator was the limit."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nbtriton.lab.perf.measure import Level
from nbtriton.lab.perf.point import PerfPoint
from nbtriton.lab.perf.progress import LevelProgress
from nbtriton.lab.perf.session import Measure

# One interpreter runs one thread's Python code at a time: a sender at this share of a processor has no time
# left.
_BUSY_PERCENT = 90.0
_PROC = Path("/proc")


def with_usage(measure: Measure, *, remote: bool) -> Measure:
    """Return a function that measures a level, with its processor time and memory.

    Parameters
    ----------
    measure : callable
    remote : bool
        The server is remote: all usage of this process is the load generator's.
    """

    def measured(
        level: Level, on_progress: Callable[[LevelProgress], None]
    ) -> tuple[PerfPoint | None, bool]:
        wall_s, cpu_s = time.monotonic(), time.process_time()
        point, interrupted = measure(level, on_progress)
        wall_s, cpu_s = time.monotonic() - wall_s, time.process_time() - cpu_s
        if point is None:
            return point, interrupted
        percent = 100 * cpu_s / wall_s if wall_s else math.nan
        point = replace(point, cpu_percent=percent, memory_mb=_memory_mb())
        if remote and percent >= _BUSY_PERCENT:
            note = (
                f"The load generator used {percent:.0f}% of a processor: it, and not the server, may "
                "be what limits the throughput. perf_analyzer sends more from the same machine."
            )
            point = replace(point, notes=(*point.notes, note))
        return point, interrupted

    return measured


def process_tree_mb() -> float:
    """Return the memory of this process and all its descendants in megabytes; nan if unreadable.

    It is the resident memory of this process, and the proportional set size of its descendants, which counts
    a shared, unwritten page once.
    """
    children: list[int] = []
    _add_children(os.getpid(), children)
    return _memory_mb() + sum(map(_proportional_mb, children))


def _memory_mb() -> float:
    """Return the resident memory of this process in megabytes; nan if unreadable."""
    try:
        pages = int((_PROC / "self" / "statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return math.nan
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _add_children(pid: int, children: list[int]) -> None:
    """Add the descendants of a process; a process that ends meanwhile has none."""
    try:
        lists = [
            task.joinpath("children").read_text() for task in (_PROC / f"{pid}/task").iterdir()
        ]
    except OSError:
        return
    for child in map(int, " ".join(lists).split()):
        children.append(child)
        _add_children(child, children)


def _proportional_mb(pid: int) -> float:
    try:
        text = (_PROC / str(pid) / "smaps_rollup").read_text()
    except OSError:  # the process has ended
        return 0.0
    sizes = (line.split() for line in text.splitlines())
    return sum(int(words[1]) for words in sizes if words[0] == "Pss:") * 1024 / 1e6
