"""One run of `nbtriton.perf`: through the levels of a search, and what the observer hears of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbtriton.perf.loads import (
    Concurrency,
    Distribution,
    LevelRange,
    Levels,
    Load,
    RequestIntervals,
    RequestRate,
    level_values,
)
from nbtriton.perf.measure import Level, measure_level
from nbtriton.perf.report import LoadMode, Observer, PerfPoint, PerfProgress, describe
from nbtriton.perf.search import Search, binary_search, linear_search
from nbtriton.perf.windows import Window

if TYPE_CHECKING:
    from nbtriton.perf.remote import Target

__all__ = ["LevelPlan", "Session"]

_log = logging.getLogger("nbtriton.perf")


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """The levels of every configuration and batch size, and how they are gone through."""

    mode: LoadMode
    levels: Levels
    distribution: Distribution = "constant"
    intervals_us: tuple[int, ...] = ()
    binary: bool = False

    @property
    def count(self) -> int | None:
        """How many levels there are at most; None where the search decides."""
        values = level_values(self.levels)
        return None if self.binary or values is None else len(values)

    def search(self) -> Search:
        """Begin a search through the levels."""
        if self.binary:
            assert isinstance(self.levels, LevelRange)
            return binary_search(self.levels, integral=self.mode == "concurrency")
        return linear_search(self.levels)

    def load(self, value: float) -> Load:
        """Return the load of one level."""
        match self.mode:
            case "concurrency":
                return Concurrency(int(value))
            case "request_rate":
                return RequestRate(value, self.distribution)
            case "intervals":
                return RequestIntervals(self.intervals_us)


class Session:
    """What a run has measured so far.

    Parameters
    ----------
    server : Server or RemoteServer
    model : str
    composing : sequence of str
        The models an ensemble is made of.
    total : int or None
        Levels of the whole run, None where a search decides.
    observer : callable or None

    Attributes
    ----------
    points : list of PerfPoint
    notes : list of str
    """

    def __init__(
        self,
        server: Target,
        model: str,
        composing: Sequence[str],
        total: int | None,
        observer: Observer | None,
    ) -> None:
        self.points: list[PerfPoint] = []
        self.notes: list[str] = []
        self._server = server
        self._model = model
        self._composing = composing
        self._total = total
        self._observer = observer
        self._done = 0  # measured or skipped
        self._measured = 0
        self._started_s = self._level_started_s = time.monotonic()

    def search(self, plan: LevelPlan, level_of: Callable[[Load], Level]) -> None:
        """Go through the levels of one configuration and batch size.

        Raises
        ------
        KeyboardInterrupt
            The user stopped it; `points` has what was measured.
        """
        search = plan.search()
        first = self._done
        value = next(search)
        while True:
            passed = self._measure(level_of(plan.load(value)))
            self._done += 1
            self._measured += 1
            try:
                value = search.send(passed)
            except StopIteration:
                break
        if plan.count is not None:
            # A search that ended early skips levels; what is left is less by those.
            self._done = first + plan.count

    def _measure(self, level: Level) -> bool:
        what = describe(level.load.label, level.configuration, level.batch_size)
        max_windows = 1 if level.request_count else level.rule.max_trials
        self._level_started_s = time.monotonic()

        def on_window(count: int, window: Window) -> None:
            self._tell(what, count, max_windows, window.requests_per_s * level.batch_size)

        self._tell(what, 0, max_windows, 0.0)
        point, interrupted = measure_level(
            self._server, self._model, self._composing, level, on_window
        )
        if point is not None and point.outcome == "over_limit":
            self.notes.append(f"{what}: {point.notes[0]}")
        elif point is not None:
            self.points.append(point)
        if interrupted:
            raise KeyboardInterrupt
        # More load would not help a level at which nothing was answered.
        return point is not None and point.outcome in ("stable", "unstable")

    def _tell(self, what: str, window: int, max_windows: int, rate: float) -> None:
        if self._observer is None:
            return
        elapsed_s = time.monotonic() - self._started_s
        eta_s = None
        if self._total is not None and self._measured:
            # As long as the levels so far took on average; this one is on its way already.
            finished_s = self._level_started_s - self._started_s
            left_s = finished_s / self._measured * (self._total - self._done)
            eta_s = max(0.0, left_s - (elapsed_s - finished_s))
        progress = PerfProgress(
            level=self._done + 1,
            levels=self._total,
            what=what,
            window=window,
            max_windows=max_windows,
            elapsed_s=elapsed_s,
            eta_s=eta_s,
            infer_per_s=rate,
            points=tuple(self.points),
        )
        try:
            self._observer(progress)
        except Exception:
            # Whoever watches must not hurt the measurement: it is told nothing more.
            _log.exception("the observer of a measurement raised and was removed")
            self._observer = None
