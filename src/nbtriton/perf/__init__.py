"""Load, measurement windows, sweeps, reports.

Pure parts: `loads` (levels and schedules), `windows` (stability and merging), `search` (which
level next), `breakdown` (the server's account), `report` and `render` (what is left and how it
looks).
"""

from nbtriton.perf.breakdown import ServerBreakdown
from nbtriton.perf.report import PerfPoint, PerfProgress, PerfReport

__all__ = ["PerfPoint", "PerfProgress", "PerfReport", "ServerBreakdown"]
