"""The measurement of one level: its windows, the server's statistics, and the point."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Literal

from nbtriton.lab.perf.breakdown import (
    ServerBreakdown,
    StatisticsDocument,
    breakdown,
    with_composing,
)
from nbtriton.lab.perf.loads import Concurrency, Load, LoadMode, RequestRate
from nbtriton.lab.perf.point import PerfPoint
from nbtriton.lab.perf.prepare import Workload
from nbtriton.lab.perf.progress import LevelProgress
from nbtriton.lab.perf.traffic import Repeated, Sequences, Traffic
from nbtriton.lab.perf.windows import (
    DELAY_WARNING,
    LevelMeter,
    Measurement,
    StabilityRule,
    Verdict,
    Window,
    merge,
)

if TYPE_CHECKING:
    from nbtriton.lab.perf.driver import LoadRun
    from nbtriton.lab.perf.remote import Target

MeasurementMode = Literal["time_windows", "count_windows"]

# PA1: perf_analyzer sleeps for 1.2 intervals, the real length of a window.
_SLEEP_FACTOR = 1.2
# A rate counts as reached from this share.
_REACHED = 0.95
# Requests that may be due in a window at its edges, and end in another one.
_EDGES = 2
# Interval at which ended requests are counted (perf_analyzer: 1 s, for requests across a network; here 50 of
# them can end in 5 ms).
_COUNT_POLL_NS = 10_000_000
# A window of default length should last for several generations of requests.
_GENERATIONS = 5
# Interval at which a warm-up counts the requests of its first generation.
_WARM_UP_POLL_S = 0.01
# Longest time between two reports of progress.
_REPORT_S = 0.25


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The rule for the end of a window (PA1, PA2).

    Parameters
    ----------
    mode : {"time_windows", "count_windows"}
    interval_ms : float
        Nominal length of a time window in milliseconds.
    request_count : int
        Requests of a count window.
    longest_ms : float
        Upper limit of the interval for a slow model; 0 for a fixed interval.
    warm_up_s, longest_warm_up_s : float
        Load before the first window, in seconds. It lasts at least for the first number, and until each
        outstanding request of a closed loop was answered once (its first generation finds an empty queue), up
        to the second number.
    """

    mode: MeasurementMode = "time_windows"
    interval_ms: float = 5000.0
    request_count: int = 50
    longest_ms: float = 0.0
    warm_up_s: float = 0.0
    longest_warm_up_s: float = 0.0

    def wake_ns(self, start_ns: int, now_ns: int) -> int:
        """Return when to check the window that began at `start_ns`."""
        if self.mode == "count_windows":
            return now_ns + _COUNT_POLL_NS
        return start_ns + round(self.interval_ms * _SLEEP_FACTOR * 1e6)

    def has_ended(self, start_ns: int, now_ns: int, completed: int) -> bool:
        """Return True if the window ends now, after `completed` requests."""
        if self.mode == "count_windows":
            return completed >= self.request_count
        return now_ns >= self.wake_ns(start_ns, now_ns)

    def fitted(self, latency_us: float) -> WindowPlan:
        """Return the plan for requests of this latency."""
        needed_ms = min(latency_us / 1000 * _GENERATIONS, self.longest_ms)
        return replace(self, interval_ms=max(self.interval_ms, needed_ms))


@dataclass(frozen=True, slots=True)
class Level:
    """One level to measure.

    Parameters
    ----------
    load : Load
    workload : Workload
    rule : StabilityRule
    plan : WindowPlan
    request_count : int
        Exact number of requests; 0 for windows.
    seed : int
    configuration : mapping
        The swept options in force.
    streaming : bool
        Record each response.
    version : int
        Whose statistics are read; -1 for those of all.
    """

    load: Load
    workload: Workload
    rule: StabilityRule
    plan: WindowPlan
    request_count: int = 0
    seed: int = 0
    configuration: Mapping[str, Any] = field(default_factory=dict)
    streaming: bool = False
    version: int = -1

    @property
    def max_windows(self) -> int:
        """The largest number of windows."""
        return 1 if self.request_count else self.rule.max_trials


