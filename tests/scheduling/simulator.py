"""Virtual clock for a `Batcher`: arrivals and service times in, executed batches out.

The batcher is driven only by the calls of the engine: submit, finish, cancel, tick and wake_at. Times
here are milliseconds from the start; the batcher gets nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from nbtriton.scheduling import (
    REASONS,
    Batcher,
    BatcherSettings,
    Decision,
    QueuePolicy,
    RejectTicket,
    RetireInstance,
    RunBatch,
    SuspendInstance,
    Ticket,
    TimeoutAction,
)

MS = 1_000_000
# A monotonic clock starts anywhere.
_EPOCH = 7_000_000_123


def settings(
    max_batch_size: int = 8,
    preferred: tuple[int, ...] = (),
    delay_ms: float = 0,
    *,
    levels: int = 0,
    policy: QueuePolicy | None = None,
    policies: dict[int, QueuePolicy] | None = None,
    ahead: bool = True,
) -> BatcherSettings:
    """Return settings as the engine makes them; ``ahead=False`` forms no batch ahead of time."""
    if policy is None:
        # A limit that no test reaches only turns forming ahead off (Q10).
        policy = QueuePolicy() if ahead else QueuePolicy(max_queue_size=1_000_000)
    return BatcherSettings(
        max_batch_size=max_batch_size,
        dynamic=True,
        preferred=preferred or ((max_batch_size,) if max_batch_size else ()),
        max_queue_delay_ns=int(delay_ms * MS),
        priority_levels=levels,
        default_policy=policy,
        level_policies=policies or {},
    )


def reject(timeout_ms: float = 0, *, override: bool = False, size: int = 0) -> QueuePolicy:
    """Return a policy that rejects requests which waited too long."""
    return QueuePolicy(TimeoutAction.REJECT, int(timeout_ms * MS), override, size)


def delay(timeout_ms: float = 0, *, override: bool = False, size: int = 0) -> QueuePolicy:
    """Return a policy that serves requests which waited too long after the others."""
    return QueuePolicy(TimeoutAction.DELAY, int(timeout_ms * MS), override, size)


@dataclass(frozen=True)
class Execution:
    """One executed batch."""

    at_ms: float
    instance: int
    tickets: tuple[Ticket, ...]
    reason: str

    @property
    def sizes(self) -> list[int]:
        return [ticket.size for ticket in self.tickets]


class Simulator:
    """Run scheduled arrivals through a batcher on a virtual clock."""

    def __init__(
        self,
        config: BatcherSettings,
        *,
        instances: int = 1,
        service_ms: float | Callable[[RunBatch], float] = 1.0,
    ) -> None:
        self.batcher = Batcher(config, instances)
        self.config = config
        self.instances = instances
        self.executed: list[Execution] = []
        self.rejected: list[tuple[float, RejectTicket]] = []
        self.retired: list[tuple[float, int, str]] = []  # when, which instance, why
        self.suspended: list[tuple[float, int, str]] = []  # when, which instance, why
        self._service = service_ms if callable(service_ms) else lambda _: service_ms
        self._events: list[tuple[int, int, Callable[[int], list[Decision]]]] = []
        self._number = count()
        self._busy: dict[int, int] = {}
        self._names: dict[Ticket, str] = {}
        self._blockers: dict[Ticket, float] = {}

    # -- schedule --------------------------------------------------------------------------------

    def at(self, at_ms: float, event: Callable[[int], list[Decision]]) -> None:
        """Schedule an event; events of the same time keep the order of these calls."""
        moment = _EPOCH + round(at_ms * MS)
        heappush(self._events, (moment, next(self._number), event))

    def arrive(self, at_ms: float, size: int = 1, name: str = "", **ticket: object) -> Ticket:
        """Schedule the arrival of a request."""
        arriving = Ticket(size, **ticket)  # type: ignore[arg-type]
        self._names[arriving] = name
        self.at(at_ms, lambda now: self.batcher.submit(now, arriving))
        return arriving

    def arrive_all(self, sizes: list[int], *, start_ms: float = 0, gap_ms: float = 1) -> None:
        """Schedule requests of these sizes one by one."""
        for index, size in enumerate(sizes):
            self.arrive(start_ms + index * gap_ms, size)

    def cancel(self, at_ms: float, ticket: Ticket) -> None:
        """Schedule a cancellation."""
        self.at(at_ms, lambda now: self.batcher.cancel(now, ticket))

    def add_instance(self, at_ms: float, number: int) -> None:
        """Schedule an additional instance."""
        self.at(at_ms, lambda now: self.batcher.add_instance(now, number))

    def remove_instance(self, at_ms: float, number: int) -> None:
        """Schedule the removal of an instance."""
        self.at(at_ms, lambda now: self.batcher.remove_instance(now, number))

    def suspend(self, at_ms: float, number: int) -> None:
        """Schedule the loss of an instance."""
        self.at(at_ms, lambda now: self.batcher.suspend(now, number))

    def resume(self, at_ms: float, number: int) -> None:
        """Schedule the recovery of a suspended instance."""
        self.at(at_ms, lambda now: self.batcher.resume(now, number))

    def occupy(self, *for_ms: float) -> None:
        """Keep one instance per given time busy from the start, with a full batch each."""
        for duration in for_ms:
            blocker = Ticket(max(1, self.config.max_batch_size), shape_key="blocker")
            blocker.priority = 1 if self.config.priority_levels else 0
            self._blockers[blocker] = duration
            self.at(0, lambda now, ticket=blocker: self.batcher.submit(now, ticket))

    # -- running ---------------------------------------------------------------------------------

    def run(self, until_ms: float = float("inf")) -> Simulator:
        """Run until no event or timer is left, or until a time."""
        while True:
            wake = self.batcher.wake_at()
            event_at = self._events[0][0] if self._events else None
            now = min((at for at in (wake, event_at) if at is not None), default=None)
            if now is None or (now - _EPOCH) / MS > until_ms:
                return self
            if event_at == now:  # before the timer of the same time: timers are late
                decisions = heappop(self._events)[2](now)
            else:
                decisions = self.batcher.tick(now)
                after = self.batcher.wake_at()
                assert after is None or after > now, "a tick must settle what it was called for"
            for decision in decisions:
                self._carry_out(now, decision)

    def _carry_out(self, now: int, decision: Decision) -> None:
        at_ms = (now - _EPOCH) / MS
        assert decision.reason in REASONS
        if isinstance(decision, RejectTicket):
            self.rejected.append((at_ms, decision))
            return
        if isinstance(decision, RetireInstance):
            self.retired.append((at_ms, decision.instance, decision.reason))
            return
        if isinstance(decision, SuspendInstance):
            assert decision.instance not in self._busy
            self.suspended.append((at_ms, decision.instance, decision.reason))
            return
        assert decision.instance not in self._busy, "two batches on one instance"
        assert decision.size == sum(ticket.size for ticket in decision.tickets)
        self._busy[decision.instance] = now
        if decision.tickets[0] in self._blockers:
            duration = self._blockers[decision.tickets[0]]
        else:
            duration = self._service(decision)
            self.executed.append(
                Execution(at_ms, decision.instance, tuple(decision.tickets), decision.reason)
            )

        def finish(later: int, instance: int = decision.instance) -> list[Decision]:
            del self._busy[instance]
            return self.batcher.finish(later, instance)

        self.at(at_ms + duration, finish)

    # -- results ---------------------------------------------------------------------------------

    @property
    def sizes(self) -> list[list[int]]:
        """Sizes of the requests of every executed batch."""
        return [execution.sizes for execution in self.executed]

    @property
    def names(self) -> list[str]:
        """Names of the requests of every executed batch, joined."""
        return ["".join(self._names[one] for one in each.tickets) for each in self.executed]

    @property
    def times(self) -> list[float]:
        """Start of every executed batch in milliseconds."""
        return [execution.at_ms for execution in self.executed]

    @property
    def reasons(self) -> list[str]:
        """Reason of every executed batch."""
        return [execution.reason for execution in self.executed]

    @property
    def rejections(self) -> list[tuple[float, str, str, str]]:
        """Time, name, status and reason of every rejected request."""
        return [
            (at_ms, self._names[rejection.ticket], rejection.status, rejection.reason)
            for at_ms, rejection in self.rejected
        ]
