"""Queue and settings of a batcher: priority levels, queue policies, timeouts (Q1 to Q12)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush
from struct import pack, unpack
from typing import Final

from nbtriton.scheduling.tickets import RejectTicket, Ticket, TicketState

# Detached tickets are swept once they make up most of a line and exceed this number, so that a
# starved level whose requests all time out does not keep them.
_SWEEP_ABOVE: Final = 64
_TIMED_OUT: Final = ("UNAVAILABLE", "Request timeout expired", "timeout")


class TimeoutAction(Enum):
    """Treatment of a request whose queue timeout expired (Q7, Q8)."""

    REJECT = 0
    DELAY = 1


@dataclass(slots=True, frozen=True)
class QueuePolicy:
    """Triton's ModelQueuePolicy of one priority level; the default has no limit and no timeout."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_ns: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0

    def timeout_ns(self, requested_ns: int) -> int:
        """Effective timeout: a request can only shorten the default, never set its own (Q5)."""
        if self.allow_timeout_override and 0 < requested_ns < self.default_timeout_ns:
            return requested_ns
        return self.default_timeout_ns

    @property
    def is_default(self) -> bool:
        """True if the policy never acts: the condition for batches formed ahead of time (Q10)."""
        return not (self.default_timeout_ns or self.allow_timeout_override or self.max_queue_size)


class _Level:
    """One priority level: its FIFO, its tickets that expired under DELAY, and its policy."""

    __slots__ = ("count", "delayed", "fifo", "in_heap", "policy")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.fifo: deque[Ticket] = deque()
        self.delayed: deque[Ticket] = deque()
        self.count = 0  # all that wait, pending ones included (Q4)
        self.in_heap = False  # whether its number is in the queue's heap of levels


class PriorityQueue:
    """FIFO per level, lower level first; each level has its own policy (Q1, Q2).

    A ticket detached from the middle (timeout, cancellation) is only marked, and skipped at the head.
    Every operation is O(log n) or better in the number of tickets and of levels, sweeps included
    (amortised).
    """

    __slots__ = (
        "_count", "_deadlines", "_default", "_hand_over", "_level_heap", "_levels", "_policies", "count",
    )  # fmt: skip

    def __init__(
        self,
        default_policy: QueuePolicy = QueuePolicy(),
        level_policies: Mapping[int, QueuePolicy] | None = None,
        hand_over_ns: int = 0,
    ) -> None:
        self._default = default_policy
        self._hand_over = hand_over_ns
        self._policies = dict(level_policies or {})
        # Levels are created on first use: a configuration may have millions of them.
        self._levels: dict[int, _Level] = {}
        self._level_heap: list[int] = []  # the levels that may have a head
        self._deadlines: list[tuple[int, int, Ticket]] = []
        self._count = 0
        self.count = 0

    def _level(self, number: int) -> _Level:
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = _Level(self._policies.get(number, self._default))
        return level

    def _add_to_heap(self, number: int, level: _Level) -> None:
        if not level.in_heap:
            level.in_heap = True
            heappush(self._level_heap, number)

    def push(self, now: int, ticket: Ticket) -> RejectTicket | None:
        """Accept a ticket, or reject it: the queue is full, or its timeout has expired at once."""
        level = self._level(ticket.priority)
        policy = level.policy
        if policy.max_queue_size and level.count >= policy.max_queue_size:
            ticket.state = TicketState.DONE
            return RejectTicket(ticket, "UNAVAILABLE", "Exceeds maximum queue size", "queue_full")
        ticket.enqueued_ns = now
        ticket.state = TicketState.QUEUED
        timeout = policy.timeout_ns(ticket.timeout_ns)
        if 0 < timeout <= self._hand_over:
            if policy.timeout_action is TimeoutAction.REJECT:
                ticket.state = TicketState.DONE
                return RejectTicket(ticket, *_TIMED_OUT)
            ticket.deadline_ns = now
        elif timeout:
            ticket.deadline_ns = now + timeout
            self._count += 1
            heappush(self._deadlines, (ticket.deadline_ns, self._count, ticket))
        level.fifo.append(ticket)
        level.count += 1
        self.count += 1
        self._add_to_heap(ticket.priority, level)
        if len(level.fifo) + len(level.delayed) > 2 * level.count + _SWEEP_ABOVE:
            level.fifo = deque(one for one in level.fifo if one.state is TicketState.QUEUED)
            level.delayed = deque(one for one in level.delayed if one.state is TicketState.DELAYED)
        if len(self._deadlines) > 2 * self.count + _SWEEP_ABOVE:
            self._deadlines = [entry for entry in self._deadlines if _can_expire(entry[2])]
            heapify(self._deadlines)
        return None

    def expires_at_once(self, ticket: Ticket) -> bool:
        """True if the queue timeout of a ticket expires before the first scan (Q6)."""
        policy = self._policies.get(ticket.priority, self._default)
        return 0 < policy.timeout_ns(ticket.timeout_ns) <= self._hand_over

    def head(self, now: int) -> Ticket | None:
        """Return the next ticket in serving order without removing it.

        Expired tickets met on the way move behind the others of their level (Q8), in order of arrival
        and only as far as the scan comes.
        """
        heap = self._level_heap
        while heap:
            level = self._levels[heap[0]]
            line = level.fifo
            while line:
                first = line[0]
                if first.state is TicketState.QUEUED:
                    if not 0 < first.deadline_ns <= now:
                        return first
                    first.deadline_ns = -1
                    first.state = TicketState.DELAYED
                    level.delayed.append(first)
                line.popleft()
            line = level.delayed
            while line:
                first = line[0]
                if first.state is TicketState.DELAYED:
                    return first
                line.popleft()
            level.in_heap = False
            heappop(heap)
        return None

    def pop_head(self, head: Ticket) -> None:
        """Pop the ticket that `head` just returned; it counts as waiting until `detach`."""
        level = self._levels[head.priority]
        (level.fifo if head.state is TicketState.QUEUED else level.delayed).popleft()
        head.state = TicketState.PENDING

    def restore(self, tickets: list[Ticket]) -> None:
        """Undo `pop_head` for tickets that are still pending, in their old order (Q3)."""
        while tickets:
            ticket = tickets.pop()
            if ticket.state is not TicketState.PENDING:
                continue
            level = self._levels[ticket.priority]
            # A ticket whose timeout has expired has no deadline any more (Q8).
            delayed = ticket.deadline_ns < 0
            ticket.state = TicketState.DELAYED if delayed else TicketState.QUEUED
            (level.delayed if delayed else level.fifo).appendleft(ticket)
            self._add_to_heap(ticket.priority, level)

    def detach(self, ticket: Ticket) -> None:
        """Stop counting a ticket: it joined a batch or was rejected."""
        self._levels[ticket.priority].count -= 1
        self.count -= 1

    def outranks(self, ticket: Ticket, other: Ticket) -> bool:
        """True if ``ticket`` is served before ``other`` although it arrived later."""
        return ticket.priority < other.priority or (
            ticket.priority == other.priority and other.deadline_ns < 0
        )

    def expired(self, now: int) -> Iterator[tuple[Ticket, TimeoutAction]]:
        """Yield the tickets whose deadline has come, with the action of their level.

        The caller calls `expire` for each ticket to reject before it asks for the next one; `head`
        moves those to delay.
        """
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now:
            _, _, ticket = heappop(deadlines)
            if _can_expire(ticket):
                yield ticket, self._levels[ticket.priority].policy.timeout_action

    def reject(self, ticket: Ticket, status: str, message: str, reason: str) -> RejectTicket:
        """Detach a waiting ticket and reject it."""
        self.detach(ticket)
        ticket.state = TicketState.DONE
        level = self._levels[ticket.priority]
        if not level.count:  # no scan may come that skips it, and its tensors may be large
            level.fifo.clear()
            level.delayed.clear()
        return RejectTicket(ticket, status, message, reason)

    def expire(self, ticket: Ticket) -> RejectTicket:
        """Reject a ticket whose timeout has expired (Q7)."""
        return self.reject(ticket, *_TIMED_OUT)

    def tickets(self) -> list[Ticket]:
        """Return the waiting tickets, except the pending ones."""
        levels = [self._levels[number] for number in sorted(self._levels)]
        return [
            *[one for level in levels for one in level.fifo if one.state is TicketState.QUEUED],
            *[one for level in levels for one in level.delayed if one.state is TicketState.DELAYED],
        ]

    def next_deadline(self) -> int | None:
        """Return when the next waiting ticket expires; None if none does."""
        deadlines = self._deadlines
        while deadlines:
            if _can_expire(deadlines[0][2]):
                return deadlines[0][0]
            heappop(deadlines)
        return None


