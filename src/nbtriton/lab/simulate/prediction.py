"""What-if: `nbtriton.perf` on a simulated server."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.drawing.numbers import measure as written
from nbtriton.lab.perf.measure import Level
from nbtriton.lab.perf.options import PerfOptions
from nbtriton.lab.perf.point import PerfPoint, PointSource
from nbtriton.lab.perf.prepare import Data, Workload, sequence_plan, workloads
from nbtriton.lab.perf.progress import LevelProgress, Observer
from nbtriton.lab.perf.report import PerfReport
from nbtriton.lab.perf.session import Ending, Session
from nbtriton.lab.perf.settings import PERF, PerfSettings
from nbtriton.lab.perf.sweep import SERVER_OPTIONS, Configuration, SweepPlan, model_tree
from nbtriton.lab.perf.traffic import SequenceData, SequencePlan
from nbtriton.lab.simulate.experiment import Experiment
from nbtriton.lab.simulate.model_profile import EngineCosts, Profile
from nbtriton.lab.simulate.server import DOUBTFUL
from nbtriton.model.config import normalize
from nbtriton.options.table import signed

# Options of `perf` that say where to measure.
_PLACE = (
    "url", "protocol", "shared_memory", "output_shared_memory_size", "placement", "kind",
    "model_version", "chained",
)  # fmt: skip
# Requests of a window.
_REQUESTS = 1000
# Nine of ten measurements on a quiet machine were within these shares of their predictions, of throughput and of the
# 99th percentile (40 cases of bench.predict: 4.2% and 24.3%).
_MARGIN, _TAIL_MARGIN = 0.05, 0.25
# A client elsewhere may be so much slower or faster than the one that the profile was made with: which of the requests that
# are answered together share the next batch is decided within its time for one of them.
_CLIENT_MARGIN = 0.5
# A measured window of a hundred requests has one more or one less, at any rate that the server follows.
_COUNT_MARGIN = 0.01
_OPTIONS = {name: option for name, option in PERF.items() if name not in _PLACE}


@signed(_OPTIONS)
def whatif(
    profile: Profile,
    model: str | None = None,
    *,
    observer: Observer | None = None,
    **options: Unpack[PerfSettings],
) -> PerfReport:
    """Predict what `nbtriton.perf` would measure, on a simulated server.

    The engine's own schedulers run in virtual time with a profile's service times. A level takes milliseconds
    instead of seconds. The options are those of `nbtriton.perf`, with the same meanings; `seed` also draws the
    service times.

    Parameters
    ----------
    profile : Profile
        A result of `nbtriton.profile`.
    model : str, optional
        A model of the profile; by default the profiled one.
    observer : callable, optional
        As for `nbtriton.perf`.
    **options
        See `nbtriton.lab.perf.settings.PerfSettings`.

    Returns
    -------
    PerfReport
        The same report, marked as simulated. The outcome of a level is ``"predicted"``, with the range in which
        a measurement should lie. It is ``"beyond the profile"``, and a note says why, where the simulation went
        beyond the measurements (larger batches, more concurrent executions), or where these were of a machine that
        was busy with something else.

    Notes
    -----
    Without `measurement_interval_ms` and `measurement_mode` a window has 1,000 requests.

    Raises
    ------
    InvalidArgumentError
        Invalid options.
    NotFoundError
        The profile has no such model.
    UnsupportedError
        A decoupled model, which cannot be simulated.

    Examples
    --------
    A model whose executions take 10 ms, with one instance and with two. `nbtriton.profile` measures the
    profile of a loaded model.

    >>> profile = nt.types.Profile.declared({"bert": 10})
    >>> report = nt.whatif(profile, concurrency=2, instances=[1, 2], request_count=100)
    >>> report.frame["infer_per_s"].tolist()
    [100.0, 200.0]
    """
    perf_options = _options(profile, model, observer, options)
    levels, configurations = perf_options.level_plan(), perf_options.configurations()
    for configuration in configurations:
        profile_under(profile, configuration)  # refused before a simulation
    ensembles, others = model_tree(profile, perf_options.model)
    sweep = SweepPlan(
        ensembles, others, {name: profile.config(name) for name in perf_options.sweep_models}
    )
    sweep.check(configurations)
    plan = sequence_plan(sweep.originals, perf_options.sequence_plan(), serial=False)
    found, notes = _workloads(profile, perf_options, plan, configurations)
    total = levels.count and levels.count * len(configurations) * len(found)
    windows = perf_options.window_plan(total)
    if perf_options.measurement_interval_ms is None and windows.mode == "time_windows":
        # Virtual time costs nothing: with a hundred requests, the gaps of a Poisson process vary by a tenth.
        windows = replace(windows, mode="count_windows", request_count=_REQUESTS)
    models = (perf_options.model, *others) if ensembles else (perf_options.model,)
    in_force = dict(sweep.originals)

    def measure(
        level: Level, on_progress: Callable[[LevelProgress], None]
    ) -> tuple[PerfPoint | None, bool]:
        under = profile_under(profile, level.configuration)
        first = Experiment(under, in_force, seed=level.seed)
        point, interrupted = first.measure(level, models, on_progress)
        if point is None or interrupted or profile.is_declared or not profile.is_usable:
            return point, interrupted
        # The same load on the slowest and on the fastest server that the measurements allow.
        others = [point]
        for changed in _bounds(under):
            bound = Experiment(changed, in_force, seed=level.seed)
            other, interrupted = bound.measure(level, models)
            if other is None or interrupted:
                return point, interrupted
            others.append(other)
        return _with_ranges(point, others), False

    source = PointSource(perf_options.model, tuple(perf_options.sweep_models))
    session = Session(measure, total, perf_options.observer)
    started_s = time.monotonic()
    with Ending(session.points) as ending:
        for configuration in configurations:
            # As a real load does: a new batcher uses its preferred sizes only after its first request.
            target = sweep.target(configuration)
            in_force |= {name: normalize(config, name=name) for name, config in target.items()}
            for workload in found:
                session.search(perf_options, levels, windows, workload, configuration)
    return PerfReport(
        model=perf_options.model,
        points=tuple(
            replace(
                judged(point, profile), source=source, configs=sweep.in_force(point.configuration)
            )
            for point in session.points
        ),
        settings={**perf_options.settings(plan, windows), "server": dict(profile.server)},
        environment=profile.environment,
        notes=(*filter(None, (profile.disturbance,)), *notes, *session.notes),
        elapsed_s=time.monotonic() - started_s,
        interrupted=ending.interrupted,
        quick=perf_options.quick,
        simulated=True,
        failure=ending.failure,
    )


def predicted_point(profile: Profile, model: str, **load: Any) -> PerfPoint:
    """Return the one point of a prediction; raise the KeyboardInterrupt that has ended it."""
    report = whatif(profile, model, **load)
    if report.interrupted:
        raise KeyboardInterrupt
    return report.points[0]


# Settings that change what is measured, beside the load of a point.
_SAME = (
    "url", "request_distribution", "streaming", "model_version", "priority", "timeout_us", "shared_memory",
    "sequences", "server",
)  # fmt: skip


def with_measurement(prediction: PerfReport, measured: PerfReport) -> PerfReport:
    """Return a prediction with the points of a measurement that had the same loads, configurations and settings beneath.

    Without such a point it is returned as it is.
    """
    if any(prediction.settings.get(name) != measured.settings.get(name) for name in _SAME):
        return prediction
    pairs = [
        (point, other)
        for point in prediction.points
        for other in measured.points
        if point.mode in ("concurrency", "request_rate")
        and point.infer_per_s
        and other.request_count
        and _conditions(point) == _conditions(other)
    ]
    if not pairs:
        return prediction
    ratios = [other.infer_per_s / point.infer_per_s for point, other in pairs]
    words = written(min(ratios), 2) + (f" to {written(max(ratios), 2)}" if len(ratios) > 1 else "")
    quick = ", in short windows" if measured.quick else ""
    note = f"solid: measured at {measured.environment['measured_at']}{quick}; {words} times the predicted throughput"
    return replace(
        prediction,
        notes=(*prediction.notes, note),
        # Named as their predictions: the same configuration may have been reached by other options.
        measured=tuple(replace(other, configuration=point.configuration) for point, other in pairs),
    )


def _conditions(point: PerfPoint) -> tuple[object, ...]:
    server = {name: point.configuration.get(name) for name in (*SERVER_OPTIONS, "chained")}
    return point.mode, point.value, point.batch_size, point.simulated_gpus, point.configs, server


def _with_ranges(point: PerfPoint, others: Sequence[PerfPoint]) -> PerfPoint:
    """Return a point with the ranges of throughput and p99 latency that several simulations span.

    Where one of them has answered nothing, no p99 latency is an end of the range.
    """
    rates = [each.infer_per_s for each in others]
    tails_us = [each.latency_p99_us for each in others]
    tail = 1 + _TAIL_MARGIN
    return replace(
        point,
        infer_per_s_range=(min(rates) * (1 - _COUNT_MARGIN), max(rates) * (1 + _COUNT_MARGIN)),
        latency_p99_range_us=None
        if any(map(math.isnan, tails_us))
        else (min(tails_us) / tail, max(tails_us) * tail),
    )


def _bounds(profile: Profile) -> tuple[Profile, Profile]:
    """Return the slowest and the fastest profile that agree with what was measured.

    All execution times are slower, or faster, by three factors. The first is what the profile saw of its own
    spread: its slowest and fastest turn, and at least two standard errors of the mean of its executions. The second
    is what other programs took: beside those that use a share *b* of the cores, an execution that computes gets 1 - b
    of a core, so that at rest it may take 1 - b of the measured time, and a crowd such as was measured may make
    another one take 1 / (1 - b) of it. The third is `_MARGIN`. The slow profile has the stalls, also those of others, and
    the fast one none. The time of a client elsewhere, and of its way, varies by `_CLIENT_MARGIN`.
    """
    left = max(1 - profile.busy, 0.01)
    slow, fast = {}, {}
    for name, one in profile.models.items():
        low, high = one.drift
        points = [
            (each, 2 * one.deviation / math.sqrt(max(1, each.executions))) for each in one.points
        ]
        slow[name] = replace(
            one,
            points=tuple(
                each.scaled(max(high, 1 + error) * (1 + _MARGIN) / left, stalls=True)
                for each, error in points
            ),
        )
        fast[name] = replace(
            one,
            points=tuple(
                each.scaled(min(low, 1 / (1 + error)) * (1 - _MARGIN) * left, stalls=False)
                for each, error in points
            ),
        )
    # Stalls count where nobody else is known to have caused them.
    return (
        replace(profile, models=slow, others=None, costs=_costs(profile, 1 + _CLIENT_MARGIN)),
        replace(profile, models=fast, costs=_costs(profile, 1 - _CLIENT_MARGIN)),
    )


def _costs(profile: Profile, factor: float) -> EngineCosts:
    costs = profile.costs
    if all(one.place != "remote" for one in profile.models.values()):
        return costs
    ways = tuple(us * factor for us in costs.way_us)
    return replace(costs, way_us=ways, submit_us=costs.submit_us * factor)


def judged(point: PerfPoint, profile: Profile) -> PerfPoint:
    """Return a simulated point with the outcome that its profile allows; without a range where that says nothing."""
    notes = point.notes
    if not profile.is_usable:
        # The report's notes say by how much.
        notes = (
            *notes,
            f"{DOUBTFUL}: the machine or its models were busy for others while it was measured",
        )
    if not any(note.startswith(DOUBTFUL) for note in notes):
        return point
    # What such a profile says of stability says as little as what it says of time.
    settled = point.outcome in ("predicted", "unstable")
    return replace(
        point,
        notes=notes,
        outcome="beyond the profile" if settled else point.outcome,
        infer_per_s_range=None,
        latency_p99_range_us=None,
    )


def profile_under(profile: Profile, configuration: Configuration) -> Profile:
    """Return the profile of a server with the server options of a configuration."""
    changed = {name: configuration[name] for name in SERVER_OPTIONS if name in configuration}
    if configuration.get("cache") and not profile.server.get("cache_bytes"):
        raise InvalidArgumentError(
            "the profiled server has no response cache, so cache=True would change nothing",
            hint="profile one that has: nt.Server(cache_bytes=N)",
        )
    return replace(profile, server={**profile.server, **changed}) if changed else profile


def _options(
    profile: Profile, model: str | None, observer: Observer | None, options: Mapping[str, Any]
) -> PerfOptions:
    if not isinstance(profile, Profile):
        raise InvalidArgumentError(
            f"whatif needs a profile, found {type(profile).__name__}",
            hint="nt.profile(server, name) makes one",
        )
    for name in _PLACE:
        if options.get(name) not in (None, "inproc", PERF[name].default):
            raise InvalidArgumentError(
                f"{name} has no meaning for a simulated server",
                hint="a profile is of the devices where the instances ran; tune(placement='auto') measures all"
                if name in ("placement", "kind")
                else "profile the server there: nt.profile(None, name, url=...)",
            )
    if options.get("streaming") or options.get("periodic_concurrency") is not None:
        raise InvalidArgumentError("streams of responses are not simulated")
    given = {name: value for name, value in options.items() if name not in _PLACE}
    return PerfOptions(None, model or profile.model, observer=observer, **given)


def _workloads(
    profile: Profile,
    options: PerfOptions,
    plan: SequencePlan | None,
    configurations: Sequence[Configuration],
) -> tuple[list[Workload], tuple[str, ...]]:
    """Return the workloads; only the number of rows of generated data matters."""
    config = profile.config(options.model)
    largest = min(c.get("max_batch_size", config.max_batch_size) for c in configurations)
    data = Data(options.inputs, options.shapes, options.input_data)
    sizes = options.batch_sizes()
    if options.inputs is not None or options.input_data not in ("random", "zero"):
        found, notes = workloads(config, sizes, data, plan, largest)
    else:
        notes = ()
        sequences = None if plan is None else SequenceData(plan, [[{}]], given=False)
        found = [Workload(({},), size or 1, sequences) for size in sizes]
        for workload in found:
            if workload.batch_size > max(1, largest):
                raise InvalidArgumentError(
                    f"batch size {workload.batch_size} is larger than max_batch_size {largest} of "
                    f"model '{config.name}'",
                    hint="every such request would be refused",
                )
    return [replace(each, options=options.call_options()) for each in found], notes
