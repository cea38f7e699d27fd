"""A batcher and its oracle under the same events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from nbtriton.common.errors import InternalError
from nbtriton.scheduling import (
    REASONS,
    Batcher,
    BatcherSettings,
    QueuePolicy,
    RejectTicket,
    RetireInstance,
    ReturnResources,
    StageInstance,
    SuspendInstance,
    Ticket,
    TicketState,
)
from tests.scheduling.batcher_oracle import FAILS, BatcherOracle
from tests.scheduling.resting import run_to_rest
from tests.scheduling.simulator import delay, reject

WAITING = (TicketState.QUEUED, TicketState.DELAYED, TicketState.PENDING, TicketState.PAYLOAD)


class Volume:
    """Custom batching strategy: a limit on the sum of volumes, the tickets' correlation ids."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.open: list[list[int]] = []  # the rest of the limit, per batch not finalized

    def initialize(self) -> list[int]:
        self.open.append([self.limit])
        assert len(self.open) <= 2, "one forming and one merge candidate"
        return self.open[-1]

    def include(self, state: list[int], ticket: Ticket) -> bool:
        assert any(state is one for one in self.open)
        if ticket.correlation_id == FAILS:
            raise InternalError("an unlucky number")
        if ticket.correlation_id > state[0]:
            return False
        state[0] -= ticket.correlation_id
        return True

    def finalize(self, state: list[int]) -> None:
        (at,) = (index for index, one in enumerate(self.open) if one is state)
        del self.open[at]


class BatcherPair:
    """Send each event to both; compare decisions and visible state."""

    def __init__(
        self,
        config: BatcherSettings,
        instances: int,
        volume: int | None = None,
        *,
        gated: bool = False,
    ) -> None:
        self.config = config
        self.volume = None if volume is None else Volume(volume)
        self.gated = gated
        self.executions: Counter[int] = Counter()
        self.staged: set[int] = set()
        rank = self._rank if gated else None
        self.batcher = Batcher(config, instances, self.volume, gated=gated, rank=rank)
        self.oracle = BatcherOracle(config, instances, volume, rank)
        self.instances = set(range(instances))  # without the retiring ones
        self.retiring: set[int] = set()
        self.suspended: set[int] = set()
        self.added = instances
        self.now = 1_000
        self.tickets: list[Ticket] = []
        self.number: dict[Ticket, int] = {}
        self.waiting: dict[int, Ticket] = {}  # accepted, not started or rejected
        self.answered: set[int] = set()
        self.busy: dict[int, tuple[int, ...]] = {}
        self.reasons: set[str] = set()
        self.steps = 0
        self.last_started: dict[int, int] = {}  # level -> the highest number started in order

    # -- events ----------------------------------------------------------------------------------

    def submit(self, size: int, key: object, level: int, timeout: int, volume: int = 0) -> None:
        number, ticket = self._ticket(size, key, level, timeout, volume)
        self._compare(
            self.batcher.submit(self.now, ticket),
            self.oracle.submit(self.now, number, size, key, level, timeout, volume),
        )

    def submit_many(self, requests: Sequence[tuple[int, object, int, int, int]]) -> None:
        made = [(self._ticket(*request), request) for request in requests]
        self._compare(
            self.batcher.submit_many(self.now, [ticket for (_, ticket), _ in made]),
            self.oracle.submit_many(
                self.now, [(number, *request) for (number, _), request in made]
            ),
        )

    def _ticket(
        self, size: int, key: object, level: int, timeout: int, volume: int
    ) -> tuple[int, Ticket]:
        ticket = Ticket(size, key, level, timeout, correlation_id=volume)
        number = len(self.tickets)
        self.tickets.append(ticket)
        self.number[ticket] = number
        self.waiting[number] = ticket
        return number, ticket

    def _rank(self, instance: int) -> int:
        return self.executions[instance] * (1 + instance % 3)

    def grant(self, instance: int) -> None:
        self.staged.remove(instance)
        self._compare(
            self.batcher.granted(self.now, instance), self.oracle.granted(self.now, instance)
        )

    def finish(self, instance: int) -> None:
        self.answered.update(self.busy.pop(instance))
        self._compare(
            self.batcher.finish(self.now, instance), self.oracle.finish(self.now, instance)
        )

    def add_instance(self) -> None:
        number = self.added
        self.added += 1
        self.instances.add(number)
        self._compare(
            self.batcher.add_instance(self.now, number), self.oracle.add_instance(self.now, number)
        )

    def remove_instance(self, number: int) -> None:
        self.instances.remove(number)
        self.suspended.discard(number)
        self.retiring.add(number)
        self._compare(
            self.batcher.remove_instance(self.now, number),
            self.oracle.remove_instance(self.now, number, number in {*self.busy, *self.staged}),
        )

    def suspend(self, number: int) -> None:
        self._compare(
            self.batcher.suspend(self.now, number),
            self.oracle.suspend(number, number in {*self.busy, *self.staged}),
        )

    def resume(self, number: int) -> None:
        self.suspended.discard(number)
        self._compare(self.batcher.resume(self.now, number), self.oracle.resume(self.now, number))

    @property
    def running_well(self) -> list[int]:
        """The instances that can be lost."""
        return sorted(self.instances - self.suspended - self.oracle.lost)

    def cancel(self, number: int) -> None:
        before = self.tickets[number].state
        decisions = self.batcher.cancel(self.now, self.tickets[number])
        if before not in (TicketState.QUEUED, TicketState.DELAYED, TicketState.PENDING):
            assert decisions == []  # X2: in a payload, running or done
        self._compare(decisions, self.oracle.cancel(self.now, number))

    def cancel_formed(self, number: int) -> None:
        self._compare(
            self.batcher.cancel(self.now, self.tickets[number], formed=True),
            self.oracle.cancel_formed(self.now, number),
        )

    def tick(self) -> None:
        self._compare(self.batcher.tick(self.now), self.oracle.tick(self.now))

    def clear(self) -> None:
        self._compare(self.batcher.clear("UNAVAILABLE", "stopping"), self.oracle.clear())
        assert self.batcher.waiting == 0 or self.staged
        assert self.batcher.wake_at() is None

    def drain(self) -> None:
        """Run until nothing is left: each request is answered exactly once."""
        if not self.instances:
            self.add_instance()
        run_to_rest(self, 6 * len(self.tickets) + 10)
        assert not self.waiting
        assert not self.busy
        assert not self.staged
        assert not self.retiring
        assert len(self.answered) == len(self.tickets)
        assert self.volume is None or not self.volume.open

    # -- comparison ------------------------------------------------------------------------------

    def _compare(self, decisions, expected) -> None:
        self.steps += 1
        seen = []
        for decision in decisions:
            assert decision.reason in REASONS
            self.reasons.add(decision.reason)
            if isinstance(decision, RejectTicket):
                number = self.number[decision.ticket]
                assert decision.ticket.state is TicketState.DONE
                del self.waiting[number]  # fails if answered or started before
                self.answered.add(number)
                seen.append(("reject", number, decision.reason))
                continue
            if isinstance(decision, RetireInstance):
                assert decision.instance not in {*self.busy, *self.staged}
                self.retiring.remove(decision.instance)
                seen.append(("retire", decision.instance))
                continue
            if isinstance(decision, StageInstance):
                assert self.gated
                idle = self.instances - self.staged - self.busy.keys() - self.suspended
                assert decision.instance in idle
                self.staged.add(decision.instance)
                seen.append(("stage", decision.instance))
                continue
            if isinstance(decision, SuspendInstance):
                assert decision.instance not in {*self.busy, *self.staged, *self.suspended}
                self.suspended.add(decision.instance)
                seen.append(("suspend", decision.instance))
                continue
            if isinstance(decision, ReturnResources):
                seen.append(("return", decision.instance))
                continue
            numbers = tuple(self.number[ticket] for ticket in decision.tickets)
            assert decision.instance not in self.busy, "two batches on one instance"
            assert decision.instance not in self.suspended
            assert decision.instance in self.instances | self.retiring
            assert decision.size == sum(ticket.size for ticket in decision.tickets)
            assert decision.size <= max(1, self.config.max_batch_size)
            assert len({ticket.shape_key for ticket in decision.tickets}) == 1 or (
                not self.config.dynamic
            )
            if self.volume is not None and self.config.dynamic:
                assert sum(t.correlation_id for t in decision.tickets) <= self.volume.limit
            self.busy[decision.instance] = numbers
            self.executions[decision.instance] += 1
            for number, ticket in zip(numbers, decision.tickets, strict=True):
                assert ticket.state is TicketState.RUNNING
                del self.waiting[number]
                # DELAY moves a ticket behind; all others keep their order.
                if ticket.deadline_ns >= 0 and not self.gated:
                    assert number > self.last_started.get(ticket.priority, -1), "reordered"
                    self.last_started[ticket.priority] = number
            seen.append(("run", decision.instance, *numbers))
        assert seen == expected
        assert self.batcher.waiting == len(self.waiting) == self.oracle.waiting
        assert {self.number[one] for one in self.batcher.tickets()} == self.waiting.keys()
        wake = self.batcher.wake_at()
        assert wake == self.oracle.wake_at()
        queued = len(self.waiting) - sum(len(p.requests) for p in self.oracle.staged.values())
        if queued and self.instances - self.busy.keys() - self.staged - self.suspended:
            # Nothing starves: beside an idle instance, requests wait for a timer.
            assert wake is not None
            assert self.config.max_queue_delay_ns > 0


