"""The queue in front of a batcher: priority levels, queue policies, timeouts (Q1 to Q12)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Final

from nbtriton.scheduling.tickets import RejectTicket, Ticket, TicketState

__all__ = ["PriorityQueue", "QueuePolicy", "TimeoutAction"]

# Departed tickets are swept out of a line when they are most of it, and more than this many: a
# starved level whose requests all time out must not remember them.
_SWEEP_ABOVE: Final = 64


class TimeoutAction(Enum):
    """What happens to a request whose queue timeout expired (Q7, Q8)."""

    REJECT = 0
    DELAY = 1


@dataclass(slots=True, frozen=True)
class QueuePolicy:
    """Triton's ModelQueuePolicy for one priority level; all zero means no limit and no timeout."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_ns: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0

    def timeout_ns(self, requested_ns: int) -> int:
        """Effective timeout: a request can only shorten the default, never set one (Q5)."""
        if self.allow_timeout_override and 0 < requested_ns < self.default_timeout_ns:
            return requested_ns
        return self.default_timeout_ns

    @property
    def is_default(self) -> bool:
        """True if the policy never acts; only then batches are formed ahead of time (Q10)."""
        return not (self.default_timeout_ns or self.allow_timeout_override or self.max_queue_size)


class _Level:
    """One priority level: its FIFO, those whose timeout expired under DELAY, and its policy."""

    __slots__ = ("count", "delayed", "fifo", "listed", "policy")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.fifo: deque[Ticket] = deque()
        self.delayed: deque[Ticket] = deque()
        self.count = 0  # waiting here, pending ones included (Q4)
        self.listed = False  # its number stands in the queue's heap of levels