def measure_level(
    server: Target,
    model: str,
    composing: Sequence[str],
    level: Level,
    on_progress: Callable[[LevelProgress], None],
) -> tuple[PerfPoint | None, bool]:
    """Measure one level until its verdict.

    A KeyboardInterrupt ends it early: the load is stopped and the point so far is returned, with the outcome
    ``"interrupted"`` unless a verdict was reached. A second one is raised.

    Parameters
    ----------
    server : Server or RemoteServer
    model : str
    composing : sequence of str
        The composing models of an ensemble, else empty.
    level : Level
    on_progress : callable
        Called after each window, and four times a second in between.

    Returns
    -------
    point : PerfPoint or None
        None after an interrupt before its first window.
    interrupted : bool
    """
    rule = rule_of(level)
    meter = LevelMeter(rule, level.load.label)
    # The server's statistics at each bound of a window.
    statistics: dict[int, StatisticsDocument] = {}

    def bound() -> int:
        document = statistics_of(server, (model, *composing), level.version)
        now_ns = monotonic_ns()
        statistics[now_ns] = document
        return now_ns

    run = load_of(server, model, level)
    wait = ProgressWait(run, on_progress)
    start_ns = 0
    verdict: Verdict | None = None
    interrupted = False
    try:
        try:
            if level.request_count:
                start_ns = bound()
                run.start()
                wait.seconds(None)
                window = _clamped(run, start_ns, bound(), statistics)
                verdict = meter.add(window)
                wait.report(1, window)
            else:
                run.start()
                plan = level.plan.fitted(_warm_up(run, level, wait))
                start_ns = bound()
                # What ended since the warm-up, while the statistics were read, is in no window.
                run.collect(0, start_ns)
            while verdict is None:
                _wait_window(run, plan, start_ns, wait)
                end_ns = bound()
                window = run.collect(start_ns, end_ns)
                start_ns = end_ns
                verdict = meter.add(window)
                wait.report(len(meter.windows), window)
        except KeyboardInterrupt:
            interrupted = True
            if verdict is None:
                verdict = meter.cut(run.collect(start_ns, bound()) if start_ns else None)
    finally:
        # Not a function of its own: an interrupt at its first line would leave the load running.
        try:
            run.stop()
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            run.stop()  # requests in flight are now cancelled: no thread is left behind
    assert verdict is not None
    if not verdict.windows:
        return None, interrupted
    return point_of(level, rule, verdict, statistics, (model, *composing)), interrupted


def rule_of(level: Level) -> StabilityRule:
    """Return the rule that ends a level."""
    # All senders but the single caller do not wait for responses (PA7, PA20).
    is_async = (
        level.load != Concurrency(1) or level.workload.sequences is not None or level.streaming
    )
    return replace(level.rule, asynchronous=is_async, single=bool(level.request_count))


def traffic_of(level: Level) -> tuple[Traffic, int, bool]:
    """Return the requests of a level, the number of live sequences, and whether each is serial."""
    workload = level.workload
    data = workload.sequences
    if data is None:
        return Repeated(workload.requests, workload.options), 1, False
    lanes = data.lanes(level.load)
    traffic = Sequences(data, lanes=lanes, seed=level.seed, options=workload.options)
    return traffic, lanes, data.plan.serial


def load_of(server: Target, model: str, level: Level) -> LoadRun:
    """Return the load of a level, not yet started."""
    from nbtriton.lab.perf.driver import LoadSpec, make_load  # a prediction needs no engine

    traffic, lanes, serial = traffic_of(level)
    return make_load(
        LoadSpec(
            server, model, level.load, traffic,
            limit=level.request_count, seed=level.seed, streaming=level.streaming, lanes=lanes,
            serial=serial,
        )
    )  # fmt: skip


def statistics_of(server: Target, models: Sequence[str], version: int = -1) -> StatisticsDocument:
    """Return the statistics of several models in one document, of the first one those of a version."""
    found = [
        server.statistics(name, -1 if at else version)["model_stats"]
        for at, name in enumerate(models)
    ]
    return {"model_stats": [entry for entries in found for entry in entries]}


