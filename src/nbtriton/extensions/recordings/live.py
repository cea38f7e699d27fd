"""One replay, on a live server or in the simulator, as points of a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic_ns
from typing import Any

from nbtriton.extensions.recordings.player import Player
from nbtriton.extensions.recordings.traffic import Planned
from nbtriton.lab.perf.breakdown import StatisticsDocument
from nbtriton.lab.perf.measure import measured_point, statistics_of, stop_load
from nbtriton.lab.perf.point import PerfPoint
from nbtriton.lab.perf.progress import LevelProgress
from nbtriton.lab.perf.recording import RecordedRequest
from nbtriton.lab.perf.remote import Target
from nbtriton.lab.perf.windows import LevelMeter, StabilityRule, Verdict, Window
from nbtriton.lab.simulate.experiment import Due, Experiment
from nbtriton.lab.simulate.model_profile import Profile
from nbtriton.model.config import ModelConfig
from nbtriton.runtime.engine.interrupts import wait_in_slices

# Interval of progress reports.
_REPORT_S = 0.25


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
        _wait(run, on_progress)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        interrupted = stop_load(run, interrupted=interrupted)
    end_ns = bound()
    windows = {model: run.collect_of(model, start_ns, end_ns) for model in playing.models}
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
    for model, window in windows.items():
        meter = LevelMeter(rule, f"speed {playing.speed:g}")
        verdict: Verdict | None = meter.cut(window) if interrupted else meter.add(window)
        if verdict is None or not verdict.windows:
            continue
        sizes = set(rows[model])
        point = measured_point(
            "replay", playing.speed, rule, verdict, statistics, (model, *playing.models[model]),
            configuration={"model": model, **playing.configuration} if several else playing.configuration,
            batch_size=sizes.pop() if len(sizes) == 1 else 1,
            sequences=model in sequences,
        )  # fmt: skip
        if sizes:  # requests of several sizes
            mean = sum(rows[model]) / len(rows[model])
            note = (
                f"requests of {min(rows[model])} to {max(rows[model])} rows, {mean:.3g} on average"
            )
            point = replace(point, infer_per_s=point.infer_per_s * mean, notes=(*point.notes, note))
        points.append(point)
    return tuple(points)


def _wait(run: Player, on_progress: Callable[[LevelProgress], None]) -> None:
    before, before_ns = 0, monotonic_ns()
    while not wait_in_slices(run.finished.wait, _REPORT_S):
        completed, now_ns = run.completed(), monotonic_ns()
        rate = (completed - before) * 1e9 / (now_ns - before_ns)
        on_progress(LevelProgress(0, completed, rate))
        before, before_ns = completed, now_ns


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
    requests = [Due(due_ns, each.call, each.recorded.rows) for each, due_ns in timed]
    done = experiment.replay(requests, on_progress, models=playing.models)
    points = points_of(playing, done.windows, done.statistics, interrupted=done.interrupted)
    # Virtual clients are never late: each request arrives when it is due.
    sent = [each.recorded._replace(at_ns=due_ns) for each, due_ns in timed[: done.sent]]
    return Played(
        tuple(map(experiment.predicted, points)),
        sent,
        done.end_ns if done.interrupted else 0,
        done.interrupted,
    )
