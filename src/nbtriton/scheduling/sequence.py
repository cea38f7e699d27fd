"""The sequence batcher: requests of one sequence meet one instance, in order (SQ1 to SQ12).

Two strategies share everything about *where* a sequence lives (its slot, the backlog, idleness,
timeouts) and differ in how a batch is made of the slots:

* direct: a sequence owns a row of its instance's batch from START to END; empty rows below the
  highest busy one are padded;
* oldest: a sequence has at most one request in a dynamic batcher that its instance owns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from struct import pack, unpack

from nbtriton.scheduling.batcher import Batcher, BatcherSettings
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
from nbtriton.scheduling.timer_queue import TimerQueue

__all__ = ["SEQUENCE_END", "SEQUENCE_START", "SequenceBatcher", "SequenceSettings"]

SEQUENCE_START = 1
SEQUENCE_END = 2


@dataclass(slots=True, frozen=True)
class SequenceSettings:
    """What the sequence batcher needs of a model's configuration; times in nanoseconds.

    ``oldest`` is None for the direct strategy, else the settings of the batcher behind the slots.
    ``iterative``: a request is a sequence, and may ask to be run again (IT1, IT2).
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
        """So many slots with a request make a batch before the delay is over (DI6)."""
        size = max(1, self.max_batch_size)
        # Triton divides and compares in single precision: 3 of 10 slots are 0.3.
        shares = (unpack("f", pack("f", ready / size))[0] for ready in range(1, size + 1))
        wanted = self.minimum_slot_utilization
        return next((n for n, share in enumerate(shares, 1) if share >= wanted), size + 1)


class _Slot:
    """A free slot. Only numbers are compared: of equal ones the heap decides, as in Triton (SQ4)."""

    __slots__ = ("instance", "number")

    def __init__(self, number: int, instance: int) -> None:
        self.number = number
        self.instance = instance

    def __lt__(self, other: _Slot) -> bool:
        return self.number < other.number


class _Sequence:
    """One live sequence: where it is, and what waits for its turn."""

    __slots__ = (
        "__weakref__", "backlog_deadline_ns", "ended", "flying", "id", "place", "seen_ns",
        "since_ns", "waiting",
    )  # fmt: skip

    def __init__(self, correlation_id: Hashable) -> None:
        self.id = correlation_id
        self.place: tuple[int, int] | None = None  # (slot, instance); None before it had one
        self.waiting: deque[Ticket] = deque()
        self.seen_ns = 0
        self.flying: Ticket | None = None  # the one that the instance, or its batcher, has
        self.since_ns = 0  # when that one was enqueued
        self.ended = False  # END was enqueued, or the sequence was idle for too long
        self.backlog_deadline_ns = 0


