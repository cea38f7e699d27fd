"""What a `SequenceBatcher` must do, written down naively, and both under the same facts.

The oracle keeps plain lists and looks at everything on every fact. It predicts slots, backlog,
drops and, for the direct strategy, every batch. Which issued requests of the oldest strategy share
a batch is the dynamic batcher's business and has an oracle of its own; here it is checked that a
batch holds nothing but issued requests of its instance, and that none of them is left lying.
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
    Ticket,
    TicketState,
)

US = 1_000
_RECHECK = 50_000 * US


class Ready:
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
class Life:
    """One sequence."""

    id: object
    seen: int
    look: int  # when somebody sees whether it is idle, and in which turn among those of that time
    turn: int
    place: tuple[int, int] | None = None  # (instance, slot)
    queue: list[int] = field(default_factory=list)
    flying: int | None = None
    ended: bool = False
    deadline: int | None = None


class SequencePair:
    """Bring each fact to the batcher and to the rules; compare all that can be seen."""

    def __init__(self, settings: SequenceSettings, instances: int, *, gated: bool = False) -> None:
        self.settings = settings
        # Under a rate limiter; of the direct strategy with the rows and the size to be run.
        self.gated = gated
        self.staged: dict[int, tuple[dict[int, int], int] | None] = {}
        self.instances = list(range(instances))
        self.retiring: set[int] = set()  # those that have been removed and are not gone
        self.added = instances
        self.batcher = SequenceBatcher(settings, instances, gated=gated)
        self.now = 77_000
        self.tickets: list[Ticket] = []
        self.open: set[int] = set()  # accepted and not answered
        self.busy: dict[int, list[int]] = {}  # instance -> what it runs
        self.reasons: set[str] = set()
        self.live: dict[object, Life] = {}
        self.backlog: list[Life] = []
        self.rows: dict[tuple[int, int], Life] = {}
        self.home: dict[int, Life] = {}  # of every open request
        self.away: dict[tuple[int, int], int] = {}  # oldest: slot -> its request in the batcher
        self.again: set[int] = set()  # cancelled when it was too late
        self.started: dict[Life, list[int]] = {}
        self.expected: set[tuple[int, str]] = set()
        self.auto = 0
        self.turns = 0
        self.facts = 0
        self.ready = Ready()
        for instance in self.instances:
            self._set_up(instance)

    # -- facts -----------------------------------------------------------------------------------

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
        life = self.live.get(name)
        refused = size > 1 or not name or (life is None and not flags & SEQUENCE_START)
        if refused:
            self.expected.add((number, "sequence_rule"))
        else:
            if life is None:
                self.turns += 1
                idle_at = self.now + self.settings.idle_ns
                life = self.live[name] = Life(name, self.now, idle_at, self.turns)
                if self.ready.places:
                    life.place = self.ready.pop()
                    self.rows[life.place] = life
                else:
                    self.backlog.append(life)
            life.seen = self.now
            life.queue.append(number)
            self.open.add(number)
            self.home[number] = life
            if timeout and life.place is None:
                due = self.now + timeout
                life.deadline = due if life.deadline is None else min(life.deadline, due)
            if flags & SEQUENCE_END:
                self._forget(life)
            self._issue()
            self._settle()
        self._compare(self.batcher.submit(self.now, ticket), acted=not refused)
        assert ticket.correlation_id == name

    def finish(self, instance: int, again: bool = False) -> None:
        numbers = self.busy.pop(instance)
        back = [n for n in numbers if again and self.settings.iterative]
        for number in numbers:
            life = self.home[number]
            self._land(number)
            if number in back and number not in self.again:
                life.queue.append(number)
                life.seen = self.now
            else:
                if number in back:
                    self.expected.add((number, "cancelled"))
                    self._forget(life)
                self.open.discard(number)
                if self.settings.iterative:
                    self._forget(life)
            self.again.discard(number)
            self._leave_if_done(life)
        if self.settings.oldest is not None:
            for number in numbers:  # the order decides who gets a slot that becomes free
                self._issue(self.home[number].place)
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
            life = self.home[number]
            first = 0
            if life.flying == number:
                self._land(number)
                self.expected.add((number, "cancelled"))
            elif life.place is not None:
                first = life.queue.index(number)
            self.expected |= {(n, "cancelled") for n in life.queue[first:]}
            life.queue = life.queue[:first]
            self._forget(life)
            self._leave_if_done(life)
            self._issue()
            self._settle()
        elif number in self.open and self.settings.iterative:
            self.again.add(number)
        self._compare(self.batcher.cancel(self.now, ticket), acted=acted)

    def add_instance(self) -> None:
        number = self.added
        self.added += 1
        self.instances.append(number)
        self._set_up(number)
        self._settle()
        self._compare(self.batcher.add_instance(self.now, number))

    def remove_instance(self, number: int) -> None:
        self.retiring.add(number)
        before, self.ready = self.ready, Ready()
        while before.places:
            place = before.pop()
            if place[0] != number:
                self.ready.push(place)
        self._settle()
        self._compare(self.batcher.remove_instance(self.now, number))

    @property
    def staying(self) -> list[int]:
        return [k for k in self.instances if k not in self.retiring]

    def tick(self) -> None:
        self._settle()
        self._compare(self.batcher.tick(self.now))

    def clear(self) -> None:
        decisions = self.batcher.clear("UNAVAILABLE", "stopping")
        # What runs goes on, as does what an instance is staged with.
        gone = {n for n in self.open if self.tickets[n].state is TicketState.DONE}
        for number in gone:
            self.expected.add((number, "stopped"))
            life = self.home[number]
            if life.flying == number:
                self._land(number)
        for life in [*(self.rows[place] for place in sorted(self.rows)), *self.backlog]:
            life.queue = []
            self._forget(life)
            self._leave_if_done(life)
        self.backlog = []
        self._compare(decisions)
        assert self.batcher.waiting == 0 or self.staged
        assert self.batcher.wake_at() is None

    def drain(self) -> None:
        """Let everything end by itself: each request is answered exactly once, no slot is lost."""
        if not self.staying:
            self.add_instance()
        for _ in range(20 * len(self.tickets) + 1000):
            wake = self.batcher.wake_at()
            if self.staged:
                self.grant(min(self.staged))
            elif self.busy:
                self.finish(min(self.busy))
            elif wake is not None:
                self.now = max(self.now, wake)
                self.tick()
            else:
                break
        assert not self.open
        assert not self.busy
        assert not self.staged
        assert not self.live
        assert not self.retiring
        assert self.batcher.waiting == 0
        assert not any(any(row) for row in self.batcher.slots())

    # -- the rules -------------------------------------------------------------------------------

    def _set_up(self, instance: int) -> None:
        for slot in range(self.settings.slots):
            self.ready.push((instance, slot))

    def _forget(self, life: Life) -> None:
        life.ended = True
        if self.live.get(life.id) is life:
            del self.live[life.id]

    def _leave(self, life: Life) -> None:
        if life.place is None or self.rows.get(life.place) is not life:
            return
        del self.rows[life.place]
        self.backlog = [other for other in self.backlog if other.queue]
        if life.place[0] in self.retiring:
            return
        if not self.backlog:
            self.ready.push(life.place)
        else:
            heir = self.backlog.pop(0)  # in the order in which slots become free
            heir.place = life.place
            self.rows[life.place] = heir

    def _leave_if_done(self, life: Life) -> None:
        if life.ended and not life.queue and life.flying is None:
            self._leave(life)

    def _land(self, number: int) -> None:
        life = self.home[number]
        assert life.flying == number
        life.flying = None
        if self.away.get(life.place) == number:
            del self.away[life.place]

    def _take(self, life: Life) -> int:
        assert life.flying is None, "two requests of one sequence at once"
        number = life.flying = life.queue.pop(0)
        if self.tickets[number].flags & SEQUENCE_END and not self.settings.iterative:
            self._leave(life)
        return number

    def _issue(self, only: tuple[int, int] | None = None) -> None:
        if self.settings.oldest is None:
            return
        for place, life in list(self.rows.items()):
            if life.queue and place not in self.away and only in (None, place):
                self.away[place] = self._take(life)

    def _fill(self) -> None:
        self._issue()
        self.backlog = [life for life in self.backlog if life.queue]
        while self.backlog and self.ready.places:
            life = self.backlog.pop(0)
            life.place = self.ready.pop()
            self.rows[life.place] = life
            self._issue()

    def _settle(self) -> None:
        now, idle = self.now, self.settings.idle_ns
        due = [life for life in self.live.values() if life.look <= now]
        for life in sorted(due, key=lambda life: (life.look, life.turn)):
            self.turns += 1
            life.turn = self.turns
            if life.seen + idle > now:
                life.look = life.seen + idle
            elif life.place is None:
                life.look = now + _RECHECK
            else:
                self._forget(life)
                self._leave_if_done(life)
        for life in self.backlog:
            if life.deadline is not None and life.deadline <= now:
                self.expected |= {(number, "timeout") for number in life.queue}
                life.queue = []
                self._forget(life)
        self._fill()

    def _direct(self, instance: int) -> tuple[dict[int, int], int] | None:
        """The batch that an idle instance must start now: row -> request, and its size."""
        settings = self.settings
        lives = {slot: life for (k, slot), life in self.rows.items() if k == instance}
        ready = sorted(slot for slot, life in lives.items() if life.queue)
        if not ready:
            return None
        heads = {slot: self.tickets[lives[slot].queue[0]] for slot in ready}
        if settings.max_queue_delay_ns and settings.minimum_slot_utilization:
            enough = len(ready) / max(1, settings.max_batch_size)
            age = self.now - min(ticket.enqueued_ns for ticket in heads.values())
            if enough < settings.minimum_slot_utilization and age < settings.max_queue_delay_ns:
                return None
        key = heads[ready[0]].shape_key
        chosen = [slot for slot in ready if heads[slot].shape_key == key]
        return {slot: self._take(lives[slot]) for slot in chosen}, ready[-1] + 1

    # -- comparing -------------------------------------------------------------------------------

    def _compare(self, decisions, *, acted: bool = True, granted: int | None = None) -> None:
        self.facts += 1
        oldest = self.settings.oldest is not None
        drops, left = set(), []
        for decision in decisions:
            assert decision.reason in REASONS
            self.reasons.add(decision.reason)
            if isinstance(decision, RejectTicket):
                number = self._number(decision.ticket)
                assert decision.ticket.state is TicketState.DONE
                assert (number, decision.reason) not in drops, "answered twice"
                drops.add((number, decision.reason))
                self.open.discard(number)
            elif isinstance(decision, RetireInstance):
                left.append(decision.instance)
        assert drops == self.expected
        self.expected = set()
        runs = [
            decision
            for decision in decisions
            if not isinstance(decision, RejectTicket | RetireInstance)
        ]
        due = None if granted is None else self.staged.pop(granted)
        idle = [k for k in self.instances if k not in self.busy and k not in self.staged]
        if granted is not None:
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
                    assert self.home[number].place[0] == run.instance
                    assert self.away[self.home[number].place] == number
                assert len({self.tickets[n].shape_key for n in numbers}) == 1
            else:
                rows, size = due or predicted.pop(run.instance)
                assert dict(zip(run.rows, numbers, strict=True)) == rows
                assert run.size == size
            assert len(set(run.sequences)) == len(numbers), "a sequence twice in one batch"
            for number, sequence in zip(numbers, run.sequences, strict=True):
                ticket, life = self.tickets[number], self.home[number]
                assert ticket.state is TicketState.RUNNING
                assert number in self.open
                assert life.flying == number
                assert sequence.id == life.id
                if not self.settings.iterative:
                    order = self.started.setdefault(life, [])
                    assert not order or order[-1] < number, "reordered, or run twice"
                    order.append(number)
            self.busy[run.instance] = numbers
        assert not predicted, "a batch that should have started"
        busy = {*self.busy, *self.staged, *(k for k, _ in self.rows), *(k for k, _ in self.away)}
        assert left == sorted(self.retiring - busy)
        self.retiring -= {*left}
        self.instances = [k for k in self.instances if k not in left]
        self._compare_state([k for k in idle if k not in left])

    def _compare_state(self, idle: list[int]) -> None:
        rows = {k: [None] * self.settings.slots for k in self.instances}
        for (instance, slot), life in self.rows.items():
            rows[instance][slot] = life.id
        assert self.batcher.slots() == list(rows.values())
        running = sum(len(numbers) for numbers in self.busy.values())
        assert self.batcher.waiting == len(self.open) - running
        places = {(k, slot) for slot in range(self.settings.slots) for k in self.staying}
        assert set(self.ready.places) == places - self.rows.keys()
        assert not (self.backlog and self.ready.places), "a free slot while sequences wait for one"
        wake = self.batcher.wake_at()
        times = [life.look for life in self.live.values()]
        times += [life.deadline for life in self.backlog if life.deadline is not None]
        if times:
            assert wake is not None
            assert wake <= min(times)
        if self.settings.oldest is not None:
            running_now = {number for numbers in self.busy.values() for number in numbers}
            for (instance, _), number in self.away.items():
                if instance in idle and number not in running_now:
                    assert wake is not None, "an issued request that nothing will ever run"
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
