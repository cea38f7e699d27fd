"""The sequence batcher: requests of one sequence meet one instance, in order (scheduling.md §8).

Two strategies share everything about *where* a sequence lives (its slot, the backlog, idleness,
timeouts) and differ in how a batch is made of the slots:

* direct: a sequence owns a row of its instance's batch from START to END; empty rows below the
  highest busy one are padded;
* oldest: a sequence has at most one request in a dynamic batcher that its instance owns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from nbtriton.scheduling.batcher import Batcher, BatcherSettings
from nbtriton.scheduling.tickets import Decision, Drop, Run, Ticket, Where

__all__ = ["SEQUENCE_END", "SEQUENCE_START", "SequenceBatcher", "SequenceSettings"]

SEQUENCE_START = 1
SEQUENCE_END = 2


@dataclass(slots=True, frozen=True)
class SequenceSettings:
    """What the sequence batcher needs of a model's configuration; times in nanoseconds.

    ``oldest`` is None for the direct strategy, else the settings of the batcher behind the slots.
    ``iterative``: a request is a sequence, and may ask to be run again (§10).
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
        """Slots per instance (Q-4)."""
        if self.oldest is not None and self.max_candidate_sequences > 0:
            return self.max_candidate_sequences
        return max(1, self.max_batch_size)


class _Sequence:
    """One live sequence: where it is, and what waits for its turn."""

    __slots__ = (
        "__weakref__", "backlog_deadline_ns", "ended", "id", "in_flight", "place", "seen_ns",
        "waiting",
    )  # fmt: skip

    def __init__(self, correlation_id: Hashable) -> None:
        self.id = correlation_id
        self.place: tuple[int, int] | None = None  # (slot, instance); None while in the backlog
        self.waiting: deque[Ticket] = deque()
        self.seen_ns = 0
        self.in_flight = False  # one of its requests is with the instance
        self.ended = False  # END was enqueued, or the sequence was idle for too long
        self.backlog_deadline_ns = 0


