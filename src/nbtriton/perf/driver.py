"""Load: who sends the next request, and when; what ended, and after how long.

A closed loop has no thread per request: the thread that finishes a request sends the next one. A
request may also complete inside `submit`; then its successor is handed to the loop's own thread,
so that nothing recurses and no instance's thread is kept from its other answers.

Times are `time.monotonic_ns`. Each slot holds one request at a time and owns its buffers, so
nothing is locked while load runs.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from nbtriton.engine.interrupts import wait_in_slices
from nbtriton.perf.loads import Concurrency, Load, RequestIntervals, RequestRate, send_times_ns
from nbtriton.perf.traffic import Call, Traffic
from nbtriton.perf.windows import StreamWindow, Window

if TYPE_CHECKING:
    from nbtriton.perf.remote import Pending, Target

__all__ = ["LoadRun", "Slot", "collect", "make_load"]

# Open loop: a server that falls behind by so many requests will not catch up within a window;
# beyond it only the memory of waiting requests would grow. Later sends count as delayed.
MAX_OUTSTANDING = 4096
# How long requests that are under way may take to end by themselves before they are cancelled.
# Half of the second within which an interrupt must have stopped everything.
GRACE_S = 0.5


class Slot:
    """One request at a time, and what became of those before it."""

    __slots__ = (
        "call", "callback", "end_ns", "future", "lane", "late_ns", "latency_ns", "lateness_ns",
        "sequence_end_ns", "start_ns", "stream", "taken",
    )  # fmt: skip

    def __init__(self, lane: int = 0) -> None:
        self.callback: Callable[[Pending], None] | None = None
        self.lane = lane
        self.call: Call | None = None
        self.stream: StreamRecord | None = None
        self.start_ns = 0
        self.late_ns = 0
        self.future: Pending | None = None
        self.latency_ns = array("q")
        self.lateness_ns = array("q")
        # When requests ended that were the last of a sequence.
        self.sequence_end_ns = array("q")
        # Written last: its length is the number of complete entries.
        self.end_ns = array("q")
        self.taken = 0

    def succeeded(self, end_ns: int) -> None:
        """Record that the request of this slot ended well."""
        call = self.call
        if call is not None:
            if call.closing:
                return
            if call.ends:
                self.sequence_end_ns.append(end_ns)
        if self.stream is not None:
            self.stream.ended(self.start_ns)
            # PA3: up to the last response that says something.
            end_ns = self.stream.last_ns or end_ns
        self.latency_ns.append(end_ns - self.start_ns)
        self.lateness_ns.append(self.late_ns)
        self.end_ns.append(end_ns)


class StreamRecord:
    """When the responses of a slot's requests came."""

    __slots__ = ("between_ns", "counts", "first_ns", "gaps_taken", "last_ns", "now_ns")

    def __init__(self) -> None:
        self.now_ns = array("q")  # those of the request under way
        self.last_ns = 0
        self.first_ns = array("q")  # one a request, -1 for one without any
        self.counts = array("q")  # responses, one a request
        self.between_ns = array("q")  # of all requests, one after the other
        self.gaps_taken = 0

    def begin(self) -> None:
        """Forget a request that failed half-way."""
        self.now_ns = array("q")

    def ended(self, start_ns: int) -> None:
        """Record what came of a request that ended well."""
        came = self.now_ns
        self.last_ns = came[-1] if came else 0
        self.first_ns.append(came[0] - start_ns if came else -1)
        self.between_ns.extend(later - earlier for earlier, later in itertools.pairwise(came))
        self.counts.append(len(came))

    def take(self, first: int, last: int) -> tuple[list[int], list[int], int]:
        """Return times to the first response, between responses, and their number, of requests."""
        counts = self.counts[first:last]
        gaps = sum(max(0, count - 1) for count in counts)
        between = self.between_ns[self.gaps_taken : self.gaps_taken + gaps]
        self.gaps_taken += gaps
        firsts = [ns for ns in self.first_ns[first:last] if ns >= 0]
        return firsts, list(between), sum(counts)


