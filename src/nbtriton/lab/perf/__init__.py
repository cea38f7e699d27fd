"""Measure models under load: load, measurement windows, sweeps, reports.

>>> report = nt.perf(server, "bert", concurrency="1:32:x2")  # doctest: +SKIP

Pure parts: `loads` (levels, schedules, and the next level of a search), `windows` (stability and merging),
`breakdown` (statistics of the server), `sweep.combinations`, `options`, `point` and `report` (results).
`driver` sends requests, `measure` measures a level, `session` a search, and `run` puts
them together. The pure parts need no NumPy: a prediction in a browser has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.common.packages import on_first_use

if TYPE_CHECKING:
    from nbtriton.lab.perf.api import perf as perf
    from nbtriton.lab.perf.background import PerfRun as PerfRun
    from nbtriton.lab.perf.breakdown import ServerBreakdown as ServerBreakdown
    from nbtriton.lab.perf.comparison import Comparison as Comparison
    from nbtriton.lab.perf.comparison import compare as compare
    from nbtriton.lab.perf.point import PerfPoint as PerfPoint
    from nbtriton.lab.perf.progress import PerfProgress as PerfProgress
    from nbtriton.lab.perf.report import PerfReport as PerfReport

# The module of each public name.
_PLACES = {
    "Comparison": "comparison",
    "PerfPoint": "point",
    "PerfProgress": "progress",
    "PerfReport": "report",
    "PerfRun": "background",
    "ServerBreakdown": "breakdown",
    "compare": "comparison",
    "perf": "api",
}

__all__ = list(_PLACES)
if not TYPE_CHECKING:  # with it mypy would accept any attribute
    __getattr__ = on_first_use(__name__, _PLACES)
