"""A `SequenceBatcher` and its oracle under the same events.

The oracle keeps plain lists and checks everything on every event. It predicts slots, backlog,
rejections and, for the direct strategy, every batch. Under the oldest strategy the dynamic batcher,
which has its own oracle, decides which issued requests share a batch; here a batch must hold only
issued requests of its instance, and each issued request must run or have a timer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from nbtriton.scheduling import (
    REASONS,
    SEQUENCE_END,
    SEQUENCE_START,
    BatcherSettings,
    RejectTicket,
    RetireInstance,
    SequenceBatcher,
    SequenceSettings,
    StageInstance,
    SuspendInstance,
    Ticket,
    TicketState,
)
from tests.scheduling.resting import run_to_rest

US = 1_000
_RECHECK = 50_000 * US


class FreeSlots:
    """Free slots as in a ``std::priority_queue`` that compares their numbers only."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []  # (instance, slot)

    def push(self, place: tuple[int, int]) -> None:
        self.places.append(place)
        self._rise(len(self.places) - 1)

    def pop(self) -> tuple[int, int]:
        first, last = self.places[0], self.places.pop()
        if not self.places:
            return first
        hole = 0
        while 2 * hole + 1 < len(self.places):  # down to a leaf, by the better child
            child = 2 * hole + 1
            if child + 1 < len(self.places) and self.places[child + 1][1] <= self.places[child][1]:
                child += 1
            self.places[hole] = self.places[child]
            hole = child
        self.places[hole] = last
        self._rise(hole)
        return first

    def _rise(self, at: int) -> None:
        while at and self.places[at][1] < self.places[(at - 1) // 2][1]:
            above = (at - 1) // 2
            self.places[at], self.places[above] = self.places[above], self.places[at]
            at = above


@dataclass(eq=False)
class SequenceEntry:
    """One sequence."""

    id: object
    last_arrival: int
    check_at: int  # when its idleness is checked; ``turn`` orders equal times
    turn: int
    place: tuple[int, int] | None = None  # (instance, slot)
    queue: list[int] = field(default_factory=list)
    issued: int | None = None
    ended: bool = False
    deadline: int | None = None


class SequencePair:
    """Send each event to the batcher and to the oracle; compare decisions and visible state."""

    def __init__(self, settings: SequenceSettings, instances: int, *, gated: bool = False) -> None:
        self.settings = settings
        # Under a rate limiter; the value is the batch (rows, size) under the direct strategy.
        self.gated = gated
        self.staged: dict[int, tuple[dict[int, int], int] | None] = {}
        self.instances = list(range(instances))
        self.retiring: set[int] = set()  # removed, not yet retired
        self.lost: set[int] = set()  # not yet suspended
        self.suspended: set[int] = set()
        self.added = instances
        self.batcher = SequenceBatcher(settings, instances, gated=gated)
        self.now = 77_000
        self.tickets: list[Ticket] = []
        self.open: set[int] = set()  # accepted, not answered
        self.busy: dict[int, list[int]] = {}  # instance -> its running requests
        self.reasons: set[str] = set()
        self.live: dict[object, SequenceEntry] = {}
        self.backlog: list[SequenceEntry] = []
        self.rows: dict[tuple[int, int], SequenceEntry] = {}
        self.owner: dict[int, SequenceEntry] = {}  # of every open request
        self.issued: dict[tuple[int, int], int] = {}  # oldest: slot -> its request in the batcher
        self.again: set[int] = set()  # cancelled while running
        self.started: dict[SequenceEntry, list[int]] = {}
        self.expected: set[tuple[int, str]] = set()
        self.auto = 0
        self.turns = 0
        self.steps = 0
        self.free = FreeSlots()
        for instance in self.instances:
            self._init_instance(instance)

    # -- events ----------------------------------------------------------------------------------

    def submit(self, name: object, flags: int, timeout: int, shape: int, size: int = 1) -> None:
        ticket = Ticket(size, shape, 0, timeout, name, flags)
        number = len(self.tickets)
        self.tickets.append(ticket)
        iterative = self.settings.iterative
        if iterative and not name and size == 1:
            self.auto += 1
            while self.auto in self.live:
                self.auto += 1
            name, flags = self.auto, SEQUENCE_START
        sequence = self.live.get(name)
        refused = size > 1 or not name or (sequence is None and not flags & SEQUENCE_START)
        if refused:
            self.expected.add((number, "sequence_rule"))
        else:
            if sequence is None:
                self.turns += 1
                idle_at = self.now + self.settings.idle_ns
                sequence = self.live[name] = SequenceEntry(name, self.now, idle_at, self.turns)
                if self.free.places:
                    sequence.place = self.free.pop()
                    self.rows[sequence.place] = sequence
                else:
                    self.backlog.append(sequence)
            sequence.last_arrival = self.now
            sequence.queue.append(number)
            self.open.add(number)
            self.owner[number] = sequence
            if timeout and sequence.place is None:
                due = self.now + timeout
                sequence.deadline = (
                    due if sequence.deadline is None else min(sequence.deadline, due)
                )
            if flags & SEQUENCE_END:
                self._end(sequence)
            self._issue()
            self._settle()
        self._compare(self.batcher.submit(self.now, ticket), acted=not refused)
        assert ticket.correlation_id == name

    def finish(self, instance: int, again: bool = False) -> None:
        numbers = self.busy.pop(instance)
        back = [n for n in numbers if again and self.settings.iterative]
        for number in numbers:
            sequence = self.owner[number]
            self._complete(number)
            if number in back and number not in self.again and instance not in self.lost:
                sequence.queue.append(number)
                sequence.last_arrival = self.now
            else:
                if number in back:
                    reason = "cancelled" if number in self.again else "lost"
                    self.expected.add((number, reason))
                    self._end(sequence)
                self.open.discard(number)
                if self.settings.iterative:
                    self._end(sequence)
            self.again.discard(number)
            self._free_if_done(sequence)
        if self.settings.oldest is not None:
            for number in numbers:  # the order decides which sequence gets a freed slot
                self._issue(self.owner[number].place)
            self._fill()
        self._settle()
        tickets = [self.tickets[number] for number in numbers]
        self._compare(
            self.batcher.finish(self.now, instance, tickets, [self.tickets[n] for n in back])
        )

    def grant(self, instance: int) -> None:
        self._settle()
        self._compare(self.batcher.granted(self.now, instance), granted=instance)

    def cancel(self, number: int) -> None:
        ticket = self.tickets[number]
        acted = number in self.open and ticket.state not in (
            TicketState.RUNNING,
            TicketState.PAYLOAD,
        )
        if acted:
            sequence = self.owner[number]
            first = 0
            if sequence.issued == number:
                self._complete(number)
                self.expected.add((number, "cancelled"))
            elif sequence.place is not None:
                first = sequence.queue.index(number)
            self.expected |= {(n, "cancelled") for n in sequence.queue[first:]}
            sequence.queue = sequence.queue[:first]
            self._end(sequence)
            self._free_if_done(sequence)
            self._issue()
            self._settle()
        elif number in self.open and self.settings.iterative:
            self.again.add(number)
        self._compare(self.batcher.cancel(self.now, ticket), acted=acted)

    def add_instance(self) -> None:
        number = self.added
        self.added += 1
        self.instances.append(number)
        self._init_instance(number)
        self._settle()
        self._compare(self.batcher.add_instance(self.now, number))

    def remove_instance(self, number: int) -> None:
        self.retiring.add(number)
        self._remove_free(number)
        self._settle()
        self._compare(self.batcher.remove_instance(self.now, number))

    def suspend(self, number: int) -> None:
        """An instance is lost: its sequences end, and their requests that do not run are rejected."""
        decisions = self.batcher.suspend(self.now, number, "INTERNAL", "not healthy")
        self.lost.add(number)
        self._remove_free(number)
        for one in sorted(self.open):
            sequence = self.owner[one]
            if sequence.place is None or sequence.place[0] != number:
                continue
            if self.tickets[one].state is TicketState.DONE:
                self.expected.add((one, "lost"))
                if sequence.issued == one:
                    self._complete(one)
            else:
                assert number in {*self.busy, *self.staged}, "a request was left to a lost instance"
        for _, sequence in sorted(self.rows.items()):
            if sequence.place is not None and sequence.place[0] == number:
                sequence.queue = []
                self._end(sequence)
                self._free_if_done(sequence)
        self._settle()
        self._compare(decisions)

    def resume(self, number: int) -> None:
        self.suspended.remove(number)
        if number not in self.retiring:
            for slot in range(self.settings.slots):
                assert (number, slot) not in self.rows
                self.free.push((number, slot))
        self._settle()
        self._compare(self.batcher.resume(self.now, number))

    @property
    def running_well(self) -> list[int]:
        """The instances that can be lost."""
        return [k for k in self.instances if k not in self.lost | self.suspended]

    @property
    def staying(self) -> list[int]:
        return [k for k in self.instances if k not in self.retiring]

    def tick(self) -> None:
        self._settle()
        self._compare(self.batcher.tick(self.now))

    def clear(self) -> None:
        decisions = self.batcher.clear("UNAVAILABLE", "stopping")
        # Running and staged requests stay.
        rejected = {n for n in self.open if self.tickets[n].state is TicketState.DONE}
        for number in rejected:
            self.expected.add((number, "stopped"))
            sequence = self.owner[number]
            if sequence.issued == number:
                self._complete(number)
        for sequence in [*(self.rows[place] for place in sorted(self.rows)), *self.backlog]:
            sequence.queue = []
            self._end(sequence)
            self._free_if_done(sequence)
        self.backlog = []
        self._compare(decisions)
        assert self.batcher.waiting == 0 or self.staged
        assert self.batcher.wake_at() is None

    def drain(self) -> None:
        """Run until nothing is left: each request is answered exactly once, no slot is lost."""
        if not self.staying:
            self.add_instance()
        run_to_rest(self, 20 * len(self.tickets) + 1000)
        assert not self.open
        assert not self.busy
        assert not self.staged
        assert not self.live
        assert not self.retiring
        assert self.batcher.waiting == 0
        assert not any(any(row) for row in self.batcher.slots())

    # -- rules -----------------------------------------------------------------------------------

    def _init_instance(self, instance: int) -> None:
        for slot in range(self.settings.slots):
            self.free.push((instance, slot))

    def _remove_free(self, instance: int) -> None:
        before, self.free = self.free, FreeSlots()
        while before.places:
            place = before.pop()
            if place[0] != instance:
                self.free.push(place)

    def _end(self, sequence: SequenceEntry) -> None:
        sequence.ended = True
        if self.live.get(sequence.id) is sequence:
            del self.live[sequence.id]

    def _free_slot(self, sequence: SequenceEntry) -> None:
        if sequence.place is None or self.rows.get(sequence.place) is not sequence:
            return
        del self.rows[sequence.place]
        self.backlog = [other for other in self.backlog if other.queue]
        if sequence.place[0] in self.retiring | self.lost | self.suspended:
            return
        if not self.backlog:
            self.free.push(sequence.place)
        else:
            successor = self.backlog.pop(0)  # in the order in which slots are freed
            successor.place = sequence.place
            self.rows[sequence.place] = successor

    def _free_if_done(self, sequence: SequenceEntry) -> None:
        if sequence.ended and not sequence.queue and sequence.issued is None:
            self._free_slot(sequence)

    def _complete(self, number: int) -> None:
        sequence = self.owner[number]
        assert sequence.issued == number
        sequence.issued = None
        if self.issued.get(sequence.place) == number:
            del self.issued[sequence.place]

    def _pop_request(self, sequence: SequenceEntry) -> int:
        assert sequence.issued is None, "two requests of one sequence at once"
        number = sequence.issued = sequence.queue.pop(0)
        if self.tickets[number].flags & SEQUENCE_END and not self.settings.iterative:
            self._free_slot(sequence)
        return number

    def _issue(self, only: tuple[int, int] | None = None) -> None:
        if self.settings.oldest is None:
            return
        for place, sequence in list(self.rows.items()):
            if sequence.queue and place not in self.issued and only in (None, place):
                self.issued[place] = self._pop_request(sequence)

    def _fill(self) -> None:
        self._issue()
        self.backlog = [sequence for sequence in self.backlog if sequence.queue]
        while self.backlog and self.free.places:
            sequence = self.backlog.pop(0)
            sequence.place = self.free.pop()
            self.rows[sequence.place] = sequence
            self._issue()

    def _settle(self) -> None:
        now, idle = self.now, self.settings.idle_ns
        due = [sequence for sequence in self.live.values() if sequence.check_at <= now]
        for sequence in sorted(due, key=lambda sequence: (sequence.check_at, sequence.turn)):
            self.turns += 1
            sequence.turn = self.turns
            if sequence.last_arrival + idle > now:
                sequence.check_at = sequence.last_arrival + idle
            elif sequence.place is None:
                sequence.check_at = now + _RECHECK
            else:
                self._end(sequence)
                self._free_if_done(sequence)
        for sequence in self.backlog:
            if sequence.deadline is not None and sequence.deadline <= now:
                self.expected |= {(number, "timeout") for number in sequence.queue}
                sequence.queue = []
                self._end(sequence)
        self._fill()

    def _direct(self, instance: int) -> tuple[dict[int, int], int] | None:
        """Return the batch that an idle instance must start now: row -> request, and its size."""
        settings = self.settings
        sequences = {slot: sequence for (k, slot), sequence in self.rows.items() if k == instance}
        ready = sorted(slot for slot, sequence in sequences.items() if sequence.queue)
        if not ready:
            return None
        heads = {slot: self.tickets[sequences[slot].queue[0]] for slot in ready}
        if settings.max_queue_delay_ns and settings.minimum_slot_utilization:
            enough = len(ready) / max(1, settings.max_batch_size)
            age = self.now - min(ticket.enqueued_ns for ticket in heads.values())
            if enough < settings.minimum_slot_utilization and age < settings.max_queue_delay_ns:
                return None
        key = heads[ready[0]].shape_key
        chosen = [slot for slot in ready if heads[slot].shape_key == key]
        return {slot: self._pop_request(sequences[slot]) for slot in chosen}, ready[-1] + 1

    # -- comparison ------------------------------------------------------------------------------

    def _compare(self, decisions, *, acted: bool = True, granted: int | None = None) -> None:
        self.steps += 1
        oldest = self.settings.oldest is not None
        rejected, left = set(), []
        for decision in decisions:
            assert decision.reason in REASONS
            self.reasons.add(decision.reason)
            if isinstance(decision, RejectTicket):
                number = self._number(decision.ticket)
                assert decision.ticket.state is TicketState.DONE
                assert (number, decision.reason) not in rejected, "answered twice"
                rejected.add((number, decision.reason))
                self.open.discard(number)
            elif isinstance(decision, RetireInstance):
                left.append(decision.instance)
            elif isinstance(decision, SuspendInstance):
                self.lost.remove(decision.instance)
                self.suspended.add(decision.instance)
        assert rejected == self.expected
        self.expected = set()
        runs = [
            decision
            for decision in decisions
            if not isinstance(decision, RejectTicket | RetireInstance | SuspendInstance)
        ]
        due = None if granted is None else self.staged.pop(granted)
        idle = [k for k in self.instances if k not in {*self.busy, *self.staged, *self.suspended}]
        if granted is not None and granted in idle:
            idle.remove(granted)
        predicted = {}
        if acted and not oldest:
            predicted = {k: batch for k in idle if (batch := self._direct(k))}
        self._fill()
        for run in runs:
            if run.instance != granted:
                assert run.instance in idle, "two batches on one instance"
                idle.remove(run.instance)
            if isinstance(run, StageInstance):
                self.staged[run.instance] = None if oldest else predicted.pop(run.instance)
                continue
            assert not self.gated or run.instance == granted
            numbers = [self._number(ticket) for ticket in run.tickets]
            if oldest:
                assert run.rows == ()
                assert run.size == len(numbers) <= max(1, self.settings.max_batch_size)
                for number in numbers:
                    assert self.owner[number].place[0] == run.instance
                    assert self.issued[self.owner[number].place] == number
                assert len({self.tickets[n].shape_key for n in numbers}) == 1
            else:
                rows, size = due or predicted.pop(run.instance)
                assert dict(zip(run.rows, numbers, strict=True)) == rows
                assert run.size == size
            assert len(set(run.sequences)) == len(numbers), "a sequence twice in one batch"
            for number, identity in zip(numbers, run.sequences, strict=True):
                ticket, sequence = self.tickets[number], self.owner[number]
                assert ticket.state is TicketState.RUNNING
                assert number in self.open
                assert sequence.issued == number
                assert identity.id == sequence.id
                if not self.settings.iterative:
                    order = self.started.setdefault(sequence, [])
                    assert not order or order[-1] < number, "reordered, or run twice"
                    order.append(number)
            self.busy[run.instance] = numbers
        assert not predicted, "a batch did not start"
        busy = {*self.busy, *self.staged, *(k for k, _ in self.rows), *(k for k, _ in self.issued)}
        assert left == sorted(self.retiring - busy)
        self.retiring -= {*left}
        self.suspended -= {*left}
        assert self.lost <= {*self.busy, *self.staged}, "a lost instance that is idle"
        self.instances = [k for k in self.instances if k not in left]
        self._compare_state([k for k in idle if k not in left])

    def _compare_state(self, idle: list[int]) -> None:
        rows = {k: [None] * self.settings.slots for k in self.instances}
        for (instance, slot), sequence in self.rows.items():
            rows[instance][slot] = sequence.id
        assert self.batcher.slots() == list(rows.values())
        running = sum(len(numbers) for numbers in self.busy.values())
        assert self.batcher.waiting == len(self.open) - running
        assert len(set(self.batcher.tickets())) == self.batcher.waiting
        places = {(k, slot) for slot in range(self.settings.slots) for k in self.staying}
        usable = {place for place in places if place[0] not in self.lost | self.suspended}
        assert set(self.free.places) == usable - self.rows.keys()
        assert not (self.backlog and self.free.places), "a free slot while sequences wait for one"
        wake = self.batcher.wake_at()
        times = [sequence.check_at for sequence in self.live.values()]
        times += [sequence.deadline for sequence in self.backlog if sequence.deadline is not None]
        if times:
            assert wake is not None
            assert wake <= min(times)
        if self.settings.oldest is not None:
            running_now = {number for numbers in self.busy.values() for number in numbers}
            for (instance, _), number in self.issued.items():
                if instance in idle and number not in running_now:
                    assert wake is not None, "an issued request without a batch or a timer"
                    assert self.settings.oldest.max_queue_delay_ns > 0

    def _number(self, ticket: Ticket) -> int:
        return next(
            number
            for number in range(len(self.tickets) - 1, -1, -1)
            if self.tickets[number] is ticket
        )


def random_settings(random: Random) -> SequenceSettings:
    size = random.choice((0, 1, 2, 3, 4))
    oldest = None
    if random.random() < 0.5:
        limit = max(1, size)
        preferred = tuple(sorted({random.randint(1, limit) for _ in range(random.randint(0, 2))}))
        oldest = BatcherSettings(
            max_batch_size=size,
            dynamic=True,
            preferred=(preferred if size else ()) or ((size,) if size else ()),
            max_queue_delay_ns=random.choice((0, 0, 100, 3000)) * US,
        )
    return SequenceSettings(
        model_name="m",
        max_batch_size=size,
        idle_ns=random.choice((300, 5_000, 200_000)) * US,
        max_queue_delay_ns=random.choice((0, 200, 3000)) * US,
        minimum_slot_utilization=random.choice((0, 0.5, 1.0)),
        oldest=oldest,
        max_candidate_sequences=random.choice((0, 1, 3)),
        iterative=random.random() < 0.3,
    )
