"""One replay, as points of a report: on a live server, where each request is sent at its due time, or in the simulator."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from time import monotonic_ns
from typing import Any

from nbtriton.extensions.recordings.traffic import Planned
from nbtriton.lab.perf.breakdown import StatisticsDocument
from nbtriton.lab.perf.driver import MAX_OUTSTANDING, LoadSpec, Submitting
from nbtriton.lab.perf.loads import RequestRate
from nbtriton.lab.perf.measure import ProgressWait, measured_point, statistics_of
from nbtriton.lab.perf.point import PerfPoint
from nbtriton.lab.perf.progress import LevelProgress
from nbtriton.lab.perf.recording import RecordedRequest
from nbtriton.lab.perf.records import Slot, collect
from nbtriton.lab.perf.remote import Target
from nbtriton.lab.perf.traffic import Call, Repeated
from nbtriton.lab.perf.windows import LevelMeter, StabilityRule, Verdict, Window
from nbtriton.lab.simulate.experiment import Due, Experiment
from nbtriton.lab.simulate.model_profile import Profile
from nbtriton.model.config import ModelConfig
from nbtriton.options.blocks import CallOptions


@dataclass(frozen=True, slots=True)
class Playing:
    """Arguments of one replay.

    Parameters
    ----------
    planned : sequence of Planned
    due_ns : sequence of int
    speed : float
    models : mapping of str to sequence of str
        The target's models, each with the composing models of an ensemble.
    rule : StabilityRule
        Its percentile is reported.
    configuration : mapping
        The swept options in force.
    streaming, serial : bool
        See `Player`.
    """

    planned: Sequence[Planned]
    due_ns: Sequence[int]
    speed: float
    models: Mapping[str, Sequence[str]]
    rule: StabilityRule
    configuration: Mapping[str, Any] = field(default_factory=dict)
    streaming: bool = False
    serial: bool = False


@dataclass(frozen=True, slots=True)
class Played:
    """Result of one replay: a point for each model, and the sent requests as in a recording.

    `duration_ns` is 0 if the replay took exactly as long as the recording.
    """

    points: tuple[PerfPoint, ...]
    sent: Sequence[RecordedRequest]
    duration_ns: int
    interrupted: bool


@dataclass(slots=True)
class _ModelTimes:
    """Times of the requests to one model."""

    slots: list[Slot] = field(default_factory=list)
    idle: deque[Slot] = field(default_factory=deque)
    errors: deque[tuple[int, str]] = field(default_factory=deque)


class Player(Submitting):
    """Sender of each request at its due time, whether or not earlier requests have ended.

    Parameters
    ----------
    target : Server or RemoteServer
    planned : sequence of Planned
    due_ns : sequence of int
        Nanoseconds after the start, in ascending order.
    streaming : bool
        Record each response.
    serial : bool
        Send at most one request of a sequence at a time, where requests may overtake each other.

    Attributes
    ----------
    sent : list of (int, Planned)
        Sent requests with their times, in nanoseconds after the start.
    """

    def __init__(
        self,
        target: Target,
        planned: Sequence[Planned],
        due_ns: Sequence[int],
        *,
        streaming: bool,
        serial: bool,
    ) -> None:
        super().__init__(
            LoadSpec(target, "", RequestRate(1.0), Repeated([{}]), streaming=streaming)
        )
        self.sent: list[tuple[int, Planned]] = []
        self._planned = planned
        self._due_ns = due_ns
        self._serial = serial
        self._began_ns = 0
        self._times: dict[str, _ModelTimes] = {each.call.model: _ModelTimes() for each in planned}
        # Slots whose request has ended; None at the end of the load. Only the sender's thread sends.
        self._inbox: queue.SimpleQueue[Slot | None] = queue.SimpleQueue()
        self._in_flight: dict[int, Planned] = {}
        self._late: dict[tuple[str, int | str], deque[tuple[Planned, int]]] = {}
        # The last request of each sequence that has begun and not ended.
        self._open: dict[tuple[str, int | str], Planned] = {}

    def collect_of(self, model: str, start_ns: int, end_ns: int) -> Window:
        """Return the window of one model between two times."""
        times = self._times[model]
        return collect(times.slots, times.errors, start_ns, end_ns)

    def completed(self) -> int:
        return sum(
            len(times.errors) + sum(len(slot.end_ns) for slot in times.slots)
            for times in self._times.values()
        )

    def _run(self) -> None:
        self._began_ns = start_ns = monotonic_ns()
        for planned, due_ns in zip(self._planned, self._due_ns, strict=True):
            self._wait_until(start_ns + due_ns)
            while len(self._in_flight) >= MAX_OUTSTANDING and not self._stopping:
                self._handle_end(self._inbox.get())
            if self._stopping:
                break
            late_ns = max(0, monotonic_ns() - start_ns - due_ns)
            key = planned.sequence
            if self._serial and key is not None:
                if key in self._late:  # its last request is in flight
                    self._late[key].append((planned, start_ns + due_ns))
                    continue
                self._late[key] = deque()
            self._play(planned, late_ns)
        while self._in_flight:
            self._handle_end(self._inbox.get())
        if self._stopping and not self._cancelled:
            self._close_sequences()

    def _wait_until(self, due_ns: int) -> None:
        """Handle ends of requests until a time."""
        while not self._stopping:
            left_ns = due_ns - monotonic_ns()
            try:
                if left_ns <= 0:
                    self._handle_end(self._inbox.get_nowait())
                else:
                    self._handle_end(self._inbox.get(timeout=left_ns / 1e9))
            except queue.Empty:
                if left_ns <= 0:
                    return

    def _play(self, planned: Planned, late_ns: int) -> None:
        times = self._times[planned.call.model]
        if times.idle:
            slot = times.idle.popleft()
        else:
            slot = self._new_slot()
            times.slots.append(slot)
            self._slots.append(slot)
        slot.late_ns = late_ns
        self._in_flight[id(slot)] = planned
        if planned.sequence is not None:
            if planned.call.ends:
                self._open.pop(planned.sequence, None)
            else:
                self._open[planned.sequence] = planned
        self.sent.append((monotonic_ns() - self._began_ns, planned))
        self._send(slot, planned.call)

    def _handle_end(self, slot: Slot | None) -> None:
        """Handle the end of a request, on the sender's thread."""
        if slot is None:
            return
        planned = self._in_flight.pop(id(slot))
        self._times[planned.call.model].idle.append(slot)
        key = planned.sequence
        if not self._serial or key is None:
            return
        waiting = self._late[key]
        if not waiting or self._stopping:
            del self._late[key]
            return
        following, due_ns = waiting.popleft()
        now_ns = monotonic_ns()
        self._play(following, max(0, now_ns - due_ns))

    def _close_sequences(self) -> None:
        """End the sequences that an interrupt left incomplete, to free their slots."""
        for planned in list(self._open.values()):
            options: CallOptions = {
                **planned.call.options, "sequence_start": False, "sequence_end": True,
            }  # fmt: skip
            call = Call(planned.call.inputs, options, closing=True, model=planned.call.model)
            self._play(Planned(planned.recorded, call, None), 0)
        while self._in_flight:
            self._handle_end(self._inbox.get())

    def _record_error(self, slot: Slot, end_ns: int, error: BaseException) -> None:
        if slot.call is not None and not slot.call.closing:
            self._times[slot.call.model].errors.append((end_ns, str(error)))

    def _wake(self) -> None:
        self._inbox.put(None)

    def _free(self, slot: Slot, *, inline: bool) -> None:  # noqa: ARG002  same either way
        self._inbox.put(slot)


