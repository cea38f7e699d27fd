"""One replay in the simulator, where each request arrives exactly at its due time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from nbtriton.extensions.recordings.live import Played, Playing, points_of
from nbtriton.lab.perf.breakdown import StatisticsDocument
from nbtriton.lab.perf.progress import LevelProgress
from nbtriton.lab.perf.windows import Window
from nbtriton.lab.simulate import Profile
from nbtriton.lab.simulate.core.replay import Replay
from nbtriton.lab.simulate.level import as_predicted, collect_window
from nbtriton.lab.simulate.server import SimulatedServer
from nbtriton.model.config import ModelConfig

__all__ = ["play_simulated"]

# Events between two checks for signals: compiled code does not check by itself.
_EVENTS = 20_000


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
    server = SimulatedServer(profile, configs, seed=seed)
    loads = {model: server.runtime(model) for model in playing.models}
    keys: dict[int, int] = {}
    run = Replay(
        server.world,
        [
            (
                due_ns,
                loads[each.call.model],
                each.recorded.rows,
                keys.setdefault(id(each.call.inputs), len(keys)),
                each.call,
            )
            for each, due_ns in zip(playing.planned, playing.due_ns, strict=True)
        ],
    )
    interrupted = False
    calendar = server.world.calendar
    before = server.statistics()
    try:
        run.start()
        while calendar.next() >= 0:
            calendar.run(2**62, _EVENTS)
            on_progress(LevelProgress(0, run.completed(), 0.0))
    except KeyboardInterrupt:
        interrupted = True
    end_ns = run.latest_ns()
    statistics: dict[int, StatisticsDocument] = {0: before, max(1, end_ns): server.statistics()}
    windows: dict[str, Window] = {
        model: collect_window(run.recorder_of(loads[model]), 0, max(1, end_ns))
        for model in playing.models
    }
    beyond = server.beyond()
    points = tuple(
        replace(as_predicted(point), notes=(*point.notes, *beyond))
        for point in points_of(playing, windows, statistics, interrupted=interrupted)
    )
    # Virtual clients are never late: each request arrives when it is due.
    sent = [
        each.recorded._replace(at_ns=due_ns)
        for each, due_ns in list(zip(playing.planned, playing.due_ns, strict=True))[: run.number]
    ]
    return Played(points, sent, end_ns if interrupted else 0, interrupted)
