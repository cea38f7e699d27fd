"""Simulated runs of a scenario, and recorded requests of a server, in the same form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nbtriton.common.checks import is_whole
from nbtriton.common.errors import InvalidArgumentError, UnsupportedError
from nbtriton.extensions.lessons.scenarios import (
    MOST_REQUESTS,
    Arrival,
    Scenario,
    SimulatedModel,
    subject_of,
)
from nbtriton.lab.explain.simulated import records_of
from nbtriton.lab.explain.trace import ModelRecords
from nbtriton.lab.simulate import ModelProfile, Profile, ServicePoint
from nbtriton.lab.simulate.core.replay import Replay
from nbtriton.lab.simulate.core.world import Trace
from nbtriton.lab.simulate.server import SimulatedServer
from nbtriton.model.config import format_pbtxt, is_ensemble, plan_instances
from nbtriton.runtime.engine import BatchRecord, RequestRecord

if TYPE_CHECKING:
    from nbtriton.runtime.engine import Server

__all__ = ["ScenarioRun", "run", "traced"]

# Most events of one figure: a longer scenario counts as endless.
_MOST_EVENTS = 100_000


@dataclass(frozen=True, slots=True)
class ScenarioRun:
    """The records of a scenario's requests.

    Attributes
    ----------
    scenario : Scenario
    records : tuple of ModelRecords
        In the order of the scenario's models, on one clock.
    begin_ns : int
        The time that is 0 ms.
    simulated : bool
        Whether they are simulated; else they were recorded in a server.
    """

    scenario: Scenario
    records: tuple[ModelRecords, ...]
    begin_ns: int = 0
    simulated: bool = True

    @property
    def batches(self) -> list[BatchRecord]:
        """The batches of all models, in the order in which they left."""
        batches = [batch for one in self.records for batch in one.batches]
        return sorted(batches, key=lambda batch: (batch.start_ns, batch.requests))

    @property
    def span_ms(self) -> float:
        """From the begin to the last response."""
        ends = [batch.end_ns for one in self.records for batch in one.batches]
        ends += [request.answered_ns for one in self.records for request in one.requests]
        return (max(ends, default=self.begin_ns) - self.begin_ns) / 1e6

    def ms(self, at_ns: int) -> float:
        """Return a time in milliseconds since the begin."""
        return (at_ns - self.begin_ns) / 1e6


@dataclass(frozen=True, slots=True)
class _Call:
    """The fields of `nbtriton.lab.perf.traffic.Call` that a replay needs; that class needs NumPy."""

    options: Mapping[str, Any]
    ends: bool = False


def run(scenario: Scenario) -> ScenarioRun:
    """Run a scenario in virtual time; the engine itself takes no time.

    Raises
    ------
    UnsupportedError
        A model that cannot be simulated.
    """
    configs = {model.name: model.config for model in scenario.models}
    server = SimulatedServer(_profile(scenario), configs)
    server.world.trace = trace = Trace()
    first = scenario.models[0].name
    lengths = Counter((one.model or first, one.sequence) for one in scenario.arrivals)
    seen: Counter[tuple[str, int | str]] = Counter()
    planned = []
    for one in scenario.arrivals:
        key = (one.model or first, one.sequence)
        seen[key] += 1
        options: dict[str, Any] = {}
        if one.sequence:
            options = {
                "sequence_id": one.sequence,
                "sequence_start": seen[key] == 1,
                "sequence_end": seen[key] == lengths[key],
            }
        call = _Call(options)
        planned.append((round(one.at_ms * 1e6), server.runtime(key[0]), one.rows, 0, call))
    replay = Replay(server.world, planned)
    replay.start()
    if server.world.calendar.run(2**62, _MOST_EVENTS) == _MOST_EVENTS:
        raise UnsupportedError(f"the scenario '{scenario.title}' does not come to an end")
    return ScenarioRun(scenario, records_of(configs, trace))


def _profile(scenario: Scenario) -> Profile:
    """Return a profile with execution times and no other costs."""
    models, ensembles = {}, {}
    for model in scenario.models:
        text = format_pbtxt(model.config)
        if is_ensemble(model.config):
            ensembles[model.name] = text
            continue
        points = [ServicePoint(rows, 1, (ms * 1000,), 1) for rows, ms in model.times_ms]
        models[model.name] = ModelProfile(text, "process", tuple(points))
    return Profile(scenario.models[0].name, models, ensembles)


def traced(server: Server, name: str, *, requests: int = 12) -> ScenarioRun:
    """Return the newest recorded requests of a model, or of an ensemble and its steps.

    Its scenario repeats them: the same arrivals and configurations, and the mean execution time of each batch
    size.

    Parameters
    ----------
    server : Server
    name : str
    requests : int
        Number of client requests.

    Raises
    ------
    NotFoundError
        Nothing was ever recorded under this name.
    InvalidArgumentError
        Nothing that a figure can show, or too many requests.
    """
    if not is_whole(requests) or not 1 <= requests <= MOST_REQUESTS:
        raise InvalidArgumentError(f"requests={requests!r}; a figure has 1 to {MOST_REQUESTS}")
    newest = [one for one in server.requests(name) if one.answered_ns][-requests:]
    if not newest:
        raise InvalidArgumentError(
            f"no request to '{name}' is recorded", hint="send some, then draw the figure"
        )
    numbers = {one.number for one in newest}
    config = server.config(name)
    names = [name, *dict.fromkeys(s.model_name for s in config.ensemble_scheduling.step)]
    records, models = [], []
    for index, each in enumerate(names):
        if index and is_ensemble(server.config(each)):
            raise UnsupportedError(
                f"'{each}' is an ensemble in an ensemble, which a figure does not show",
                hint=f"nt.timeline(server, '{name}') does",
            )
        own = (
            newest if not index else [one for one in server.requests(each) if one.caller in numbers]
        )
        batches = {one.batch.requests[0]: one.batch for one in own if one.batch is not None}
        found = [plan.name for plan in plan_instances(server.config(each), gpus=None)]
        instances = () if is_ensemble(server.config(each)) else tuple(found)
        seen = sorted(batches.values(), key=lambda batch: batch.start_ns)
        records.append(ModelRecords(each, own, seen, instances))
        models.append(SimulatedModel(server.config(each), _measured(seen)))
    begin = min(one.arrival_ns for one in newest)
    arrivals = tuple(
        Arrival(round((one.arrival_ns - begin) / 1e6, 3), max(1, one.size), "", one.sequence)
        for one in newest
    )
    title = f"{name}: recorded"
    scenario = Scenario(title, tuple(models), arrivals, subject_of(config))
    return ScenarioRun(scenario, _renumbered(records, newest), begin, simulated=False)


def _measured(batches: Sequence[BatchRecord]) -> tuple[tuple[int, float], ...]:
    sizes: dict[int, list[int]] = {}
    for batch in batches:
        sizes.setdefault(batch.batch_size, []).append(batch.end_ns - batch.start_ns)
    return tuple((rows, max(sum(ns) / len(ns) / 1e6, 1e-3)) for rows, ns in sorted(sizes.items()))


def _renumbered(
    records: Sequence[ModelRecords], clients: Sequence[RequestRecord]
) -> tuple[ModelRecords, ...]:
    """Return records in which client requests are numbered from 1."""
    rest = sorted({request.number for one in records for request in one.requests})
    ordered = [one.number for one in clients]
    known = set(ordered)
    ordered += [number for number in rest if number not in known]
    numbers = {number: index for index, number in enumerate(ordered, 1)}
    found = []
    for one in records:
        batches = {
            batch.requests[0]: batch._replace(
                requests=tuple(numbers[n] for n in batch.requests if n in numbers)
            )
            for batch in one.batches
        }
        requests = [
            request._replace(
                number=numbers[request.number],
                caller=numbers.get(request.caller, 0),
                batch=batches[request.batch.requests[0]] if request.batch is not None else None,
            )
            for request in one.requests
        ]
        found.append(replace(one, requests=requests, batches=list(batches.values())))
    return tuple(found)
