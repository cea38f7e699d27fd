"""Measure models under load: load, measurement windows, sweeps, reports.

>>> report = nt.perf(server, "bert", concurrency="1:32:x2")  # doctest: +SKIP

The package is callable and is then `nbtriton.perf.api.perf`: whoever imports it first, ``nt.perf``
is this package, so the two names must be one. Pure parts: `loads` (levels and schedules),
`windows` (stability and merging), `search` (which level next), `breakdown` (the server's account),
`sweep.combinations`, `report` and `render` (what is left and how it looks). `driver` sends, and
`measure`, `session` and `api` put them together.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType

from nbtriton.perf.api import perf
from nbtriton.perf.breakdown import ServerBreakdown
from nbtriton.perf.report import PerfPoint, PerfProgress, PerfReport

__all__ = ["PerfPoint", "PerfProgress", "PerfReport", "ServerBreakdown", "perf"]


class _CallablePackage(ModuleType):
    """``nbtriton.perf(...)`` is ``nbtriton.perf.perf(...)``."""

    __call__ = staticmethod(perf)
    # What `nt.perf?` shows; without it the first parameter would pass for `self`.
    __signature__ = inspect.signature(perf)


sys.modules[__name__].__class__ = _CallablePackage
