"""Questions of a check to the recorder."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbtriton.engine import BatchRecord, Server

__all__ = ["last_batches"]


def last_batches(server: Server, name: str, *, requests: int) -> tuple[BatchRecord, ...]:
    """Return the batches of a model that carried its newest requests, oldest first.

    Parameters
    ----------
    server : Server
    name : str
    requests : int
        How many the experiment sent.

    Raises
    ------
    AssertionError
        Fewer are recorded: the experiment has not run, as the reader is shown.
    NotFoundError
        Nothing was ever recorded under this name.

    Examples
    --------
    >>> _ = server.infer("double", {"IN": ones})
    >>> [batch.batch_size for batch in nt.last_batches(server, "double", requests=1)]
    [1]
    """
    found: list[BatchRecord] = []
    missing = requests
    for batch in reversed(server.batches(name)):
        if missing <= 0:
            break
        found.append(batch)
        missing -= len(batch.requests)
    assert missing <= 0, (
        f"Run the experiment first: it sends {requests} requests to {name}, "
        f"{requests - missing} are recorded."
    )
    return tuple(reversed(found))
