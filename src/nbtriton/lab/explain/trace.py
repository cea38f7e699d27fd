"""Chrome's trace event format, which Perfetto opens: a process for each model, a thread for each instance.

The format is described in "Trace Event Format" of the Chromium project. Requests are slices on threads of
their own: flows (the arrows from a request to its batch, and from an ensemble's request to those of its
steps) start and end in slices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from nbtriton.runtime.engine import BatchRecord, RequestRecord
from nbtriton.scheduling import REASONS

# Threads of requests come after those of instances, in this order.
_FIRST_SLOT = 1000
# The end of what has not ended.
_NEVER_NS = 2**63


@dataclass(frozen=True, slots=True)
class ModelRecords:
    """The records of one model, with the names of its instances, the nodes of those elsewhere, and its requests in flight."""

    name: str
    requests: Sequence[RequestRecord]
    batches: Sequence[BatchRecord]
    instances: tuple[str, ...] = ()
    in_flight: Sequence[RequestRecord] = ()
    nodes: Mapping[str, str] = field(default_factory=dict)

    def lane(self, instance: str) -> str:
        """Return the name of an instance's lane, with the node of one elsewhere."""
        node = self.nodes.get(instance)
        return instance if node is None else f"{node}: {instance}"

    @property
    def running(self) -> list[BatchRecord]:
        """The batches that run."""
        batches = [one.batch for one in self.in_flight if one.batch is not None]
        return list(dict.fromkeys(batch for batch in batches if not batch.end_ns))


def chrome_trace(models: Sequence[ModelRecords]) -> dict[str, Any]:
    """Return a trace as a JSON object; times are microseconds since the first arrival.

    Parameters
    ----------
    models : sequence of ModelRecords
        Each is a process, numbered from 1.
    """
    begins = [
        request.arrival_ns for model in models for request in (*model.requests, *model.in_flight)
    ]
    begins += [batch.formed_ns for model in models for batch in model.batches]
    since = min(begins, default=0)
    events: list[dict[str, Any]] = []
    # The process and the thread of each request, from which flows start.
    places: dict[int, tuple[int, int]] = {}
    for pid, model in enumerate(models, 1):
        events += _model_events(model, pid, since, places)
    events += _step_flows(models, since, places)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _model_events(
    model: ModelRecords, pid: int, since: int, places: dict[int, tuple[int, int]]
) -> Iterable[dict[str, Any]]:
    batches = [*model.batches, *model.running]
    lanes = dict.fromkeys([*model.instances, *(batch.instance for batch in batches)])
    tids = {lane: tid for tid, lane in enumerate(lanes, 1)}
    yield _named("process_name", model.name, pid, 0)
    for lane, tid in tids.items():
        yield _named("thread_name", model.lane(lane), pid, tid)
    for batch in batches:
        yield {
            **_slice(batch.start_ns - since, batch.end_ns - since if batch.end_ns else None),
            "name": f"batch of {batch.batch_size}", "cat": "batch", "pid": pid, "tid": tids[batch.instance],
            "args": {
                "batch": batch.requests[0], "rows": batch.batch_size,
                "requests": list(batch.requests), "reason": batch.reason,
                "meaning": REASONS.get(batch.reason, ""), "waiting": batch.waiting,
                "longest_wait_us": _us(batch.queue_ns), "failed": batch.failed,
            },
        }  # fmt: skip
    slots = 0
    for request, slot in _placed([*model.requests, *model.in_flight]):
        tid = _FIRST_SLOT + slot
        if slot == slots:
            yield _named("thread_name", f"requests {slot + 1}", pid, tid)
            slots += 1
        places[request.number] = (pid, tid)
        yield _request_event(request, pid, tid, since)
        if request.batch is not None and request.batch.instance in tids:
            yield from _flow("batch", request.number, (pid, tid), (pid, tids[request.batch.instance]),
                             request.arrival_ns - since, request.batch.start_ns - since)  # fmt: skip
        elif request.status and request.outcome:
            yield {
                "ph": "i", "name": request.outcome, "cat": "refusal", "pid": pid, "tid": tid,
                "ts": _us(request.answered_ns - since), "s": "t",
            }  # fmt: skip
    yield from _queue(model, pid, since)


def _request_event(request: RequestRecord, pid: int, tid: int, since: int) -> dict[str, Any]:
    end_ns = request.answered_ns - since if request.answered_ns else None
    return {
        **_slice(request.arrival_ns - since, end_ns),
        "name": f"request {request.request_id or request.number}", "cat": "request", "pid": pid, "tid": tid,
        "args": {
            "request": request.number, "request_id": request.request_id, "rows": request.size,
            "caller": request.caller, "step": request.step, "status": request.status,
            "outcome": request.outcome, "error": request.error,
        },
    }  # fmt: skip


def _slice(begin_ns: int, end_ns: int | None) -> dict[str, Any]:
    """Return what a slice is timed by: one that has not ended has a begin only."""
    if end_ns is None:
        return {"ph": "B", "ts": _us(begin_ns)}
    return {"ph": "X", "ts": _us(begin_ns), "dur": _us(end_ns - begin_ns)}


def _step_flows(
    models: Sequence[ModelRecords], since: int, places: dict[int, tuple[int, int]]
) -> Iterable[dict[str, Any]]:
    for model in models:
        for request in (*model.requests, *model.in_flight):
            if request.caller in places:
                at = request.arrival_ns - since
                yield from _flow("step", request.number, places[request.caller],
                                 places[request.number], at, at)  # fmt: skip


def _queue(model: ModelRecords, pid: int, since: int) -> Iterable[dict[str, Any]]:
    """Yield the number of waiting requests at each change."""
    changes: Counter[int] = Counter()
    for request in (*model.requests, *model.in_flight):
        if request.batch is not None:
            changes[request.enqueued_ns] += 1
            changes[request.batch.start_ns] -= 1
        elif not request.answered_ns and request.enqueued_ns:
            changes[request.enqueued_ns] += 1
    waiting = 0
    for time_ns, by in sorted(changes.items()):
        waiting += by
        yield {
            "ph": "C", "name": "waiting requests", "pid": pid, "ts": _us(time_ns - since),
            "args": {"requests": waiting},
        }  # fmt: skip


def _flow(
    category: str,
    number: int,
    begin: tuple[int, int],
    end: tuple[int, int],
    begin_ns: int,
    end_ns: int,
) -> Iterable[dict[str, Any]]:
    """Yield an arrow from a slice to the slice at some time of another thread."""
    common = {"name": category, "cat": category, "id": number}
    yield {"ph": "s", **common, "pid": begin[0], "tid": begin[1], "ts": _us(begin_ns)}
    yield {"ph": "f", "bp": "e", **common, "pid": end[0], "tid": end[1], "ts": _us(end_ns)}


def _named(kind: str, name: str, pid: int, tid: int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _placed(requests: Sequence[RequestRecord]) -> list[tuple[RequestRecord, int]]:
    """Assign to each request the first thread without another one in flight."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    placed = []
    for request in sorted(requests, key=lambda one: (one.arrival_ns, one.number)):
        while busy and busy[0][0] <= request.arrival_ns:
            heappush(free, heappop(busy)[1])
        slot = heappop(free) if free else len(busy)
        heappush(busy, (request.answered_ns or _NEVER_NS, slot))
        placed.append((request, slot))
    return placed


def _us(ns: int) -> float:
    return ns / 1e3