def collect(
    slots: Sequence[Slot], errors: deque[tuple[int, str]], start_ns: int, end_ns: int
) -> Window:
    """Cut the window from `start_ns` to `end_ns`: what ended in it and was not taken yet (PA3)."""
    latencies, lateness = [], []
    streams = []
    sequences = 0
    for slot in slots:
        while slot.sequence_end_ns and slot.sequence_end_ns[0] <= end_ns:
            slot.sequence_end_ns.pop(0)
            sequences += 1
        first, last = slot.taken, len(slot.end_ns)
        # A copy: an exported buffer would keep the array from growing.
        ends = np.frombuffer(slot.end_ns[first:last], np.int64)
        last = first + int(np.searchsorted(ends, end_ns, "right"))
        slot.taken = last
        latencies.append(np.frombuffer(slot.latency_ns[first:last], np.int64))
        lateness.append(np.frombuffer(slot.lateness_ns[first:last], np.int64))
        if slot.stream is not None:
            streams.append(slot.stream.take(first, last))
    failed: list[str] = []
    while errors and errors[0][0] <= end_ns:
        failed.append(errors.popleft()[1])
    return Window(
        start_ns=start_ns,
        end_ns=end_ns,
        latencies_ns=np.concatenate(latencies) if latencies else np.empty(0, np.int64),
        lateness_ns=np.concatenate(lateness) if lateness else np.empty(0, np.int64),
        errors=len(failed),
        first_error=failed[0] if failed else "",
        sequences=sequences,
        stream=StreamWindow(
            responses=sum(count for _, _, count in streams),
            first_ns=np.array([ns for firsts, _, _ in streams for ns in firsts], np.int64),
            between_ns=np.array([ns for _, gaps, _ in streams for ns in gaps], np.int64),
        )
        if streams
        else None,
    )


