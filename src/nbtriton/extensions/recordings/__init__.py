"""Recording of live traffic to a file, and its replay (docs/recording.md).

>>> nt.record(server, "traffic.jsonl", duration_s=10)  # doctest: +SKIP
>>> nt.replay("traffic.jsonl", server, speed=2)  # doctest: +SKIP

`lab.perf.recording` has the file's format, `tap` writes a file, `traffic` makes requests from it, `live` sends these to
a server or to the simulator; the report is made here.
"""

# Annotations are evaluated: the table of options is read from them.
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Unpack

from nbtriton.common.checks import CALL, PATH, check, optional
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.extensions.recordings.live import Played, Playing, play_live, play_simulated
from nbtriton.extensions.recordings.tap import TrafficTap, record
from nbtriton.extensions.recordings.traffic import chosen_models, due_times_ns, planned_traffic
from nbtriton.lab.perf.loads import read_speeds
from nbtriton.lab.perf.machine import Others
from nbtriton.lab.perf.point import PerfPoint, PointSource, describe
from nbtriton.lab.perf.progress import GuardedObserver, LevelProgress, Observer, PerfProgress
from nbtriton.lab.perf.recording import Recording
from nbtriton.lab.perf.remote import RemoteServer, Target
from nbtriton.lab.perf.report import PerfReport
from nbtriton.lab.perf.run import environment_of, open_target, place_of
from nbtriton.lab.perf.session import Ending
from nbtriton.lab.perf.settings import (
    SWEEP,
    KindSweep,
    Percentile,
    Protocol,
    Seed,
    Shapes,
    Speed,
    Sweep,
)
from nbtriton.lab.perf.sweep import (
    Configuration,
    Configurator,
    Configured,
    SweepPlan,
    combinations,
    model_tree,
)
from nbtriton.lab.perf.windows import StabilityRule
from nbtriton.lab.simulate.model_profile import Profile
from nbtriton.lab.simulate.prediction import judged, profile_under
from nbtriton.model.config import ModelConfig, normalize
from nbtriton.options.reading import name_list
from nbtriton.options.table import Option, read_settings, signed, table_of
from nbtriton.serving.server import Server

__all__ = ["Recording", "TrafficTap", "record", "replay"]


def _models(text: str) -> list[str] | dict[str, str]:
    """Read ``A,B``, or ``A:X,B:Y``: the requests for A are sent to X."""
    names = name_list(text)
    if not any(":" in name for name in names):
        return names
    return {name.partition(":")[0]: name.partition(":")[2] or name for name in names}


class ReplaySettings(Sweep, total=False):
    """The options of a replay."""

    models: Annotated["str | Sequence[str] | Mapping[str, str] | None", Option(
        "--models", "only the requests for these; A:X sends those for A to X", "LIST", _models)]  # fmt: skip
    speed: Speed
    protocol: Protocol
    kind: KindSweep
    shapes: Shapes
    percentile: Percentile
    seed: Seed
    record: Annotated["str | Path | None", Option("--record", "record what is sent", "FILE", kind=optional(PATH))]  # fmt: skip


REPLAY = table_of(ReplaySettings)


# Plays a recording once in the current configuration.
_Play = Callable[[Playing, Callable[[LevelProgress], None]], Played]


