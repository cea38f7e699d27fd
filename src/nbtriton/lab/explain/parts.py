"""The parts of a request's time: queues, a batching delay, executions, the rest."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from nbtriton.runtime.engine import BatchRecord, RequestRecord

PARTS: Final = {
    "queue": "waited while all instances were busy",
    "delay": "waited for more requests while an instance was idle",
    "no instance": "waited though no batch ran and no delay held it back: an instance was lost, restarted or replaced, "
    "or the machine was busy with something else",
    "hand-over": "waited for the instance's thread and the interpreter",
    "execution": "in the model's execution",
    "elsewhere": "checks, dataflow, and the way of the response",
}
"""The parts of a request's time, with their meanings."""
# Threads wake up and schedulers look within this time; a longer wait beside an idle instance has another cause.
_LONG_NS: Final = 10_000_000


class BusyTimes:
    """The times at which all instances of a model were busy simultaneously.

    Parameters
    ----------
    batches : sequence of BatchRecord
    instances : int
    """

    def __init__(self, batches: Sequence[BatchRecord], instances: int) -> None:
        # An instance is busy from the moment when it gets a batch.
        changes = sorted(
            change
            for batch in batches
            for change in ((batch.formed_ns or batch.start_ns, 1), (batch.end_ns, -1))
        )
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._before: list[int] = []  # busy time before each interval
        running = total = begin = 0
        for time_ns, change in changes:
            was, running = running, running + change
            if was < instances <= running:
                begin = time_ns
            elif running < instances <= was and time_ns > begin:
                self._begins.append(begin)
                self._ends.append(time_ns)
                self._before.append(total)
                total += time_ns - begin

    def within(self, begin_ns: int, end_ns: int) -> int:
        """Return for how long all instances were busy between two times."""
        return max(0, self._until(end_ns) - self._until(begin_ns))

    def _until(self, at_ns: int) -> int:
        place = bisect_right(self._begins, at_ns) - 1
        if place < 0:
            return 0
        return self._before[place] + min(at_ns, self._ends[place]) - self._begins[place]


def parts_of(
    request: RequestRecord, busy: BusyTimes | None, *, delay_ns: int = 0
) -> dict[str, int]:
    """Return the nanoseconds of a request by part; the sum is its latency.

    Parameters
    ----------
    request : RequestRecord
    busy : BusyTimes or None
        Of its model; with None all waiting counts as queue.
    delay_ns : int
        The queue delay of its model: no request waits for longer because of it.
    """
    total = request.answered_ns - request.arrival_ns
    batch = request.batch
    if batch is None:
        waited = total if request.status else 0
        return {
            "queue": waited,
            "delay": 0,
            "no instance": 0,
            "hand-over": 0,
            "execution": 0,
            "elsewhere": total - waited,
        }
    enqueued = request.enqueued_ns or request.arrival_ns
    wait = max(0, batch.formed_ns - enqueued)
    idle = 0 if busy is None else max(0, wait - busy.within(enqueued, batch.formed_ns))
    delay = min(idle, delay_ns)
    absent = idle - delay if idle - delay >= _LONG_NS else 0
    hand_over = max(0, batch.start_ns - batch.formed_ns)
    execution = max(0, min(batch.end_ns, request.answered_ns) - batch.start_ns)
    return {
        "queue": wait - delay - absent,
        "delay": delay,
        "no instance": absent,
        "hand-over": hand_over,
        "execution": execution,
        "elsewhere": total - wait - hand_over - execution,
    }


def children_of(requests: Iterable[RequestRecord]) -> dict[int, list[RequestRecord]]:
    """Return the requests that each request led to, by its number."""
    children: dict[int, list[RequestRecord]] = {}
    for request in requests:
        if request.caller:
            children.setdefault(request.caller, []).append(request)
    return children


def critical_path(
    request: RequestRecord, children: Mapping[int, Sequence[RequestRecord]]
) -> list[RequestRecord]:
    """Return the chain of steps that a request to an ensemble waited for.

    Of parallel steps it contains the one that ended last; nested ensembles are expanded.
    """
    steps = sorted(children.get(request.number, ()), key=lambda step: step.answered_ns)
    path: list[RequestRecord] = []
    before = request.answered_ns
    while steps:
        step = steps.pop()
        if step.answered_ns > before:
            continue
        inner = critical_path(step, children) if step.batch is None else []
        path[:0] = inner or [step]
        before = step.arrival_ns
    return path


def path_parts(
    request: RequestRecord,
    children: Mapping[int, Sequence[RequestRecord]],
    busy: Mapping[str, tuple[BusyTimes, int]],
) -> dict[str, int]:
    """Return the nanoseconds of a request to an ensemble, by step and part.

    Keys are such as ``"classify: queue"``; ``"elsewhere"`` is time outside of all steps.
    """
    parts: dict[str, int] = {}
    left = request.answered_ns - request.arrival_ns
    for step in critical_path(request, children):
        times, delay_ns = busy.get(step.model, (None, 0))
        for part, ns in parts_of(step, times, delay_ns=delay_ns).items():
            if part == "elsewhere":
                continue
            parts[f"{step.model}: {part}"] = parts.get(f"{step.model}: {part}", 0) + ns
            left -= ns
    return {**parts, "elsewhere": max(0, left)}
