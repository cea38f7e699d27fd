"""The progress of a measurement, as its observer gets it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nbtriton.perf.point import PerfPoint

__all__ = ["Observer", "PerfProgress"]


@dataclass(frozen=True, slots=True)
class PerfProgress:
    """The progress of a measurement; the observer gets one after every window.

    Parameters
    ----------
    level, levels : int, int or None
        The current level, counted from 1, and their number; None where a search decides.
    what : str
        Such as ``"concurrency 8, instances=2"``.
    window, max_windows : int
        Windows of this level that have ended, and their largest number.
    elapsed_s : float
    eta_s : float or None
        Time left in seconds, None where it is unknown.
    infer_per_s : float
        Inferences per second in the latest window; 0 before the first.
    points : tuple of PerfPoint
        Levels that have ended.
    """

    level: int
    levels: int | None
    what: str
    window: int
    max_windows: int
    elapsed_s: float
    eta_s: float | None
    infer_per_s: float
    points: tuple[PerfPoint, ...]


Observer = Callable[[PerfProgress], None]
