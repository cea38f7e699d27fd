"""The recorder's rings, and what is in flight, as records that anyone may keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nbtriton.runtime.engine.core.execution import Execution, RequestDetail
from nbtriton.runtime.engine.core.history import ModelHistory, RequestEntry
from nbtriton.runtime.engine.core.request import InferenceRequest
from nbtriton.runtime.engine.core.runtime import Runtime
from nbtriton.runtime.engine.core.snapshot import BatchRecord, RequestRecord
from nbtriton.scheduling import SEQUENCE_START

__all__ = ["read_records", "records_of"]

_Ended = TypeVar("_Ended")

_NO_DETAIL = RequestDetail("", "", "", 0, 0, 0, False)


def read_records(
    history: ModelHistory, since_ns: int = 0, most: int | None = None
) -> tuple[list[BatchRecord], list[RequestRecord]]:
    """Return the batches that have ended, and the requests that are answered, oldest first.

    Parameters
    ----------
    history : ModelHistory
    since_ns : int, optional
        Only those that ended after this time; reading costs what they are.
    most : int, optional
        At most this number of batches, the newest, and of requests of batches of several.
    """
    entries = _newest(history.requests(), lambda entry: entry.answered_ns, since_ns, most)
    together: dict[Execution, list[int]] = {}
    for entry in entries:
        if entry.execution is not None:
            together.setdefault(entry.execution, []).append(entry.number)
    executions = _newest(history.executions(), lambda execution: execution.end_ns, since_ns, most)
    # One that failed before its model saw it, or that the other ring has lost, is known by its requests.
    known = {
        execution: execution.record(
            history.name, history.version, tuple(together.get(execution, (execution.number,)))
        )
        for execution in (*executions, *together)
    }
    requests = [
        _alone(known[execution], execution) for execution in executions if execution.answered_ns
    ]
    requests += [
        _together(history, entry, known[entry.execution] if entry.execution is not None else None)
        for entry in entries
    ]
    return [known[execution] for execution in executions], requests


def records_of(runtime: Runtime) -> list[RequestRecord]:
    """Return the requests of a version that are accepted and not answered; times to come are 0."""
    together: dict[Execution, list[InferenceRequest]] = {}
    inside = [(request, _batch_of(request)) for request in runtime.requests_inside()]
    for request, execution in inside:
        if execution is not None:
            together.setdefault(execution, []).append(request)
    batches = {
        execution: execution.record(
            runtime.name, runtime.version, tuple(request.number for request in requests)
        )._replace(queue_ns=execution.start_ns - min(one.enqueued_ns for one in requests))
        for execution, requests in together.items()
    }
    return [
        RequestRecord(
            runtime.name, runtime.version, request.number, _readable(request.request_id), request.caller,
            request.step, request.size, request.start_ns, request.enqueued_ns, 0, request.first_ns,
            request.responses, batches[execution] if execution is not None else None,
            request.outcome, "", "", request.correlation_id, bool(request.flags & SEQUENCE_START),
        )
        for request, execution in inside
    ]  # fmt: skip


def _batch_of(request: InferenceRequest) -> Execution | None:
    """Return the execution of a request; none while it waits, also to be executed once more."""
    return request.execution if request.executes else None


def _readable(text: str) -> str:
    """Return a text as it can be written in UTF-8: a client's bytes that are none are lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _newest(
    found: list[_Ended], ended_ns: Callable[[_Ended], int], since_ns: int, most: int | None
) -> list[_Ended]:
    """Return those that ended after a time, and of these the newest, up to a number."""
    first = 0 if most is None else max(0, len(found) - most)
    if not since_ns:
        return found[first:]
    at = len(found)
    while at > first and ended_ns(found[at - 1]) > since_ns:
        at -= 1
    return found[at:]


def _alone(batch: BatchRecord, execution: Execution) -> RequestRecord:
    """Return the only request of a batch, whose sums are its own."""
    detail = execution.detail or _NO_DETAIL
    return RequestRecord(
        batch.model, batch.version, execution.number, _readable(execution.request_id), execution.caller,
        execution.step, execution.inferences, execution.end_ns - execution.total_ns,
        execution.start_ns - execution.queue_ns, execution.answered_ns,
        detail.first_ns or execution.answered_ns, detail.responses, batch, detail.outcome, detail.status,
        _readable(detail.error), detail.sequence, detail.begins,
    )  # fmt: skip


def _together(
    history: ModelHistory, entry: RequestEntry, batch: BatchRecord | None
) -> RequestRecord:
    detail = entry.detail or _NO_DETAIL
    return RequestRecord(
        history.name, history.version, entry.number, _readable(entry.request_id), entry.caller, entry.step,
        entry.size, entry.start_ns, entry.enqueued_ns, entry.answered_ns,
        detail.first_ns or entry.answered_ns, detail.responses, batch, detail.outcome, detail.status,
        _readable(detail.error), detail.sequence, detail.begins,
    )  # fmt: skip
