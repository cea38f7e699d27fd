"""The recorder's events as a DataFrame."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbtriton.common.checks import SERVER, check
from nbtriton.common.errors import InvalidArgumentError, nearest
from nbtriton.common.packages import needed
from nbtriton.drawing.table import Link, Moment
from nbtriton.runtime.engine.core.snapshot import BatchRecord, RequestRecord
from nbtriton.runtime.engine.server import Server

if TYPE_CHECKING:
    import pandas as pd


_KINDS = ("event", "request", "batch")


def events(server: Server, model: str = "", *, by: str = "event") -> pd.DataFrame:
    """Return the recorder's last requests and batches, and those in flight.

    Parameters
    ----------
    server : Server
    model : str
        All models by default.
    by : {"event", "request", "batch"}
        One row for each event, in the order in which they happened; or for each request; or for each
        batch.

    Returns
    -------
    pandas.DataFrame
        Times of events are in milliseconds since the first one (``at_ms``), durations in
        microseconds. An event is ``arrival``, ``batch`` (formed, with the reason for its size and
        how many requests it left ``waiting``), ``start``, ``end``, ``answer``, ``refusal`` (of a
        request that never ran) or ``change`` (of the configuration since the first one, with what it is and why). A request in flight has no ``end`` and no ``answer``, and NaN for
        unfinished durations. ``batch`` is the number of its first request, ``caller`` that of the
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
        import pandas as pd  # noqa: F401
    # First: what ends meanwhile is then found twice, otherwise not at all.
    in_flight = [one for one in server.in_flight() if model in ("", one.model)]
    requests: Sequence[RequestRecord] = server.requests(model)
    batches: Sequence[BatchRecord] = server.batches(model)
    numbers = {request.number for request in requests}
    ended = {(batch.instance, batch.start_ns) for batch in batches}
    requests = [*requests, *(one for one in in_flight if one.number not in numbers)]
    running = dict.fromkeys(one.batch for one in in_flight if one.batch is not None)
    unended = [one for one in running if not one.end_ns]
    batches = [*batches, *(one for one in unended if (one.instance, one.start_ns) not in ended)]
    since = min(
        [*(request.arrival_ns for request in requests), *(batch.formed_ns for batch in batches)],
        default=0,
    )

    if by == "request":
        return request_table(requests, since)
    if by == "batch":
        return _table([_batch_row(batch, since) for batch in batches], _BATCH)
    rows = [row for request in requests for row in _request_events(request)]
    rows += [row for batch in batches for row in _batch_events(batch)]
    rows += _change_events(server, model, since) if rows else []
    rows.sort(key=lambda row: (row[0], _ORDER.index(row[1])))
    return _table([((row[0] - since) / 1e6, *row[1:]) for row in rows], _EVENT)


def request_table(requests: Sequence[RequestRecord], since_ns: int | None = None) -> pd.DataFrame:
    """Return requests as a DataFrame, as of `events`; ``at_ms`` is since the first of them, or since a moment."""
    if since_ns is None:
        since_ns = min((request.arrival_ns for request in requests), default=0)
    return _table([_request_row(one, since_ns) for one in requests], _REQUEST)


# More are not read; the value has them.
_SHOWN = 40
# What a table shows first: where, what, how long.
_FIRST = (
    "at_ms", "event", "model", "request", "batch", "rows", "batch_size", "total_us", "queue_us", "longest_wait_us",
    "compute_us", "compute_infer_us", "reason", "status", "waiting", "instance", "caller",
)  # fmt: skip


def _link(number: float | None) -> Link | None:
    """Return the number of a request as a link; None for 0, None and NaN."""
    return Link.to_request(int(number), os.getpid()) if number and number > 0 else None


def _table(rows: Sequence[tuple[Any, ...]], columns: tuple[str, ...]) -> pd.DataFrame:
    """Return rows as a DataFrame, whose numbers of requests lead to the timeline of their page."""
    import pandas as pd

    from nbtriton.drawing.frames import TableFrame

    return TableFrame(
        pd.DataFrame(rows, columns=list(columns)),
        _FIRST,
        empty="nothing is recorded yet: a request is, once it is sent",
        most=_SHOWN,
        written={"at_ms": Moment, "request": _link, "batch": _link, "caller": _link},
    )


_ORDER = ("change", "arrival", "refusal", "batch", "start", "end", "answer")

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
    arrival = (request.arrival_ns, "arrival", *who, request.size, "", None, "")
    return [arrival, (request.answered_ns, end, *who, *what)] if request.answered_ns else [arrival]


def _batch_events(batch: BatchRecord) -> list[tuple[Any, ...]]:
    who = (batch.model, batch.version, None, 0, batch.requests[0], batch.instance, batch.batch_size)
    begun = [
        (batch.formed_ns, "batch", *who, batch.reason, batch.waiting, ""),
        (batch.start_ns, "start", *who, "", None, ""),
    ]
    end = (batch.end_ns, "end", *who, "", None, "FAILED" if batch.failed else "")
    return [*begun, end] if batch.end_ns else begun


def _change_events(server: Server, name: str, since_ns: int) -> list[tuple[Any, ...]]:
    return [
        (one.at_ns, "change", each.model.name, each.model.version, None, 0, 0, "", 0, one.summary, None, "")
        for each in server.history().models
        if name in ("", each.model.name)
        for one in each.changes
        if one.at_ns >= since_ns
    ]  # fmt: skip


_REQUEST = (
    "at_ms", "model", "version", "request", "request_id", "caller", "step", "rows", "batch",
    "batch_size", "instance", "reason", "queue_us", "handover_us", "compute_us", "answer_us",
    "total_us", "responses", "first_response_us", "outcome", "status", "error",
)  # fmt: skip


def _us(begin_ns: int, end_ns: int) -> float:
    """Return the time between two moments; NaN if one has not come."""
    return (end_ns - begin_ns) / 1e3 if begin_ns and end_ns else float("nan")


def _request_row(request: RequestRecord, since_ns: int) -> tuple[Any, ...]:
    batch = request.batch
    arrival = request.arrival_ns
    formed = start = end = number = rows = 0
    instance = reason = ""
    if batch is not None:
        formed, start, end = batch.formed_ns, batch.start_ns, batch.end_ns
        number, rows = batch.requests[0], batch.batch_size
        instance, reason = batch.instance, batch.reason
    return (
        (arrival - since_ns) / 1e6, request.model, request.version, request.number, request.request_id,
        request.caller, request.step, request.size, number, rows, instance, reason,
        _us(arrival, formed), _us(formed, start), _us(start, end),
        _us(min(end, request.answered_ns), request.answered_ns), _us(arrival, request.answered_ns),
        request.responses, _us(arrival, request.first_response_ns),
        request.outcome, request.status, request.error,
    )  # fmt: skip


_BATCH = (
    "at_ms", "model", "version", "batch", "requests", "batch_size", "instance", "reason", "waiting",
    "longest_wait_us", "handover_us", "compute_input_us", "compute_infer_us", "compute_output_us",
    "failed",
)  # fmt: skip


def _batch_row(batch: BatchRecord, since_ns: int) -> tuple[Any, ...]:
    return (
        (batch.formed_ns - since_ns) / 1e6, batch.model, batch.version, batch.requests[0], len(batch.requests),
        batch.batch_size, batch.instance, batch.reason, batch.waiting, batch.queue_ns / 1e3,
        _us(batch.formed_ns, batch.start_ns), _us(batch.start_ns, batch.infer_start_ns),
        _us(batch.infer_start_ns, batch.infer_end_ns), _us(batch.infer_end_ns, batch.end_ns), batch.failed,
    )  # fmt: skip
