"""The levels of a run, measured one after the other, and its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Self

from nbtriton.lab.perf.loads import LevelPlan
from nbtriton.lab.perf.measure import Level, WindowPlan
from nbtriton.lab.perf.options import PerfOptions
from nbtriton.lab.perf.point import PerfPoint, describe
from nbtriton.lab.perf.prepare import Workload
from nbtriton.lab.perf.progress import GuardedObserver, LevelProgress, Observer, PerfProgress
from nbtriton.lab.perf.sweep import Configuration

# Measures one level until its verdict, and calls the function with its progress. Returns the point (None if
# interrupted before its first window), and whether it was interrupted.
Measure = Callable[[Level, Callable[[LevelProgress], None]], tuple[PerfPoint | None, bool]]

_NOT_RESTORED = "a model or the server does not have its own configuration again"


class Ending:
    """How measurements end: a context manager around them, which keeps what there is at an interrupt or an error.

    An error is raised only where there is no point.

    Parameters
    ----------
    points : collection
        What is measured; or of each model what is measured, and then each must have something.
    restore : callable
        Called at the end: it gives the models and the server their own configuration again.

    Attributes
    ----------
    what : str
        What an error ends.
    interrupted : bool
    failure : str
        The error, in a sentence; empty without.
    """

    def __init__(self, points: Collection[object], restore: Callable[[], object] = bool) -> None:
        self.what = "ended before all levels were measured"
        self.interrupted = False
        self.failure = ""
        self._points = points
        self._restore = restore

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        interrupted = isinstance(error, KeyboardInterrupt)
        self.interrupted |= interrupted
        keeps = interrupted or self._keep(self.what, error)
        try:
            self._restore()
        except Exception as raised:  # a second interrupt ends all at once (PA15)
            if not self._keep(_NOT_RESTORED, raised):
                raise
        return keeps

    def _keep(self, what: str, error: BaseException | None) -> bool:
        if not (isinstance(error, Exception) and self._points and all(self._points)):
            return False
        words = f"{what}: {type(error).__name__}: {error}"
        self.failure = f"{self.failure}; {words}" if self.failure else words
        return True


class Session:
    """The points of a run so far.

    Parameters
    ----------
    measure : callable
        Measures a level: `nbtriton.lab.perf.measure.measure_level` of a server and a model.
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
        measure: Measure,
        total: int | None,
        observer: Observer | None,
        *,
        loads: tuple[float, ...] = (),
        target_ms: float | None = None,
    ) -> None:
        self._loads, self._target_ms = loads, target_ms
        self.points: list[PerfPoint] = []
        self.notes: list[str] = []
        self._measure_level = measure
        self._total = total
        self._observer = GuardedObserver(observer)
        self._done = 0  # measured levels, and levels skipped by a search
        self._measured = 0
        self._started_s = self._level_started_s = time.monotonic()

    def search(
        self,
        options: PerfOptions,
        plan: LevelPlan,
        windows: WindowPlan,
        workload: Workload,
        configuration: Configuration,
    ) -> None:
        """Measure the levels of one configuration and workload.

        Raises
        ------
        KeyboardInterrupt
            Interrupted by the user; `points` has the finished levels.
        """
        level_of = partial(
            Level, workload=workload, streaming=options.streaming, rule=options.stability_rule(), plan=windows,
            request_count=options.request_count or plan.whole, seed=options.seed, configuration=configuration,
            version=options.model_version or -1,
        )  # fmt: skip
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
            # A search that ended early has skipped the other levels.
            self._done = first + plan.count

    def _measure(self, level: Level) -> bool:
        level_name = describe(level.load.label, level.configuration, level.workload.batch_size)
        self._level_started_s = time.monotonic()
        self._report(level_name, level, LevelProgress(0, 0, 0.0))
        point, interrupted = self._measure_level(level, partial(self._report, level_name, level))
        if point is not None and point.outcome == "over_limit":
            self.notes.append(f"{level_name}: {point.notes[0]}")
        elif point is not None:
            self.points.append(point)
        if interrupted:
            raise KeyboardInterrupt
        # More load would not help a level without a single response.
        going_on = ("stable", "unstable", "not judged", "predicted")
        return point is not None and point.outcome in going_on

    def report_loading(self, configuration: Configuration) -> None:
        """Report that models are loaded with the options of a sweep."""
        if configuration:
            self._report(
                f"loading {describe('', configuration, 1)}", None, LevelProgress(0, 0, 0.0)
            )

    def _report(self, what: str, level: Level | None, progress: LevelProgress) -> None:
        elapsed_s = time.monotonic() - self._started_s
        eta_s = None
        if self._total is not None and self._measured:
            # The mean time of the levels so far; the current one has begun already.
            finished_s = self._level_started_s - self._started_s
            left_s = finished_s / self._measured * (self._total - self._done)
            eta_s = max(0.0, left_s - (elapsed_s - finished_s))
        self._observer(
            PerfProgress(
                level=self._done + 1,
                levels=self._total,
                what=what,
                window=progress.windows,
                max_windows=level.max_windows if level else 0,
                requests=progress.requests,
                max_requests=level.request_count if level else 0,
                elapsed_s=elapsed_s,
                eta_s=eta_s,
                infer_per_s=progress.requests_per_s * (level.workload.batch_size if level else 0),
                points=tuple(self.points),
                loads=self._loads,
                target_ms=self._target_ms,
            )
        )
