"""One experiment in virtual time: configurations, a profile, a load and a seed go in; events and a report come out.

Everything that predicts runs an `Experiment`, and nothing else makes a simulated server: `nbtriton.whatif` (and with it
the predicted effect of a proposal), the searches of `nbtriton.tune`, a replay of recorded traffic to a profile, and
the figures and exercises of the lessons.

Theory of operation
-------------------
`server.SimulatedServer` makes models from configurations and profiles: the engine's schedulers, with instances that only let
time pass. A load is an event source on the same calendar (`core.world`): each of its requests is an event, and so is
each end of an execution. Nothing happens between two events, so the calendar jumps from one to the next, and a level
that takes a server minutes takes milliseconds here.

There are two kinds of load.

- A *level* (`measure`) is a load without an end, as `nbtriton.perf` sends it: so many requests outstanding, or so many a
  second. It is measured by the very rules of `nbtriton.perf`: the load warms up, windows are cut from what has ended, and
  `LevelMeter` says when three of them agree. Only the clock is another one: where `perf` sleeps until a window may have
  ended, `_advance` fires all events up to that time. `_advance` moves the clock to that time even where no event is left
  before it, as a sleep would.
- A *replay* (`replay`) is a list of requests with due times. It is played until the calendar is empty.

An experiment is played once: its clock does not go back, and its server keeps queues, caches and statistics. The
next level needs another experiment. Two experiments with equal arguments have equal events, one for one: the seed
is that of all random numbers (service times, Poisson gaps, lengths of sequences), and no clock, thread or hash of
this process has a part in it.

What does not work, and why
---------------------------
- A window is not cut where the calendar is: a thread's time runs ahead of the event that it handles, so the calendar may know
  ends that lie after the window. They stay in the `Recorder` for the next one (PA3).
- The calendar is not run without interruption: it is compiled, and compiled code does not look for signals. After
  `_EVENTS` events it returns, so that Ctrl-C ends a level with the windows so far.
- A load of N requests cannot wait for a time: nobody knows it. It looks each 10 virtual milliseconds; its one window is
  then clamped to the first start and the last end.
- Decoupled models and streams are refused: how many responses come, and when, is the model's code. So is what a model
  calls itself (BLS): its calls are part of its measured execution times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import NamedTuple

from nbtriton.lab.perf.breakdown import StatisticsDocument
from nbtriton.lab.perf.loads import Concurrency, PeriodicConcurrency, send_times_ns
from nbtriton.lab.perf.measure import Level, WindowPlan, point_of, rule_of, traffic_of
from nbtriton.lab.perf.point import PerfPoint
from nbtriton.lab.perf.progress import LevelProgress
from nbtriton.lab.perf.traffic import Call
from nbtriton.lab.perf.windows import LevelMeter, Verdict, Window
from nbtriton.lab.simulate.core.loads import (
    ClosedLoop,
    Load,
    OneCaller,
    OpenLoop,
    Recorder,
    Replay,
    Way,
)
from nbtriton.lab.simulate.core.world import Runtime, Trace
from nbtriton.lab.simulate.model_profile import Profile
from nbtriton.lab.simulate.server import DeviceUse, SimulatedServer
from nbtriton.model.config import ModelConfig

# Events between two checks for signals, which compiled code does not make itself.
_EVENTS = 20_000
# Interval of checks of a load that ends after a request count.
_POLL_NS = 10_000_000
_FOREVER_NS = 2**62


class Due(NamedTuple):
    """A request of a replay: when it is sent, what, and how many rows it has."""

    at_ns: int
    call: Call
    rows: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """What happened in a replay.

    Attributes
    ----------
    windows : mapping of str to Window
        By model: from the first request to the last response of all.
    statistics : mapping of int to mapping
        The server's statistics at its begin and at its end, for `nbtriton.lab.perf.measure.measured_point`.
    end_ns : int
        When the last request was answered.
    sent : int
    interrupted : bool
    """

    windows: Mapping[str, Window]
    statistics: Mapping[int, StatisticsDocument]
    end_ns: int
    sent: int
    interrupted: bool


def _unseen(_: LevelProgress) -> None:
    pass


class Experiment:
    """Models in virtual time, for one load.

    Parameters
    ----------
    profile : Profile
        Measured, or `Profile.declared`.
    configs : mapping of str to ModelConfig
        The configurations in force: those of the profile, or changed ones.
    seed : int
        Seed of the service times.
    devices : mapping of str to DeviceUse, optional
        Of the models that use devices.
    traced : bool
        Keep every execution and every response, in `trace`.

    Raises
    ------
    UnsupportedError
        A model that cannot be simulated.
    """

    def __init__(
        self,
        profile: Profile,
        configs: Mapping[str, ModelConfig],
        *,
        seed: int = 0,
        devices: Mapping[str, DeviceUse] | None = None,
        traced: bool = False,
    ) -> None:
        self._server = SimulatedServer(profile, configs, seed=seed, devices=devices)
        self._calendar = self._server.world.calendar
        self._now_ns = 0
        if traced:
            self._server.world.trace = Trace()

    @property
    def trace(self) -> Trace:
        """Every execution and every response so far."""
        found = self._server.world.trace
        assert found is not None, "the experiment is not traced"
        return found

    def predicted(self, point: PerfPoint) -> PerfPoint:
        """Return a point as a prediction, with notes on where the simulation went beyond the profile."""
        settled = point.outcome in ("stable", "not judged")
        return replace(
            point,
            outcome="predicted" if settled else point.outcome,
            notes=(*point.notes, *self._server.beyond()),
        )

    # -- a level ---------------------------------------------------------------------------------

    def measure(
        self,
        level: Level,
        models: Sequence[str],
        on_progress: Callable[[LevelProgress], None] = _unseen,
    ) -> tuple[PerfPoint | None, bool]:
        """Measure one level until its verdict; see `nbtriton.lab.perf.measure.measure_level`.

        Parameters
        ----------
        level : Level
        models : sequence of str
            The model, and the composing models of an ensemble.
        on_progress : callable
            Called after each window.
        """
        load = self._load(models[0], level)
        recorder = load.recorder
        meter = LevelMeter(rule_of(level), level.load.label)
        statistics: dict[int, StatisticsDocument] = {}
        verdict: Verdict | None = None
        interrupted = False
        start_ns = 0
        try:
            load.start()
            if level.request_count:
                statistics[0] = self._server.statistics()
                while recorder.completed() < level.request_count and self._goes_on():
                    self._advance(max(self._calendar.next(), self._now_ns) + _POLL_NS)
                verdict = meter.add(self._clamped(recorder, statistics))
                on_progress(_progress(meter))
            else:
                plan = level.plan.fitted(self._warm_up(recorder, level))
                start_ns = self._now_ns
                statistics[start_ns] = self._server.statistics()
                before = recorder.completed()
                while verdict is None:
                    self._advance(self._wake_ns(plan, start_ns))
                    completed = recorder.completed()
                    ended = plan.has_ended(start_ns, self._now_ns, completed - before)
                    if not ended and self._goes_on():
                        continue
                    statistics[self._now_ns] = self._server.statistics()
                    window = _collect(recorder, start_ns, self._now_ns)
                    start_ns, before = self._now_ns, completed
                    verdict = meter.add(window)
                    on_progress(_progress(meter))
        except KeyboardInterrupt:
            interrupted = True
            if verdict is None:
                cut = None
                if start_ns in statistics and self._now_ns > start_ns:
                    statistics[self._now_ns] = self._server.statistics()
                    cut = _collect(recorder, start_ns, self._now_ns)
                verdict = meter.cut(cut)
        assert verdict is not None
        if not verdict.windows:
            return None, interrupted
        point = point_of(level, meter.rule, verdict, statistics, models)
        return self.predicted(point), interrupted

    def _load(self, model: str, level: Level) -> Load:
        traffic, lanes, serial = traffic_of(level)
        world, target = self._server.world, self._target(model)
        rows, limit = max(1, level.workload.batch_size), level.request_count
        load = level.load
        if isinstance(load, Concurrency):
            if load.value == 1:
                return OneCaller(world, target, traffic, rows, limit)
            return ClosedLoop(world, target, traffic, rows, limit, load.value)
        assert not isinstance(load, PeriodicConcurrency)  # for streams, which are not simulated
        due_ns = send_times_ns(load, seed=level.seed)
        return OpenLoop(world, target, traffic, rows, limit, due_ns, lanes, serial=serial)

    def _target(self, model: str) -> Runtime:
        world, runtime = self._server.world, self._server.runtime(model)
        return Way(world, runtime) if world.costs.ways_ns else runtime

    def _advance(self, until_ns: int) -> None:
        """Fire all events up to a time, which it then is."""
        while self._calendar.run(until_ns, _EVENTS) == _EVENTS:
            self._now_ns = max(self._now_ns, min(until_ns, self._calendar.next()))
        self._now_ns = max(self._now_ns, until_ns)

    def _goes_on(self) -> bool:
        return self._calendar.next() >= 0

    def _wake_ns(self, plan: WindowPlan, start_ns: int) -> int:
        """Return when to look whether a window has ended; of a number of requests not before anything happens."""
        wake_ns = plan.wake_ns(start_ns, self._now_ns)
        return max(wake_ns, self._calendar.next()) if plan.mode == "count_windows" else wake_ns

    def _warm_up(self, recorder: Recorder, level: Level) -> float:
        """Let the load run until it is steady; return its longest latency, in microseconds."""
        generation = level.load.value if isinstance(level.load, Concurrency) else 1
        self._advance(round(level.plan.warm_up_s * 1e9))
        while self._now_ns < level.plan.longest_warm_up_s * 1e9 and self._goes_on():
            if recorder.completed() >= generation:
                break
            self._advance(self._now_ns + _POLL_NS)
        warm = _collect(recorder, 0, self._now_ns)
        return max(warm.latencies_ns, default=self._now_ns) / 1000

    def _clamped(self, recorder: Recorder, statistics: dict[int, StatisticsDocument]) -> Window:
        """Return the one window of a request count: from the first start to the last end."""
        ends = recorder.end_ns
        starts = [end - took for end, took in zip(ends, recorder.latency_ns, strict=True)]
        window = _collect(recorder, 0, self._now_ns)
        if ends:
            window = replace(window, start_ns=min(starts), end_ns=max(ends))
            statistics[window.start_ns] = statistics[0]
        statistics[window.end_ns] = self._server.statistics()
        return window

    # -- a replay --------------------------------------------------------------------------------

    def replay(
        self,
        requests: Sequence[Due],
        on_progress: Callable[[LevelProgress], None] = _unseen,
    ) -> Replayed:
        """Send each request at its time to the model of its call, until all are answered.

        Parameters
        ----------
        requests : sequence of Due
            In the order of their times.
        on_progress : callable
            Called after every 20,000 events.
        """
        names = dict.fromkeys(each.call.model for each in requests)
        targets = {name: self._target(name) for name in names}
        keys: dict[int, int] = {}
        run = Replay(
            self._server.world,
            [
                (at_ns, targets[call.model], rows, keys.setdefault(id(call.inputs), len(keys)), call)
                for at_ns, call, rows in requests
            ],
        )  # fmt: skip
        before = self._server.statistics()
        interrupted = False
        try:
            run.start()
            while self._goes_on():
                self._calendar.run(_FOREVER_NS, _EVENTS)
                on_progress(LevelProgress(0, run.completed(), 0.0))
        except KeyboardInterrupt:
            interrupted = True
        latest_ns, begin_ns = run.latest_ns(), requests[0].at_ns if requests else 0
        end_ns = max(begin_ns + 1, latest_ns)
        return Replayed(
            {name: _collect(run.recorder_of(targets[name]), begin_ns, end_ns) for name in names},
            {begin_ns: before, end_ns: self._server.statistics()},
            latest_ns,
            run.number,
            interrupted,
        )


def _progress(meter: LevelMeter) -> LevelProgress:
    window = meter.windows[-1]
    requests = sum(len(each.latencies_ns) + each.errors for each in meter.windows)
    return LevelProgress(len(meter.windows), requests, window.requests_per_s)


def _collect(recorder: Recorder, start_ns: int, end_ns: int) -> Window:
    """Cut a window: the requests that ended by its end, each in one window only (PA3)."""
    inside = [when <= end_ns for when in recorder.end_ns]
    later = [not each for each in inside]
    failed = [message for when, message in recorder.errors if when <= end_ns]
    window = Window(
        start_ns=start_ns,
        end_ns=end_ns,
        latencies_ns=list(compress(recorder.latency_ns, inside)),
        lateness_ns=list(compress(recorder.lateness_ns, inside)),
        errors=len(failed),
        first_error=failed[0] if failed else "",
        sequences=sum(when <= end_ns for when in recorder.sequence_end_ns),
    )
    recorder.collected += len(window.latencies_ns) + len(failed)
    recorder.end_ns = list(compress(recorder.end_ns, later))
    recorder.latency_ns = list(compress(recorder.latency_ns, later))
    recorder.lateness_ns = list(compress(recorder.lateness_ns, later))
    recorder.errors = [(when, message) for when, message in recorder.errors if when > end_ns]
    recorder.sequence_end_ns = [when for when in recorder.sequence_end_ns if when > end_ns]
    return window
