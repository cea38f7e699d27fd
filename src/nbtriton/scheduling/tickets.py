"""The schedulers' input and output: tickets, and decisions with their reasons."""

from __future__ import annotations

from collections.abc import Hashable
from enum import IntEnum
from typing import Final, NamedTuple

# Triton's flags of a request.
SEQUENCE_START: Final = 1
SEQUENCE_END: Final = 2


def sequence_flags(start: object, end: object) -> int:
    """Return the flags of a request that starts or ends its sequence."""
    return (SEQUENCE_START if start else 0) | (SEQUENCE_END if end else 0)


class TicketState(IntEnum):
    """State of a ticket. It moves forward only, except from PENDING back to QUEUED or DELAYED."""

    NEW = 0
    QUEUED = 1
    DELAYED = 2  # its timeout expired under TimeoutAction.DELAY
    PENDING = 3  # accepted by a scan that waits for more requests
    PAYLOAD = 4  # part of a formed batch
    RUNNING = 5
    DONE = 6  # finished, rejected or cancelled


class Ticket:
    """One request as a scheduler sees it: no tensors, only the fields that scheduling depends on.

    Attributes
    ----------
    size : int
        Batch size of the request, at least 1 (D15).
    shape_key : hashable
        Only requests with equal keys share a batch (G1 to G5). Where shapes are not compared, all
        requests of the model have the same key, such as None.
    priority : int
        1 is the highest; 0 if the model has no priority levels.
    timeout_ns : int
        Queue timeout of the request itself, 0 for none.
    enqueued_ns : int
        Time of acceptance, set by the scheduler.
    correlation_id, flags : int or str, int
        Sequence of the request, and whether the request starts (1) or ends (2) it.
    """

    __slots__ = (
        "correlation_id", "deadline_ns", "enqueued_ns", "flags", "priority", "shape_key", "size",
        "state", "timeout_ns",
    )  # fmt: skip

    def __init__(
        self,
        size: int = 1,
        shape_key: Hashable = None,
        priority: int = 0,
        timeout_ns: int = 0,
        correlation_id: int | str = 0,
        flags: int = 0,
    ) -> None:
        self.correlation_id = correlation_id
        self.flags = flags
        self.size = size
        self.shape_key = shape_key
        self.priority = priority
        self.timeout_ns = timeout_ns
        self.enqueued_ns = 0
        self.deadline_ns = 0
        self.state = TicketState.NEW


REASONS: Final = {
    "batching_off": "the model has no dynamic_batching: every request runs alone",
    "no_batch_dimension": "max_batch_size is 0: every request runs alone",
    "preferred_batch_size": "a preferred batch size was reached",
    "preferred_exceeded": "one more request goes beyond the largest preferred batch size",
    "max_batch_size": "the batch is full, or the next request no longer fits",
    "shape": "the next request has other input shapes, so it cannot share the batch",
    "max_queue_delay": "the oldest request had waited for max_queue_delay_microseconds",
    "no_delay": "max_queue_delay_microseconds is 0: the waiting requests ran at once",
    "joined": "requests joined the batch while it waited for an instance",
    "merged": "batches whose delay had passed were merged while they waited for an instance",
    "custom_batching": "the custom batching strategy did not include the next request",
    "custom_batching_refused": "the custom batching strategy includes the request in no batch",
    "custom_batching_failed": "the custom batching strategy failed on the request",
    "timeout": "the request waited longer than its queue timeout",
    "queue_full": "max_queue_size requests of its priority level were already waiting",
    "cancelled": "the caller cancelled the request while it waited",
    "load_ended": "the load of a measurement had ended: nbtriton.perf cancels what still waits",
    "stopped": "the server stopped while the request waited",
    "sequence_ready": "a request of a sequence was ready; no delay is configured to wait for more",
    "minimum_slot_utilization": "enough slots of the instance had a request",
    "sequence_rule": "the request breaks a rule of its sequence",
    "resources": "a batch waits until the rate limiter grants the instance its resources",
    "lost": "the process of the instance has ended; it is restarted before it gets a batch again",
    "removed": "the model now has fewer instances, and this one has finished its work",
}
"""Every reason of a decision, by key."""


class RunBatch:
    """Run these tickets, in this order, as one batch on this instance.

    A plain class for speed: one is made per batch, and a frozen dataclass takes three times as long,
    a named tuple six times in the compiled core.

    Attributes
    ----------
    instance : int
    tickets : tuple of Ticket
    size : int
        Rows of the batch.
    reason : str
        A key of `REASONS`: why the batch was closed at this size.
    rows : tuple of int
        Direct strategy of sequences: the row of each ticket; the other rows below ``size`` are
        padding. Empty otherwise.
    sequences : tuple
        For each ticket an object that identifies its sequence and lives as long as the sequence.
        Empty without sequences.
    formed_ns : int
        The ``now`` of the decision.
    waiting : int
        Requests that still wait: with 0 nothing could have made the batch larger.
    """

    __slots__ = (
        "formed_ns", "instance", "reason", "rows", "sequences", "size", "tickets", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        instance: int,
        tickets: tuple[Ticket, ...],
        size: int,
        reason: str,
        rows: tuple[int, ...] = (),
        sequences: tuple[object, ...] = (),
        formed_ns: int = 0,
        waiting: int = 0,
    ) -> None:
        self.formed_ns = formed_ns
        self.waiting = waiting
        self.instance = instance
        self.tickets = tickets
        self.size = size
        self.reason = reason
        self.rows = rows
        self.sequences = sequences

    def __repr__(self) -> str:
        return f"RunBatch({self.size} rows of {len(self.tickets)} tickets on {self.instance}: {self.reason})"


class RejectTicket(NamedTuple):
    """Answer this ticket with an error; it does not run. ``reason`` is a key of `REASONS`."""

    ticket: Ticket
    status: str
    message: str
    reason: str


class RetireInstance(NamedTuple):
    """A removed instance has finished; it gets no further batch."""

    instance: int
    reason: str = "removed"


class ReturnResources(NamedTuple):
    """A staged instance was granted its resources, but every request of its batch was cancelled."""

    instance: int
    reason: str = "cancelled"


class StageInstance(NamedTuple):
    """An idle instance has a batch and requests its resources for it (R6)."""

    instance: int
    reason: str = "resources"


class SuspendInstance(NamedTuple):
    """A lost instance runs nothing: it gets no batch until it is resumed."""

    instance: int
    reason: str = "lost"


Decision = (
    RunBatch | RejectTicket | RetireInstance | StageInstance | ReturnResources | SuspendInstance
)