def play_live(
    target: Target, playing: Playing, on_progress: Callable[[LevelProgress], None]
) -> Played:
    """Play a recording once.

    A KeyboardInterrupt ends it early: requests in flight are awaited or cancelled, and incomplete
    sequences are ended. A second one is raised.
    """
    run = Player(
        target, playing.planned, playing.due_ns, streaming=playing.streaming, serial=playing.serial
    )
    names = [name for model, steps in playing.models.items() for name in (model, *steps)]
    statistics: dict[int, StatisticsDocument] = {}

    def bound() -> int:
        document = statistics_of(target, tuple(dict.fromkeys(names)))
        now_ns = monotonic_ns()
        statistics[now_ns] = document
        return now_ns

    interrupted = False
    start_ns = bound()
    try:
        run.start()
        ProgressWait(run, on_progress).seconds(None)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        try:  # as in `nbtriton.lab.perf.measure.measure_level`
            run.stop()
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            run.stop()
    end_ns = bound()
    # From the first request to the last response: the load and the statistics took their time before and after.
    first_ns, last_ns = run.span_ns() or (start_ns, end_ns)
    statistics[first_ns], statistics[last_ns] = statistics[start_ns], statistics[end_ns]
    windows = {
        model: replace(run.collect_of(model, start_ns, end_ns), start_ns=first_ns, end_ns=last_ns)
        for model in playing.models
    }
    sent = [
        each.recorded._replace(at_ns=at_ns) for at_ns, each in run.sent if not each.call.closing
    ]
    points = points_of(playing, windows, statistics, interrupted=interrupted)
    return Played(points, sent, end_ns - start_ns, interrupted)


