"""Custom batching: what a strategy must be to have a say in which requests share a batch (D4)."""

from __future__ import annotations

from typing import Any, Protocol

from nbtriton.scheduling.tickets import Ticket

__all__ = ["BatchStrategy"]


class BatchStrategy(Protocol):
    """Decides, beyond all other rules, whether a request may join the batch being formed.

    For every batch that is begun the batcher calls `initialize`, then `include` for each candidate
    in serving order, then `finalize` before the batch is handed over. It begins anew when the
    requests it had accepted must be looked at again (a request of higher priority came, one of them
    timed out or was cancelled, a part was released), and when later requests may join a batch that
    waits for an instance: then `include` is called for what the batch holds first, and the answers,
    which were given before, do not count.

    A request that even an empty batch does not include is dropped: it would wait forever.
    """

    def initialize(self) -> Any:
        """Return the state of a new batch.

        Raises
        ------
        TritonError
            The request at the head is dropped with it.
        """
        ...

    def include(self, state: Any, ticket: Ticket) -> bool:
        """Say whether the ticket may join, and if so change the state accordingly.

        Raises
        ------
        TritonError
            The ticket is dropped with it.
        """
        ...

    def finalize(self, state: Any) -> None:
        """The batch is formed or given up; never raises."""
        ...
