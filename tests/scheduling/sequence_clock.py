"""Virtual clock for a `SequenceBatcher`: requests of sequences in, batches out.

The batcher is driven only by the calls of the engine. Times here are milliseconds from the start; the
batcher gets nanoseconds. A batch reads like ``"a1 . c1"``: rows in order, a dot for padding.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from nbtriton.scheduling import (
    REASONS,
    SEQUENCE_END,
    SEQUENCE_START,
    BatcherSettings,
    Decision,
    RejectTicket,
    RetireInstance,
    SequenceBatcher,
    SequenceSettings,
    SuspendInstance,
    Ticket,
)

MS = 1_000_000
_EPOCH = 5_000_000_321  # a monotonic clock starts anywhere
_FLAGS = {"S": SEQUENCE_START, "E": SEQUENCE_END}


def oldest(
    max_batch_size: int = 4, preferred: tuple[int, ...] = (), delay_ms: float = 0
) -> BatcherSettings:
    return BatcherSettings(
        max_batch_size=max_batch_size,
        dynamic=True,
        preferred=preferred or (max_batch_size,),
        max_queue_delay_ns=int(delay_ms * MS),
    )


class SequenceClock:
    """Run scheduled arrivals through a sequence batcher on a virtual clock."""

    def __init__(
        self,
        slots: int = 2,
        *,
        instances: int = 1,
        service_ms: float = 10,
        idle_ms: float = 1000,
        delay_ms: float = 0,
        utilization: float = 0,
        strategy: BatcherSettings | None = None,
        candidates: int = 0,
        iterative: bool = False,
        batching: bool = True,
    ) -> None:
        settings = SequenceSettings(
            model_name="m",
            max_batch_size=slots if batching else 0,
            idle_ns=int(idle_ms * MS),
            max_queue_delay_ns=int(delay_ms * MS),
            minimum_slot_utilization=utilization,
            oldest=strategy,
            max_candidate_sequences=candidates,
            iterative=iterative,
        )
        self.batcher = SequenceBatcher(settings, instances)
        self.now_ms = 0.0
        self.tickets: dict[str, Ticket] = {}
        self.ran: list[tuple[float, int, str]] = []  # when, on which instance, the rows
        self.reasons: list[str] = []
        self.queued_ms: dict[str, float] = {}
        self.rejected: list[tuple[float, str, str, str]] = []  # when, name, status, message
        self.retired: list[tuple[float, int]] = []  # when, which instance
        self.suspended: list[tuple[float, int]] = []  # when, which instance
        self._service_ms = service_ms
        self._passes: dict[Ticket, int] = {}
        self._names: dict[Ticket, str] = {}
        self._events: list[tuple[int, int, Callable[[int], list[Decision]]]] = []
        self._number = count()
        self._busy: set[int] = set()

    # -- schedule --------------------------------------------------------------------------------

    def at(self, at_ms: float, event: Callable[[int], list[Decision]]) -> None:
        heappush(self._events, (_EPOCH + round(at_ms * MS), next(self._number), event))

    def arrive(
        self,
        at_ms: float,
        name: str,
        flags: str = "",
        *,
        of: int | str | None = None,
        timeout_ms: float = 0,
        shape: object = None,
        size: int = 1,
        passes: int = 1,
    ) -> Ticket:
        """Schedule a request; its sequence is ``of``, by default the first letter of its name."""
        ticket = Ticket(
            size, shape, 0, int(timeout_ms * MS), name[0] if of is None else of,
            sum(_FLAGS[flag] for flag in flags),
        )  # fmt: skip
        self.tickets[name] = ticket
        self._names[ticket] = name
        self._passes[ticket] = passes
        self.at(at_ms, lambda now: self.batcher.submit(now, ticket))
        return ticket

    def cancel(self, at_ms: float, name: str) -> None:
        self.at(at_ms, lambda now: self.batcher.cancel(now, self.tickets[name]))

    def add_instance(self, at_ms: float, number: int) -> None:
        self.at(at_ms, lambda now: self.batcher.add_instance(now, number))

    def remove_instance(self, at_ms: float, number: int) -> None:
        self.at(at_ms, lambda now: self.batcher.remove_instance(now, number))

    def suspend(self, at_ms: float, number: int) -> None:
        self.at(at_ms, lambda now: self.batcher.suspend(now, number, "INTERNAL", "not healthy"))

    def resume(self, at_ms: float, number: int) -> None:
        self.at(at_ms, lambda now: self.batcher.resume(now, number))

    # -- running ---------------------------------------------------------------------------------

    def run(self, until_ms: float = float("inf")) -> SequenceClock:
        """Run until no event or timer is left, or until a time."""
        while True:
            wake = self.batcher.wake_at()
            event_at = self._events[0][0] if self._events else None
            now = min((at for at in (wake, event_at) if at is not None), default=None)
            if now is None or (now - _EPOCH) / MS > until_ms:
                return self
            self.now_ms = (now - _EPOCH) / MS
            if event_at == now:
                decisions = heappop(self._events)[2](now)
            else:
                decisions = self.batcher.tick(now)
                after = self.batcher.wake_at()
                assert after is None or after > now, "a tick must settle what it was called for"
            for decision in decisions:
                self._carry_out(now, decision)

    def _carry_out(self, now: int, decision: Decision) -> None:
        assert decision.reason in REASONS
        if isinstance(decision, RejectTicket):
            name = self._names[decision.ticket]
            self.rejected.append((self.now_ms, name, decision.status, decision.message))
            return
        if isinstance(decision, RetireInstance):
            self.retired.append((self.now_ms, decision.instance))
            return
        if isinstance(decision, SuspendInstance):
            assert decision.instance not in self._busy
            self.suspended.append((self.now_ms, decision.instance))
            return
        assert decision.instance not in self._busy, "two batches on one instance"
        self._busy.add(decision.instance)
        tickets = list(decision.tickets)
        names = [self._names[ticket] for ticket in tickets]
        if decision.rows:
            rows = dict(zip(decision.rows, names, strict=True))
            text = " ".join(rows.get(row, ".") for row in range(decision.size))
        else:
            text = " ".join(names)
        self.ran.append((self.now_ms, decision.instance, text))
        self.reasons.append(decision.reason)
        for name, ticket in zip(names, tickets, strict=True):
            self.queued_ms[name] = (now - ticket.enqueued_ns) / MS

        def finish(later: int) -> list[Decision]:
            self._busy.discard(decision.instance)
            for ticket in tickets:
                self._passes[ticket] -= 1
            again = [ticket for ticket in tickets if self._passes[ticket] > 0]
            return self.batcher.finish(later, decision.instance, tickets, again)

        self.at(self.now_ms + self._service_ms, finish)

    # -- results ---------------------------------------------------------------------------------

    @property
    def batches(self) -> list[str]:
        return [text for _, _, text in self.ran]

    @property
    def timed(self) -> list[tuple[float, str]]:
        return [(at_ms, text) for at_ms, _, text in self.ran]

    @property
    def where(self) -> dict[str, int]:
        """The instance that ran each request last."""
        return {name: k for _, k, text in self.ran for name in text.split() if name != "."}