class ProgressWait:
    """Waits for a load, and reports its progress meanwhile."""

    def __init__(self, run: LoadRun, on_progress: Callable[[LevelProgress], None]) -> None:
        self._run = run
        self._on_progress = on_progress
        self._windows = 0
        self._completed = 0
        self._reported_ns = monotonic_ns()

    def seconds(self, seconds: float | None) -> None:
        """Wait until the load has ended, or for a time in seconds."""
        from nbtriton.runtime.interrupts import wait_in_slices

        now_ns = monotonic_ns()
        end_ns = None if seconds is None else now_ns + round(seconds * 1e9)
        while end_ns is None or now_ns < end_ns:
            next_ns = self._reported_ns + round(_REPORT_S * 1e9)
            until_ns = next_ns if end_ns is None else min(next_ns, end_ns)
            if wait_in_slices(self._run.finished.wait, max(0.0, (until_ns - now_ns) / 1e9)):
                return
            now_ns = monotonic_ns()
            if now_ns >= next_ns:
                completed = self._run.completed()
                rate = (completed - self._completed) * 1e9 / (now_ns - self._reported_ns)
                self._report(completed, rate)

    def report(self, windows: int, latest: Window) -> None:
        """Report the end of a window."""
        self._windows = windows
        self._report(self._run.completed(), latest.requests_per_s)

    def _report(self, completed: int, rate: float) -> None:
        self._completed = completed
        self._reported_ns = monotonic_ns()
        self._on_progress(LevelProgress(self._windows, completed, rate))


def _warm_up(run: LoadRun, level: Level, wait: ProgressWait) -> float:
    """Run the load until it is steady; return its longest latency, in microseconds."""
    generation = level.load.value if isinstance(level.load, Concurrency) else 1
    start_ns = monotonic_ns()
    wait.seconds(level.plan.warm_up_s)
    while (now_ns := monotonic_ns()) < start_ns + level.plan.longest_warm_up_s * 1e9:
        if run.completed() >= generation:
            break
        wait.seconds(_WARM_UP_POLL_S)
    latencies_ns = run.collect(start_ns, now_ns).latencies_ns
    return max(latencies_ns, default=now_ns - start_ns) / 1000


def _wait_window(run: LoadRun, plan: WindowPlan, start_ns: int, wait: ProgressWait) -> None:
    completed_before = run.completed()
    while True:
        now_ns = monotonic_ns()
        if plan.has_ended(start_ns, now_ns, run.completed() - completed_before):
            return
        wait.seconds((plan.wake_ns(start_ns, now_ns) - now_ns) / 1e9)


def _clamped(
    run: LoadRun, start_ns: int, end_ns: int, statistics: dict[int, StatisticsDocument]
) -> Window:
    """Return the one window of a request count: from the first start to the last end."""
    first_ns, last_ns = run.span_ns() or (start_ns, end_ns)
    statistics[first_ns], statistics[last_ns] = statistics[start_ns], statistics[end_ns]
    return replace(run.collect(start_ns, end_ns), start_ns=first_ns, end_ns=last_ns)


def point_of(
    level: Level,
    rule: StabilityRule,
    verdict: Verdict,
    statistics: Mapping[int, StatisticsDocument],
    models: Sequence[str],
) -> PerfPoint:
    """Return the point of a level that has ended.

    Parameters
    ----------
    level, rule, verdict
        The verdict has at least one window.
    statistics : mapping
        The server's statistics at each bound of a window.
    models : sequence of str
        The model, and the composing models of an ensemble.
    """
    return measured_point(
        level.load.mode, level.load.value, rule, verdict, statistics, models,
        configuration=level.configuration,
        batch_size=level.workload.batch_size,
        sequences=level.workload.sequences is not None,
        varies=isinstance(level.load, RequestRate) and level.load.distribution == "poisson",
    )  # fmt: skip