def points_of(
    playing: Playing,
    windows: Mapping[str, Window],
    statistics: Mapping[int, StatisticsDocument],
    *,
    interrupted: bool,
) -> tuple[PerfPoint, ...]:
    """Return a point for each model with a completed request."""
    rule = replace(playing.rule, single=True, asynchronous=True)
    several = len(playing.models) > 1
    rows: dict[str, list[int]] = {model: [] for model in playing.models}
    for each in playing.planned:
        rows[each.call.model].append(each.recorded.rows)
    sequences = {each.sequence[0] for each in playing.planned if each.sequence is not None}
    points = []
    for model, steps in playing.models.items():
        window = windows[model]
        meter = LevelMeter(rule, f"speed {playing.speed:g}")
        verdict: Verdict | None = meter.cut(window) if interrupted else meter.add(window)
        if verdict is None or not verdict.windows:
            continue
        sizes = set(rows[model])
        point = measured_point(
            "replay", playing.speed, rule, verdict, statistics, (model, *steps),
            configuration={"model": model, **playing.configuration} if several else playing.configuration,
            batch_size=max(1, sizes.pop()) if len(sizes) == 1 else 1,
            sequences=model in sequences,
        )  # fmt: skip
        if sizes:  # requests of several sizes
            asked = sorted(rows[model])
            note = f"requests of {asked[0]} to {asked[-1]} rows, {fmean(asked):.3g} on average"
            if point.request_count < len(asked):
                note += "; not all were answered, and the throughput is at least what is said"
            least = fmean(asked[: point.request_count] or [0])
            point = replace(
                point, infer_per_s=point.infer_per_s * least,
                throughputs=tuple(rate * least for rate in point.throughputs), notes=(*point.notes, note),
            )  # fmt: skip
        points.append(point)
    return tuple(points)


def play_simulated(
    profile: Profile,
    configs: Mapping[str, ModelConfig],
    playing: Playing,
    on_progress: Callable[[LevelProgress], None],
    *,
    seed: int = 0,
) -> Played:
    """Play a recording once in virtual time; see `nbtriton.extensions.recordings.live.play_live`.

    Parameters
    ----------
    profile : Profile
    configs : mapping of str to ModelConfig
        The configurations in force.
    playing : Playing
    on_progress : callable
    seed : int
        Seed of the simulated service times.
    """
    experiment = Experiment(profile, configs, seed=seed)
    timed = list(zip(playing.planned, playing.due_ns, strict=True))
    requests = [Due(due_ns, each.call, max(1, each.recorded.rows)) for each, due_ns in timed]
    done = experiment.replay(requests, on_progress)
    points = points_of(playing, done.windows, done.statistics, interrupted=done.interrupted)
    # Virtual clients are never late: each request arrives when it is due.
    sent = [each.recorded._replace(at_ns=due_ns) for each, due_ns in timed[: done.sent]]
    predicted = tuple(map(experiment.predicted, points))
    return Played(predicted, sent, done.end_ns if done.interrupted else 0, done.interrupted)
