"""The times of requests, recorded while a load runs and cut into windows.

Times are `time.monotonic_ns`. Each slot holds one request at a time and owns its buffers, so that no locks
are needed.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from nbtriton.lab.perf.traffic import Call
from nbtriton.lab.perf.windows import StreamWindow, Window

if TYPE_CHECKING:
    from nbtriton.lab.perf.remote import Pending


class Slot:
    """One request in flight, and the times of earlier ones."""

    __slots__ = (
        "call", "callback", "collected", "end_ns", "lane", "late_ns", "latency_ns", "lateness_ns",
        "pending", "sequence_end_ns", "start_ns", "stream",
    )  # fmt: skip

    def __init__(self, lane: int = 0) -> None:
        self.callback: Callable[[Pending], None] | None = None
        self.lane = lane
        self.call: Call | None = None
        self.stream: StreamRecord | None = None
        self.start_ns = 0
        self.late_ns = 0
        self.pending: Pending | None = None
        self.latency_ns = array("q")
        self.lateness_ns = array("q")
        # Ends of the last requests of sequences.
        self.sequence_end_ns = array("q")
        # Written last: its length is the number of complete entries.
        self.end_ns = array("q")
        # Entries that belong to earlier windows.
        self.collected = 0

    def record_success(self, end_ns: int) -> None:
        """Record the success of this slot's request."""
        call = self.call
        if call is not None:
            if call.closing:
                return
            if call.ends:
                self.sequence_end_ns.append(end_ns)
        if self.stream is not None:
            self.stream.record_request(self.start_ns)
            # PA3: up to the last response with outputs.
            end_ns = self.stream.last_ns or end_ns
        self.latency_ns.append(end_ns - self.start_ns)
        self.lateness_ns.append(self.late_ns)
        self.end_ns.append(end_ns)


class StreamRecord:
    """The times of the responses to a slot's requests."""

    __slots__ = ("between_ns", "collected", "counts", "first_ns", "last_ns", "now_ns")

    def __init__(self) -> None:
        self.now_ns = array("q")  # of the request in flight
        self.last_ns = 0
        self.first_ns = array("q")  # one per request, -1 for one without responses
        self.counts = array("q")  # responses, one per request
        self.between_ns = array("q")  # of all requests, one after the other
        self.collected = 0  # gaps that belong to earlier windows

    def begin(self) -> None:
        """Discard the responses to a request that failed before its end."""
        self.now_ns = array("q")

    def record_request(self, start_ns: int) -> None:
        """Record the responses to a successful request."""
        times = self.now_ns
        self.last_ns = times[-1] if times else 0
        self.first_ns.append(times[0] - start_ns if times else -1)
        self.between_ns.extend(later - earlier for earlier, later in itertools.pairwise(times))
        self.counts.append(len(times))

    def collect(self, first: int, last: int) -> tuple[list[int], list[int], int]:
        """Return times to the first response and between responses, and their number, of some requests."""
        counts = self.counts[first:last]
        gaps = sum(max(0, count - 1) for count in counts)
        between = self.between_ns[self.collected : self.collected + gaps]
        self.collected += gaps
        firsts = [ns for ns in self.first_ns[first:last] if ns >= 0]
        return firsts, list(between), sum(counts)


def collect(
    slots: Sequence[Slot], errors: deque[tuple[int, str]], start_ns: int, end_ns: int
) -> Window:
    """Cut the window from `start_ns` to `end_ns`: requests ended by then, each in one window (PA3)."""
    latencies, lateness = [], []
    streams = []
    sequences = 0
    for slot in slots:
        while slot.sequence_end_ns and slot.sequence_end_ns[0] <= end_ns:
            slot.sequence_end_ns.pop(0)
            sequences += 1
        first = slot.collected
        slot.collected = last = bisect_right(slot.end_ns, end_ns, first)
        latencies.append(slot.latency_ns[first:last])
        lateness.append(slot.lateness_ns[first:last])
        if slot.stream is not None:
            streams.append(slot.stream.collect(first, last))
    failed: list[str] = []
    while errors and errors[0][0] <= end_ns:
        failed.append(errors.popleft()[1])
    return Window(
        start_ns=start_ns,
        end_ns=end_ns,
        latencies_ns=_joined(latencies),
        lateness_ns=_joined(lateness),
        errors=len(failed),
        first_error=failed[0] if failed else "",
        sequences=sequences,
        stream=StreamWindow(
            responses=sum(count for _, _, count in streams),
            first_ns=_joined([firsts for firsts, _, _ in streams]),
            between_ns=_joined([gaps for _, gaps, _ in streams]),
        )
        if streams
        else None,
    )


def _joined(parts: Iterable[Iterable[int]]) -> Sequence[int]:
    return array("q", itertools.chain.from_iterable(parts))