class LoadRun(ABC):
    """A load that runs until it is stopped, or until `limit` requests are through.

    Parameters
    ----------
    server : Server or RemoteServer
    model : str
    traffic : Traffic
        What is sent.
    limit : int
        Requests to send in all; 0 for no limit.
    """

    def __init__(self, server: Target, model: str, traffic: Traffic, limit: int) -> None:
        self.finished = threading.Event()
        self._server = server
        self._model = model
        self._traffic = traffic
        tickets: Iterator[int] = iter(range(limit)) if limit else itertools.count()
        # The next request's number; taking it is atomic, whichever threads ask.
        self._tickets = tickets
        self._stopping = False
        self._cancelled = False
        self._slots: list[Slot] = []
        self._errors: deque[tuple[int, str]] = deque()
        self._thread = threading.Thread(target=self._run, name="nbtriton-perf", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def take(self, start_ns: int, end_ns: int) -> Window:
        """Return the window between two moments; each request is in one window only."""
        return collect(self._slots, self._errors, start_ns, end_ns)

    def completed(self) -> int:
        """How many requests have ended since the start, well or not."""
        return sum(len(slot.end_ns) for slot in self._slots) + len(self._errors)

    def span_ns(self) -> tuple[int, int] | None:
        """Return the first start and the last end of successful requests, None without any."""
        used = [slot for slot in self._slots if slot.end_ns]
        if not used:
            return None
        first = min(slot.end_ns[0] - slot.latency_ns[0] for slot in used)
        return first, max(slot.end_ns[-1] for slot in used)

    def stop(self) -> None:
        """Send nothing more, let what is under way end, cancel what takes too long, and return.

        Returns once nothing of this load is left. A request that blocks its sender (one caller at
        a time) cannot be cancelled; it is waited for. A KeyboardInterrupt cancels at once and is
        raised.
        """
        self._stopping = True
        self._wake()
        if not self._thread.is_alive():
            return
        try:
            ended = wait_in_slices(self.finished.wait, GRACE_S)
        except KeyboardInterrupt:
            self._cancel()
            raise
        if not ended:
            self._cancel()
            wait_in_slices(self.finished.wait, None)
        self._thread.join()

    def _failed(self, slot: Slot, end_ns: int, error: BaseException) -> None:
        if slot.call is None or not slot.call.closing:
            self._errors.append((end_ns, str(error)))

    def _cancel(self) -> None:
        self._cancelled = True
        for slot in list(self._slots):
            if slot.future is not None:
                slot.future.cancel()

    @abstractmethod
    def _run(self) -> None: ...

    def _wake(self) -> None:
        """Tell a sender that waits for its next due time to look at `_stopping`."""

    def _next(self, lane: int) -> Call | None:
        """Return the next request of a lane, None when no more are to be sent."""
        ticket = None if self._stopping else next(self._tickets, None)
        return self._closing(lane) if ticket is None else self._traffic.next(lane, ticket)

    def _closing(self, lane: int) -> Call | None:
        """Return what ends a lane's sequence, None once nothing is waited for any more."""
        return None if self._cancelled else self._traffic.closing(lane)


class OneCaller(LoadRun):
    """Concurrency 1: a thread that calls ``infer`` and waits, as a synchronous client does."""

    def _run(self) -> None:
        slot = Slot()
        self._slots.append(slot)
        infer, model, now = self._server.infer, self._model, monotonic_ns
        while (call := self._next(0)) is not None:
            slot.call = call
            slot.start_ns = now()
            try:
                infer(model, call.inputs, **call.options)
            except Exception as error:
                self._failed(slot, now(), error)
            else:
                slot.succeeded(now())
        self.finished.set()


class _Submitting(LoadRun):
    """What the two loads over ``submit`` share: sending, and hearing of the end."""

    def __init__(
        self, server: Target, model: str, traffic: Traffic, limit: int, *, streaming: bool
    ) -> None:
        super().__init__(server, model, traffic, limit)
        self._local = threading.local()
        self._streaming = streaming

    def _send(self, slot: Slot, call: Call) -> None:
        slot.call = call
        hear = listen = None
        if self._streaming:
            hear, listen = self._listeners(slot)
        self._local.sending = True
        slot.start_ns = monotonic_ns()
        try:
            slot.future = future = self._server.submit(
                self._model, call.inputs, on_response=hear, **call.options
            )
        except Exception as error:
            self._failed(slot, monotonic_ns(), error)
            self._free(slot, inline=True)
        else:
            then = listen or slot.callback
            assert then is not None
            future.add_done_callback(then)
            if self._cancelled:  # it came too late to be cancelled with the others
                future.cancel()
        finally:
            self._local.sending = False

    def _listeners(
        self, slot: Slot
    ) -> tuple[Callable[[Any, bool], None], Callable[[Pending], None]]:
        """Return what hears of each response to the next request of a slot, and of a failure."""
        record = slot.stream = slot.stream or StreamRecord()
        record.begin()
        failed: list[BaseException] = []
        # Popping is atomic: a request that is cancelled may still be answered.
        claim = [None]

        def end(error: BaseException | None) -> None:
            now_ns = monotonic_ns()
            try:
                claim.pop()
            except IndexError:
                return
            if error is None:
                slot.succeeded(now_ns)
            else:
                self._failed(slot, now_ns, error)
            self._free(slot, inline=getattr(self._local, "sending", False))

        def heard(response: Any, final: bool) -> None:
            if response.error is not None:
                failed.append(response.error)
            elif response.outputs:
                record.now_ns.append(monotonic_ns())
            if final:
                end(failed[0] if failed else None)

        def over(future: Pending) -> None:
            error = future.exception()
            if error is not None:  # without it the final response says so
                end(error)

        return heard, over

    def _new_slot(self, lane: int = 0) -> Slot:
        slot = Slot(lane)

        def ended(future: Pending) -> None:
            end_ns = monotonic_ns()
            error = future.exception()
            if error is None:
                slot.succeeded(end_ns)
            else:
                self._failed(slot, end_ns, error)
            self._free(slot, inline=getattr(self._local, "sending", False))

        slot.callback = ended
        return slot

    @abstractmethod
    def _free(self, slot: Slot, *, inline: bool) -> None:
        """The slot's request is through; `inline` if this thread is inside `_send` still."""


class ClosedLoop(_Submitting):
    """Exactly N requests outstanding: a new one starts the moment one ends."""

    def __init__(
        self,
        server: Target,
        model: str,
        traffic: Traffic,
        limit: int,
        concurrency: int,
        *,
        streaming: bool,
    ) -> None:
        super().__init__(server, model, traffic, limit, streaming=streaming)
        self._slots = [self._new_slot(lane) for lane in range(concurrency)]
        self._idle: deque[Slot] = deque()
        self._inbox: SimpleQueue[Slot | None] = SimpleQueue()

    def _run(self) -> None:
        for slot in self._slots:
            self._advance(slot)
        while (slot_or_end := self._inbox.get()) is not None:
            self._advance(slot_or_end)
        self.finished.set()

    def _advance(self, slot: Slot) -> None:
        call = self._next(slot.lane)
        if call is None:
            self._idle.append(slot)
            if len(self._idle) == len(self._slots):
                self._inbox.put(None)
            return
        self._send(slot, call)

    def _free(self, slot: Slot, *, inline: bool) -> None:
        if inline:
            self._inbox.put(slot)
        else:
            self._advance(slot)


class OpenLoop(_Submitting):
    """Requests leave at their due times, whatever became of those before.

    Parameters
    ----------
    lanes : int
        Sequences that are live at a time, which take turns; 1 where there are none.
    serial : bool
        A lane has one request outstanding at most; a request waits for a lane that is free.
    """

    def __init__(
        self,
        server: Target,
        model: str,
        traffic: Traffic,
        limit: int,
        load: RequestRate | RequestIntervals,
        seed: int,
        *,
        streaming: bool,
        lanes: int,
        serial: bool,
    ) -> None:
        super().__init__(server, model, traffic, limit, streaming=streaming)
        self._due = send_times_ns(load, seed=seed)
        self._idle: SimpleQueue[Slot] = SimpleQueue()
        self._stop = threading.Event()
        self._lanes = range(lanes)
        self._serial = serial
        # Whose turn it is; None once the load is to stop.
        self._turns: SimpleQueue[int | None] = SimpleQueue()

    def _run(self) -> None:
        start_ns = monotonic_ns()
        for lane in self._lanes:
            self._turns.put(lane)
        for due_ns in self._due:
            slot = self._acquire()
            wait_ns = start_ns + due_ns - monotonic_ns()
            if wait_ns > 0:
                self._stop.wait(wait_ns / 1e9)
            turn = self._turns.get()
            if self._serial:
                wait_ns = min(wait_ns, start_ns + due_ns - monotonic_ns())
            call = None if turn is None else self._next(turn)
            if turn is None or call is None:
                self._idle.put(slot)
                break
            slot.lane = turn
            # PA14: late is what was due before its turn came, not what a timer overslept.
            slot.late_ns = max(0, -wait_ns)
            if not self._serial:
                self._turns.put(turn)
            self._send(slot, call)
            if call.closing:
                break
        self._rest()
        for lane in self._lanes:
            call = self._closing(lane)
            if call is not None:
                slot = self._acquire()
                slot.lane = lane
                self._send(slot, call)
        self._rest()
        self.finished.set()

    def _rest(self) -> None:
        """Wait until nothing is outstanding."""
        slots = [self._idle.get() for _ in self._slots]
        for slot in slots:
            self._idle.put(slot)

    def _wake(self) -> None:
        self._stop.set()
        self._turns.put(None)

    def _acquire(self) -> Slot:
        try:
            return self._idle.get(block=len(self._slots) >= MAX_OUTSTANDING)
        except Empty:
            slot = self._new_slot()
            self._slots.append(slot)
            return slot

    def _free(self, slot: Slot, *, inline: bool) -> None:  # noqa: ARG002  same either way
        if self._serial:
            self._turns.put(slot.lane)
        self._idle.put(slot)


def make_load(
    server: Target,
    model: str,
    load: Load,
    traffic: Traffic,
    *,
    limit: int = 0,
    seed: int = 0,
    streaming: bool = False,
    lanes: int = 1,
    serial: bool = False,
) -> LoadRun:
    """Return a load on a model, not yet started.

    Parameters
    ----------
    streaming : bool
        Listen to each response, and not only to the answer.
    lanes : int
        Sequences that share a request rate; a closed loop has one for each request outstanding.
    serial : bool
        Of an open loop: a sequence has one request outstanding at most.
    """
    match load:
        case Concurrency(value=1) if not streaming:
            return OneCaller(server, model, traffic, limit)
        case Concurrency(value=concurrency):
            return ClosedLoop(server, model, traffic, limit, concurrency, streaming=streaming)
        case RequestRate() | RequestIntervals():
            return OpenLoop(
                server, model, traffic, limit, load, seed,
                streaming=streaming, lanes=lanes, serial=serial,
            )  # fmt: skip