class SequenceBatcher:
    """Decide which requests of which sequences run together, where and when.

    The verbs are those of `Batcher`; a ticket's ``correlation_id`` and ``flags`` say which
    sequence it belongs to. A `RunBatch` of the direct strategy names the rows of its tickets.

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
        self._staged: dict[int, RunBatch] = {}  # direct: what staged instances are to run
        self._enough = settings.enough_slots
        self._live: dict[Hashable, _Sequence] = {}  # by id: the sequence that new requests join
        self._rows: dict[int, list[_Sequence | None]] = {}
        # The lowest slot number over all instances comes first (SQ4).
        self._free: list[_Slot] = []
        self._backlog: deque[_Sequence] = deque()
        self._refilled: deque[tuple[int, int]] = deque()  # slots that went to the backlog just now
        self._idle: set[int] = set()  # direct: instances that run nothing
        self._leaving: set[int] = set()  # removed instances that still have sequences
        self._batchers: dict[int, Batcher] = {}  # oldest: one an instance
        self._flying: set[tuple[int, int]] = set()  # oldest: slots whose request is not back yet
        self._owner: dict[Ticket, _Sequence] = {}  # of every ticket that waits or runs
        self._next_id = 0  # iterative: ids for requests that bring none (IT1)
        self._given_up: set[Ticket] = set()  # iterative: cancelled while they ran
        self._idleness: TimerQueue[_Sequence] = TimerQueue(lambda _, sequence: not sequence.ended)
        self._timeouts: TimerQueue[_Sequence] = TimerQueue(_may_time_out)
        self._waits: dict[int, int] = {}  # direct: until when an instance waits for more rows
        self._waiting = 0
        for instance in range(instances):
            self._set_up(instance)

    # -- what happened ---------------------------------------------------------------------------

    def submit(self, now: int, ticket: Ticket) -> list[Decision]:
        """A request arrived."""
        settings = self._settings
        if ticket.size > 1:
            return [
                _refuse(
                    ticket,
                    f"inference request to model '{settings.model_name}' must "
                    "specify batch-size 1 due to requirements of sequence batcher",
                )
            ]  # SQ1
        if settings.iterative and not ticket.correlation_id:
            ticket.correlation_id = self._new_id()
            ticket.flags = SEQUENCE_START
        if not ticket.correlation_id:
            return [
                _refuse(
                    ticket,
                    f"inference request to model '{settings.model_name}' must "
                    "specify a non-zero or non-empty correlation ID",
                )
            ]  # SQ2
        sequence = self._live.get(ticket.correlation_id)
        out: list[Decision] = []
        if sequence is None:
            if not ticket.flags & SEQUENCE_START:
                return [
                    _refuse(
                        ticket,
                        f"inference request for sequence {ticket.correlation_id} to model "
                        f"'{settings.model_name}' must specify the START flag on the first request of "
                        "the sequence",
                    )
                ]  # SQ3
            sequence = self._begin(now, ticket.correlation_id)
        self._enqueue(now, sequence, ticket)
        if ticket.flags & SEQUENCE_END:  # SQ6
            self._forget(sequence)
        if sequence.place is None:
            self._note_timeout(now, sequence, ticket)
        else:
            self._issue(now, sequence.place, out)
        return self._advance(now, out)

    def finish(
        self, now: int, instance: int, tickets: Sequence[Ticket], again: Collection[Ticket] = ()
    ) -> list[Decision]:
        """An instance finished the batch of these tickets and is idle again.

        ``again`` are those that the model of an iterative sequence wants to see once more (IT2);
        any other request ends its iterative sequence (IT3).
        """
        out: list[Decision] = []
        places = []
        for ticket in tickets:
            sequence = self._land(ticket)
            places.append(sequence.place)
            if ticket in again:
                ticket.flags = 0
                self._enqueue(now, sequence, ticket)
                if ticket in self._given_up:
                    out += self._end_cancelled(sequence, ticket)
            elif self._settings.iterative:
                self._forget(sequence)
            self._given_up.discard(ticket)
            self._leave_if_done(sequence)
        if self._settings.oldest is not None:
            # What follows is issued first, so that it can share the batch that starts now.
            for place in places:
                assert place is not None
                self._issue(now, place, out)
            self._fill(now, out)
            out += self._translate(instance, self._batchers[instance].finish(now, 0))
        else:
            self._idle.add(instance)
        return self._advance(now, out)

    def granted(self, now: int, instance: int) -> list[Decision]:
        """A staged instance has its resources."""
        if self._settings.oldest is None:
            return self._advance(now, [self._staged.pop(instance)])
        out = self._translate(instance, self._batchers[instance].granted(now, 0))
        return self._advance(now, out)

    def cancel(self, now: int, ticket: Ticket, *, formed: bool = False) -> list[Decision]:
        """A cancelled request that waits takes those behind it along, and ends its sequence (X5).

        Those before it still run, except in the backlog. `formed` as for `Batcher.cancel`.
        """
        sequence = self._owner.get(ticket)
        if sequence is None:
            return []
        out: list[Decision] = []
        if sequence.flying is ticket:
            if ticket.state is not TicketState.RUNNING:  # oldest: it is with the instance's batcher
                assert sequence.place is not None
                instance = sequence.place[1]
                inner = self._batchers[instance].cancel(now, ticket, formed=formed)
                out = self._translate(instance, inner)
            if not out:
                if self._settings.iterative:
                    self._given_up.add(ticket)
                return []
            self._land(ticket)
        in_slot = sequence.place is not None and ticket in sequence.waiting
        out += self._end_cancelled(sequence, ticket if in_slot else None)
        self._leave_if_done(sequence)
        if sequence.place is not None:  # of an END that gave its slot up already (OL4)
            self._issue(now, sequence.place, out)
        return self._advance(now, out)

    def add_instance(self, now: int, instance: int) -> list[Decision]:
        """One more instance, idle; its number was never used before."""
        self._set_up(instance)
        return self._advance(now, [])

    def remove_instance(self, now: int, instance: int) -> list[Decision]:
        """An instance gets no new sequence, and leaves when those that it has are over (L16)."""
        self._leaving.add(instance)
        left: list[_Slot] = []
        while self._free:  # taken out and put in one by one: it decides among equal numbers
            slot = heappop(self._free)
            if slot.instance != instance:
                heappush(left, slot)
        self._free = left
        return self._advance(now, [])

    def tick(self, now: int) -> list[Decision]:
        """`wake_at` has come."""
        out: list[Decision] = []
        for instance, batcher in self._batchers.items():
            out += self._translate(instance, batcher.tick(now))
        return self._advance(now, out)

    def clear(self, status: str, message: str) -> list[Decision]:
        """Drop everything that is not on an instance yet: the server is stopping."""
        drops = [
            drop for batcher in self._batchers.values() for drop in batcher.clear(status, message)
        ]
        for drop in drops:
            self._land(drop.ticket)
        rows = self._rows.values()
        placed = [sequence for row in rows for sequence in row if sequence is not None]
        for sequence in (*placed, *self._backlog):
            drops += self._drop_all(sequence, status, message, "stopped")
            self._forget(sequence)
            self._leave_if_done(sequence)
        self._backlog.clear()
        self._waits.clear()
        return [*drops, *self._departures()]

    # -- what to ask -----------------------------------------------------------------------------

    def wake_at(self) -> int | None:
        """When `tick` must be called even if nothing happens; None for never."""
        times = [self._idleness.next(), self._timeouts.next(), *self._waits.values()]
        times += [batcher.wake_at() for batcher in self._batchers.values()]
        return min((when for when in times if when is not None), default=None)

    @property
    def waiting(self) -> int:
        """Requests that are accepted and do not run yet."""
        staged = sum(len(run.tickets) for run in self._staged.values())
        return self._waiting + staged + sum(b.waiting for b in self._batchers.values())

    @property
    def live(self) -> int:
        """Sequences that have begun and may go on."""
        return len(self._live)

    @property
    def forms_ahead(self) -> bool:
        """Whether a batch may be formed while no instance is idle; see `Batcher`."""
        return self._settings.oldest is not None

    def slots(self) -> list[list[Hashable | None]]:
        """Who lives where: a row per instance, an entry per slot, None for a free one."""
        return [[None if s is None else s.id for s in row] for row in self._rows.values()]

    # -- instances -------------------------------------------------------------------------------

    def _set_up(self, instance: int) -> None:
        self._rows[instance] = [None] * self._settings.slots
        for slot in range(self._settings.slots):
            heappush(self._free, _Slot(slot, instance))
        if self._settings.oldest is not None:
            self._batchers[instance] = Batcher(self._settings.oldest, 1, gated=self._gated)
        else:
            self._idle.add(instance)

    def _departures(self) -> list[RetireInstance]:
        """Let removed instances go that have no sequence and run nothing."""
        gone = [k for k in sorted(self._leaving) if not any(self._rows[k]) and not self._runs(k)]
        for instance in gone:
            self._leaving.remove(instance)
            self._idle.discard(instance)
            self._batchers.pop(instance, None)
            del self._rows[instance]
        return [RetireInstance(instance) for instance in gone]

    def _runs(self, instance: int) -> bool:
        """Tell whether a request is with the instance, or with its batcher (OL4)."""
        if self._settings.oldest is None:
            return instance not in self._idle
        return any(k == instance for _, k in self._flying)

    # -- where a sequence lives ------------------------------------------------------------------

    def _new_id(self) -> int:
        self._next_id += 1
        while self._next_id in self._live:  # a client chose it: the two must not mix
            self._next_id += 1
        return self._next_id

    def _begin(self, now: int, correlation_id: Hashable) -> _Sequence:
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
        sequence.seen_ns = now

    def _place(self, sequence: _Sequence) -> None:
        free = heappop(self._free)
        sequence.place = (free.number, free.instance)
        self._rows[free.instance][free.number] = sequence

    def _leave(self, sequence: _Sequence) -> None:
        """Free the slot; the first in the backlog gets it at once (SQ5), and is issued by `_fill`."""
        assert sequence.place is not None
        slot, instance = sequence.place
        if self._rows[instance][slot] is not sequence:
            return
        self._rows[instance][slot] = None
        if instance in self._leaving:
            return
        heir = self._next_in_backlog()
        if heir is None:
            heappush(self._free, _Slot(slot, instance))
            return
        heir.place = sequence.place
        self._rows[instance][slot] = heir
        self._refilled.append(sequence.place)

    def _next_in_backlog(self) -> _Sequence | None:
        while self._backlog:
            sequence = self._backlog.popleft()
            if sequence.waiting:  # else it was cancelled, or timed out
                return sequence
        return None

    def _leave_if_done(self, sequence: _Sequence) -> None:
        if sequence.place and sequence.ended and not sequence.waiting and not sequence.flying:
            self._leave(sequence)

    def _fill(self, now: int, out: list[Decision]) -> None:
        """Give free slots to the backlog, first come first served (SQ5)."""
        while self._refilled:
            self._issue(now, self._refilled.popleft(), out)
        while self._free and (sequence := self._next_in_backlog()):
            self._place(sequence)
            assert sequence.place is not None
            self._issue(now, sequence.place, out)

    def _take(self, sequence: _Sequence) -> Ticket:
        """Its oldest request leaves the slot's queue."""
        ticket = sequence.flying = sequence.waiting.popleft()
        self._waiting -= 1
        # END frees the slot when it is scheduled, not when it has run (SQ6, OL4).
        if ticket.flags & SEQUENCE_END and not self._settings.iterative:
            self._leave(sequence)
        return ticket

    def _land(self, ticket: Ticket) -> _Sequence:
        """A request came back, or will never go."""
        sequence = self._owner.pop(ticket)
        sequence.flying = None
        assert sequence.place is not None
        self._flying.discard(sequence.place)
        return sequence

    def _forget(self, sequence: _Sequence) -> None:
        """New requests of this id need START again."""
        sequence.ended = True
        if self._live.get(sequence.id) is sequence:
            del self._live[sequence.id]

    def _end_cancelled(self, sequence: _Sequence, first: Ticket | None) -> list[RejectTicket]:
        """End the sequence with the request before ``first``; at once if that is None."""
        self._forget(sequence)
        drops = []
        while sequence.waiting and (first is None or first.state is not TicketState.GONE):
            drops.append(self._drop(sequence.waiting.pop(), "CANCELLED", "", "cancelled"))
        return drops[::-1]

    def _drop_all(
        self, sequence: _Sequence, status: str, message: str, reason: str
    ) -> list[RejectTicket]:
        drops = []
        while sequence.waiting:
            drops.append(self._drop(sequence.waiting.popleft(), status, message, reason))
        return drops

    def _drop(self, ticket: Ticket, status: str, message: str, reason: str) -> RejectTicket:
        ticket.state = TicketState.GONE
        del self._owner[ticket]
        self._waiting -= 1
        return RejectTicket(ticket, status, message, reason)

    # -- time ------------------------------------------------------------------------------------

    def _note_timeout(self, now: int, sequence: _Sequence, ticket: Ticket) -> None:
        """A request's own timeout bounds the backlog time of its whole sequence (SQ11)."""
        deadline = now + ticket.timeout_ns
        if ticket.timeout_ns and not 0 < sequence.backlog_deadline_ns <= deadline:
            sequence.backlog_deadline_ns = deadline
            self._timeouts.add(deadline, sequence)

    def _reap_idle(self, now: int) -> None:
        """End sequences that were silent for too long (SQ9); those in the backlog are let be."""
        for sequence in self._idleness.due(now):
            idle_at = sequence.seen_ns + self._settings.idle_ns
            if idle_at > now:
                self._idleness.add(idle_at, sequence)
            elif sequence.place is None:
                # 50 ms is the reference's own interval for looking at the backlog again.
                self._idleness.add(now + 50_000_000, sequence)
            else:
                self._forget(sequence)  # what is queued still runs (SQ10)
                self._leave_if_done(sequence)

    def _expire_backlog(self, now: int, out: list[Decision]) -> None:
        for sequence in self._timeouts.due(now):
            out += self._drop_all(
                sequence, "UNAVAILABLE", "timeout of the corresponding sequence has been expired",
                "timeout",
            )  # fmt: skip
            self._forget(sequence)

    # -- batches ---------------------------------------------------------------------------------

    def _advance(self, now: int, out: list[Decision]) -> list[Decision]:
        self._reap_idle(now)
        self._expire_backlog(now, out)
        self._fill(now, out)
        if self._settings.oldest is None:
            for instance in sorted(self._idle):
                self._run_direct(now, instance, out)
            self._fill(now, out)
        if self._leaving:
            out += self._departures()
        return out

    def _issue(self, now: int, place: tuple[int, int], out: list[Decision]) -> None:
        """Oldest: hand the slot's next request to the instance's batcher (OL1)."""
        slot, instance = place
        sequence = self._rows[instance][slot]
        oldest = self._settings.oldest is not None
        if not oldest or sequence is None or not sequence.waiting or place in self._flying:
            return
        ticket = self._take(sequence)
        self._flying.add(place)
        sequence.since_ns = ticket.enqueued_ns
        out += self._translate(instance, self._batchers[instance].submit(now, ticket))

    def _translate(self, instance: int, decisions: list[Decision]) -> list[Decision]:
        """An inner batcher knows one instance, number 0, and the time since the request's issue."""
        out: list[Decision] = []
        for decision in decisions:
            if isinstance(decision, RunBatch):
                owners = tuple(self._owner[ticket] for ticket in decision.tickets)
                for ticket, owner in zip(decision.tickets, owners, strict=True):
                    ticket.enqueued_ns = owner.since_ns  # queue time has the backlog in it (T9)
                out.append(
                    RunBatch(
                        instance, decision.tickets, decision.size, decision.reason, decision.rows,
                        owners,
                    )
                )  # fmt: skip
            elif isinstance(decision, StageInstance):
                out.append(StageInstance(instance))
            elif isinstance(decision, ReturnResources):
                out.append(ReturnResources(instance))
            else:
                out.append(decision)
        return out

    def _run_direct(self, now: int, instance: int, out: list[Decision]) -> None:
        """Direct: the oldest request of each slot, at the slot's row (DI2)."""
        self._waits.pop(instance, None)
        ready = [
            (slot, sequence)
            for slot, sequence in enumerate(self._rows[instance])
            if sequence is not None and sequence.waiting
        ]
        if not ready:
            return
        reason = self._go(now, instance, [sequence.waiting[0] for _, sequence in ready])
        if not reason:
            return
        key = ready[0][1].waiting[0].shape_key
        # A row of another shape is padded now and tried again with the next batch (DI5).
        taken = [(slot, s) for slot, s in ready if s.waiting[0].shape_key == key]
        tickets = tuple([self._take(sequence) for _, sequence in taken])
        for ticket in tickets:
            ticket.state = TicketState.RUNNING
        self._idle.discard(instance)
        rows = tuple(slot for slot, _ in taken)
        sequences = tuple(sequence for _, sequence in taken)
        run = RunBatch(instance, tickets, ready[-1][0] + 1, reason, rows, sequences)
        if self._gated:
            self._staged[instance] = run
            out.append(StageInstance(instance))
        else:
            out.append(run)

    def _go(self, now: int, instance: int, heads: list[Ticket]) -> str:
        """Say why the rows go now, or wait (DI6)."""
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


def _refuse(ticket: Ticket, message: str) -> RejectTicket:
    ticket.state = TicketState.GONE
    return RejectTicket(ticket, "INVALID_ARG", message, "sequence_rule")


def _may_time_out(deadline: int, sequence: _Sequence) -> bool:
    return (
        sequence.place is None
        and bool(sequence.waiting)
        and sequence.backlog_deadline_ns == deadline
    )
