"""The events of a simulated server as records like those of a live one."""

from __future__ import annotations

from collections.abc import Mapping

from nbtriton.lab.explain.trace import ModelRecords
from nbtriton.lab.simulate.core.world import Request, Trace
from nbtriton.model.config import ModelConfig, is_ensemble, plan_instances
from nbtriton.runtime.engine import BatchRecord, RequestRecord
from nbtriton.scheduling import SEQUENCE_START

__all__ = ["records_of"]


def records_of(configs: Mapping[str, ModelConfig], trace: Trace) -> tuple[ModelRecords, ...]:
    """Return the records of each model, ordered by its requests and by the starts of its batches.

    Parameters
    ----------
    configs : mapping of str to ModelConfig
        All models and ensembles in the trace.
    trace : Trace
        The lanes of client requests are their numbers, from 0.
    """
    numbers = _numbers(trace)
    batches: dict[str, list[BatchRecord]] = {name: [] for name in configs}
    carried: dict[int, BatchRecord] = {}
    instances = {
        name: tuple(plan.name for plan in plan_instances(config, gpus=None) if not plan.passive)
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
    """Return the number of each request by its identity: clients' requests from 1, then those of steps."""
    found: dict[int, Request] = {id(request): request for _, request, _, _, _ in trace.answers}
    clients = [request for request in found.values() if request.root is None]
    steps = [request for request in found.values() if request.root is not None]
    numbers = {id(request): request.lane + 1 for request in clients}
    following = max(numbers.values(), default=0) + 1
    steps.sort(key=lambda request: (request.accepted_ns, request.step))
    numbers.update((id(request), following + index) for index, request in enumerate(steps))
    return numbers
