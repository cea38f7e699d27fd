"""Measure models under load: load, measurement windows, sweeps, reports.

>>> report = nt.perf(server, "bert", concurrency="1:32:x2")  # doctest: +SKIP

A call of the package calls `nbtriton.perf.api.perf`: after its import ``nt.perf`` is the package, so both
need one name. Pure parts: `loads` (levels and schedules), `windows` (stability and merging), `search` (the
next level), `breakdown` (statistics of the server), `sweep.combinations`, `options`, `point`, `report` and
`render` (results). `driver` sends requests, `measure` measures a level, `session` a search, and `run` puts
them together.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType

from nbtriton.perf.api import perf
from nbtriton.perf.background import PerfRun
from nbtriton.perf.breakdown import ServerBreakdown
from nbtriton.perf.comparison import Comparison, compare
from nbtriton.perf.point import PerfPoint
from nbtriton.perf.progress import PerfProgress
from nbtriton.perf.report import PerfReport

__all__ = [
    "Comparison", "PerfPoint", "PerfProgress", "PerfReport", "PerfRun", "ServerBreakdown", "compare", "perf",
]  # fmt: skip


class _CallablePackage(ModuleType):
    """``nbtriton.perf(...)`` is ``nbtriton.perf.perf(...)``."""

    __call__ = staticmethod(perf)
    # The signature that `nt.perf?` shows; without it the first parameter would pass for `self`.
    __signature__ = inspect.signature(perf)


sys.modules[__name__].__class__ = _CallablePackage