class SequenceBatcher:
    """Decide which requests of which sequences run together, where and when.

    The verbs are those of `Batcher`; a ticket's ``correlation_id`` and ``flags`` say which
    sequence it belongs to. A `Run` of the direct strategy names the rows of its tickets.

    Parameters
    ----------
    settings : SequenceSettings
    instances : int
    """

    def __init__(self, settings: SequenceSettings, instances: int) -> None:
        self._settings = settings
        self._live: dict[Hashable, _Sequence] = {}  # by id: the sequence that new requests join
        self._rows: list[list[_Sequence | None]] = [
            [None] * settings.slots for _ in range(instances)
        ]
        # The lowest slot number over all instances comes first.
        self._free = [(slot, k) for slot in range(settings.slots) for k in range(instances)]
        heapify(self._free)
        self._backlog: deque[_Sequence] = deque()
        self._idle = set(range(instances))
        self._batchers: list[Batcher] = []
        if settings.oldest is not None:
            self._batchers = [Batcher(settings.oldest, 1) for _ in range(instances)]
        self._owner: dict[Ticket, _Sequence] = {}  # of every ticket that waits or runs
        self._next_id = 0  # iterative: ids for requests that bring none (IT-1)
        self._reap: list[tuple[int, int, _Sequence]] = []  # when to look whether it is idle
        self._deadlines: list[tuple[int, int, _Sequence]] = []  # backlog timeouts
        self._count = 0
        self._waits: dict[int, int] = {}  # direct: until when an instance waits for more rows
        self._waiting = 0

    # -- what happened ---------------------------------------------------------------------------

    def submit(self, now: int, ticket: Ticket) -> list[Decision]:
        """A request arrived."""
        settings = self._settings
        if ticket.size > 1:
            return [_refuse(ticket, f"inference request to model '{settings.model_name}' must "
                            "specify batch-size 1 due to requirements of sequence batcher")]
        if settings.iterative and not ticket.correlation_id:
            self._next_id += 1
            ticket.correlation_id = self._next_id
            ticket.flags |= SEQUENCE_START
        if not ticket.correlation_id:
            return [_refuse(ticket, f"inference request to model '{settings.model_name}' must "
                            "specify a non-zero or non-empty correlation ID")]
        sequence = self._live.get(ticket.correlation_id)
        out: list[Decision] = []
        if sequence is None:
            if not ticket.flags & SEQUENCE_START:
                return [_refuse(
                    ticket,
                    f"inference request for sequence {ticket.correlation_id} to model "
                    f"'{settings.model_name}' must specify the START flag on the first request of "
                    "the sequence",
                )]
            sequence = self._begin(now, ticket.correlation_id)
        ticket.enqueued_ns = now
        self._enqueue(now, sequence, ticket)
        if ticket.flags & SEQUENCE_END:
            sequence.ended = True
            del self._live[sequence.id]
        if sequence.place is None:
            self._note_backlog_timeout(now, sequence, ticket)
        else:
            self._issue(now, sequence, out)
        out += self._advance(now)
        return out

    def finish(
        self, now: int, instance: int, tickets: Sequence[Ticket], again: Collection[Ticket] = ()
    ) -> list[Decision]:
        """An instance finished the batch of these tickets and is idle again.

        ``again`` are those that the model of an iterative sequence wants to see once more (IT-2);
        any other request ends its iterative sequence (IT-3).
        """
        out: list[Decision] = []
        sequences = [self._owner.pop(ticket) for ticket in tickets]
        for ticket, sequence in zip(tickets, sequences, strict=True):
            sequence.in_flight = False
            if ticket in again:
                ticket.flags = 0
                self._enqueue(now, sequence, ticket)
            elif self._settings.iterative:
                self._forget(sequence)
        if self._batchers:
            out += self._translate(instance, self._batchers[instance].finish(now, 0))
        else:
            self._idle.add(instance)
        for sequence in sequences:
            self._issue(now, sequence, out)
            self._leave_if_done(sequence)
        return out + self._advance(now)

    def cancel(self, now: int, ticket: Ticket) -> list[Decision]:
        """A cancelled request that waits takes all queued ones of its sequence along (X5)."""
        sequence = self._owner.get(ticket)
        if sequence is None or ticket.where is Where.RUNNING:
            return []
        out: list[Decision] = []
        if ticket not in sequence.waiting:  # oldest: it is with the instance's batcher
            assert sequence.place is not None
            out += self._batchers[sequence.place[1]].cancel(now, ticket)
            if not out:
                return out
            del self._owner[ticket]
            sequence.in_flight = False
        out += self._drop_all(sequence, "CANCELLED", "", "cancelled")
        self._forget(sequence)
        self._leave_if_done(sequence)
        return out + self._advance(now)

    def tick(self, now: int) -> list[Decision]:
        """`wake_at` has come."""
        return self._advance(now)

    def clear(self, status: str, message: str) -> list[Drop]:
        """Drop everything that does not run yet: the server is stopping."""
        drops = [drop for batcher in self._batchers for drop in batcher.clear(status, message)]
        for drop in drops:
            del self._owner[drop.ticket]
        for sequence in {*self._live.values(), *self._backlog, *self._placed()}:
            drops += self._drop_all(sequence, status, message, "stopped")
            self._forget(sequence)
        self._backlog.clear()
        return drops

    # -- what to ask -----------------------------------------------------------------------------

    def wake_at(self) -> int | None:
        """When `tick` must be called even if nothing happens; None for never."""
        while self._reap and self._live.get(self._reap[0][2].id) is not self._reap[0][2]:
            heappop(self._reap)
        while self._deadlines and not _times_out(self._deadlines[0]):
            heappop(self._deadlines)
        times = list(self._waits.values())
        times += [heap[0][0] for heap in (self._reap, self._deadlines) if heap]
        times += [when for b in self._batchers if (when := b.wake_at()) is not None]
        return min(times, default=None)

    @property
    def waiting(self) -> int:
        """Requests that are accepted and not yet on an instance."""
        return self._waiting + sum(batcher.waiting for batcher in self._batchers)

    def slots(self) -> list[list[Hashable | None]]:
        """Who lives where: a row per instance, an entry per slot, None for a free one."""
        return [[None if s is None else s.id for s in row] for row in self._rows]

    # -- where a sequence lives ------------------------------------------------------------------

    def _begin(self, now: int, correlation_id: Hashable) -> _Sequence:
        sequence = self._live[correlation_id] = _Sequence(correlation_id)
        sequence.seen_ns = now
        if self._free and not self._backlog:
            self._place(sequence)
        else:
            self._backlog.append(sequence)
        self._look_again(now + self._settings.idle_ns, sequence)
        return sequence

    def _enqueue(self, now: int, sequence: _Sequence, ticket: Ticket) -> None:
        ticket.where = Where.QUEUED
        self._owner[ticket] = sequence
        self._waiting += 1
        sequence.waiting.append(ticket)
        sequence.seen_ns = now

    def _place(self, sequence: _Sequence) -> None:
        slot, instance = sequence.place = heappop(self._free)
        self._rows[instance][slot] = sequence

    def _release(self, sequence: _Sequence) -> None:
        """Free the slot; `_advance` gives it to the backlog."""
        assert sequence.place is not None
        slot, instance = sequence.place
        sequence.place = None
        self._rows[instance][slot] = None
        heappush(self._free, (slot, instance))

    def _leave_if_done(self, sequence: _Sequence) -> None:
        if sequence.place and sequence.ended and not sequence.waiting and not sequence.in_flight:
            self._release(sequence)

    def _forget(self, sequence: _Sequence) -> None:
        """New requests of this id need START again."""
        sequence.ended = True
        if self._live.get(sequence.id) is sequence:
            del self._live[sequence.id]

    def _drop_all(
        self, sequence: _Sequence, status: str, message: str, reason: str
    ) -> list[Drop]:
        drops = []
        while sequence.waiting:
            ticket = sequence.waiting.popleft()
            ticket.where = Where.GONE
            del self._owner[ticket]
            self._waiting -= 1
            drops.append(Drop(ticket, status, message, reason))
        return drops

    def _placed(self) -> list[_Sequence]:
        return [sequence for row in self._rows for sequence in row if sequence is not None]

    # -- time ------------------------------------------------------------------------------------

    def _look_again(self, when: int, sequence: _Sequence) -> None:
        self._count += 1
        heappush(self._reap, (when, self._count, sequence))

    def _note_backlog_timeout(self, now: int, sequence: _Sequence, ticket: Ticket) -> None:
        """A request's own timeout bounds the backlog time of its whole sequence (Q-11)."""
        if not ticket.timeout_ns:
            return
        deadline = now + ticket.timeout_ns
        if not sequence.backlog_deadline_ns or deadline < sequence.backlog_deadline_ns:
            sequence.backlog_deadline_ns = deadline
            self._count += 1
            heappush(self._deadlines, (deadline, self._count, sequence))

    def _reap_idle(self, now: int) -> None:
        """End sequences that were silent for too long (Q-9); those in the backlog are let be."""
        idle_ns = self._settings.idle_ns
        while self._reap and self._reap[0][0] <= now:
            _, _, sequence = heappop(self._reap)
            if sequence.ended:
                continue
            if sequence.seen_ns + idle_ns > now:
                self._look_again(sequence.seen_ns + idle_ns, sequence)
            elif sequence.place is None:
                # 50 ms is the reference's own interval for looking at the backlog again.
                self._look_again(now + 50_000_000, sequence)
            else:
                self._forget(sequence)  # what is queued still runs
                self._leave_if_done(sequence)

    def _expire_backlog(self, now: int, out: list[Decision]) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            entry = heappop(self._deadlines)
            sequence = entry[2]
            if not _times_out(entry):
                continue
            out += self._drop_all(
                sequence, "UNAVAILABLE", "timeout of the corresponding sequence has been expired",
                "timeout",
            )  # fmt: skip
            self._forget(sequence)
            self._backlog.remove(sequence)

    # -- batches ---------------------------------------------------------------------------------

    def _advance(self, now: int) -> list[Decision]:
        out: list[Decision] = []
        self._reap_idle(now)
        self._expire_backlog(now, out)
        progress = True
        while progress:
            progress = False
            while self._free and self._backlog:
                sequence = self._backlog.popleft()
                self._place(sequence)
                self._issue(now, sequence, out)
                self._leave_if_done(sequence)
            if self._batchers:
                for instance, batcher in enumerate(self._batchers):
                    out += self._translate(instance, batcher.tick(now))
                break
            for instance in sorted(self._idle):
                run = self._run_direct(now, instance)
                if run is not None:
                    out.append(run)
                    progress = True
        return out

    def _issue(self, now: int, sequence: _Sequence, out: list[Decision]) -> None:
        """Oldest: hand the next request to the instance's batcher (OL-1)."""
        if not self._batchers or sequence.in_flight:
            return
        if not sequence.waiting or sequence.place is None:
            return
        ticket = sequence.waiting.popleft()
        self._waiting -= 1
        sequence.in_flight = True
        instance = sequence.place[1]
        enqueued = ticket.enqueued_ns
        out += self._translate(instance, self._batchers[instance].submit(now, ticket))
        ticket.enqueued_ns = enqueued  # queue time counts from the first enqueue (§18)

    def _translate(self, instance: int, decisions: list[Decision]) -> list[Decision]:
        """An inner batcher knows one instance, number 0."""
        return [
            replace(
                decision,
                instance=instance,
                sequences=tuple(self._owner[ticket] for ticket in decision.tickets),
            )
            if isinstance(decision, Run)
            else decision
            for decision in decisions
        ]

    def _run_direct(self, now: int, instance: int) -> Run | None:
        rows = self._rows[instance]
        ready = [slot for slot, s in enumerate(rows) if s is not None and s.waiting]
        self._waits.pop(instance, None)
        if not ready:
            return None
        heads = {slot: rows[slot].waiting[0] for slot in ready}  # type: ignore[union-attr]
        reason = self._go(now, instance, heads)
        if not reason:
            return None
        key = heads[ready[0]].shape_key
        tickets: list[Ticket] = []
        taken: list[int] = []
        for slot in ready:  # DI-2
            ticket = heads[slot]
            # A row of another shape is padded now and tried again with the next batch (DI-5).
            if ticket.shape_key != key:
                continue
            sequence = rows[slot]
            assert sequence is not None
            sequence.waiting.popleft()
            self._waiting -= 1
            sequence.in_flight = True
            ticket.where = Where.RUNNING
            tickets.append(ticket)
            taken.append(slot)
            # END frees its slot when it is scheduled, not when it has run.
            if sequence.ended and not sequence.waiting and not self._settings.iterative:
                self._release(sequence)
        self._idle.discard(instance)
        sequences = tuple(self._owner[ticket] for ticket in tickets)
        return Run(instance, tickets, taken[-1] + 1, reason, tuple(taken), sequences)

    def _go(self, now: int, instance: int, heads: dict[int, Ticket]) -> str:
        """Say why the rows go now, or wait (DI-6)."""
        settings = self._settings
        if settings.max_queue_delay_ns == 0 or settings.minimum_slot_utilization == 0:
            return "sequence_ready"
        if len(heads) / max(1, settings.max_batch_size) >= settings.minimum_slot_utilization:
            return "minimum_slot_utilization"
        until = min(ticket.enqueued_ns for ticket in heads.values()) + settings.max_queue_delay_ns
        if now >= until:
            return "max_queue_delay"
        self._waits[instance] = until
        return ""


def _refuse(ticket: Ticket, message: str) -> Drop:
    ticket.where = Where.GONE
    return Drop(ticket, "INVALID_ARG", message, "sequence_rule")


def _times_out(entry: tuple[int, int, _Sequence]) -> bool:
    deadline, _, sequence = entry
    return (
        bool(sequence.waiting)
        and sequence.place is None
        and sequence.backlog_deadline_ns == deadline
    )