@signed(REPLAY)
def replay(
    recording: str | Path | Recording,
    target: "Server | Profile | str",
    *,
    observer: Observer | None = None,
    **options: Unpack[ReplaySettings],
) -> PerfReport:
    """Replay a recording, each request at its recorded time, and measure as `nbtriton.perf`.

    >>> import tempfile
    >>> with nt.record(server, f"{tempfile.mkdtemp()}/traffic.jsonl", inputs=True) as tap:
    ...     _ = [server.infer("double", {"IN": ones}) for _ in range(5)]
    >>> [point.request_count for point in nt.replay(tap.path, server, speed=[1, 4]).points]
    [5, 5]
    >>> nt.replay("traffic.jsonl", profile, instances=[1, 2])  # doctest: +SKIP

    Parameters
    ----------
    recording : path or Recording
        From `nbtriton.record`.
    target : Server, Profile or str
        A server in this process; a profile of `nbtriton.profile`, for the simulator; or the URL of a
        server with Triton's protocol.
    models : str, sequence of str or mapping, optional
        Only the requests for these models, all by default; a mapping gives the target's model for
        each.
    speed : float or sequence of float
        Factor of the recorded speed; several are replayed one after the other.
    protocol : {"inproc", "http", "grpc"}, optional
        As for `nbtriton.perf`.
    shapes : mapping, optional
        Shapes of inputs with variable dimensions, for a recording that has none.
    percentile : float, optional
        Percentile of the latency to report beside p50, p90, p95 and p99.
    instances, max_batch_size, max_queue_delay_us, dynamic_batching, preferred, isolation, kind, cache, rate_limit : optional
        A value or a list of values, as for `nbtriton.perf`: replay with each combination, then
        restore the model's own configuration.
    sweep_models : sequence of str
        The models to configure; needed if there are several.
    seed : int
        Seed of inputs that were not recorded, and of the simulator's service times.
    record : path, optional
        Record the requests sent by the last replay.
    observer : callable, optional
        As for `nbtriton.perf`.

    Returns
    -------
    PerfReport
        A point for each model, speed and configuration, from the first request to the last response.
        After a KeyboardInterrupt the report has the measurements until then, with
        ``interrupted=True``; after an error in a later replay with that in ``failure``.

    Raises
    ------
    InvalidArgumentError
        The options are inconsistent, or the file is not a recording.
    NotFoundError
        No such file or model.
    UnavailableError
        No server answers at the URL.

    Notes
    -----
    Requests of a sequence keep their order and their correlation id. Over HTTP and gRPC, where requests
    may overtake each other, each waits for the response to the one before. In the simulator requests
    arrive exactly when they are due, so that two replays give equal numbers.
    """
    given = read_settings("replay", REPLAY, options)
    check({"observer": observer}, {"observer": optional(CALL)})
    protocol, kind = given["protocol"], given["kind"]
    read = recording if isinstance(recording, Recording) else Recording.load(recording)
    speeds = read_speeds(given["speed"])
    swept = {option.parameter for option in SWEEP} - {"sweep_models"} | {"kind"}
    configurations = combinations(**{name: given[name] for name in swept})
    chosen = chosen_models(read, given["models"])
    asked = _Asked(read, chosen, configurations, given)
    started_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        if isinstance(target, Profile):
            if protocol not in (None, "inproc"):
                raise InvalidArgumentError("protocol has no meaning for a simulated server")
            if kind is not None:
                raise InvalidArgumentError(
                    "kind has no meaning for a simulated server",
                    hint="a profile is of the devices where the instances ran",
                )
            session = _simulated(target, asked)
        else:
            session = _live(stack, target, asked)
        run = _Run(session, observer, len(configurations) * len(speeds))
        notes = [] if read.complete else ["the end of the recording is missing"]
        if isinstance(target, Profile):
            notes += filter(None, [target.disturbance])
        with Ending(run.points, session.restore) as ending:
            run.all(configurations, speeds)
        if given["record"] is not None and run.latest is not None:
            _as_recording(read, chosen, run.latest, speeds[-1]).save(given["record"])
        return PerfReport(
            model=", ".join(dict.fromkeys(chosen.values())),
            points=tuple(
                judged(point, target) if isinstance(target, Profile) else point
                for point in run.points
            ),
            settings={
                "recording": "given" if isinstance(recording, Recording) else str(recording),
                "speed": speeds, "seed": given["seed"], "percentile": given["percentile"], **session.place,
            },
            environment=session.environment(),
            notes=tuple(notes),
            elapsed_s=time.monotonic() - started_s,
            interrupted=ending.interrupted,
            simulated=isinstance(target, Profile),
            failure=ending.failure,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is to be replayed, in which configurations, and the options of the call."""

    recording: Recording
    chosen: Mapping[str, str]
    configurations: Sequence[Configuration]
    given: Mapping[str, Any]

    @property
    def rule(self) -> StabilityRule:
        return StabilityRule(percentile=self.given["percentile"])


@dataclass(frozen=True, slots=True)
class _Session:
    """The target of a replay; `base` is without due times."""

    base: Playing
    play: _Play
    apply: Callable[[Configuration], None]
    restore: Callable[[], None]
    environment: Callable[[], Mapping[str, Any]]
    place: Mapping[str, Any]
    source: PointSource | None


def _live(stack: contextlib.ExitStack, target: "Server | str", asked: _Asked) -> _Session:
    given, chosen, configurations = asked.given, asked.chosen, asked.configurations
    sweep_models: Sequence[str] = given["sweep_models"]
    server = url = None
    if isinstance(target, str):
        url = target
    elif hasattr(target, "engine"):
        server = target
    else:
        raise InvalidArgumentError(
            f"a recording is replayed on a server, a profile or a url; found {type(target).__name__}",
            hint="nt.replay(file, server), nt.replay(file, profile), nt.replay(file, 'host:8000')",
        )
    reached: Target = open_target(
        stack, server, url, given["protocol"], configurations, sweep_models
    )
    programs = None if server is None else Others()
    planned = planned_traffic(
        asked.recording, chosen, reached, shapes=given["shapes"], seed=given["seed"]
    )
    ensembles, others, models = _trees(reached, chosen)
    decoupled = any(
        config.model_transaction_policy.decoupled for config in (ensembles | others).values()
    )
    base = Playing(
        planned, [], 1.0, models, asked.rule, streaming=decoupled,
        serial=isinstance(reached, RemoteServer),
    )  # fmt: skip

    apply: Callable[[Configuration], None] = _nothing
    restore: Callable[[], None] = _nothing
    source = None
    if server is not None and any(configurations):
        named = _to_sweep(models, sweep_models)
        configurator = Configurator(server, named, configurations, sweep_models)
        apply, restore = configurator.apply, configurator.restore
        source = PointSource(named, tuple(sweep_models), server)
    return _Session(
        base, partial(play_live, reached), apply, restore, partial(environment_of, reached, programs), place_of(reached), source
    )  # fmt: skip


def _simulated(profile: Profile, asked: _Asked) -> _Session:
    sweep_models: Sequence[str] = asked.given["sweep_models"]
    planned = planned_traffic(asked.recording, asked.chosen, profile, empty=True)
    ensembles, others, models = _trees(profile, asked.chosen)
    if any(asked.configurations):
        _to_sweep(models, sweep_models)
    sweep = SweepPlan(ensembles, others, {name: profile.config(name) for name in sweep_models})
    sweep.check(asked.configurations)
    for each in asked.configurations:
        profile_under(profile, each)  # refuses a wrong configuration before the simulation
    in_force = dict(sweep.originals)

    def apply(configuration: Configuration) -> None:
        # As a load does: only then has a new batcher its preferred sizes.
        target = sweep.target(configuration)
        in_force.update({name: normalize(each, name=name) for name, each in target.items()})

    def play(playing: Playing, on_progress: Callable[[LevelProgress], None]) -> Played:
        under = profile_under(profile, playing.configuration)
        return play_simulated(under, in_force, playing, on_progress, seed=asked.given["seed"])

    base = Playing(planned, [], 1.0, models, asked.rule)
    return _Session(
        base, play, apply, _nothing, lambda: profile.environment, {},
        PointSource(next(iter(models)), tuple(sweep_models)),
    )  # fmt: skip


def _trees(
    target: Configured, chosen: Mapping[str, str]
) -> tuple[dict[str, ModelConfig], dict[str, ModelConfig], dict[str, tuple[str, ...]]]:
    """Return the ensembles and the other models that requests reach, and the composing models of each chosen one."""
    ensembles: dict[str, ModelConfig] = {}
    others: dict[str, ModelConfig] = {}
    models = {}
    for model in chosen.values():
        first, rest = model_tree(target, model)
        models[model] = tuple(rest) if first else ()
        ensembles |= first
        others |= rest
    return ensembles, others, models


def _nothing(*_: object) -> None:
    """Leave the models as they are."""


def _to_sweep(models: Mapping[str, Sequence[str]], sweep_models: Sequence[str]) -> str:
    """Return the model whose configuration is swept; the first if there are several."""
    if len(models) > 1 and not sweep_models:
        raise InvalidArgumentError(
            f"the recording has requests for several models: {', '.join(models)}",
            hint="name those to configure: sweep_models=[...]; or one to replay: models=...",
        )
    return next(iter(models))


class _Run:
    """Replays of one call, one after the other."""

    def __init__(self, session: _Session, observer: Observer | None, total: int) -> None:
        self.points: list[PerfPoint] = []
        self.latest: Played | None = None
        self._session = session
        self._observer = GuardedObserver(observer)
        self._total = total
        self._done = 0
        self._started_s = time.monotonic()

    def all(self, configurations: Sequence[Configuration], speeds: Sequence[float]) -> None:
        """Replay with each configuration at each speed."""
        session = self._session
        for configuration, speed in product(configurations, speeds):
            session.apply(configuration)  # of the same one nothing
            due_ns = due_times_ns(session.base.planned, speed)
            playing = replace(session.base, due_ns=due_ns, speed=speed, configuration=configuration)
            report = partial(self._report, playing)
            report(LevelProgress(0, 0, 0.0))
            self.latest = played = session.play(playing, report)
            self.points += [replace(point, source=session.source) for point in played.points]
            self._done += 1
            if played.interrupted:
                raise KeyboardInterrupt

    def _report(self, playing: Playing, progress: LevelProgress) -> None:
        whole_s = playing.due_ns[-1] / 1e9
        share = progress.requests / len(playing.planned)
        elapsed_s = time.monotonic() - self._started_s
        self._observer(PerfProgress(
            level=self._done + 1, levels=self._total, what=describe(f"speed {playing.speed:g}", playing.configuration, 1),
            window=0, max_windows=1, requests=progress.requests, max_requests=len(playing.planned), elapsed_s=elapsed_s,
            eta_s=whole_s * (self._total - self._done - share), infer_per_s=progress.requests_per_s, points=tuple(self.points),
        ))  # fmt: skip


def _as_recording(
    recording: Recording, chosen: Mapping[str, str], played: Played, speed: float
) -> Recording:
    """Return the sent requests as a recording."""
    return Recording(
        tuple(each._replace(model=chosen[each.model]) for each in played.sent),
        recording.inputs,
        {chosen.get(name, name): text for name, text in recording.models.items()},
        recording.began,
        # In virtual time a replay takes exactly as long.
        played.duration_ns or round(recording.duration_ns / speed),
    )
