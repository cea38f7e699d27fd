"""One replay in the simulator, where each request arrives exactly at its due time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nbtriton.extensions.recordings.live import Played, Playing, points_of
from nbtriton.lab.perf.progress import LevelProgress
from nbtriton.lab.simulate import Profile
from nbtriton.lab.simulate.experiment import Due, Experiment
from nbtriton.model.config import ModelConfig


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
