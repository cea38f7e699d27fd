"""One level of load on a simulated server, measured by the rules of `nbtriton.perf`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from nbtriton.lab.perf.breakdown import StatisticsDocument
from nbtriton.lab.perf.loads import Concurrency, PeriodicConcurrency, send_times_ns
from nbtriton.lab.perf.measure import Level, WindowPlan, point_of, rule_of, traffic_of
from nbtriton.lab.perf.point import PerfPoint
from nbtriton.lab.perf.progress import LevelProgress
from nbtriton.lab.perf.windows import LevelMeter, Verdict, Window
from nbtriton.lab.simulate.core.loads import ClosedLoop, Load, OneCaller, OpenLoop, Recorder
from nbtriton.lab.simulate.device_use import DeviceUse
from nbtriton.lab.simulate.model_profile import Profile
from nbtriton.lab.simulate.server import SimulatedServer
from nbtriton.model.config import ModelConfig

__all__ = ["as_predicted", "collect_window", "simulate_level"]

# Events between two checks for signals, which compiled code does not make itself.
_EVENTS = 20_000
# Interval of checks of a load that ends after a request count.
_POLL_NS = 10_000_000


def simulate_level(
    profile: Profile,
    configs: Mapping[str, ModelConfig],
    models: Sequence[str],
    level: Level,
    on_progress: Callable[[LevelProgress], None],
    devices: Mapping[str, DeviceUse] | None = None,
) -> tuple[PerfPoint | None, bool]:
    """Measure one level until its verdict in virtual time; see `nbtriton.lab.perf.measure.measure_level`.

    Parameters
    ----------
    profile : Profile
    configs : mapping of str to ModelConfig
        The configurations in force.
    models : sequence of str
        The model, and the composing models of an ensemble.
    level : Level
    on_progress : callable
        Called after each window.
    devices : mapping of str to DeviceUse, optional
        Of the models that use devices.
    """
    server = SimulatedServer(profile, configs, seed=level.seed, devices=devices)
    run = _Run(server, _load(server, models[0], level))
    meter = LevelMeter(rule_of(level), level.load.label)
    statistics: dict[int, StatisticsDocument] = {}
    verdict: Verdict | None = None
    interrupted = False
    start_ns = 0
    try:
        run.load.start()
        if level.request_count:
            statistics[0] = server.statistics()
            run.finish(level.request_count)
            verdict = meter.add(_clamped(run, server, statistics))
            on_progress(_progress(meter))
        else:
            plan = level.plan.fitted(_warm_up(run, level))
            start_ns = run.now_ns
            statistics[start_ns] = server.statistics()
            before = run.load.recorder.completed()
            while verdict is None:
                run.advance(run.wake_ns(plan, start_ns))
                completed = run.load.recorder.completed()
                ended = plan.has_ended(start_ns, run.now_ns, completed - before)
                if not ended and not run.is_over:
                    continue
                statistics[run.now_ns] = server.statistics()
                window = run.collect(start_ns)
                start_ns, before = run.now_ns, completed
                verdict = meter.add(window)
                on_progress(_progress(meter))
    except KeyboardInterrupt:
        interrupted = True
        if verdict is None:
            verdict = _cut(meter, run, server, statistics, start_ns)
    assert verdict is not None
    if not verdict.windows:
        return None, interrupted
    point = as_predicted(point_of(level, meter.rule, verdict, statistics, models))
    return replace(point, notes=(*point.notes, *server.beyond())), interrupted


def as_predicted(point: PerfPoint) -> PerfPoint:
    """Return the point of a simulated level: what would be stable, or one window, is a prediction."""
    settled = point.outcome in ("stable", "not judged")
    return replace(point, outcome="predicted") if settled else point


def _progress(meter: LevelMeter) -> LevelProgress:
    window = meter.windows[-1]
    requests = sum(len(each.latencies_ns) + each.errors for each in meter.windows)
    return LevelProgress(len(meter.windows), requests, window.requests_per_s)


def _cut(
    meter: LevelMeter,
    run: _Run,
    server: SimulatedServer,
    statistics: dict[int, StatisticsDocument],
    start_ns: int,
) -> Verdict:
    """Return the verdict on a level that the user interrupted."""
    if start_ns not in statistics or run.now_ns <= start_ns:
        return meter.cut(None)
    statistics[run.now_ns] = server.statistics()
    return meter.cut(run.collect(start_ns))


class _Run:
    """A load on a simulated server, and its progress.

    Attributes
    ----------
    now_ns : int
    is_over : bool
        No events are left.
    """

    def __init__(self, server: SimulatedServer, load: Load) -> None:
        self.load = load
        self.now_ns = 0
        self.is_over = False
        self._calendar = server.world.calendar

    def advance(self, until_ns: int) -> None:
        """Fire all events up to a time."""
        while self._calendar.run(until_ns, _EVENTS) == _EVENTS:
            self.now_ns = max(self.now_ns, min(until_ns, self._calendar.next()))
        self.now_ns = max(self.now_ns, until_ns)
        self.is_over = self._calendar.next() < 0

    def wake_ns(self, plan: WindowPlan, start_ns: int) -> int:
        """Return when to look whether a window has ended; of a number of requests not before anything happens."""
        wake_ns = plan.wake_ns(start_ns, self.now_ns)
        return max(wake_ns, self._calendar.next()) if plan.mode == "count_windows" else wake_ns

    def finish(self, count: int) -> None:
        """Fire events until this number of requests has ended."""
        while self.load.recorder.completed() < count and not self.is_over:
            self.advance(max(self._calendar.next(), self.now_ns) + _POLL_NS)

    def collect(self, start_ns: int) -> Window:
        """Cut the window that ends now; each request is in one window only (PA3)."""
        return collect_window(self.load.recorder, start_ns, self.now_ns)


def _load(server: SimulatedServer, model: str, level: Level) -> Load:
    traffic, lanes, serial = traffic_of(level)
    world, target = server.world, server.runtime(model)
    rows, limit = max(1, level.workload.batch_size), level.request_count
    load = level.load
    if isinstance(load, Concurrency):
        if load.value == 1:
            return OneCaller(world, target, traffic, rows, limit)
        return ClosedLoop(world, target, traffic, rows, limit, load.value)
    assert not isinstance(load, PeriodicConcurrency)  # for streams, which are not simulated
    due_ns = send_times_ns(load, seed=level.seed)
    return OpenLoop(world, target, traffic, rows, limit, due_ns, lanes, serial=serial)


def _warm_up(run: _Run, level: Level) -> float:
    """Let the load run until it is steady; return its longest latency, in microseconds."""
    generation = level.load.value if isinstance(level.load, Concurrency) else 1
    run.advance(round(level.plan.warm_up_s * 1e9))
    while run.now_ns < level.plan.longest_warm_up_s * 1e9 and not run.is_over:
        if run.load.recorder.completed() >= generation:
            break
        run.advance(run.now_ns + _POLL_NS)
    latencies_ns = run.collect(0).latencies_ns
    return (int(latencies_ns.max()) if len(latencies_ns) else run.now_ns) / 1000


def _clamped(
    run: _Run, server: SimulatedServer, statistics: dict[int, StatisticsDocument]
) -> Window:
    """Return the one window of a request count: from the first start to the last end."""
    recorder = run.load.recorder
    ends = np.asarray(recorder.end_ns, np.int64)
    starts = ends - np.asarray(recorder.latency_ns, np.int64)
    window = run.collect(0)
    if not len(ends):
        statistics[window.end_ns] = server.statistics()
        return window
    first_ns, last_ns = int(starts.min()), int(ends.max())
    statistics[first_ns] = statistics[0]
    statistics[last_ns] = server.statistics()
    return replace(window, start_ns=first_ns, end_ns=last_ns)


def collect_window(recorder: Recorder, start_ns: int, end_ns: int) -> Window:
    """Cut a window: the requests that ended by its end, each in one window only (PA3)."""
    ends = np.asarray(recorder.end_ns, np.int64)
    inside = ends <= end_ns
    latencies, lateness = (
        np.asarray(values, np.int64) for values in (recorder.latency_ns, recorder.lateness_ns)
    )
    recorder.end_ns = _kept(ends, inside)
    recorder.latency_ns = _kept(latencies, inside)
    recorder.lateness_ns = _kept(lateness, inside)
    recorder.collected += int(inside.sum())
    failed = [message for when, message in recorder.errors if when <= end_ns]
    recorder.errors = [(when, message) for when, message in recorder.errors if when > end_ns]
    recorder.collected += len(failed)
    sequences = sum(when <= end_ns for when in recorder.sequence_end_ns)
    recorder.sequence_end_ns = [when for when in recorder.sequence_end_ns if when > end_ns]
    return Window(
        start_ns=start_ns,
        end_ns=end_ns,
        latencies_ns=latencies[inside],
        lateness_ns=lateness[inside],
        errors=len(failed),
        first_error=failed[0] if failed else "",
        sequences=sequences,
    )


def _kept(values: npt.NDArray[np.int64], inside: npt.NDArray[np.bool_]) -> list[int]:
    left: list[int] = values[~inside].tolist()
    return left
