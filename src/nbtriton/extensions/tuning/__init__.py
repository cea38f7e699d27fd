"""The search for the best configuration, by simulation and measurement (docs/prediction.md)."""

# Annotations are evaluated: the table of options is read from them.
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypedDict, Unpack

from nbtriton.common.checks import (
    CALL,
    NAME,
    PROFILE,
    SERVER,
    Kind,
    check,
    is_whole,
    listed,
    number,
    optional,
    whole,
)
from nbtriton.common.errors import InvalidArgumentError, NotFoundError, TritonError
from nbtriton.drawing.numbers import counted, measure
from nbtriton.extensions.tuning.device_profiles import (
    INSTANCES,
    measure_devices,
    measure_memory,
)
from nbtriton.extensions.tuning.placing import PlacementSearch
from nbtriton.extensions.tuning.search import Candidate, Goal, InstanceMemory, Search, Space
from nbtriton.extensions.tuning.tuned import Tuning, flat_options, simulated_text
from nbtriton.lab.perf.api import perf
from nbtriton.lab.perf.loads import MOST_OUTSTANDING
from nbtriton.lab.perf.point import PerfPoint, describe, ended
from nbtriton.lab.perf.prepare import Data
from nbtriton.lab.perf.progress import Observer, PerfProgress
from nbtriton.lab.perf.report import PerfReport
from nbtriton.lab.perf.session import Ending
from nbtriton.lab.perf.settings import GivenInputs, Seed, Shapes
from nbtriton.lab.perf.sweep import Configurator, SweepPlan, model_tree
from nbtriton.lab.simulate.model_profile import Profile
from nbtriton.lab.simulate.profiling import profile as measure_profile
from nbtriton.lab.simulate.server import DOUBTFUL
from nbtriton.model.config import ModelConfig
from nbtriton.options.reading import int_list, milliseconds
from nbtriton.options.table import Option, read_settings, signed, table_of
from nbtriton.serving.server import Server

_LIMIT = optional(number(above=0))
_OUTSTANDING = Kind(
    lambda value: is_whole(value) and 0 < value <= MOST_OUTSTANDING,
    f"a whole number from 1 to {MOST_OUTSTANDING}",
)
_CHOICES = optional(listed(whole(1)))


class TuneSettings(TypedDict, total=False):
    """The options of a search for the best configuration."""

    p99_ms: Annotated["float | None", Option(
        "--p99", "the p99 latency is to be at most this, in milliseconds", "20ms", milliseconds, kind=_LIMIT)]  # fmt: skip
    maximize: Annotated['Literal["throughput"] | None', Option("--maximize", "the default", choices=("throughput",))]  # fmt: skip
    minimize: Annotated['Literal["latency", "instances", "memory", "cost"] | None', Option(
        "--minimize", "or this", choices=("latency", "instances", "memory", "cost"))]  # fmt: skip
    placement: Annotated['Literal["auto"] | None', Option(
        "--placement", "choose the device of each step instead: the least time of devices, within --p99",
        choices=("auto",))]  # fmt: skip
    min_throughput: Annotated["float | None", Option(
        "--min-throughput", "at least N inferences/s", "N", float, kind=_LIMIT)]  # fmt: skip
    concurrency: Annotated["int | None", Option("-c --concurrency", "requests kept outstanding", "N", int, kind=optional(_OUTSTANDING))]  # fmt: skip
    request_rate: Annotated["float | None", Option("--request-rate", "or requests per second", "N", float, kind=_LIMIT)]  # fmt: skip
    batch_size: Annotated[int, Option("-b --batch-size", "rows per request (1)", "N", int, 1, kind=whole(1))]  # fmt: skip
    instances: Annotated["Sequence[int] | None", Option(
        "--instances", "numbers to choose from", "LIST", int_list, kind=_CHOICES)]  # fmt: skip
    max_batch_size: Annotated["Sequence[int] | None", Option(
        "--max-batch-size", "likewise", "LIST", int_list, kind=_CHOICES)]  # fmt: skip
    max_queue_delay_us: Annotated["Sequence[int] | None", Option(
        "--max-queue-delay-us", "likewise", "LIST", int_list, kind=optional(listed(whole(0))))]  # fmt: skip
    inputs: GivenInputs
    shapes: Shapes
    profile: Annotated["Profile | None", Option(
        "--profile", "one that was measured before, or a file of Profile.save", "EXPR|FILE",
        kind=optional(PROFILE))]  # fmt: skip
    finalists: Annotated[int, Option("--finalists", "configurations to measure (3)", "N", int, 3, kind=whole(1))]  # fmt: skip
    duration_s: Annotated[float, Option("--duration-s", "longest search (30)", "S", float, 30.0, kind=number(above=0))]  # fmt: skip
    seed: Seed


