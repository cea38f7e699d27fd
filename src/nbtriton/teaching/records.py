"""The recorder's data for checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.checks import Kind, check, whole

if TYPE_CHECKING:
    from nbtriton.engine import BatchRecord, Server

__all__ = ["last_batches"]

_RECORDS = Kind(lambda value: hasattr(value, "batches"), "a server or a trial")


def last_batches(server: Server, name: str, *, requests: int) -> tuple[BatchRecord, ...]:
    """Return the batches with a model's newest requests, oldest first.

    Parameters
    ----------
    server : Server or Trial
    name : str
    requests : int
        Number of requests in the experiment.

    Raises
    ------
    AssertionError
        Fewer are recorded: the reader has not run the experiment.
    NotFoundError
        Nothing was ever recorded under this name.

    Examples
    --------
    >>> _ = server.infer("double", {"IN": ones})
    >>> [batch.batch_size for batch in nt.last_batches(server, "double", requests=1)]
    [1]
    """
    check({"server": server, "requests": requests}, {"server": _RECORDS, "requests": whole(1)})
    batches: list[BatchRecord] = []
    missing = requests
    for batch in reversed(server.batches(name)):
        if missing <= 0:
            break
        batches.append(batch)
        missing -= len(batch.requests)
    assert missing <= 0, (
        f"Run the experiment first: it sends {requests} requests to {name}, "
        f"{requests - missing} are recorded."
    )
    return tuple(reversed(batches))
