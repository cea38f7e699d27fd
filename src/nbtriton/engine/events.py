"""The recorder's events as a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nbtriton.checks import SERVER, check
from nbtriton.engine.core.snapshot import BatchRecord, RequestRecord
from nbtriton.engine.server import Server
from nbtriton.errors import InvalidArgumentError, nearest
from nbtriton.packages import needed

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["events"]

_KINDS = ("event", "request", "batch")


def events(server: Server, name: str = "", *, by: str = "event") -> pd.DataFrame:
    """Return what the recorder keeps of the last requests and batches.

    Parameters
    ----------
    server : Server
    name : str
        All models by default.
    by : {"event", "request", "batch"}
        One row for each event, in the order in which they happened; or for each answered request;
        or for each batch.

    Returns
    -------
    pandas.DataFrame
        Times of events are in milliseconds since the first one (``at_ms``), durations in
        microseconds. An event is ``arrival``, ``batch`` (formed, with the reason for its size and
        how many requests it left ``waiting``), ``start``, ``end``, ``answer`` or ``refusal`` (of a
        request that never ran). ``batch`` is the number of its first request, ``caller`` that of the
        request which led to a step of an ensemble or to a call of a model (BLS), else 0.

    Raises
    ------
    NotFoundError
        Nothing was ever recorded under this name.
    UnavailableError
        The server has no recorder.

    Examples
    --------
    >>> _ = server.infer("double", {"IN": ones})
    >>> nt.events(server)["event"].tolist()[:2]
    ['arrival', 'batch']
    """
    check({"server": server}, {"server": SERVER})
    if by not in _KINDS:
        raise InvalidArgumentError(
            f"events by '{by}' do not exist", hint=nearest(by, _KINDS) or ", ".join(_KINDS)
        )
    with needed("a table of events"):
        import pandas as pd

    batches: Sequence[BatchRecord] = server.batches(name)
    requests: Sequence[RequestRecord] = server.requests(name)
    since = min(
        [*(request.arrival_ns for request in requests), *(batch.formed_ns for batch in batches)],
        default=0,
    )

    def at_ms(ns: int) -> float:
        return (ns - since) / 1e6

    if by == "request":
        return pd.DataFrame(
            [_request_row(request, at_ms) for request in requests], columns=_REQUEST
        )
    if by == "batch":
        return pd.DataFrame([_batch_row(batch, at_ms) for batch in batches], columns=_BATCH)
    rows = [row for request in requests for row in _request_events(request)]
    rows += [row for batch in batches for row in _batch_events(batch)]
    rows.sort(key=lambda row: (row[0], _ORDER.index(row[1])))
    return pd.DataFrame([(at_ms(row[0]), *row[1:]) for row in rows], columns=_EVENT)


_ORDER = ("arrival", "refusal", "batch", "start", "end", "answer")

_EVENT = (
    "at_ms", "event", "model", "version", "request", "caller", "batch", "instance", "rows",
    "reason", "waiting", "status",
)  # fmt: skip


def _request_events(request: RequestRecord) -> list[tuple[Any, ...]]:
    batch = request.batch
    number = batch.requests[0] if batch is not None else 0
    instance = batch.instance if batch is not None else ""
    who = (request.model, request.version, request.number, request.caller, number, instance)
    what = (request.size, request.outcome, None, request.status)
    end = "refusal" if request.status and request.outcome else "answer"
    return [
        (request.arrival_ns, "arrival", *who, request.size, "", None, ""),
        (request.answered_ns, end, *who, *what),
    ]


def _batch_events(batch: BatchRecord) -> list[tuple[Any, ...]]:
    who = (batch.model, batch.version, None, 0, batch.requests[0], batch.instance, batch.batch_size)
    return [
        (batch.formed_ns, "batch", *who, batch.reason, batch.waiting, ""),
        (batch.start_ns, "start", *who, "", None, ""),
        (batch.end_ns, "end", *who, "", None, "FAILED" if batch.failed else ""),
    ]


_REQUEST = (
    "at_ms", "model", "version", "request", "request_id", "caller", "step", "rows", "batch",
    "batch_size", "instance", "reason", "queue_us", "handover_us", "compute_us", "answer_us",
    "total_us", "responses", "first_response_us", "outcome", "status", "error",
)  # fmt: skip


def _request_row(request: RequestRecord, at_ms: Callable[[int], float]) -> tuple[Any, ...]:
    batch = request.batch
    arrival = request.arrival_ns
    nan = float("nan")
    return (
        at_ms(arrival), request.model, request.version, request.number, request.request_id,
        request.caller, request.step, request.size,
        batch.requests[0] if batch is not None else 0,
        batch.batch_size if batch is not None else 0,
        batch.instance if batch is not None else "",
        batch.reason if batch is not None else "",
        (batch.formed_ns - arrival) / 1e3 if batch is not None else nan,
        (batch.start_ns - batch.formed_ns) / 1e3 if batch is not None else nan,
        (batch.end_ns - batch.start_ns) / 1e3 if batch is not None else nan,
        max(0, request.answered_ns - batch.end_ns) / 1e3 if batch is not None else nan,
        (request.answered_ns - arrival) / 1e3,
        request.responses, (request.first_response_ns - arrival) / 1e3,
        request.outcome, request.status, request.error,
    )  # fmt: skip


_BATCH = (
    "at_ms", "model", "version", "batch", "requests", "batch_size", "instance", "reason", "waiting",
    "longest_wait_us", "handover_us", "compute_input_us", "compute_infer_us", "compute_output_us",
    "failed",
)  # fmt: skip


def _batch_row(batch: BatchRecord, at_ms: Callable[[int], float]) -> tuple[Any, ...]:
    return (
        at_ms(batch.formed_ns), batch.model, batch.version, batch.requests[0], len(batch.requests),
        batch.batch_size, batch.instance, batch.reason, batch.waiting, batch.queue_ns / 1e3,
        (batch.start_ns - batch.formed_ns) / 1e3,
        (batch.infer_start_ns - batch.start_ns) / 1e3,
        (batch.infer_end_ns - batch.infer_start_ns) / 1e3,
        (batch.end_ns - batch.infer_end_ns) / 1e3, batch.failed,
    )  # fmt: skip