def _can_expire(ticket: Ticket) -> bool:
    """True while the timeout of a ticket applies: until it is in a batch (Q6)."""
    return ticket.state is TicketState.QUEUED or ticket.state is TicketState.PENDING


@dataclass(slots=True, frozen=True)
class BatcherSettings:
    """The batcher's part of a model's configuration; times in nanoseconds.

    ``preferred``: the configured sizes, by default (max_batch_size,). ``hand_over_ns``: the time from
    the arrival of a request to its first scan; a queue timeout no longer than this expires even if an
    instance is idle (Q6).
    """

    max_batch_size: int = 0
    dynamic: bool = False
    preferred: tuple[int, ...] = ()
    max_queue_delay_ns: int = 0
    priority_levels: int = 0
    default_policy: QueuePolicy = field(default_factory=QueuePolicy)
    level_policies: Mapping[int, QueuePolicy] = field(default_factory=dict)
    hand_over_ns: int = 0


@dataclass(slots=True, frozen=True)
class SequenceSettings:
    """The sequence batcher's part of a model's configuration; times in nanoseconds.

    ``oldest``: the settings of each instance's dynamic batcher; None for the direct strategy.
    ``iterative``: a request is a sequence, and its model may reschedule it (IT1, IT2).
    """

    model_name: str
    max_batch_size: int = 0
    idle_ns: int = 1_000_000_000
    max_queue_delay_ns: int = 0
    minimum_slot_utilization: float = 0.0
    oldest: BatcherSettings | None = None
    max_candidate_sequences: int = 0
    iterative: bool = False

    @property
    def slots(self) -> int:
        """Slots per instance (SQ4)."""
        if self.oldest is not None and self.max_candidate_sequences > 0:
            return self.max_candidate_sequences
        return max(1, self.max_batch_size)

    @property
    def enough_slots(self) -> int:
        """Number of slots with a request that makes a batch before the delay ends (DI6)."""
        size = max(1, self.max_batch_size)
        # Triton divides and compares in single precision: 3 of 10 slots are 0.3.
        shares = (unpack("f", pack("f", ready / size))[0] for ready in range(1, size + 1))
        wanted = self.minimum_slot_utilization
        return next((n for n, share in enumerate(shares, 1) if share >= wanted), size + 1)