class PriorityQueue:
    """FIFO per level, lower level first; each level has a policy of its own (Q1, Q2).

    Tickets that leave from the middle (timeout, cancellation) are only marked, and skipped when
    they reach the head: every operation is O(log n) or better in the number waiting and in the
    number of levels, sweeps included (amortised).
    """

    __slots__ = (
        "_deadlines", "_default", "_hand_over", "_heads", "_levels", "_policies", "_sequence", "count",
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
        # Levels come to be when first used: a configuration may name millions of them.
        self._levels: dict[int, _Level] = {}
        self._heads: list[int] = []  # heap of the levels that may have something to take
        self._deadlines: list[tuple[int, int, Ticket]] = []
        self._sequence = 0
        self.count = 0

    def _level(self, number: int) -> _Level:
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = _Level(self._policies.get(number, self._default))
        return level

    def _list(self, number: int, level: _Level) -> None:
        if not level.listed:
            level.listed = True
            heappush(self._heads, number)

    def push(self, now: int, ticket: Ticket) -> RejectTicket | None:
        """Accept a ticket, or answer why not: the queue is full, or its time is up at once."""
        level = self._level(ticket.priority)
        policy = level.policy
        if policy.max_queue_size and level.count >= policy.max_queue_size:
            ticket.state = TicketState.GONE
            return RejectTicket(ticket, "UNAVAILABLE", "Exceeds maximum queue size", "queue_full")
        ticket.enqueued_ns = now
        ticket.state = TicketState.QUEUED
        timeout = policy.timeout_ns(ticket.timeout_ns)
        if 0 < timeout <= self._hand_over:
            if policy.timeout_action is TimeoutAction.REJECT:
                ticket.state = TicketState.GONE
                return _timed_out(ticket)
            ticket.deadline_ns = now
        elif timeout:
            ticket.deadline_ns = now + timeout
            self._sequence += 1
            heappush(self._deadlines, (ticket.deadline_ns, self._sequence, ticket))
        level.fifo.append(ticket)
        level.count += 1
        self.count += 1
        self._list(ticket.priority, level)
        if len(level.fifo) + len(level.delayed) > 2 * level.count + _SWEEP_ABOVE:
            level.fifo = deque(one for one in level.fifo if one.state is TicketState.QUEUED)
            level.delayed = deque(one for one in level.delayed if one.state is TicketState.DELAYED)
        if len(self._deadlines) > 2 * self.count + _SWEEP_ABOVE:
            self._deadlines = [entry for entry in self._deadlines if _can_expire(entry[2])]
            heapify(self._deadlines)
        return None

    def expires_at_once(self, ticket: Ticket) -> bool:
        """True if the queue timeout of a ticket is over before anybody looks at it."""
        policy = self._policies.get(ticket.priority, self._default)
        return 0 < policy.timeout_ns(ticket.timeout_ns) <= self._hand_over

    def head(self, now: int) -> Ticket | None:
        """Return the next ticket in serving order, without taking it.

        Those that are met on the way and whose timeout has expired go behind the others of their
        level (Q8): in order of arrival, and only as far as anybody looks.
        """
        heads = self._heads
        while heads:
            level = self._levels[heads[0]]
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
            level.listed = False
            heappop(heads)
        return None

    def take(self, head: Ticket) -> None:
        """Take what `head` just returned; it stays counted until `leave`."""
        level = self._levels[head.priority]
        (level.fifo if head.state is TicketState.QUEUED else level.delayed).popleft()
        head.state = TicketState.PENDING

    def put_back(self, tickets: list[Ticket]) -> None:
        """Undo `take` for tickets still pending, in their old order (Q3)."""
        while tickets:
            ticket = tickets.pop()
            if ticket.state is not TicketState.PENDING:
                continue
            level = self._levels[ticket.priority]
            # A ticket that waits on after its timeout has no deadline any more (Q8).
            delayed = ticket.deadline_ns < 0
            ticket.state = TicketState.DELAYED if delayed else TicketState.QUEUED
            (level.delayed if delayed else level.fifo).appendleft(ticket)
            self._list(ticket.priority, level)

    def leave(self, ticket: Ticket) -> None:
        """The ticket went on to a batch, or was dropped: it counts here no more."""
        self._levels[ticket.priority].count -= 1
        self.count -= 1

    def outranks(self, ticket: Ticket, other: Ticket) -> bool:
        """True if ``ticket`` is served before ``other`` although it came later."""
        return ticket.priority < other.priority or (
            ticket.priority == other.priority and other.deadline_ns < 0
        )

    def expired(self, now: int) -> Iterator[tuple[Ticket, TimeoutAction]]:
        """Yield the tickets whose deadline has come, with what their level does about it.

        The caller acts on each (`time_out`) before the next one is looked at; those that are to be
        delayed are moved by `head`.
        """
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now:
            _, _, ticket = heappop(deadlines)
            if _can_expire(ticket):
                yield ticket, self._levels[ticket.priority].policy.timeout_action

    def drop(self, ticket: Ticket, status: str, message: str, reason: str) -> RejectTicket:
        """Take a waiting ticket out for good."""
        self.leave(ticket)
        ticket.state = TicketState.GONE
        return RejectTicket(ticket, status, message, reason)

    def time_out(self, ticket: Ticket) -> RejectTicket:
        """Take out a ticket whose timeout expired (Q7)."""
        self.leave(ticket)
        ticket.state = TicketState.GONE
        return _timed_out(ticket)

    def next_deadline(self) -> int | None:
        """When the next waiting ticket expires, None if none ever will."""
        deadlines = self._deadlines
        while deadlines:
            if _can_expire(deadlines[0][2]):
                return deadlines[0][0]
            heappop(deadlines)
        return None


def _timed_out(ticket: Ticket) -> RejectTicket:
    return RejectTicket(ticket, "UNAVAILABLE", "Request timeout expired", "timeout")


def _can_expire(ticket: Ticket) -> bool:
    """True while its timeout applies: never again once in a batch (Q6)."""
    return ticket.state is TicketState.QUEUED or ticket.state is TicketState.PENDING
