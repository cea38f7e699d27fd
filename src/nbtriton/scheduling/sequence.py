"""Sequence batcher: the requests of a sequence run on one instance, in order (SQ1 to SQ12).

Slots, backlog, idleness and timeouts are the same for both strategies. They differ in how a batch is
formed of the slots:

* direct: a sequence owns a row of its instance's batch from START to END; empty rows below the
  highest busy one are padded;
* oldest: a sequence has at most one request in the dynamic batcher of its instance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Sequence
from itertools import chain

from nbtriton.scheduling.batcher import Batcher
from nbtriton.scheduling.heaps import FreeSlots, TimerQueue
from nbtriton.scheduling.queueing import SequenceSettings
from nbtriton.scheduling.tickets import (
    SEQUENCE_END,
    SEQUENCE_START,
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


class _Sequence:
    """One sequence: its slot, its state and its waiting requests."""

    __slots__ = (
        "__weakref__", "arrived_ns", "backlog_deadline_ns", "ended", "id", "issued", "last_arrival_ns",
        "place", "waiting",
    )  # fmt: skip

    def __init__(self, correlation_id: Hashable) -> None:
        self.id = correlation_id
        self.place: tuple[int, int] | None = None  # (slot, instance); None in the backlog
        self.waiting: deque[Ticket] = deque()
        self.last_arrival_ns = 0
        self.issued: Ticket | None = None  # with the instance, or with its batcher
        self.arrived_ns = 0  # arrival of the issued request
        self.ended = False  # END has arrived, or the sequence was idle for too long
        self.backlog_deadline_ns = 0


class SequenceBatcher:
    """Decide which requests of which sequences run together, where and when.

    The methods are those of `Batcher`. A ticket's ``correlation_id`` and ``flags`` determine its
    sequence. A `RunBatch` of the direct strategy has the rows of its tickets.

    Parameters
    ----------
    settings : SequenceSettings
    instances : int
    gated : bool
        As of `Batcher`.
    """

    def __init__(self, settings: SequenceSettings, instances: int, *, gated: bool = False) -> None:
        self._settings = settings
        self._gated = gated
        self._staged: dict[int, RunBatch] = {}  # direct: by staged instance
        self._enough = settings.enough_slots
        self._live: dict[Hashable, _Sequence] = {}  # by id: open for new requests
        self._rows: dict[int, list[_Sequence | None]] = {}
        self._free = FreeSlots()
        self._backlog: deque[_Sequence] = deque()
        self._refilled: deque[tuple[int, int]] = deque()  # slots just assigned from the backlog
        self._idle: set[int] = set()  # direct: idle instances
        self._retiring: set[int] = set()  # removed instances that still have sequences
        # Instances lost while busy, with the error for requests to their sequences.
        self._lost: dict[int, tuple[str, str]] = {}
        self._suspended: set[int] = set()
        self._batchers: dict[int, Batcher] = {}  # oldest: one per instance
        self._issued: set[tuple[int, int]] = set()  # oldest: slots with an issued request
        self._owner: dict[Ticket, _Sequence] = {}  # of every waiting or running ticket
        self._next_id = 0  # iterative: ids for requests without one (IT1)
        self._cancelled: set[Ticket] = set()  # iterative: cancelled while running
        self._idleness: TimerQueue[_Sequence] = TimerQueue(lambda _, sequence: not sequence.ended)
        self._timeouts: TimerQueue[_Sequence] = TimerQueue(_may_time_out)
        self._waits: dict[int, int] = {}  # direct: end of an instance's wait for more rows
        self._waiting = 0
        for instance in range(instances):
            self._init_instance(instance)

    # -- events ----------------------------------------------------------------------------------

    def submit(self, now: int, ticket: Ticket) -> list[Decision]:
        """Handle the arrival of a request."""
        found = self._admit(now, ticket)
        if isinstance(found, RejectTicket):
            return [found]
        out: list[Decision] = []
        self._enqueue(now, found, ticket)
        if ticket.flags & SEQUENCE_END:  # SQ6
            self._end(found)
        if found.place is None:
            self._record_timeout(now, found, ticket)
        else:
            self._issue(now, found.place, out)
        return self._advance(now, out)

    def submit_cancelled(self, now: int, ticket: Ticket) -> list[Decision]:
        """Handle the arrival of a request that was already cancelled: it ends its sequence (X5)."""
        found = self._admit(now, ticket)
        if isinstance(found, RejectTicket):
            return [found]
        self._enqueue(now, found, ticket)
        out: list[Decision] = [*self._end_cancelled(found, ticket)]
        self._free_if_done(found)
        return self._advance(now, out)

    def finish(
        self, now: int, instance: int, tickets: Sequence[Ticket], again: Collection[Ticket] = ()
    ) -> list[Decision]:
        """Handle the end of the batch of these tickets: its instance is idle again.

        ``again``: the requests that the model of an iterative sequence reschedules (IT2); any other
        request ends its sequence (IT3).
        """
        out: list[Decision] = []
        places = []
        for ticket in tickets:
            sequence = self._complete(ticket)
            places.append(sequence.place)
            if ticket in again:
                ticket.flags = 0
                self._enqueue(now, sequence, ticket)
                if ticket in self._cancelled:
                    out += self._end_cancelled(sequence, ticket)
                if instance in self._lost:
                    out += self._reject_waiting(sequence, *self._lost[instance], "lost")
            elif self._settings.iterative:
                self._end(sequence)
            self._cancelled.discard(ticket)
            self._free_if_done(sequence)
        if self._settings.oldest is not None:
            # The next requests are issued first, so that they can share the batch that starts now.
            for place in places:
                assert place is not None
                self._issue(now, place, out)
            self._fill(now, out)
            out += self._translate(instance, self._batchers[instance].finish(now, 0))
        elif instance in self._lost:
            out.append(self._suspend(instance))
        else:
            self._idle.add(instance)
        return self._advance(now, out)

    def granted(self, now: int, instance: int) -> list[Decision]:
        """Handle the grant of a staged instance's resources."""
        if self._settings.oldest is None:
            return self._advance(now, [self._staged.pop(instance)])
        out = self._translate(instance, self._batchers[instance].granted(now, 0))
        return self._advance(now, out)

    def cancel(self, now: int, ticket: Ticket, *, formed: bool = False) -> list[Decision]:
        """Cancel a waiting request and all behind it, and end its sequence (X5).

        The requests before it still run, except in the backlog. ``formed`` as in `Batcher.cancel`.
        """
        sequence = self._owner.get(ticket)
        if sequence is None:
            return []
        out: list[Decision] = []
        if sequence.issued is ticket:
            if ticket.state is not TicketState.RUNNING:  # oldest: with the instance's batcher
                assert sequence.place is not None
                instance = sequence.place[1]
                inner = self._batchers[instance].cancel(now, ticket, formed=formed)
                out = self._translate(instance, inner)
            if not out:
                if self._settings.iterative:
                    self._cancelled.add(ticket)
                return []
            self._complete(ticket)
        in_slot = sequence.place is not None and ticket in sequence.waiting
        out += self._end_cancelled(sequence, ticket if in_slot else None)
        self._free_if_done(sequence)
        if sequence.place is not None:  # for an END, whose slot is already free (OL4)
            self._issue(now, sequence.place, out)
        return self._advance(now, out)

    def add_instance(self, now: int, instance: int) -> list[Decision]:
        """Add an idle instance; its number must never have been used."""
        self._init_instance(instance)
        return self._advance(now, [])

    def remove_instance(self, now: int, instance: int) -> list[Decision]:
        """Remove an instance: it gets no new sequence, and is retired when its sequences have ended (L16)."""
        self._retiring.add(instance)
        self._free.remove_instance(instance)
        return self._advance(now, [])

    def suspend(self, now: int, instance: int, status: str, message: str) -> list[Decision]:
        """Give no more batches to a lost instance, and end its sequences.

        The model's state for them is lost: their waiting requests are rejected with this error, and
        later ones need START.
        """
        if instance in self._lost or instance in self._suspended or instance not in self._rows:
            return []
        out: list[Decision] = []
        suspended: list[Decision] = []
        self._free.remove_instance(instance)
        self._lost[instance] = status, message
        if self._settings.oldest is not None:
            batcher = self._batchers[instance]
            for rejection in batcher.clear(status, message):
                self._complete(rejection.ticket)
                out.append(rejection._replace(reason="lost"))
            suspended = self._translate(instance, batcher.suspend(now, 0))
        elif instance in self._idle:
            self._idle.remove(instance)
            self._waits.pop(instance, None)
            suspended = [self._suspend(instance)]
        out += self._end_all(self._rows[instance], status, message, "lost")
        return self._advance(now, out + suspended)

    def resume(self, now: int, instance: int) -> list[Decision]:
        """Resume a suspended instance: it can run batches again."""
        if instance not in self._suspended:  # removed in the meantime
            return []
        self._suspended.remove(instance)
        out: list[Decision] = []
        if instance not in self._retiring:
            for number, sequence in enumerate(self._rows[instance]):
                if sequence is None:
                    self._free.add(number, instance)
        if self._settings.oldest is None:
            self._idle.add(instance)
        else:
            out = self._translate(instance, self._batchers[instance].resume(now, 0))
        return self._advance(now, out)

    def tick(self, now: int) -> list[Decision]:
        """Handle the timer: the time of `wake_at` has come."""
        out: list[Decision] = []
        for instance, batcher in self._batchers.items():
            out += self._translate(instance, batcher.tick(now))
        return self._advance(now, out)

    def clear(self, status: str, message: str) -> list[Decision]:
        """Reject all requests that no instance has taken: the server is stopping."""
        rejected = [
            rejection
            for batcher in self._batchers.values()
            for rejection in batcher.clear(status, message)
        ]
        for rejection in rejected:
            self._complete(rejection.ticket)
        placed = chain(*self._rows.values(), self._backlog)
        rejected += self._end_all([*placed], status, message, "stopped")
        self._backlog.clear()
        self._waits.clear()
        return [*rejected, *self._retire_instances()]

    # -- queries ---------------------------------------------------------------------------------

    def wake_at(self) -> int | None:
        """Return when `tick` is due if no other event comes first; None for never."""
        times = [self._idleness.next(), self._timeouts.next(), *self._waits.values()]
        times += [batcher.wake_at() for batcher in self._batchers.values()]
        return min((when for when in times if when is not None), default=None)

    @property
    def waiting(self) -> int:
        """Number of accepted requests that are not running yet."""
        staged = sum(len(run.tickets) for run in self._staged.values())
        return self._waiting + staged + sum(b.waiting for b in self._batchers.values())

    def tickets(self) -> list[Ticket]:
        """Return the accepted requests that are not running yet."""
        staged = [one for run in self._staged.values() for one in run.tickets]
        return [*staged, *[one for one in self._owner if one.state is not TicketState.RUNNING]]

    @property
    def live(self) -> int:
        """Number of sequences that accept further requests."""
        return len(self._live)

    @property
    def forms_ahead(self) -> bool:
        """Whether a batch may be formed while no instance is idle; see `Batcher`."""
        return self._settings.oldest is not None

    def slots(self) -> list[list[Hashable | None]]:
        """Return the sequence ids: a row per instance, an entry per slot, None for a free slot."""
        return [[None if s is None else s.id for s in row] for row in self._rows.values()]

    # -- instances -------------------------------------------------------------------------------

    def _init_instance(self, instance: int) -> None:
        self._rows[instance] = [None] * self._settings.slots
        for slot in range(self._settings.slots):
            self._free.add(slot, instance)
        if self._settings.oldest is not None:
            self._batchers[instance] = Batcher(self._settings.oldest, 1, gated=self._gated)
        else:
            self._idle.add(instance)

    def _suspend(self, instance: int) -> SuspendInstance:
        del self._lost[instance]
        self._suspended.add(instance)
        return SuspendInstance(instance)

    def _retire_instances(self) -> list[RetireInstance]:
        """Retire the removed instances that have no sequence and no running batch."""
        done = [
            k for k in sorted(self._retiring) if not any(self._rows[k]) and not self._is_busy(k)
        ]
        for instance in done:
            self._retiring.remove(instance)
            self._idle.discard(instance)
            self._suspended.discard(instance)
            self._batchers.pop(instance, None)
            del self._rows[instance]
        return [RetireInstance(instance) for instance in done]

    def _is_busy(self, instance: int) -> bool:
        """Whether a request is with the instance, or with its batcher (OL4)."""
        if instance in self._suspended:
            return False
        if self._settings.oldest is None:
            return instance not in self._idle
        return any(k == instance for _, k in self._issued)

    # -- sequences and slots ---------------------------------------------------------------------

    def _new_id(self) -> int:
        self._next_id += 1
        while self._next_id in self._live:  # taken by a client's own id: the two must not mix
            self._next_id += 1
        return self._next_id

    def _admit(self, now: int, ticket: Ticket) -> _Sequence | RejectTicket:
        """Return the sequence of a request, or why the request breaks a rule of sequences."""
        if ticket.size > 1:
            rule = "specify batch-size 1 due to requirements of sequence batcher"
            return self._invalid(ticket, rule)  # SQ1
        if self._settings.iterative and not ticket.correlation_id:
            ticket.correlation_id = self._new_id()
            ticket.flags = SEQUENCE_START
        if not ticket.correlation_id:
            return self._invalid(ticket, "specify a non-zero or non-empty correlation ID")  # SQ2
        sequence = self._live.get(ticket.correlation_id)
        if sequence is not None:
            return sequence
        if not ticket.flags & SEQUENCE_START:
            rule = "specify the START flag on the first request of the sequence"
            return self._invalid(ticket, rule, f"for sequence {ticket.correlation_id} ")  # SQ3
        return self._start(now, ticket.correlation_id)

    def _start(self, now: int, correlation_id: Hashable) -> _Sequence:
        sequence = self._live[correlation_id] = _Sequence(correlation_id)
        if self._free:
            self._place(sequence)
        else:
            self._backlog.append(sequence)  # SQ5
        self._idleness.add(now + self._settings.idle_ns, sequence)
        return sequence

    def _enqueue(self, now: int, sequence: _Sequence, ticket: Ticket) -> None:
        ticket.state = TicketState.QUEUED
        ticket.enqueued_ns = now
        self._owner[ticket] = sequence
        self._waiting += 1
        sequence.waiting.append(ticket)
        sequence.last_arrival_ns = now

    def _place(self, sequence: _Sequence) -> tuple[int, int]:
        sequence.place = slot, instance = self._free.pop()
        self._rows[instance][slot] = sequence
        return slot, instance

    def _free_slot(self, sequence: _Sequence) -> None:
        """Free a slot; the head of the backlog gets it at once (SQ5), and `_fill` issues its request."""
        assert sequence.place is not None
        slot, instance = sequence.place
        if self._rows[instance][slot] is not sequence:
            return
        self._rows[instance][slot] = None
        if instance in self._retiring or instance in self._lost or instance in self._suspended:
            return
        successor = self._next_in_backlog()
        if successor is None:
            self._free.add(slot, instance)
            return
        successor.place = sequence.place
        self._rows[instance][slot] = successor
        self._refilled.append(sequence.place)

    def _next_in_backlog(self) -> _Sequence | None:
        while self._backlog:
            sequence = self._backlog.popleft()
            if sequence.waiting:  # otherwise it was cancelled, or timed out
                return sequence
        return None

    def _free_if_done(self, sequence: _Sequence) -> None:
        if sequence.place and sequence.ended and not sequence.waiting and not sequence.issued:
            self._free_slot(sequence)

    def _fill(self, now: int, out: list[Decision]) -> None:
        """Assign free slots to the backlog in order of arrival (SQ5)."""
        while self._refilled:
            self._issue(now, self._refilled.popleft(), out)
        while self._free and (sequence := self._next_in_backlog()):
            self._issue(now, self._place(sequence), out)

    def _pop_request(self, sequence: _Sequence) -> Ticket:
        """Pop the oldest waiting request of a sequence: it is issued."""
        ticket = sequence.issued = sequence.waiting.popleft()
        self._waiting -= 1
        # END frees the slot when it is scheduled, before it has run (SQ6, OL4).
        if ticket.flags & SEQUENCE_END and not self._settings.iterative:
            self._free_slot(sequence)
        return ticket

    def _complete(self, ticket: Ticket) -> _Sequence:
        """Handle the end of an issued request: it has run, or was rejected."""
        sequence = self._owner.pop(ticket)
        sequence.issued = None
        assert sequence.place is not None
        self._issued.discard(sequence.place)
        return sequence

    def _end(self, sequence: _Sequence) -> None:
        """End a sequence: further requests of its id need START."""
        sequence.ended = True
        if self._live.get(sequence.id) is sequence:
            del self._live[sequence.id]

    def _end_cancelled(self, sequence: _Sequence, first: Ticket | None) -> list[RejectTicket]:
        """End the sequence with the request before ``first``, or at once if it is None."""
        self._end(sequence)
        rejected = []
        while sequence.waiting and (first is None or first.state is not TicketState.DONE):
            rejected.append(self._reject(sequence.waiting.pop(), "CANCELLED", "", "cancelled"))
        return rejected[::-1]

    def _reject_waiting(
        self, sequence: _Sequence, status: str, message: str, reason: str
    ) -> list[RejectTicket]:
        waiting = sequence.waiting
        return [
            self._reject(waiting.popleft(), status, message, reason) for _ in range(len(waiting))
        ]

    def _end_all(
        self, sequences: Sequence[_Sequence | None], status: str, message: str, reason: str
    ) -> list[RejectTicket]:
        """End sequences, and reject what waits in them."""
        rejected: list[RejectTicket] = []
        for sequence in [one for one in sequences if one is not None]:
            rejected += self._reject_waiting(sequence, status, message, reason)
            self._end(sequence)
            self._free_if_done(sequence)
        return rejected

    def _invalid(self, ticket: Ticket, rule: str, which: str = "") -> RejectTicket:
        """Reject a request that breaks a rule of sequences."""
        ticket.state = TicketState.DONE
        text = f"inference request {which}to model '{self._settings.model_name}' must {rule}"
        return RejectTicket(ticket, "INVALID_ARG", text, "sequence_rule")

    def _reject(self, ticket: Ticket, status: str, message: str, reason: str) -> RejectTicket:
        ticket.state = TicketState.DONE
        del self._owner[ticket]
        self._waiting -= 1
        return RejectTicket(ticket, status, message, reason)

    # -- time ------------------------------------------------------------------------------------

    def _record_timeout(self, now: int, sequence: _Sequence, ticket: Ticket) -> None:
        """Bound the backlog time of a whole sequence by the timeout of one request (SQ11)."""
        deadline = now + ticket.timeout_ns
        if ticket.timeout_ns and not 0 < sequence.backlog_deadline_ns <= deadline:
            sequence.backlog_deadline_ns = deadline
            self._timeouts.add(deadline, sequence)

    def _end_idle(self, now: int) -> None:
        """End the sequences that were idle too long (SQ9), except those in the backlog."""
        for sequence in self._idleness.due(now):
            idle_at = sequence.last_arrival_ns + self._settings.idle_ns
            if idle_at > now:
                self._idleness.add(idle_at, sequence)
            elif sequence.place is None:
                # Triton checks the backlog every 50 ms.
                self._idleness.add(now + 50_000_000, sequence)
            else:
                self._end(sequence)  # queued requests still run (SQ10)
                self._free_if_done(sequence)

    def _expire_backlog(self, now: int, out: list[Decision]) -> None:
        for sequence in self._timeouts.due(now):
            out += self._reject_waiting(
                sequence, "UNAVAILABLE", "timeout of the corresponding sequence has been expired",
                "timeout",
            )  # fmt: skip
            self._end(sequence)

    # -- batches ---------------------------------------------------------------------------------

    def _advance(self, now: int, out: list[Decision]) -> list[Decision]:
        self._end_idle(now)
        self._expire_backlog(now, out)
        self._fill(now, out)
        if self._settings.oldest is None:
            for instance in sorted(self._idle):
                self._run_direct(now, instance, out)
            self._fill(now, out)
        if self._retiring:
            out += self._retire_instances()
        return out

    def _issue(self, now: int, place: tuple[int, int], out: list[Decision]) -> None:
        """Oldest: submit the slot's next request to the instance's batcher (OL1)."""
        slot, instance = place
        sequence = self._rows[instance][slot]
        oldest = self._settings.oldest is not None
        if not oldest or sequence is None or not sequence.waiting or place in self._issued:
            return
        ticket = self._pop_request(sequence)
        self._issued.add(place)
        sequence.arrived_ns = ticket.enqueued_ns
        out += self._translate(instance, self._batchers[instance].submit(now, ticket))

    def _translate(self, instance: int, decisions: list[Decision]) -> list[Decision]:
        """Complete the decisions of an inner batcher: it has one instance, 0, and no sequences."""
        for at, decision in enumerate(decisions):
            if isinstance(decision, RunBatch):
                owners = [self._owner[ticket] for ticket in decision.tickets]
                for ticket, owner in zip(decision.tickets, owners, strict=True):
                    ticket.enqueued_ns = owner.arrived_ns  # the backlog is part of queue time (T9)
                decision.instance = instance
                decision.sequences = tuple(owners)
            elif isinstance(decision, StageInstance):
                decisions[at] = StageInstance(instance)
            elif isinstance(decision, ReturnResources):
                decisions[at] = ReturnResources(instance)
            elif isinstance(decision, SuspendInstance):
                decisions[at] = self._suspend(instance)
        return decisions

    def _run_direct(self, now: int, instance: int, out: list[Decision]) -> None:
        """Direct: run the oldest request of each slot, at the slot's row (DI2)."""
        self._waits.pop(instance, None)
        ready = [
            (slot, sequence)
            for slot, sequence in enumerate(self._rows[instance])
            if sequence is not None and sequence.waiting
        ]
        if not ready:
            return
        reason = self._start_reason(now, instance, [sequence.waiting[0] for _, sequence in ready])
        if not reason:
            return
        key = ready[0][1].waiting[0].shape_key
        # A row of another shape becomes padding; its request waits for the next batch (DI5).
        chosen = [(slot, s) for slot, s in ready if s.waiting[0].shape_key == key]
        tickets = tuple([self._pop_request(sequence) for _, sequence in chosen])
        for ticket in tickets:
            ticket.state = TicketState.RUNNING
        self._idle.discard(instance)
        rows = tuple(slot for slot, _ in chosen)
        sequences = tuple(sequence for _, sequence in chosen)
        run = RunBatch(
            instance, tickets, ready[-1][0] + 1, reason, rows, sequences, now, self._waiting
        )
        if self._gated:
            self._staged[instance] = run
            out.append(StageInstance(instance))
        else:
            out.append(run)

    def _start_reason(self, now: int, instance: int, heads: list[Ticket]) -> str:
        """Return the reason why the rows run now; empty if they wait (DI6)."""
        settings = self._settings
        if settings.max_queue_delay_ns == 0 or settings.minimum_slot_utilization == 0:
            return "sequence_ready"
        if len(heads) >= self._enough:
            return "minimum_slot_utilization"
        until = min(ticket.enqueued_ns for ticket in heads) + settings.max_queue_delay_ns
        if now >= until:
            return "max_queue_delay"
        self._waits[instance] = until
        return ""


def _may_time_out(deadline: int, sequence: _Sequence) -> bool:
    return (
        sequence.place is None
        and bool(sequence.waiting)
        and sequence.backlog_deadline_ns == deadline
    )
