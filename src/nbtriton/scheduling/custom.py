"""Custom batching: the interface of a strategy that decides which requests share a batch (D4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from nbtriton.common.errors import TritonError
from nbtriton.scheduling.tickets import Ticket


class BatchStrategy(Protocol):
    """Decides, after all other rules, whether a request may join the batch being formed.

    For each batch the batcher calls `initialize`, then `include` for each candidate in serving order,
    then `finalize` before the batch is released. It starts over when accepted requests must be scanned
    again: a request of higher priority arrived, one of them timed out or was cancelled, or a part was
    released. It also starts over when later requests may join a batch that waits for an instance:
    `include` is then called for the requests of that batch first, and those answers are ignored,
    because they were given before.

    A request that even an empty batch does not include is rejected: it would wait forever.
    """

    def initialize(self) -> Any:
        """Return the state of a new batch.

        Raises
        ------
        TritonError
            The request at the head is rejected with it.
        """

    def include(self, state: Any, ticket: Ticket) -> bool:
        """Return whether the ticket may join; if so, update the state.

        Raises
        ------
        TritonError
            The ticket is rejected with it.
        """

    def finalize(self, state: Any) -> None:
        """Release the state of a batch, whether formed or abandoned. Must not raise."""


def batch_state(strategy: BatchStrategy, tickets: Sequence[Ticket]) -> object:
    """Return a new state of the strategy that includes the requests of a batch.

    In Triton the new state of a batch that is joined is empty, so that the batch grows beyond what
    its strategy allows.

    Raises
    ------
    TritonError
        The strategy failed.
    """
    state = strategy.initialize()
    try:
        for ticket in tickets:
            strategy.include(state, ticket)
    except TritonError:
        strategy.finalize(state)
        raise
    return state


def includes_all(
    strategy: BatchStrategy, tickets: Sequence[Ticket], others: Sequence[Ticket]
) -> bool:
    """Return whether all requests of another batch may join this one; Triton merges them without asking."""
    try:
        state = batch_state(strategy, tickets)
    except TritonError:
        return False
    try:
        return all(strategy.include(state, ticket) for ticket in others)
    except TritonError:
        return False
    finally:
        strategy.finalize(state)