def measured_point(
    mode: LoadMode,
    value: float,
    rule: StabilityRule,
    verdict: Verdict,
    statistics: Mapping[int, StatisticsDocument],
    models: Sequence[str],
    *,
    configuration: Mapping[str, Any],
    batch_size: int,
    sequences: bool,
    varies: bool = False,
) -> PerfPoint:
    """Return the point of a verdict; see `point_of`. The rate of a schedule by chance ``varies``."""
    before = statistics[verdict.windows[0].start_ns]
    after = statistics[verdict.windows[-1].end_ns]
    found = [breakdown(before, after, name) for name in models]
    steps = tuple(step for step in found[1:] if step is not None)
    server = with_composing(found[0], steps) if found[0] else None
    measured = merge(verdict.windows, rule)
    rate = measured.request_count / measured.window_s if measured.window_s else 0.0
    latency = measured.latency
    return PerfPoint(
        mode=mode,
        value=value,
        configuration=dict(configuration),
        batch_size=batch_size,
        infer_per_s=rate * batch_size,
        request_count=measured.request_count,
        error_count=measured.error_count,
        first_error=measured.first_error,
        latency_avg_us=latency.avg_us,
        latency_std_us=latency.std_us,
        latency_p50_us=latency.p50_us,
        latency_p90_us=latency.p90_us,
        latency_p95_us=latency.p95_us,
        latency_p99_us=latency.p99_us,
        percentile=rule.percentile,
        percentile_us=latency.percentile_us,
        window_s=measured.window_s,
        outcome=verdict.outcome,
        delayed_fraction=measured.delayed_fraction,
        lateness_avg_us=measured.lateness_avg_us,
        server=server,
        composing=steps,
        sequence_count=measured.sequence_count if sequences else None,
        stream=measured.stream,
        notes=_notes(
            measured,
            rate,
            verdict,
            server,
            steps,
            _missed_rate(mode, value, measured, verdict, varies=varies),
        ),
        throughputs=tuple(w.requests_per_s * batch_size for w in verdict.windows),
    )


def _missed_rate(
    mode: LoadMode, value: float, measured: Measurement, verdict: Verdict, *, varies: bool
) -> str:
    """Return a note if the server ended clearly fewer requests per second than were due.

    Parameters
    ----------
    mode, value, measured, verdict
        As of the point.
    varies : bool
        The number that is due varies by chance, as that of a poisson schedule.
    """
    if mode not in ("request_rate", "intervals"):
        return ""
    shortest_s = measured.shortest_ns / 1e9
    # Of a number of requests, the window begins with the first: none can have ended before that.
    before_s = shortest_s if verdict.outcome == "not judged" else 0.0
    due = value * (measured.window_s - before_s)
    if due <= 0:
        return ""
    ended = measured.request_count + measured.error_count
    if ended >= _REACHED * due - (3 * math.sqrt(due) if varies else _EDGES):
        return ""
    # Most waited longer to be sent than in the server: the sender is the cause. Medians, as one stall
    # at the end of a window lengthens it without making a request late.
    late_ns = measured.lateness_ns
    if late_ns and median(late_ns) / 1e9 > measured.latency.p50_us / 1e6 - shortest_s:
        return ""
    return (
        f"throughput {ended / due:.0%} of the rate asked for ({value:g}/s): the queue grew. More "
        "instances, larger batches or a lower rate would help."
    )


def _notes(
    measured: Measurement,
    rate: float,
    verdict: Verdict,
    server: ServerBreakdown | None,
    steps: Sequence[ServerBreakdown],
    missed: str,
) -> tuple[str, ...]:
    notes = [note for note in (verdict.message, verdict.cause) if note]
    if measured.error_count and verdict.outcome != "failed":
        total = measured.error_count + measured.request_count
        notes.append(
            f"{measured.error_count} of {total} requests failed, the first with: "
            f"{measured.first_error}"
        )
    if missed:
        notes.append(missed)
    elif measured.delayed_fraction > DELAY_WARNING:
        notes.append(
            f"Avg send request rate: {rate:.2f} requests/s. The sender was not able to keep up "
            f"with the desired request rate. {measured.delayed_fraction:.1%} of the requests "
            "were delayed."
        )
    # Parallel steps of an ensemble can sum to more than the client's latency, and a stream ends after its
    # last response.
    if (
        server
        and not steps
        and not measured.stream
        and server.accounted_us > measured.latency.avg_us
    ):
        notes.append(
            "Server average accounted time was larger than client average wait time due to small "
            "sample size. Increase the measurement interval with `--measurement-interval`."
        )
    notes += [each.warning for each in (server, *steps) if each and each.warning]
    return tuple(notes)