TUNE = table_of(TuneSettings)


_KINDS = {"server": SERVER, "model": NAME, "observer": optional(CALL)}
_DELAYS_US = (0, 100, 500, 1000, 2000, 5000)
# Seconds of its own profile: the search only ranks configurations, and the finalists are measured.
_PROFILE_S = 4.0
# Seconds of a finalist's measurement, before one was measured; and how many more are measured where none is within
# the limits.
_FINALIST_S = 4.0
_FURTHER = 3
# Seconds of search after an interrupt of the profile: enough for a first look at the configurations.
_LOOK_S = 1.0
# The load under which memory is measured: twice the concurrency that keeps all instances busy; its requests.
_BUSY = 2 * INSTANCES
_LOAD = 8 * INSTANCES


@signed(TUNE)
def tune(
    server: "Server",
    model: str,
    *,
    observer: Observer | None = None,
    **options: Unpack[TuneSettings],
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
        Configurations to measure; a few more where none of them is within the limits.
    duration_s : float
        Longest time of the search; with a `placement` half of it measures the devices.
    seed : int
    observer : callable, optional
        Called with a `PerfProgress`.

    Returns
    -------
    Tuning
        After a KeyboardInterrupt: the measurements until then, or the predictions if no finalist was
        measured, with ``interrupted=True``; after an error likewise, with that in ``failure``.

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

    >>> load = {"request_rate": 120, "p99_ms": 1000, "minimize": "instances"}
    >>> choices = {"instances": [1, 2, 4], "max_batch_size": [1], "max_queue_delay_us": [0]}
    >>> profile = nt.types.Profile.declared({"double": 10})
    >>> best = nt.tune(
    ...     server, "double", **load, **choices, profile=profile, finalists=1, duration_s=20
    ... )
    >>> best.candidates[0].options["double"]["instances"]  # as predicted
    2
    """
    given = read_settings("tune", TUNE, options)
    placement, profile, batch_size = given["placement"], given["profile"], given["batch_size"]
    seconds, finalists, seed = given["duration_s"], given["finalists"], given["seed"]
    choices = (given["instances"], given["max_batch_size"], given["max_queue_delay_us"])
    if given["maximize"] and given["minimize"]:
        raise InvalidArgumentError("give maximize or minimize, not both")
    default = "throughput" if placement is None else "cost"
    objective = given["maximize"] or given["minimize"] or default
    if placement is not None:
        _check_placed(given["minimize"], *choices, profile)
    elif objective == "cost":
        raise InvalidArgumentError("cost is that of a placement", hint='placement="auto"')
    data = Data(given["inputs"], given["shapes"], seed=seed)
    limits = ("p99_ms", "min_throughput", "concurrency", "request_rate")
    goal = Goal(objective, *(given[name] for name in limits))
    check({"server": server, "model": model, "observer": observer}, _KINDS)
    subject = _Subject(server, model, data, batch_size, observer, time.monotonic())
    plan = SweepPlan(*model_tree(server, model))
    search: Search | PlacementSearch
    endings: list[Profile | Ending] = []
    if placement is not None:
        measured_devices, notes = measure_devices(
            server, model, data, batch_size=batch_size, seconds=seconds / 2, seed=seed, observer=observer
        )  # fmt: skip
        search = PlacementSearch(measured_devices, plan, goal, batch_size=batch_size, seed=seed)
    else:
        spaces = {name: _space(config, *choices) for name, config in plan.swept.items()}
        if profile is None:
            most = max(space["instances"][-1] for space in spaces.values())
            profile = subject.profile(most, seconds + finalists * _FINALIST_S)
            endings.append(profile)
        memory = subject.memory(plan.swept) if objective == "memory" else None
        notes = [*filter(None, (profile.disturbance,)), *_memory_notes(memory or {})]
        search = Search(
            profile, plan, spaces, goal, batch_size=batch_size, seed=seed, memory=memory
        )
    if _ended(endings):
        seconds = min(seconds, _LOOK_S)
    endings.append(subject.search(search, seconds, finalists))
    candidates = search.best()
    if not candidates:
        if endings[-1].interrupted:
            raise KeyboardInterrupt
        raise NotFoundError(f"no configuration of '{model}' could be simulated")
    measured: list[Candidate] = []
    if not _ended(endings):
        endings.append(subject.measure(candidates, finalists, goal, measured, notes))
    failure = "; ".join(filter(None, (one.failure for one in endings)))
    notes += filter(None, [failure])
    if not measured:
        why = _ended(endings)
        why = (
            f"{why} before a configuration was measured"
            if why
            else "no configuration could be measured"
        )
        notes.append(f"{why}: the figures are predicted")
        measured = candidates[:finalists]
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
        notes=(*notes, *_notes(goal, best)),
        elapsed_s=time.monotonic() - subject.started_s,
        interrupted=any(one.interrupted for one in endings),
        server=server,
        p99_ms=goal.p99_ms,
        today=search.today,
        originals={name: plan.originals[name] for name in plan.target_of(best.options)},
        failure=failure,
    )


def _ended(endings: Sequence[Profile | Ending]) -> str:
    """Return what has ended one of the parts before its end; empty without."""
    found = (ended(one.interrupted, one.failure) for one in endings)
    return next(filter(None, found), "").removeprefix(", ")


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is tuned, the requests that measure it, and who is told of the progress."""

    server: "Server"
    model: str
    data: Data
    batch_size: int
    observer: Observer | None
    started_s: float

    def report(
        self, what: str, points: Sequence[PerfPoint] = (), left_s: float | None = None
    ) -> None:
        """Report what is done next, the best points so far, and the seconds that are left."""
        if self.observer is not None:
            elapsed_s = time.monotonic() - self.started_s
            self.observer(PerfProgress.step(0, None, what, elapsed_s, left_s, points))

    def profile(self, most: int, later_s: float) -> "Profile":
        """Measure a short profile with up to so many instances of each model; what follows takes so long."""
        data = self.data

        def report(progress: PerfProgress) -> None:
            self.report(f"profile: {progress.what}", (), (progress.eta_s or 0.0) + later_s)

        return measure_profile(
            self.server, self.model, inputs=data.inputs, shapes=data.shapes, at_once=most,
            observer=report, seed=data.seed, duration_s=_PROFILE_S,
        )  # fmt: skip

    def perf(self, observer: Observer | None = None, **load: Any) -> PerfReport:
        """Measure a load; an interrupt of the measurement is raised."""
        data = self.data
        report = perf(
            self.server, self.model, batch_size=self.batch_size, inputs=data.inputs, shapes=data.shapes,
            seed=data.seed, observer=observer, **load,
        )  # fmt: skip
        if report.interrupted:
            raise KeyboardInterrupt
        return report

    def memory(self, configs: Mapping[str, ModelConfig]) -> Mapping[str, InstanceMemory]:
        """Measure the memory of an instance of each model."""

        def load() -> None:
            self.perf(concurrency=_BUSY, request_count=_LOAD)

        return measure_memory(self.server, self.model, configs, load, self.report)

    def search(self, search: Search | PlacementSearch, seconds: float, finalists: int) -> Ending:
        """Search for configurations."""
        until_s = time.monotonic() + seconds + finalists * _FINALIST_S

        def report(best: Candidate) -> None:
            left_s = until_s - time.monotonic()
            self.report(simulated_text(len(search.found)), [best.predicted], left_s)

        with Ending(search.found) as ending:
            search.run(seconds, report, enough=finalists)
        return ending

    def measure(
        self, candidates: Sequence[Candidate], finalists: int, goal: Goal, measured: list[Candidate], notes: list[str]
    ) -> Ending:  # fmt: skip
        """Measure the best configurations.

        While none is within the limits it goes on, with a few at most: first with those that should be within them
        by how far the predictions were off. The next takes the place of one that cannot be loaded or measured, which is
        noted. The models have their own configuration again at the end.
        """
        configurator = Configurator(self.server, self.model, [])
        left = list(candidates)
        began_s = time.monotonic()
        with Ending(candidates, configurator.restore) as ending:
            for number in range(1, min(len(left), finalists + _FURTHER) + 1):
                if len(measured) >= finalists:
                    if any(goal.misses(one.result) == 0 for one in measured):
                        break
                    left = _by_hope(left, goal, measured)
                candidate = left.pop(0)
                total = max(finalists, number)
                each_s = (time.monotonic() - began_s) / len(measured) if measured else _FINALIST_S
                until_s = time.monotonic() + each_s * (min(total, number + len(left)) - number + 1)
                shown = [one.result for one in measured] or [candidate.predicted]

                def report(
                    progress: PerfProgress | None,
                    head: str = f"finalist {number} of {total}",
                    until_s: float = until_s,
                    shown: Sequence[PerfPoint] = shown,
                ) -> None:
                    what = head if progress is None else f"{head}: {progress.what}"
                    self.report(what, shown, until_s - time.monotonic())

                report(None)
                try:
                    configurator.apply_each(candidate.options)
                    measured.append(self._finalist(candidate, report))
                except TritonError as error:  # such as without memory for so many instances
                    words = describe("", flat_options(candidate.options), 1)
                    reason = error.message.partition("\n")[0]
                    notes.append(f"{words} could not be measured: {reason}")
        return ending

    def _finalist(self, candidate: Candidate, observer: Observer) -> Candidate:
        point = candidate.predicted
        load: dict[str, Any] = {"concurrency": int(point.value)}
        if point.mode != "concurrency":
            load = {"request_rate": point.value, "request_distribution": "poisson"}
        (result,) = self.perf(observer, **load).points
        result = replace(result, configuration=flat_options(candidate.options))
        # How many requests were due in the measured windows is unknown.
        return replace(candidate, measured=result, due=None)


def _by_hope(
    candidates: Sequence[Candidate], goal: Goal, measured: Sequence[Candidate]
) -> list[Candidate]:
    """Return the candidates in the order of their misses, if predictions are off as those that were measured."""
    slower = max(
        _ratio(one.result.latency_p99_us, one.predicted.latency_p99_us) for one in measured
    )
    fewer = min(_ratio(one.result.infer_per_s, one.predicted.infer_per_s) for one in measured)

    def misses(one: Candidate) -> float:
        p99_us, rate = one.predicted.latency_p99_us * slower, one.predicted.infer_per_s * fewer
        return goal.misses(replace(one.predicted, latency_p99_us=p99_us, infer_per_s=rate))

    return sorted(candidates, key=misses)


def _ratio(measured: float, predicted: float) -> float:
    return measured / predicted if predicted and not math.isnan(measured / predicted) else 1.0


def _check_placed(minimize: str | None, *others: object) -> None:
    """Refuse options that cannot be combined with a placement."""
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


def _memory_notes(memory: Mapping[str, InstanceMemory]) -> list[str]:
    return [
        f"{name}: an instance takes "
        + (f"{measure(one.each_mb)} MB" if one.each_mb else "too little memory to be measured")
        + (f", and {measure(one.shared_mb)} MB of devices are shared" if one.shared_mb else "")
        for name, one in memory.items()
    ]


def _notes(goal: Goal, best: Candidate) -> list[str]:
    notes = [note for note in best.predicted.notes if note.startswith(DOUBTFUL)]
    if best.measured is not None and goal.misses(best.measured) > 0:
        one = best.measured
        words = f"{measure(one.latency_p99_us / 1000)} ms at {measure(one.infer_per_s)} infer/s"
        if one.error_count:
            words += f", and {counted(one.error_count, 'request')} failed, the first with: {one.first_error}"
        notes.append(
            f"no configuration was measured within the limits; the closest has a p99 latency of {words}"
        )
    return notes
