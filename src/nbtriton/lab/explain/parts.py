"""The time of requests: its parts, the slowest requests compared with the median, and those that are inside now."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nbtriton.drawing.numbers import counted, lasting, measure
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
_LONG_WAIT_NS: Final = 10_000_000


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
        return dict.fromkeys(PARTS, 0) | {"queue": waited, "elsewhere": total - waited}
    enqueued = request.enqueued_ns or request.arrival_ns
    wait = max(0, batch.formed_ns - enqueued)
    idle = 0 if busy is None else max(0, wait - busy.within(enqueued, batch.formed_ns))
    delay = min(idle, delay_ns)
    absent = idle - delay if idle - delay >= _LONG_WAIT_NS else 0
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
    parts: Counter[str] = Counter()
    left = request.answered_ns - request.arrival_ns
    for step in critical_path(request, children):
        times, delay_ns = busy.get(step.model, (None, 0))
        for part, ns in parts_of(step, times, delay_ns=delay_ns).items():
            if part != "elsewhere":
                parts[f"{step.model}: {part}"] += ns
                left -= ns
    return {**parts, "elsewhere": max(0, left)}


# The least number of requests with a slowest hundredth.
_FEWEST = 20


@dataclass(frozen=True, slots=True)
class SlowRequests:
    """The slowest hundredth of the requests, at least one, compared with the fifth around the median.

    Attributes
    ----------
    count : int
        Number of slow requests.
    median_us, slow_us : mapping of str to float
        Mean microseconds by part, around the median and of the slow requests; the sum is the latency.
    examples : tuple of RequestRecord
        The three slowest.
    """

    count: int
    median_us: Mapping[str, float]
    slow_us: Mapping[str, float]
    examples: tuple[RequestRecord, ...]

    @property
    def more_us(self) -> dict[str, float]:
        """The difference between slow and median requests by part, the largest first."""
        differences = {
            part: us - self.median_us.get(part, 0.0) for part, us in self.slow_us.items()
        }
        return dict(sorted(differences.items(), key=lambda item: -item[1]))

    @property
    def sentence(self) -> str:
        """The part with the largest difference."""
        median, slow = sum(self.median_us.values()), sum(self.slow_us.values())
        more = slow - median
        part, us = next(iter(self.more_us.items()))
        # One is more than a hundredth of fewer than a hundred.
        those = "request" if self.count == 1 else f"1% ({self.count} requests)"
        text = f"the slowest {those} took {time_text(slow)}, a median one {time_text(median)}: "
        # Where another part is shorter, a single part may exceed the whole difference.
        if us > more:
            return f"{text}{part} alone is {time_text(us)} longer"
        return f"{text}of the {time_text(more)} more, {time_text(us)} are {part}"


def compare_slowest(
    requests: Sequence[RequestRecord], parts: Callable[[RequestRecord], Mapping[str, int]]
) -> SlowRequests | None:
    """Compare the slowest requests with the median; return None for too few requests.

    Parameters
    ----------
    requests : sequence of RequestRecord
        Without failed ones.
    parts : callable
        Returns the nanoseconds of a request by part.
    """
    if len(requests) < _FEWEST:
        return None
    ordered = sorted(requests, key=lambda request: request.answered_ns - request.arrival_ns)
    count = max(1, len(ordered) // 100)
    slow = ordered[-count:]
    middle = ordered[int(len(ordered) * 0.4) : max(int(len(ordered) * 0.6), 1)]
    return SlowRequests(count, _means(middle, parts), _means(slow, parts), tuple(ordered[:-4:-1]))


def _means(
    requests: Sequence[RequestRecord], parts: Callable[[RequestRecord], Mapping[str, int]]
) -> dict[str, float]:
    sums: Counter[str] = Counter()
    for request in requests:
        sums.update(parts(request))
    return {part: ns / len(requests) / 1e3 for part, ns in sums.items()}


def time_text(us: float) -> str:
    """Format microseconds, from 1000 on as milliseconds."""
    return f"{measure(us / 1e3)} ms" if abs(us) >= 1000 else f"{measure(us)} µs"


# A request that is inside for less is no news.
_LONG_NS: Final = 1_000_000_000


def inside_sentence(name: str, in_flight: Iterable[RequestRecord], now_ns: int) -> str:
    """Say what the requests to a model do that are inside it, those to an ensemble by its steps.

    Parameters
    ----------
    name : str
    in_flight : iterable of RequestRecord
        Of all models, as `nbtriton.Server.in_flight` returns them.
    now_ns : int

    Returns
    -------
    str
        Such as ``"2 requests are inside: 1 has run for 28 s on slow_0, 1 has waited for 28 s"``; empty
        without any.
    """
    inside = list(in_flight)
    own = [request for request in inside if request.model == name]
    if not own:
        return ""
    steps = children_of(inside)
    groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for request in own:
        step = request if request.batch is not None else _last_step(request, steps)
        place = step.model if step is not request else ""
        doing, since_ns = _doing(step)
        instance = step.batch.instance if step.batch is not None else ""
        groups.setdefault((doing, place), []).append((now_ns - since_ns, instance))
    parts = [_part(doing, place, groups[doing, place]) for doing, place in sorted(groups)]
    verb = "is" if len(own) == 1 else "are"
    return f"{counted(len(own), 'request')} {verb} inside: {', '.join(parts)}"


def is_long(
    name: str, in_flight: Iterable[RequestRecord], answered: Sequence[RequestRecord], now_ns: int
) -> bool:
    """Return whether a request is inside a model for longer than any took that was answered, and 1 s."""
    oldest_ns = min((one.arrival_ns for one in in_flight if one.model == name), default=now_ns)
    longest_ns = max((one.answered_ns - one.arrival_ns for one in answered), default=0)
    return now_ns - oldest_ns > max(_LONG_NS, longest_ns)


def _last_step(
    request: RequestRecord, steps: Mapping[int, Sequence[RequestRecord]]
) -> RequestRecord:
    """Return the step that a request to an ensemble has been in for longest, itself between its steps."""
    while request.batch is None and steps.get(request.number):
        request = min(steps[request.number], key=lambda one: one.arrival_ns)
    return request


def _doing(request: RequestRecord) -> tuple[str, int]:
    """Return what a request does, and since when."""
    batch = request.batch
    if batch is None:
        return "wait", request.arrival_ns
    return ("answer", batch.end_ns) if batch.end_ns else ("run", batch.start_ns)


def _part(doing: str, place: str, those: Sequence[tuple[int, str]]) -> str:
    ns, instance = max(those)
    where = f" in {place}" if place else ""
    on = f" on {instance}" if instance and doing == "run" else ""
    if len(those) == 1:
        done = {"run": "run", "wait": "waited", "answer": "been computed and not answered"}[doing]
        return f"1 has {done}{where} for {lasting(ns / 1e6)}{on}"
    verb = {"run": "run", "wait": "wait", "answer": "are computed and not answered"}[doing]
    return f"{len(those)} {verb}{where}, the longest for {lasting(ns / 1e6)}{on}"
