"""Dynamic batcher and default scheduler (S1 to S5, D1 to D16, P1 to P8).

Requests wait in a priority queue. A *scan* walks them in serving order and decides how many are
*released* into the open *payload*: a batch that waits for an instance and accepts more requests until
it runs. Payloads are formed ahead of time, up to two per instance, unless a queue policy could still
act on the waiting requests: then a batch is formed only when an instance is idle (Q10, Q11). A scan
that decides to wait keeps the accepted requests *pending*, so that the next request costs one step
instead of a new scan.

Under a rate limiter an idle instance is *staged* with the oldest payload, which may still grow until
the instance is granted its resources (R9).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Sequence

from nbtriton.common.errors import TritonError
from nbtriton.scheduling.custom import BatchStrategy, batch_state, includes_all
from nbtriton.scheduling.queueing import BatcherSettings, PriorityQueue, TimeoutAction
from nbtriton.scheduling.tickets import (
    Decision,
    RejectTicket,
    RetireInstance,
    ReturnResources,
    RunBatch,
    StageInstance,
    SuspendInstance,
    Ticket,
    TicketState,
)

# How long Triton's batcher sleeps once its queue is empty (D16).
_SLEEP_NS = 500_000_000

_REFUSED = (
    "INVALID_ARG",
    "the custom batching strategy includes the request in no batch, not even in an empty one",
    "custom_batching_refused",
)


class _Payload:
    """A batch that waits for an instance."""

    __slots__ = ("mergeable", "oldest_ns", "reason", "shape_key", "size", "tickets", "wanted")

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.size = 0
        self.shape_key: Hashable = None
        self.oldest_ns = 0
        self.reason = ""
        self.mergeable = True
        # Rows that the last scan which waited wanted in the queue for the next preferred size (D16).
        self.wanted = 0


class Batcher:
    """Decide which requests run together, where and when.

    Every event is a method; it takes ``now`` (nanoseconds) and returns the decisions that follow, in
    order. The batcher has no lock: the owner serializes the calls.

    Parameters
    ----------
    settings : BatcherSettings
    instances : int
        Initial number of instances, all idle and numbered from 0.
    strategy : BatchStrategy, optional
        Custom batching: further rules on which requests share a batch (D4).
    gated : bool
        Under a rate limiter: a batch is staged (`StageInstance`) and runs once its instance is `granted`.
    rank : callable, optional
        The idle instance with the lowest rank is staged (R6); by default the one that has been idle
        longest.
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
        self._ascending = sorted(settings.preferred)
        self._largest_preferred = max(settings.preferred, default=0)
        self._delay = settings.max_queue_delay_ns
        self._prefetch = settings.priority_levels == 0 and settings.default_policy.is_default
        # Whether any request can have a queue timeout (Q5); otherwise deadlines are never looked up.
        policies = (settings.default_policy, *settings.level_policies.values())
        self._timed = any(policy.default_timeout_ns for policy in policies)
        self._max_payloads = 2 * instances  # P2
        # Without priority levels the only level is 0, with the default policy (Q1, Q10).
        self._queue = PriorityQueue(
            settings.default_policy,
            settings.level_policies if settings.priority_levels else None,
            settings.hand_over_ns,
        )
        # The longest idle instance is first: in Triton its thread has waited longest (S4).
        self._idle = deque(range(instances))
        self._gated = gated
        self._rank = rank
        self._staged: dict[int, _Payload] = {}  # by staged instance
        self._retiring: set[int] = set()  # removed while busy
        self._lost: set[int] = set()  # lost while busy
        self._suspended: set[int] = set()
        self._ready: deque[_Payload] = deque()
        self._open: _Payload | None = None  # the payload that may still grow
        self._pending: list[Ticket] = []
        self._pending_size = 0
        self._pending_since = 0  # arrival of the oldest of them
        self._wait_until: int | None = None
        self._asleep_since: int | None = None  # when the last scan emptied the queue
        self._unseen = 0  # rows that have come since then
        self._sleeping = False  # and have not been scanned
        self._in_payloads = 0
        self._strategy = strategy
        # Whether a request may run on an idle instance without a payload.
        self._direct = strategy is None and not gated
        self._states: list[object] = []  # of the pending batch: one or none

    # -- events ----------------------------------------------------------------------------------

    def submit(self, now: int, ticket: Ticket) -> list[Decision]:
        """Handle the arrival of a request."""
        queue = self._queue
        if not self._settings.dynamic:
            if self._idle and self._direct:  # no payload is ready either: `finish` has run them all
                return [self._run_alone(now, ticket, "batching_off")]
            return self._submit_unbatched(now, ticket)
        if (
            self._idle
            and not queue.count
            and self._direct
            and not (self._timed and queue.expires_at_once(ticket))
        ):
            # No request waits: the decision of a scan over this one, without the queue.
            size = ticket.size
            if size in self._preferred or size >= self._largest_preferred:
                return [self._run_alone(now, ticket, self._size_reason(size, ""))]
            if self._delay == 0:
                return [self._run_alone(now, ticket, "no_delay")]
        out: list[Decision] = []
        # Expired ones first: they must not fill the queue against the new one.
        self._expire(now, out)
        self._push(now, ticket, out)
        payload = self._open
        if payload is not None and payload.wanted and self._sleeps(now, ticket, payload):
            return out
        return self._advance(now, out)

    def submit_cancelled(self, now: int, ticket: Ticket) -> list[Decision]:
        """Handle the arrival of a request that was already cancelled: the next scan drops it (X2, X3)."""
        if not self._settings.dynamic:
            return self._submit_unbatched(now, ticket)
        out: list[Decision] = []
        self._expire(now, out)
        self._push(now, ticket, out)
        return out + self.cancel(now, ticket)

    def submit_many(self, now: int, tickets: Sequence[Ticket]) -> list[Decision]:
        """Handle requests that arrive together: all are queued before a batch is formed."""
        if not self._settings.dynamic or len(tickets) == 1:
            return [decision for ticket in tickets for decision in self.submit(now, ticket)]
        out: list[Decision] = []
        self._expire(now, out)
        for ticket in tickets:
            self._push(now, ticket, out)
        payload = self._open
        if payload is not None and payload.wanted:
            sleeps = [self._sleeps(now, ticket, payload) for ticket in tickets]
            if sleeps:
                self._sleeping = all(sleeps)
        return self._advance(now, out)

    def finish(self, now: int, instance: int) -> list[Decision]:
        """Handle the end of a batch: its instance is idle again."""
        if instance in self._retiring:
            self._retiring.remove(instance)
            return [RetireInstance(instance), *self.tick(now)]
        if instance in self._lost:
            self._lost.remove(instance)
            self._suspended.add(instance)
            return [SuspendInstance(instance), *self.tick(now)]
        self._idle.append(instance)
        if not self._ready and not self._queue.count:
            return []
        return self.tick(now)

    def granted(self, now: int, instance: int) -> list[Decision]:
        """Handle the grant of a staged instance's resources: its batch runs as it is now (R9)."""
        payload = self._staged.pop(instance)
        if not payload.tickets:
            return [ReturnResources(instance), *self.finish(now, instance)]
        self._close(payload)
        return [self._run(now, instance, payload), *self.tick(now)]

    def cancel(self, now: int, ticket: Ticket, *, formed: bool = False) -> list[Decision]:
        """Cancel a request that is still in the queue; any other keeps running (X2, X3).

        With ``formed``, also a request in a formed batch that waits for an instance.
        """
        if formed and ticket.state is TicketState.PAYLOAD:
            return self._cancel_formed(now, ticket)
        if ticket.state not in (TicketState.QUEUED, TicketState.DELAYED, TicketState.PENDING):
            return []
        if ticket.state is TicketState.PENDING:
            self._restart_scan()
        return [self._queue.reject(ticket, "CANCELLED", "", "cancelled"), *self.tick(now)]

    def add_instance(self, now: int, instance: int) -> list[Decision]:
        """Add an idle instance; its number must never have been used."""
        self._max_payloads += 2
        self._idle.append(instance)
        return self.tick(now)

    def remove_instance(self, now: int, instance: int) -> list[Decision]:
        """Remove an instance: it is retired now, or when the batch that it runs has ended (L16).

        Waiting requests go to the other instances. If none is left they wait until one is added.
        """
        self._max_payloads -= 2
        if instance in self._suspended:
            self._suspended.remove(instance)
        elif instance in self._idle:
            self._idle.remove(instance)
        else:
            self._lost.discard(instance)
            self._retiring.add(instance)
            return self.tick(now)
        return [RetireInstance(instance), *self.tick(now)]

    def suspend(self, now: int, instance: int) -> list[Decision]:  # noqa: ARG002 - an event
        """Give no more batches to a lost instance: from now on, or once its batch has ended.

        Waiting requests go to the other instances, or wait until this one is resumed.
        """
        if instance in self._idle:
            self._idle.remove(instance)
            self._suspended.add(instance)
            return [SuspendInstance(instance)]
        if instance not in self._suspended and instance not in self._retiring:
            self._lost.add(instance)
        return []

    def resume(self, now: int, instance: int) -> list[Decision]:
        """Resume a suspended instance: it can run batches again."""
        if instance not in self._suspended:  # it was removed in the meantime
            return []
        self._suspended.remove(instance)
        return self.finish(now, instance)

    def tick(self, now: int) -> list[Decision]:
        """Handle the timer: the time of `wake_at` has come."""
        out: list[Decision] = []
        self._expire(now, out)
        return self._advance(now, out)

    def clear(self, status: str, message: str) -> list[RejectTicket]:
        """Reject all requests that no instance has taken: the server is stopping."""
        rejected = []
        for payload in self._ready:
            for ticket in payload.tickets:
                ticket.state = TicketState.DONE
                rejected.append(RejectTicket(ticket, status, message, "stopped"))
        self._ready.clear()
        self._sleeping = False
        self._in_payloads = sum([len(payload.tickets) for payload in self._staged.values()])
        self._open = None
        self._restart_scan()
        while (head := self._queue.head(0)) is not None:
            rejected.append(self._queue.reject(head, status, message, "stopped"))
        self._wait_until = None
        return rejected

    # -- queries ---------------------------------------------------------------------------------

    def wake_at(self) -> int | None:
        """Return when `tick` is due if no other event comes first; None for never."""
        deadline = self._queue.next_deadline() if self._timed else None
        if self._wait_until is None:
            return deadline
        return self._wait_until if deadline is None else min(self._wait_until, deadline)

    @property
    def waiting(self) -> int:
        """Number of accepted requests that are not running yet."""
        return self._queue.count + self._in_payloads

    def tickets(self) -> list[Ticket]:
        """Return the accepted requests that are not running yet."""
        formed = [one for batch in (*self._ready, *self._staged.values()) for one in batch.tickets]
        return [*formed, *self._pending, *self._queue.tickets()]

    @property
    def forms_ahead(self) -> bool:
        """Whether a batch may be formed while no instance is idle (Q10)."""
        return self._prefetch or not self._settings.dynamic

    @property
    def has_next(self) -> bool:
        """Whether a closed batch waits for an instance.

        Any thread may read it without the owner's lock: a stale answer does no harm.
        """
        if self._queue.count >= self._limit:
            return True
        try:
            first = self._ready[0]
        except IndexError:
            return False
        return first is not self._open

    # -- internals -------------------------------------------------------------------------------

    def _submit_unbatched(self, now: int, ticket: Ticket) -> list[Decision]:
        """Default scheduler: each waiting request is its own payload and is never merged (S2)."""
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
        rejection = self._queue.push(now, ticket)
        if rejection is not None:
            out.append(rejection)
        elif self._pending and self._queue.outranks(ticket, self._pending[-1]):
            self._restart_scan()

    def _sleeps(self, now: int, ticket: Ticket, payload: _Payload) -> bool:
        """Leave a new request unseen while a batch waits for an instance (D16)."""
        since = self._asleep_since
        self._unseen += ticket.size
        self._sleeping = False
        if since is None or not payload.tickets or self._unseen >= payload.wanted:
            return False
        if not self._prefetch or self._strategy is not None or ticket.shape_key is not None:
            return False
        self._wait_until = now + _SLEEP_NS - (now - since) % _SLEEP_NS
        self._sleeping = True
        return True

    def _sleeps_on(self, now: int) -> bool:
        """Whether the sleep goes on: its time has not come, and no instance has taken the batch."""
        assert self._wait_until is not None
        taken = (self._idle and self._ready) or self._open is None or not self._open.tickets
        self._sleeping = now < self._wait_until and not taken
        return self._sleeping

    def _run_alone(self, now: int, ticket: Ticket, reason: str) -> RunBatch:
        ticket.enqueued_ns = now
        ticket.state = TicketState.RUNNING
        # Without an open payload there is no sleep either (D16): the scan that fills the next one
        # sets its time again.
        self._open = None
        # Only when nothing waits.
        return RunBatch(self._idle.popleft(), (ticket,), ticket.size, reason, (), (), now, 0)

    def _advance(self, now: int, out: list[Decision]) -> list[Decision]:
        if self._sleeping and self._sleeps_on(now):
            return out
        while True:
            while self._idle and self._ready:
                out.append(self._stage() if self._gated else self._pop(now))
            self._wait_until = None
            if not self._queue.count:
                self._asleep_since = now
                self._unseen = 0
                return out
            self._asleep_since = None
            if not self._prefetch:
                can_form = bool(self._idle)
            else:  # no limit on payloads that wait for resources
                can_form = self._gated or len(self._ready) < self._max_payloads
            if not can_form or not self._scan(now, out):
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
                out.append(self._queue.expire(ticket))

    def _restart_scan(self) -> None:
        self._queue.restore(self._pending)
        self._pending_size = 0
        if self._states:
            assert self._strategy is not None
            self._strategy.finalize(self._states.pop())

    def _scan(self, now: int, out: list[Decision]) -> bool:
        """Scan the queue once (D1 to D10); False if there is nothing to do before `wake_at`."""
        payload = self._open
        if payload is None:
            payload = self._open = _Payload()
        held = payload.size
        strategy = self._strategy
        if strategy is not None and not self._states and not self._initialize(now, payload, out):
            return True
        best = 0  # size and number of tickets of the marked batch
        best_count = 0
        saturated = False  # no request may join the payload any more
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
                # Past the largest preferred size only an exceeded delay overrules the mark. (With queue
                # timeouts the scan goes on: expired requests that it meets move behind, Q8.)
                past = best and grown > self._largest_preferred
                if past and self._delay == 0 and strategy is None and not self._timed:
                    break
            if strategy is not None and not self._strategy_includes(ticket, out):  # D4
                if ticket.state is TicketState.DONE:
                    continue
                if held + size:
                    stop = "custom_batching"
                    payload.mergeable = False
                    break
                # Not even an empty batch includes it: it would wait forever.
                out.append(self._queue.reject(ticket, *_REFUSED))
                self._restart_scan()
                return True
            self._queue.pop_head(ticket)
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
        if not pending:  # D8: the open payload cannot grow, but the next one may
            self._restart_scan()
            if saturated or stop:
                payload.reason = self._size_reason(held, stop)
                self._open = None
            return self._open is None
        if stop or total >= self._largest_preferred:
            reason = self._size_reason(total, stop)
            if exceeded and reason == "preferred_exceeded":  # D14: the delay alone allows this size
                reason = "max_queue_delay"
            self._release(payload, len(pending), reason, close=True)
            return True
        if exceeded or self._delay == 0:  # D9
            reason = "max_queue_delay" if exceeded else "joined" if held else "no_delay"
            self._release(payload, len(pending), reason, close=saturated)
            return True
        payload.wanted = self._ascending[bisect_right(self._ascending, total)] - held
        if held and not saturated and held not in self._preferred:  # D10, the exception
            self._release(payload, len(pending), "joined", close=False)
            return True
        self._wait_until = self._pending_since + self._delay
        return False

    def _initialize(self, now: int, payload: _Payload, out: list[Decision]) -> bool:
        """Begin the strategy's state of the scanned batch; False if the strategy failed."""
        assert self._strategy is not None
        try:
            self._states.append(batch_state(self._strategy, payload.tickets))
        except TritonError as error:
            if payload.tickets:  # it stays as it is; the waiting requests start another one
                self._open = None
            else:
                head = self._queue.head(now)
                assert head is not None  # otherwise there is no scan
                out.append(self._strategy_failed(head, error))
            return False
        return True

    def _strategy_includes(self, ticket: Ticket, out: list[Decision]) -> bool:
        """Ask the strategy; reject a ticket on which it fails."""
        assert self._strategy is not None
        try:
            return self._strategy.include(self._states[0], ticket)
        except TritonError as error:
            out.append(self._strategy_failed(ticket, error))
            return False

    def _strategy_failed(self, ticket: Ticket, error: TritonError) -> RejectTicket:
        return self._queue.reject(ticket, error.status, error.message, "custom_batching_failed")

    def _size_reason(self, total: int, stop: str) -> str:
        """Return the reason for a batch of this size."""
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
            # The first is the oldest: payloads are merged only if served in order of arrival (Q10).
            payload.oldest_ns = self._pending[0].enqueued_ns
            self._ready.append(payload)
        self._in_payloads += count
        released = self._pending[:count]
        del self._pending[:count]
        for ticket in released:
            self._queue.detach(ticket)
            ticket.state = TicketState.PAYLOAD
            payload.tickets.append(ticket)
            payload.size += ticket.size
        payload.reason = reason
        # The next scan, for another payload, starts with the rest of this one.
        self._restart_scan()
        if close:
            self._open = None

    def _pop(self, now: int) -> RunBatch:
        """Run the oldest payload on an idle instance; no request joins it any more (P4, P5)."""
        payload = self._ready.popleft()
        self._close(payload)
        if self._delay and self._limit > 1:
            self._merge(now, payload)
        return self._run(now, self._idle.popleft(), payload)

    def _stage(self) -> StageInstance:
        """Stage an idle instance with the oldest payload."""
        rank = self._rank
        instance = self._idle[0] if rank is None else min(self._idle, key=rank)
        self._idle.remove(instance)
        self._staged[instance] = self._ready.popleft()
        return StageInstance(instance)

    def _run(self, now: int, instance: int, payload: _Payload) -> RunBatch:
        self._in_payloads -= len(payload.tickets)
        for ticket in payload.tickets:
            ticket.state = TicketState.RUNNING
        return RunBatch(
            instance,
            tuple(payload.tickets),
            payload.size,
            payload.reason,
            (),
            (),
            now,
            self.waiting,
        )

    def _cancel_formed(self, now: int, ticket: Ticket) -> list[Decision]:
        formed = [*self._ready, *self._staged.values()]
        payload = next(one for one in formed if ticket in one.tickets)
        payload.tickets.remove(ticket)
        payload.size -= ticket.size
        self._in_payloads -= 1
        ticket.state = TicketState.DONE
        if payload is self._open:  # scan again the requests that were accepted with it
            self._restart_scan()
        if not payload.tickets:
            if payload in self._ready:
                self._ready.remove(payload)
            if payload is self._open:
                self._open = None
        return [RejectTicket(ticket, "CANCELLED", "", "cancelled"), *self.tick(now)]

    def _merge(self, now: int, payload: _Payload) -> None:
        while payload.mergeable and self._ready:
            other = self._ready[0]
            if not other.mergeable or now - other.oldest_ns <= self._delay:
                return
            # No request joins a merge candidate any more, merged or not: seen on the server.
            self._close(other)
            if not (
                payload.size + other.size <= self._limit
                and other.shape_key == payload.shape_key
                and (
                    self._strategy is None
                    or includes_all(self._strategy, payload.tickets, other.tickets)
                )
            ):
                return
            self._ready.popleft()
            payload.tickets.extend(other.tickets)
            payload.size += other.size
            payload.reason = "merged"

    def _close(self, payload: _Payload) -> None:
        """Close a payload if it is open; requests accepted beside it are scanned again."""
        if payload is self._open:
            self._open = None
            self._restart_scan()
