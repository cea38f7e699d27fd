"""Simulated runs of a scenario, and recorded requests of a server, in the same form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nbtriton.common.checks import is_whole
from nbtriton.common.errors import InvalidArgumentError, UnsupportedError
from nbtriton.extensions.lessons.scenarios import (
    MOST_REQUESTS,
    Arrival,
    Scenario,
    SimulatedModel,
    subject_of,
)
from nbtriton.lab.explain.trace import ModelRecords
from nbtriton.lab.perf.traffic import Call
from nbtriton.lab.simulate.core.world import Request, Trace
from nbtriton.lab.simulate.experiment import Due, Experiment
from nbtriton.lab.simulate.model_profile import ModelProfile, Profile, ServicePoint
from nbtriton.model.config import ModelConfig, format_pbtxt, is_ensemble, plan_instances
from nbtriton.options.blocks import CallOptions
from nbtriton.runtime.engine import BatchRecord, RequestRecord
from nbtriton.scheduling import SEQUENCE_START

if TYPE_CHECKING:
    from nbtriton.runtime.engine import Server


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


def run(scenario: Scenario) -> ScenarioRun:
    """Run a scenario in virtual time; the engine itself takes no time.

    Raises
    ------
    UnsupportedError
        A model that cannot be simulated.
    """
    configs = {model.name: model.config for model in scenario.models}
    experiment = Experiment(_profile(scenario), configs, traced=True)
    first = scenario.models[0].name
    lengths = Counter((one.model or first, one.sequence) for one in scenario.arrivals)
    seen: Counter[tuple[str, int | str]] = Counter()
    planned = []
    for one in scenario.arrivals:
        key = (one.model or first, one.sequence)
        seen[key] += 1
        options = CallOptions()
        if one.sequence:
            options = CallOptions(
                sequence_id=one.sequence,
                sequence_start=seen[key] == 1,
                sequence_end=seen[key] == lengths[key],
            )
        planned.append(Due(round(one.at_ms * 1e6), Call({}, options, model=key[0]), one.rows))
    if experiment.replay(planned).interrupted:
        raise KeyboardInterrupt
    return ScenarioRun(scenario, records_of(configs, experiment.trace))


def records_of(configs: Mapping[str, ModelConfig], trace: Trace) -> tuple[ModelRecords, ...]:
    """Return the records of each model, ordered by its requests and by the starts of its batches.

    Parameters
    ----------
    configs : mapping of str to ModelConfig
        All models and ensembles in the trace.
    trace : Trace
    """
    numbers = _numbers(trace)
    batches: dict[str, list[BatchRecord]] = {name: [] for name in configs}
    carried: dict[int, BatchRecord] = {}
    instances = {
        name: tuple(plan.label for plan in plan_instances(config, gpus=None) if not plan.passive)
        for name, config in configs.items()
        if not is_ensemble(config)
    }
    for name, instance, ran, start, end in trace.executions:
        arrived = min(_request(ticket).accepted_ns for ticket in ran.tickets)
        batch = BatchRecord(
            name, 1, instances[name][instance], tuple(numbers[id(ticket)] for ticket in ran.tickets),
            ran.size, ran.reason, start - arrived, start, end,
            False, ran.formed_ns, ran.waiting, start, end,
        )  # fmt: skip
        batches[name].append(batch)
        carried.update((id(ticket), batch) for ticket in ran.tickets)
    requests: dict[str, list[RequestRecord]] = {name: [] for name in configs}
    for name, request, answered, reason, message in trace.answers:
        root = request.root
        requests[name].append(
            RequestRecord(
                name, 1, numbers[id(request)], "", numbers[id(root)] if root is not None else 0,
                request.step, request.size, request.accepted_ns, request.enqueued_ns, answered,
                answered, 1, carried.get(id(request)), reason,
                "UNAVAILABLE" if message else "", message, request.correlation_id,
                bool(request.flags & SEQUENCE_START),
            )
        )  # fmt: skip
    return tuple(
        ModelRecords(
            name,
            sorted(requests[name], key=lambda one: one.number),
            sorted(batches[name], key=lambda one: one.start_ns),
            instances.get(name, ()),
        )
        for name in configs
    )


def _request(ticket: object) -> Request:
    assert isinstance(ticket, Request)
    return ticket


def _numbers(trace: Trace) -> dict[int, int]:
    """Return the number of each request by its identity: clients' requests from 1 as they were sent, then steps."""
    found: dict[int, Request] = {id(request): request for _, request, _, _, _ in trace.answers}
    clients = [request for request in found.values() if request.root is None]
    steps = [request for request in found.values() if request.root is not None]
    clients.sort(key=lambda request: (request.sent_ns, request.lane))
    steps.sort(key=lambda request: (request.accepted_ns, request.step))
    return {id(request): number for number, request in enumerate((*clients, *steps), 1)}


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
        seen = sorted(batches.values(), key=lambda batch: batch.start_ns)
        found = [plan.label for plan in plan_instances(server.config(each), gpus=None)]
        # An instance that ran a batch may be gone: a sweep has changed how many there are.
        instances = dict.fromkeys([*found, *(batch.instance for batch in seen)])
        records.append(ModelRecords(each, own, seen, tuple(instances)))
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
