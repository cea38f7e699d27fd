"""Measure models under load: load, measurement windows, sweeps, reports.

>>> report = nt.perf(server, "bert", concurrency="1:32:x2")  # doctest: +SKIP

Pure parts: `loads` (levels and schedules), `windows` (stability and merging), `search` (the
next level), `breakdown` (statistics of the server), `sweep.combinations`, `options`, `point`, `report` and
`render` (results). `driver` sends requests, `measure` measures a level, `session` a search, and `run` puts
them together.
"""

from __future__ import annotations

from nbtriton.lab.perf.api import perf
from nbtriton.lab.perf.background import PerfRun
from nbtriton.lab.perf.breakdown import ServerBreakdown
from nbtriton.lab.perf.comparison import Comparison, compare
from nbtriton.lab.perf.point import PerfPoint
from nbtriton.lab.perf.progress import PerfProgress
from nbtriton.lab.perf.report import PerfReport

__all__ = [
    "Comparison", "PerfPoint", "PerfProgress", "PerfReport", "PerfRun", "ServerBreakdown", "compare", "perf",
]  # fmt: skip
