"""The dynamic batcher and the default scheduler (S1 to S5, D1 to D15, P1 to P8).

Theory of operation. Requests wait in a priority queue. A *scan* walks them in serving order and
decides how many may be *released* into the open *payload*, a batch that waits for an instance and
may be appended to until an instance takes it. Payloads are formed ahead of time, up to two per
instance, unless a queue policy could still act on the waiting requests: then a batch is formed
only when an instance is idle (Q10, Q11). A scan that decides to wait keeps what it accepted
*pending*, so the next request costs a step and not a new walk.

Under a rate limiter an idle instance is *staged* with the oldest payload, which may still grow until
the instance is granted its resources (R9).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from nbtriton.errors import TritonError
from nbtriton.scheduling.custom import BatchStrategy
from nbtriton.scheduling.queueing import PriorityQueue, QueuePolicy, TimeoutAction
from nbtriton.scheduling.tickets import (
    Decision,
    RejectTicket,
    RetireInstance,
    ReturnResources,
    RunBatch,
    StageInstance,
    Ticket,
    TicketState,
)

__all__ = ["Batcher", "BatcherSettings"]

_REFUSED = (
    "INVALID_ARG",
    "the custom batching strategy includes the request in no batch, not even in an empty one",
    "custom_batching_refused",
)


@dataclass(slots=True, frozen=True)
class BatcherSettings:
    """What the batcher needs of a model's configuration; times in nanoseconds.

    ``preferred`` is as normalised: the configured sizes, or (max_batch_size,) if there are none.
    ``hand_over_ns``: a queue timeout no longer than this is over before anybody looks at the request,
    even where an instance is idle (Q6).
    """

    max_batch_size: int = 0
    dynamic: bool = False
    preferred: tuple[int, ...] = ()
    max_queue_delay_ns: int = 0
    priority_levels: int = 0
    default_policy: QueuePolicy = field(default_factory=QueuePolicy)
    level_policies: Mapping[int, QueuePolicy] = field(default_factory=dict)
    hand_over_ns: int = 0


class _Payload:
    """A batch that waits for an instance."""

    __slots__ = ("mergeable", "oldest_ns", "reason", "shape_key", "size", "tickets")

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.size = 0
        self.shape_key: Hashable = None
        self.oldest_ns = 0
        self.reason = ""
        self.mergeable = True


class Batcher:
    """Decide which requests run together, where and when.

    Every method takes ``now`` (nanoseconds) and returns the decisions that follow, in order. The
    owner calls them one at a time; there is no lock in here.

    Parameters
    ----------
    settings : BatcherSettings
    instances : int
        How many instances there are at first, numbered from 0; all idle.
    strategy : BatchStrategy, optional
        Custom rules on which requests share a batch (D4), besides those of the settings.
    gated : bool
        Under a rate limiter: a batch is staged (`StageInstance`), and runs when its instance is `granted`.
    rank : callable, optional
        Of several idle instances the one with the lowest rank is staged (R6); by default the one
        that has been idle longest.
    """

    def __init__(
        self,
        settings: BatcherSettings,
        instances: int,
        strategy: BatchStrategy | None = None,
        *,
        gated: bool = False,
        rank: Callable[[int], int] | None = None,
    ) -> None:
        self._settings = settings
        self._limit = max(1, settings.max_batch_size)
        self._preferred = frozenset(settings.preferred)
        self._largest_preferred = max(settings.preferred, default=0)
        self._delay = settings.max_queue_delay_ns
        self._prefetch = settings.priority_levels == 0 and settings.default_policy.is_default
        self._instances = set(range(instances))
        # Whether any request can have a queue timeout (Q5); without one nobody asks for deadlines.
        policies = (settings.default_policy, *settings.level_policies.values())
        self._timed = any(policy.default_timeout_ns for policy in policies)
        self._slots = 2 * instances  # P2
        # Without priority levels there is level 0 alone, and it has the default policy (Q1, Q10).
        self._queue = PriorityQueue(
            settings.default_policy,
            settings.level_policies if settings.priority_levels else None,
            settings.hand_over_ns,
        )
        # Whoever has been idle longest goes first: its thread has waited longest in Triton (S4).
        self._idle = deque(range(instances))
        self._gated = gated
        self._rank = rank
        self._staged: dict[int, _Payload] = {}  # what staged instances are to run
        self._leaving: set[int] = set()  # removed while they were busy
        self._ready: deque[_Payload] = deque()
        self._open: _Payload | None = None  # the payload that may still grow
        self._pending: list[Ticket] = []
        self._pending_size = 0
        self._pending_since = 0  # when the oldest of them arrived
        self._wait_until: int | None = None
        self._in_payloads = 0
        self._strategy = strategy
        # Whether a request may go straight to an idle instance.
        self._direct = strategy is None and not gated
        self._forming: list[object] = []  # the strategy's state of the pending batch, if any

    # -- what happened ---------------------------------------------------------------------------

    def submit(self, now: int, ticket: Ticket) -> list[Decision]:
        """A request arrived."""
        if not self._settings.dynamic:
            return self._submit_alone(now, ticket)
        queue = self._queue
        if (
            self._idle
            and not queue.count
            and self._direct
            and not (self._timed and queue.expires_at_once(ticket))
        ):
            # Nobody waits: what a scan would decide about one request, without the queue.
            size = ticket.size
            if size in self._preferred or size >= self._largest_preferred:
                return [self._run_at_once(now, ticket, self._size_reason(size, ""))]
            if self._delay == 0:
                return [self._run_at_once(now, ticket, "no_delay")]
        out: list[Decision] = []
        # First those whose time is up: they must not fill the queue against the new one.
        self._expire(now, out)
        self._push(now, ticket, out)
        return self._advance(now, out)

    def submit_many(self, now: int, tickets: Sequence[Ticket]) -> list[Decision]:
        """Requests arrived at the same moment: all are there before a batch is formed."""
        if not self._settings.dynamic or len(tickets) == 1:
            return [decision for ticket in tickets for decision in self.submit(now, ticket)]
        out: list[Decision] = []
        self._expire(now, out)
        for ticket in tickets:
            self._push(now, ticket, out)
        return self._advance(now, out)

    def finish(self, now: int, instance: int) -> list[Decision]:
        """An instance finished its batch and is idle again."""
        if instance in self._leaving:
            self._leaving.remove(instance)
            return [RetireInstance(instance), *self.tick(now)]
        self._idle.append(instance)
        if not self._ready and not self._queue.count:
            return []
        return self.tick(now)

    def granted(self, now: int, instance: int) -> list[Decision]:
        """A staged instance has its resources: the batch runs as it is now (R9)."""
        payload = self._staged.pop(instance)
        if not payload.tickets:
            return [ReturnResources(instance), *self.finish(now, instance)]
        self._seal(payload)
        out: list[Decision] = [self._run(instance, payload)]
        self._expire(now, out)
        return self._advance(now, out)

    def cancel(self, now: int, ticket: Ticket, *, formed: bool = False) -> list[Decision]:
        """The caller gave up: a request that still waits is dropped, any other runs on (X2, X3).

        With `formed` it also leaves a batch that is formed and waits for an instance.
        """
        if formed and ticket.state is TicketState.PAYLOAD:
            return self._leave_payload(now, ticket)
        if ticket.state not in (TicketState.QUEUED, TicketState.DELAYED, TicketState.PENDING):
            return []
        if ticket.state is TicketState.PENDING:
            self._restart_scan()
        out: list[Decision] = [self._queue.drop(ticket, "CANCELLED", "", "cancelled")]
        self._expire(now, out)
        return self._advance(now, out)

    def add_instance(self, now: int, instance: int) -> list[Decision]:
        """One more instance, idle; its number was never used before."""
        self._instances.add(instance)
        self._slots = 2 * len(self._instances)
        self._idle.append(instance)
        return self.tick(now)

    def remove_instance(self, now: int, instance: int) -> list[Decision]:
        """An instance gets nothing more, and leaves: now, or with the batch that it runs (L16).

        What waits is for the other instances; where none is left, until one is added.
        """
        self._instances.remove(instance)
        self._slots = 2 * len(self._instances)
        if instance not in self._idle:
            self._leaving.add(instance)
            return self.tick(now)
        self._idle.remove(instance)
        return [RetireInstance(instance), *self.tick(now)]

    def tick(self, now: int) -> list[Decision]:
        """`wake_at` has come."""
        out: list[Decision] = []
        self._expire(now, out)
        return self._advance(now, out)

    def clear(self, status: str, message: str) -> list[RejectTicket]:
        """Drop everything that is not on an instance yet: the server is stopping."""
        drops = []
        for payload in self._ready:
            for ticket in payload.tickets:
                ticket.state = TicketState.GONE
                drops.append(RejectTicket(ticket, status, message, "stopped"))
        self._ready.clear()
        self._in_payloads = sum([len(payload.tickets) for payload in self._staged.values()])
        self._open = None
        self._restart_scan()
        while (head := self._queue.head(0)) is not None:
            drops.append(self._queue.drop(head, status, message, "stopped"))
        self._wait_until = None
        return drops

    # -- what to ask -----------------------------------------------------------------------------

    def wake_at(self) -> int | None:
        """When `tick` must be called even if nothing happens; None for never."""
        deadline = self._queue.next_deadline() if self._timed else None
        if self._wait_until is None:
            return deadline
        return self._wait_until if deadline is None else min(self._wait_until, deadline)

    @property
    def waiting(self) -> int:
        """Requests that are accepted and do not run yet."""
        return self._queue.count + self._in_payloads

    @property
    def forms_ahead(self) -> bool:
        """Whether a batch may be formed while no instance is idle (Q10)."""
        return self._prefetch or not self._settings.dynamic

    @property
    def has_next(self) -> bool:
        """Whether a batch waits for an instance that no request can join any more.

        Anybody may look, at any moment: an answer that is just becoming wrong does no harm.
        """
        if self._queue.count >= self._limit:
            return True
        try:
            first = self._ready[0]
        except IndexError:
            return False
        return first is not self._open

    # -- how it decides --------------------------------------------------------------------------

    def _submit_alone(self, now: int, ticket: Ticket) -> list[Decision]:
        """Default scheduler: a payload of its own, at once, never merged (S2)."""
        if self._idle and self._direct:  # then nothing is ready: `finish` hands out what is
            return [self._run_at_once(now, ticket, "batching_off")]
        ticket.enqueued_ns = now
        ticket.state = TicketState.PAYLOAD
        payload = _Payload()
        payload.tickets.append(ticket)
        payload.size = ticket.size
        payload.reason = "batching_off"
        self._ready.append(payload)
        self._in_payloads += 1
        return self._advance(now, []) if self._idle else []

    def _push(self, now: int, ticket: Ticket, out: list[Decision]) -> None:
        drop = self._queue.push(now, ticket)
        if drop is not None:
            out.append(drop)
        elif self._pending and self._queue.outranks(ticket, self._pending[-1]):
            self._restart_scan()

    def _run_at_once(self, now: int, ticket: Ticket, reason: str) -> RunBatch:
        ticket.enqueued_ns = now
        ticket.state = TicketState.RUNNING
        return RunBatch(self._idle.popleft(), (ticket,), ticket.size, reason)

    def _advance(self, now: int, out: list[Decision]) -> list[Decision]:
        while True:
            while self._idle and self._ready:
                out.append(self._stage() if self._gated else self._pop(now))
            self._wait_until = None
            if not self._queue.count:
                return out
            if not self._prefetch:
                slots = bool(self._idle)
            else:  # there is no limit on what waits for resources
                slots = self._gated or len(self._ready) < self._slots
            if not slots or not self._scan(now, out):
                return out

    def _expire(self, now: int, out: list[Decision]) -> None:
        if not self._timed:
            return
        deadline = self._queue.next_deadline()
        if deadline is None or deadline > now:
            return
        for ticket, action in self._queue.expired(now):
            if ticket.state is TicketState.PENDING:
                self._restart_scan()
            if action is TimeoutAction.REJECT:
                out.append(self._queue.time_out(ticket))

    def _restart_scan(self) -> None:
        self._queue.put_back(self._pending)
        self._pending_size = 0
        if self._forming:
            assert self._strategy is not None
            self._strategy.finalize(self._forming.pop())

    def _scan(self, now: int, out: list[Decision]) -> bool:
        """Walk the queue once (D1 to D10); False means: nothing to do before `wake_at`."""
        payload = self._open
        if payload is None:
            payload = self._open = _Payload()
        held = payload.size
        strategy = self._strategy
        if strategy is not None and not self._forming and not self._begin(now, payload, out):
            return True
        best = 0  # size of the marked batch, and how many tickets it has
        best_count = 0
        saturated = False  # the payload may not be appended to any more
        stop = ""  # why the scan ended before the queue did
        pending = self._pending
        while (ticket := self._queue.head(now)) is not None:
            size = self._pending_size
            if held + size == 0:  # D2
                payload.shape_key = ticket.shape_key
            else:  # D3
                grown = held + size + ticket.size
                if grown > self._largest_preferred and best == 0:
                    best, best_count = size, len(pending)
                    saturated = True
                if grown > self._limit:
                    stop = "max_batch_size"
                    break
                if ticket.shape_key != payload.shape_key:
                    stop = "shape"
                    payload.mergeable = False
                    break
                # Past the largest preferred size only an exceeded delay overrules the mark. (Where
                # requests time out, those that are met on the way go behind all the same.)
                past = best and grown > self._largest_preferred
                if past and self._delay == 0 and strategy is None and not self._timed:
                    break
            if strategy is not None and not self._includes(ticket, out):  # D4
                if ticket.state is TicketState.GONE:
                    continue
                if held + size:
                    stop = "custom_batching"
                    payload.mergeable = False
                    break
                # Refused by an empty batch: it would wait forever.
                out.append(self._queue.drop(ticket, *_REFUSED))
                self._restart_scan()
                return True
            self._queue.take(ticket)
            if not pending or ticket.enqueued_ns < self._pending_since:
                self._pending_since = ticket.enqueued_ns
            pending.append(ticket)
            size = self._pending_size = size + ticket.size
            if held + size in self._preferred:  # D5
                best, best_count = size, len(pending)
        total = held + self._pending_size
        exceeded = (
            self._delay != 0 and bool(pending) and now - self._pending_since >= self._delay
        )  # D6
        if best and not exceeded:  # D7
            reason = self._size_reason(held + best, stop if best_count == len(pending) else "")
            self._release(payload, best_count, reason, close=saturated or self._delay == 0)
            return True
        if not pending:  # D8: the open payload cannot grow, the next one may
            self._restart_scan()
            if saturated or stop:
                payload.reason = self._size_reason(held, stop)
                self._open = None
            return self._open is None
        if stop or total >= self._largest_preferred:
            reason = self._size_reason(total, stop)
            if exceeded and reason == "preferred_exceeded":  # D14: beyond it only for the delay
                reason = "max_queue_delay"
            self._release(payload, len(pending), reason, close=True)
            return True
        if exceeded or self._delay == 0:  # D9
            reason = "max_queue_delay" if exceeded else "joined" if held else "no_delay"
            self._release(payload, len(pending), reason, close=saturated)
            return True
        if held and not saturated and held not in self._preferred:  # D10, the exception
            self._release(payload, len(pending), "joined", close=False)
            return True
        self._wait_until = self._pending_since + self._delay
        return False

    def _begin(self, now: int, payload: _Payload, out: list[Decision]) -> bool:
        """Let the strategy begin the batch that is scanned for; False if it cannot."""
        try:
            self._forming.append(self._begun(payload))
        except TritonError as error:
            if payload.tickets:  # it stays as it is, and the requests that wait begin another one
                self._open = None
            else:
                head = self._queue.head(now)
                assert head is not None  # else there was nothing to scan
                out.append(self._failed(head, error))
            return False
        return True

    def _begun(self, payload: _Payload) -> object:
        """Return a new state of the strategy that knows what the payload holds.

        The reference begins anew whenever a batch is joined, and then knows nothing of what the
        batch holds already: it grows beyond what its strategy allows.
        """
        assert self._strategy is not None
        state = self._strategy.initialize()
        try:
            for ticket in payload.tickets:
                self._strategy.include(state, ticket)
        except TritonError:
            self._strategy.finalize(state)
            raise
        return state

    def _includes(self, ticket: Ticket, out: list[Decision]) -> bool:
        """Ask the strategy; a ticket on which it fails is dropped."""
        assert self._strategy is not None
        try:
            return self._strategy.include(self._forming[0], ticket)
        except TritonError as error:
            out.append(self._failed(ticket, error))
            return False

    def _failed(self, ticket: Ticket, error: TritonError) -> RejectTicket:
        return self._queue.drop(ticket, error.status, error.message, "custom_batching_failed")

    def _size_reason(self, total: int, stop: str) -> str:
        """Name what decided a batch of this size."""
        if not self._settings.max_batch_size:
            return "no_batch_dimension"
        if total >= self._limit:
            return "max_batch_size"
        if total in self._preferred:
            return "preferred_batch_size"
        return stop or "preferred_exceeded"

    def _release(self, payload: _Payload, count: int, reason: str, *, close: bool) -> None:
        """Move the first ``count`` pending tickets into the payload (D11)."""
        if not payload.tickets:
            # Payloads wait, and are merged, only where requests are served as they came (Q10).
            payload.oldest_ns = self._pending[0].enqueued_ns
            self._ready.append(payload)
        self._in_payloads += count
        taken = self._pending[:count]
        del self._pending[:count]
        for ticket in taken:
            self._queue.leave(ticket)
            ticket.state = TicketState.PAYLOAD
            payload.tickets.append(ticket)
            payload.size += ticket.size
        payload.reason = reason
        # What was scanned beyond the release starts the next scan (its payload is another one).
        self._restart_scan()
        if close:
            self._open = None

    def _pop(self, now: int) -> RunBatch:
        """An idle instance takes the oldest payload; that ends appends (P4, P5)."""
        payload = self._ready.popleft()
        self._seal(payload)
        if self._delay and self._limit > 1:
            self._merge(now, payload)
        return self._run(self._idle.popleft(), payload)

    def _stage(self) -> StageInstance:
        """An idle instance is to run the oldest payload when it is granted its resources."""
        rank = self._rank
        instance = self._idle[0] if rank is None else min(self._idle, key=rank)
        self._idle.remove(instance)
        self._staged[instance] = self._ready.popleft()
        return StageInstance(instance)

    def _run(self, instance: int, payload: _Payload) -> RunBatch:
        self._in_payloads -= len(payload.tickets)
        for ticket in payload.tickets:
            ticket.state = TicketState.RUNNING
        return RunBatch(instance, tuple(payload.tickets), payload.size, payload.reason)

    def _leave_payload(self, now: int, ticket: Ticket) -> list[Decision]:
        formed = [*self._ready, *self._staged.values()]
        payload = next(one for one in formed if ticket in one.tickets)
        payload.tickets.remove(ticket)
        payload.size -= ticket.size
        self._in_payloads -= 1
        ticket.state = TicketState.GONE
        if payload is self._open:  # what was accepted beside it is judged anew
            self._restart_scan()
        if not payload.tickets:
            if payload in self._ready:
                self._ready.remove(payload)
            if payload is self._open:
                self._open = None
        out: list[Decision] = [RejectTicket(ticket, "CANCELLED", "", "cancelled")]
        self._expire(now, out)
        return self._advance(now, out)

    def _merge(self, now: int, payload: _Payload) -> None:
        while payload.mergeable and self._ready:
            other = self._ready[0]
            if not other.mergeable or now - other.oldest_ns <= self._delay:
                return
            # Whoever is looked at takes no more requests, merged or not: seen on the server.
            self._seal(other)
            if not (
                payload.size + other.size <= self._limit
                and other.shape_key == payload.shape_key
                and (self._strategy is None or self._may_merge(payload, other))
            ):
                return
            self._ready.popleft()
            payload.tickets.extend(other.tickets)
            payload.size += other.size
            payload.reason = "merged"

    def _may_merge(self, payload: _Payload, other: _Payload) -> bool:
        """Ask the strategy about each request of the second payload; the reference does not."""
        strategy = self._strategy
        assert strategy is not None
        try:
            state = self._begun(payload)
        except TritonError:
            return False
        try:
            return all(strategy.include(state, ticket) for ticket in other.tickets)
        except TritonError:
            return False
        finally:
            strategy.finalize(state)

    def _seal(self, payload: _Payload) -> None:
        """End appends; what was accepted beside this payload is judged anew beside the next."""
        if payload is self._open:
            self._open = None
            self._restart_scan()
