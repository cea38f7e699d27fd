"""``nbtriton.tune``: the search for the best configuration by simulation and measurement."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any, Self

from nbtriton.checks import (
    CALL,
    MAPPING,
    NAME,
    SEED,
    SERVER,
    Kind,
    check,
    listed,
    number,
    optional,
    whole,
)
from nbtriton.config import ModelConfig
from nbtriton.drawing import Column, compact_html, counted, in_units, measure, table_text
from nbtriton.errors import InvalidArgumentError, NotFoundError
from nbtriton.packages import needed
from nbtriton.perf.api import perf
from nbtriton.perf.data import Inputs
from nbtriton.perf.point import PerfPoint
from nbtriton.perf.prepare import Data
from nbtriton.perf.progress import Observer, PerfProgress
from nbtriton.perf.source import AppliedConfiguration
from nbtriton.perf.sweep import Configurator, SweepPlan, model_tree
from nbtriton.simulate.device_profiles import measure_devices
from nbtriton.simulate.memory import INSTANCES, InstanceMemory, measure_memory
from nbtriton.simulate.model_profile import Profile
from nbtriton.simulate.placing import PlacementSearch
from nbtriton.simulate.profiling import profile as measure_profile
from nbtriton.simulate.search import OBJECTIVES, Candidate, Goal, Search, Space

if TYPE_CHECKING:
    import pandas as pd

    from nbtriton.api import Server

__all__ = ["Finalist", "Tuning", "tune"]

_KINDS: Mapping[str, Kind] = {
    "batch_size": whole(1),
    "shapes": optional(MAPPING),
    "profile": optional(Kind(lambda value: isinstance(value, Profile), "a profile of nt.profile")),
    "finalists": whole(1),
    "seconds": number(above=0),
    "seed": SEED,
    "observer": optional(CALL),
    "instances": optional(listed(whole(1))),
    "max_batch_size": optional(listed(whole(1))),
    "max_queue_delay_us": optional(listed(whole(0))),
}
_DELAYS_US = (0, 100, 500, 1000, 2000, 5000)
_MEASURED = ("infer_per_s", "latency_p50_us", "latency_p99_us")
# Seconds of its own profile: the search only ranks configurations, and the finalists are measured. With a
# profile of four times that, tuning an ensemble took 16% of the time of measuring a whole grid; with this one
# 7%.
_PROFILE_S = 1.0
# Seconds of search after an interrupt of the profile: enough for a first look at the configurations.
_LOOK_S = 1.0
# The load under which memory is measured: twice the concurrency that keeps all instances busy; its requests.
_BUSY = 2 * INSTANCES
_LOAD = 8 * INSTANCES


@dataclass(frozen=True, slots=True)
class Finalist:
    """A configuration with its predicted and its measured point.

    Parameters
    ----------
    options : mapping of str to mapping
        By model.
    predicted : PerfPoint
    measured : PerfPoint or None
        None if an interrupt came before.
    memory_mb : float
        Megabytes of all instances, by the measurement of one; 0 where not asked for.
    """

    options: Mapping[str, Mapping[str, Any]]
    predicted: PerfPoint
    measured: PerfPoint | None
    memory_mb: float = 0.0

    @property
    def result(self) -> PerfPoint:
        """The point that ranks it."""
        return self.predicted if self.measured is None else self.measured

    @property
    def due(self) -> None:
        """None: the number of requests due in the measured windows is unknown."""

    @property
    def instances(self) -> int:
        """Instances of all models, where they are part of the search."""
        return sum(each.get("instances", 0) for each in self.options.values())


@dataclass(frozen=True, slots=True, repr=False)
class Tuning:
    """The result of `nbtriton.tune`: has a display in notebooks, and can be applied.

    Parameters
    ----------
    model : str
    finalists : tuple of Finalist
        Measured, the best first.
    candidates : tuple of Candidate
        All predicted configurations, the best first.
    configs : mapping of str to ModelConfig
        The best configuration: of each model that it changes.
    simulated : int
        Number of simulated loads.
    notes : tuple of str
    elapsed_s : float
    interrupted : bool

    Examples
    --------
    >>> choices = {"instances": [1, 2], "max_batch_size": [8], "max_queue_delay_us": [0]}
    >>> profile = nt.Profile.declared({"double": {1: 2, 8: 4}})
    >>> best = nt.tune(server, "double", **choices, profile=profile, finalists=1, seconds=20)
    >>> len(best.candidates), best.interrupted
    (2, False)
    >>> applied = best.apply()
    >>> server.config("double").instance_group[0].count == best.models["double"]["instances"]
    True
    """

    model: str
    finalists: tuple[Finalist, ...]
    candidates: tuple[Candidate, ...]
    configs: Mapping[str, ModelConfig]
    simulated: int = 0
    notes: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    interrupted: bool = False
    server: Server | None = field(default=None, compare=False)

    @property
    def best(self) -> PerfPoint:
        """The best point: measured, or predicted if an interrupt came before."""
        return self.finalists[0].result

    @property
    def models(self) -> Mapping[str, Mapping[str, Any]]:
        """The options of the best configuration, by model."""
        return self.finalists[0].options

    @property
    def configuration(self) -> dict[str, Any]:
        """The best configuration and its load, as options of `nbtriton.perf`.

        Of an ensemble whose models have options of their own only the load: `apply` sets the rest.
        """
        options = list(self.models.values())
        if all("placement" in each for each in options):
            devices = {name: each["placement"] for name, each in self.models.items()}
            return {"placement": devices, str(self.best.mode): self.best.value}
        same = all(each == options[0] for each in options)
        return {**(options[0] if same else {}), str(self.best.mode): self.best.value}

    @property
    def config_pbtxt(self) -> str:
        """The text of ``config.pbtxt`` of each model, under a comment with its path."""
        return AppliedConfiguration(self.configs).config_pbtxt

    @property
    def frontier(self) -> pd.DataFrame:
        """The predicted candidates that none beats in both throughput and p99 latency."""
        with needed("a frontier"):
            import pandas as pd

        best, lowest = [], float("inf")
        for one in sorted(self.candidates, key=lambda each: -each.point.infer_per_s):
            if one.point.latency_p99_us < lowest:
                lowest = one.point.latency_p99_us
                best.append(one)
        return pd.DataFrame([_row(one, one.point) for one in reversed(best)])

    def apply(self, server: Server | None = None) -> AppliedConfiguration:
        """Load the models with the best configuration.

        Returns
        -------
        AppliedConfiguration
            Displayed as their ``config.pbtxt``.
        """
        target = server or self.server
        if target is None:
            raise InvalidArgumentError("no server", hint="give one: tuning.apply(server)")
        configurator = Configurator(target, self.model, [])
        configurator.apply_each(self.models)
        return AppliedConfiguration({name: target.config(name) for name in configurator.models})

    def __copy__(self) -> Self:
        return replace(self)

    # A deep copy, or one from a pickle, is plain data: without the server.
    def __reduce__(self) -> tuple[Any, ...]:
        given = (
            self.model, self.finalists, self.candidates, dict(self.configs), self.simulated, self.notes,
            self.elapsed_s, self.interrupted,
        )  # fmt: skip
        return type(self), given

    @property
    def headline(self) -> str:
        """A one-line summary of the search."""
        words = (
            f"{self.model}: {_simulated(len(self.candidates))}, "
            f"{sum(one.measured is not None for one in self.finalists)} measured in {measure(self.elapsed_s)} s"
        )
        return words + (", interrupted" if self.interrupted else "")

    def __repr__(self) -> str:
        return f"<Tuning {self.headline}>"

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        rows = [
            {
                **_row(one, one.result),
                **({} if one.measured else dict.fromkeys(_MEASURED)),
                "predicted": one.predicted.infer_per_s,
                "predicted_p99_us": one.predicted.latency_p99_us,
            }
            for one in self.finalists
        ]
        titles = {
            "memory_mb": Column("memory", "MB"),
            "infer_per_s": Column("measured", "infer/s"),
            "latency_p50_us": Column("p50", "µs"),
            "latency_p99_us": Column("p99", "µs"),
            "predicted": Column("predicted", "infer/s"),
            "predicted_p99_us": Column("predicted p99", "µs"),
        }
        names = list(rows[0])
        columns = [titles.get(name) or Column.of(name) for name in names]
        columns, cells = in_units(columns, [[row[name] for name in names] for row in rows])
        text = [self.headline, table_text(columns, cells)]
        text += [*(f"note: {note}" for note in self.notes), self.config_pbtxt]
        items = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        # The options that differ between the finalists, and their results.
        differ = [name for name in names if any(row[name] != rows[0][name] for row in rows)]
        important = [
            *(name for name in differ if name not in titles),
            "infer_per_s",
            "latency_p99_us",
            "predicted",
            "predicted_p99_us",
        ]
        first = [names.index(name) for name in important if name in names]
        html = (
            f'<div class="nbt-perf"><p>{escape(self.headline)}</p>{compact_html(columns, cells, first)}'
            f'<ul>{items}</ul><pre style="font-family:monospace">{escape(self.config_pbtxt)}</pre></div>'
        )
        return {"text/plain": "\n".join(text), "text/html": html}


def tune(
    server: Server,
    model: str,
    *,
    p99_ms: float | None = None,
    maximize: str | None = None,
    minimize: str | None = None,
    min_throughput: float | None = None,
    concurrency: int | None = None,
    request_rate: float | None = None,
    batch_size: int = 1,
    instances: Sequence[int] | None = None,
    max_batch_size: Sequence[int] | None = None,
    max_queue_delay_us: Sequence[int] | None = None,
    placement: str | None = None,
    inputs: Inputs | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    profile: Profile | None = None,
    finalists: int = 3,
    seconds: float = 30.0,
    seed: int = 0,
    observer: Observer | None = None,
) -> Tuning:
    """Find the best configuration of a model, or of all steps of an ensemble together.

    It measures a profile, searches for configurations on the simulated server, and measures the best ones on
    the real server. The models have their own configuration again at the end.

    Parameters
    ----------
    server : Server
    model : str
    p99_ms : float, optional
        Upper limit of the p99 latency, in milliseconds.
    maximize : {"throughput"}, optional
        The default.
    minimize : {"latency", "instances", "memory", "cost"}, optional
        The p99 latency, the number of instances of all models together, their memory (which is measured
        first), or the cost of a placement.
    min_throughput : float, optional
        Lower limit of the throughput, in inferences per second.
    concurrency, request_rate : int, float, optional
        The load: requests outstanding, or requests per second with exponential gaps. By default the search
        includes the best number of outstanding requests.
    batch_size : int
        Rows per request.
    instances, max_batch_size, max_queue_delay_us : sequence of int, optional
        The values to choose from. By default 1 to the number of cores (at least 4), the powers of two up to
        the model's own ``max_batch_size`` (which the model is known to accept), and 0 to 5 ms.
    placement : {"auto"}, optional
        Choose only the device of each step. Each step is measured on the host and on each GPU, and so are the
        copies of tensors between them. The default is then to minimize the cost, the time for which a request
        keeps devices and copy engines busy, within `p99_ms`; the default load is one outstanding request; and
        ``minimize="latency"`` minimizes the median.
    inputs, shapes
        What to send, as for `nbtriton.perf`.
    profile : Profile, optional
        An earlier measurement.
    finalists : int
        Configurations to measure.
    seconds : float
        Longest time of the search; with a `placement` half of it measures the devices.
    seed : int
    observer : callable, optional
        Called with a `PerfProgress`.

    Returns
    -------
    Tuning
        After a KeyboardInterrupt: the measurements until then, or the predictions if no finalist was
        measured, with ``interrupted=True``.

    Raises
    ------
    InvalidArgumentError
        Invalid options.
    NotFoundError
        No such model, or no configuration could be simulated.
    KeyboardInterrupt
        Before there are measurements to predict from.

    Notes
    -----
    An ensemble's steps are tuned together, each with its own options.

    The memory of a configuration is that of its instances: the memory of a further instance of each model,
    times their number, and the weights that they share on devices. A further instance is measured after it
    has answered requests: the growth of this process's resident memory, of that of its workers and of the
    memory in use on the devices from one instance to three. It does not contain what all configurations have
    in common, such as weights that instances in this process share, nor the memory of running batches.

    Examples
    --------
    A model whose executions take 10 ms, under 120 requests per second. Without a profile it is measured
    first.

    >>> load = {"request_rate": 120, "p99_ms": 100, "minimize": "instances"}
    >>> choices = {"instances": [1, 2, 4], "max_batch_size": [1], "max_queue_delay_us": [0]}
    >>> profile = nt.Profile.declared({"double": 10})
    >>> best = nt.tune(
    ...     server, "double", **load, **choices, profile=profile, finalists=1, seconds=20
    ... )
    >>> best.configuration["instances"]
    2
    """
    check(
        {
            "batch_size": batch_size, "shapes": shapes,
            "profile": profile, "finalists": finalists, "seconds": seconds, "seed": seed,
            "observer": observer, "instances": instances, "max_batch_size": max_batch_size,
            "max_queue_delay_us": max_queue_delay_us,
        },
        _KINDS,
    )  # fmt: skip
    if maximize not in (None, "throughput") or (maximize is not None and minimize is not None):
        raise InvalidArgumentError(
            "maximize is throughput; minimize is latency, instances, memory or cost; give one of them"
        )
    if not isinstance(minimize, str | None):
        raise InvalidArgumentError(f"unknown objective {minimize!r}: it is {', '.join(OBJECTIVES)}")
    data = Data(inputs, shapes, seed=seed)
    if placement is not None:
        _check_placement(
            placement, minimize, instances, max_batch_size, max_queue_delay_us, profile
        )
        objective = maximize or minimize or "cost"
    elif minimize == "cost":
        raise InvalidArgumentError("cost is that of a placement", hint='placement="auto"')
    else:
        objective = "throughput" if minimize is None else minimize
    goal = Goal(objective, p99_ms, min_throughput, concurrency, request_rate)
    check({"server": server, "model": model}, {"server": SERVER, "model": NAME})
    started_s = time.monotonic()
    ensembles, others = model_tree(server, model)
    plan = SweepPlan(ensembles, others)
    notes: list[str] = []

    def report(what: str, points: Sequence[PerfPoint]) -> None:
        if observer is not None:
            elapsed_s = time.monotonic() - started_s
            observer(PerfProgress(1, None, what, 0, 0, 0, 0, elapsed_s, None, 0.0, tuple(points)))

    search: Search | PlacementSearch
    interrupted = False
    if placement is not None:
        measured_devices, notes = measure_devices(
            server, model, data, batch_size=batch_size, seconds=seconds / 2, seed=seed, observer=observer
        )  # fmt: skip
        search = PlacementSearch(measured_devices, plan, goal, batch_size=batch_size, seed=seed)
    else:
        choices = (instances, max_batch_size, max_queue_delay_us)
        spaces = {name: _space(config, *choices) for name, config in others.items()}
        if profile is None:
            most = max(space["instances"][-1] for space in spaces.values())
            profile = measure_profile(
                server, model, inputs=inputs, shapes=shapes, at_once=most, observer=observer, seed=seed,
                seconds=_PROFILE_S,
            )  # fmt: skip
            interrupted = profile.interrupted
        memory = None
        if objective == "memory":

            def load() -> None:
                if perf(
                    server, model, concurrency=_BUSY, request_count=_LOAD, batch_size=batch_size,
                    inputs=inputs, shapes=shapes, seed=seed,
                ).interrupted:  # fmt: skip
                    raise KeyboardInterrupt

            memory = measure_memory(server, model, others, load, lambda what: report(what, []))
            notes += _memory_notes(memory)
        search = Search(
            profile, plan, spaces, goal, batch_size=batch_size, seed=seed, memory=memory
        )
    try:
        search.run(
            min(seconds, _LOOK_S) if interrupted else seconds,
            lambda best: report(_simulated(len(search.found)), [best.point]),
            enough=finalists,
        )
    except KeyboardInterrupt:
        interrupted = True
    candidates = search.best()
    if not candidates and interrupted:
        raise KeyboardInterrupt
    if not candidates:
        raise NotFoundError(f"no configuration of '{model}' could be simulated")
    measured: list[Finalist] = []
    configurator = Configurator(server, model, [])
    try:
        for index, candidate in enumerate([] if interrupted else candidates[:finalists]):
            report(f"finalist {index + 1} of {min(finalists, len(candidates))}", [])
            measured.append(_measure(server, model, configurator, candidate, batch_size, data))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        configurator.restore()
    if not measured:
        notes.append("interrupted before a configuration was measured: the figures are predicted")
        measured = [
            Finalist(each.options, each.point, None, each.memory_mb)
            for each in candidates[:finalists]
        ]
    measured = search.ordered(measured)
    best = measured[0]
    if best.result.simulated_gpus:
        notes.append(f"simulated GPUs ({best.result.simulated_gpus}): the times are simulated")
    return Tuning(
        model=model,
        finalists=tuple(measured),
        candidates=tuple(candidates),
        configs=plan.target_of(best.options),
        simulated=search.simulated,
        notes=(*notes, *_notes(goal, best, best.predicted)),
        elapsed_s=time.monotonic() - started_s,
        interrupted=interrupted,
        server=server,
    )


def _simulated(count: int) -> str:
    return f"{counted(count, 'configuration')} simulated"


def _check_placement(placement: str, minimize: str | None, *others: object) -> None:
    """Refuse options that cannot be combined with a placement."""
    if placement != "auto":
        raise InvalidArgumentError(
            f"placement is 'auto', found {placement!r}",
            hint="nt.perf(…, placement=…) measures one that you choose",
        )
    if minimize in ("instances", "memory") or any(each is not None for each in others):
        raise InvalidArgumentError(
            "with placement='auto' instances with their memory, batch sizes, delays and profiles are as they are",
            hint="apply() the placement, then tune the rest: nt.tune(server, model)",
        )


def _space(
    config: ModelConfig,
    instances: Sequence[int] | None,
    sizes: Sequence[int] | None,
    delays_us: Sequence[int] | None,
) -> Space:
    cores = os.cpu_count() or 1
    counts = [1, 2, 3, 4, *range(6, cores + 1, 2)]
    space: dict[str, Sequence[int]] = {"instances": sorted(set(instances or counts))}
    if config.max_batch_size < 1 or config.HasField("sequence_batching"):
        return space
    largest = config.max_batch_size
    powers = {1 << k for k in range(largest.bit_length())} | {largest}
    space["max_batch_size"] = sorted(set(sizes) if sizes else {s for s in powers if s <= largest})
    space["max_queue_delay_us"] = sorted(set(delays_us) if delays_us else _DELAYS_US)
    return space


def _measure(
    server: Server,
    model: str,
    configurator: Configurator,
    candidate: Candidate,
    batch_size: int,
    data: Data,
) -> Finalist:
    configurator.apply_each(candidate.options)
    point = candidate.point
    load: dict[str, Any] = {"concurrency": int(point.value)}
    if point.mode != "concurrency":
        load = {"request_rate": point.value, "request_distribution": "poisson"}
    report = perf(
        server, model, batch_size=batch_size, inputs=data.inputs, shapes=data.shapes, seed=data.seed, **load
    )  # fmt: skip
    if not report.points or report.interrupted:
        raise KeyboardInterrupt
    return Finalist(
        candidate.options,
        point,
        replace(report.points[0], configuration=_flat(candidate.options)),
        candidate.memory_mb,
    )


def _memory_notes(memory: Mapping[str, InstanceMemory]) -> list[str]:
    return [
        f"{name}: an instance takes "
        + (f"{measure(one.each_mb)} MB" if one.each_mb else "too little memory to be measured")
        + (f", and {measure(one.shared_mb)} MB of devices are shared" if one.shared_mb else "")
        for name, one in memory.items()
    ]


def _notes(goal: Goal, best: Finalist, predicted: PerfPoint) -> tuple[str, ...]:
    notes = [note for note in predicted.notes if note.startswith("not to be trusted")]
    if best.measured is not None and goal.misses(best.measured) > 0:
        notes.append(
            f"no configuration was measured within the limits; the closest has a p99 latency of "
            f"{best.measured.latency_p99_us / 1000:.3g} ms at {measure(best.measured.infer_per_s)} "
            "infer/s"
        )
    return tuple(notes)


def _flat(options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the options of one model as they are, of several with the model's name as prefix."""
    if len(options) == 1:
        return dict(next(iter(options.values())))
    return {
        f"{model}.{name}": value for model, each in options.items() for name, value in each.items()
    }


def _row(one: Candidate | Finalist, point: PerfPoint) -> dict[str, Any]:
    return {
        **_flat(one.options),
        **({"memory_mb": one.memory_mb} if one.memory_mb else {}),
        point.mode: point.value,
        "infer_per_s": point.infer_per_s,
        "latency_p50_us": point.latency_p50_us,
        "latency_p99_us": point.latency_p99_us,
    }