# -- random settings and events ------------------------------------------------------------------


def random_policy(random: Random) -> QueuePolicy:
    if random.random() < 0.4:
        return QueuePolicy()
    make = random.choice((reject, delay))
    return make(
        random.choice((0, 20, 200)) / 1e6,
        override=random.random() < 0.5,
        size=random.choice((0, 0, 1, 3, 10)),
    )


def random_settings(random: Random) -> BatcherSettings:
    size = random.choice((0, 1, 2, 4, 8, 8, 8, 16))
    if random.random() < 0.08:
        return BatcherSettings(max_batch_size=size)
    limit = max(1, size)
    preferred = tuple(sorted({random.randint(1, limit) for _ in range(random.randint(0, 3))}))
    levels = random.choice((0, 0, 0, 1, 4))
    plain = random.random() < 0.5
    return BatcherSettings(
        max_batch_size=size,
        dynamic=True,
        preferred=(preferred if size else ()) or ((size,) if size else ()),
        max_queue_delay_ns=random.choice((0, 0, 10, 100, 1000)),
        priority_levels=levels,
        default_policy=QueuePolicy() if plain else random_policy(random),
        level_policies={
            level: random_policy(random) for level in range(levels + 1) if random.random() < 0.5
        },
        hand_over_ns=random.choice((0, 5)),
    )


def random_request(random: Random, config: BatcherSettings, shapes: int) -> tuple:
    limit = max(1, config.max_batch_size)
    size = 1 if random.random() < 0.6 else random.randint(1, limit)
    level = random.randint(1, config.priority_levels) if config.priority_levels else 0
    timeout = random.choice((0, 0, 5, 50, 500))
    return (
        size,
        random.randrange(shapes) or None,
        level,
        timeout,
        random.choice((1, 2, 3, 5, 8, FAILS)),
    )


def random_volume(random: Random) -> int | None:
    return random.choice((None, None, None, 4, 12, 20, 40))
