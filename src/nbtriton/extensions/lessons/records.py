"""The recorder's data for checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from nbtriton.common.checks import Kind, check, whole

if TYPE_CHECKING:
    from nbtriton.runtime.engine import BatchRecord, RequestRecord, Server


_RECORDS = Kind(lambda value: hasattr(value, "batches"), "a server")

# How many times as long as meant an execution may take before an experiment counts as disturbed.
_TOO_LONG = 1.5


class MachineBusyError(Exception):
    """The machine was too busy for an experiment: an answer to it is neither right nor wrong.

    A check raises it with a sentence for the reader, who runs the experiment again.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"Your machine was busy: {what}. This says nothing about the answer; run the experiment again."
        )


class _Measured(Protocol):
    @property
    def disturbance(self) -> str: ...


def claim(sentence: str, *measured: _Measured) -> str:
    """Return a sentence about measurements, and what other programs did meanwhile if it was much.

    Parameters
    ----------
    sentence : str
    *measured : PerfReport, Profile, Comparison or Others
        What the sentence is about; the first that was disturbed is told.

    Examples
    --------
    >>> report = nt.perf(server, "double", concurrency=1, request_count=4)
    >>> print(claim("One outstanding request, four answers.", report))  # doctest: +ELLIPSIS
    One outstanding request, four answers....
    """
    disturbance = next((one.disturbance for one in measured if one.disturbance), "")
    return f"{sentence}\nBut {disturbance}." if disturbance else sentence


def sent_within(requests: Iterable[RequestRecord], limit_ms: float) -> None:
    """Raise `MachineBusyError` if requests that are sent at once came over a longer time."""
    came = [one.arrival_ns for one in requests]
    spread_ms = (max(came) - min(came)) / 1e6
    if spread_ms > limit_ms:
        raise MachineBusyError(f"requests that are sent at once came within {spread_ms:.0f} ms")


def took_about(took_ns: float, meant_ms: float) -> None:
    """Raise `MachineBusyError` if an execution took half as long again as it is meant to."""
    if took_ns > _TOO_LONG * meant_ms * 1e6:
        raise MachineBusyError(f"what takes {meant_ms:g} ms took {took_ns / 1e6:.0f} ms")


def last_batches(
    server: Server,
    model: str,
    *,
    request_count: int,
    within_ms: float | None = None,
    took_ms: Sequence[float] = (),
) -> tuple[BatchRecord, ...]:
    """Return the batches with a model's newest requests, oldest first.

    Parameters
    ----------
    server : Server
    model : str
    request_count : int
        Number of requests in the experiment.
    within_ms : float, optional
        Milliseconds within which all of them have to come for the experiment to be what it is meant to be.
    took_ms : sequence of float, optional
        How long each request's execution is meant to take, in the order of their arrival.

    Raises
    ------
    MachineBusyError
        They came over a longer time, or an execution took half as long again.
    AssertionError
        Fewer are recorded: the reader has not run the experiment.
    NotFoundError
        Nothing was ever recorded under this name.

    Examples
    --------
    >>> _ = server.infer("double", {"IN": ones})
    >>> [batch.batch_size for batch in nt.lessons.last_batches(server, "double", request_count=1)]
    [1]
    """
    check(
        {"server": server, "request_count": request_count},
        {"server": _RECORDS, "request_count": whole(1)},
    )
    batches: list[BatchRecord] = []
    missing = request_count
    for batch in reversed(server.batches(model)):
        if missing <= 0:
            break
        batches.append(batch)
        missing -= len(batch.requests)
    assert missing <= 0, (
        f"Run the experiment first: it sends {request_count} requests to {model}, "
        f"{request_count - missing} are recorded."
    )
    found = tuple(reversed(batches))
    if within_ms is not None:
        numbers = {number for batch in found for number in batch.requests}
        sent_within((one for one in server.requests(model) if one.number in numbers), within_ms)
    for meant_ms, batch in zip(took_ms, sorted(found, key=_first_request), strict=False):
        took_about(batch.end_ns - batch.start_ns, meant_ms)
    return found


def _first_request(batch: BatchRecord) -> int:
    return min(batch.requests)
