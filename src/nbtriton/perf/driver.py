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
from typing import TYPE_CHECKING

import numpy as np

from nbtriton.engine.shield import wait_in_slices
from nbtriton.perf.data import Request
from nbtriton.perf.loads import Concurrency, Load, RequestIntervals, RequestRate, send_times_ns
from nbtriton.perf.windows import Window

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
        "callback", "end_ns", "future", "late_ns", "latency_ns", "lateness_ns", "start_ns",
        "taken",
    )  # fmt: skip

    def __init__(self) -> None:
        self.callback: Callable[[Pending], None] | None = None
        self.start_ns = 0
        self.late_ns = 0
        self.future: Pending | None = None
        self.latency_ns = array("q")
        self.lateness_ns = array("q")
        # Written last: its length is the number of complete entries.
        self.end_ns = array("q")
        self.taken = 0

    def succeeded(self, end_ns: int) -> None:
        """Record that the request of this slot ended well."""
        self.latency_ns.append(end_ns - self.start_ns)
        self.lateness_ns.append(self.late_ns)
        self.end_ns.append(end_ns)


def collect(
    slots: Sequence[Slot], errors: deque[tuple[int, str]], start_ns: int, end_ns: int
) -> Window:
    """Cut the window from `start_ns` to `end_ns`: what ended in it and was not taken yet (A-3)."""
    latencies, lateness = [], []
    for slot in slots:
        first, last = slot.taken, len(slot.end_ns)
        # A copy: an exported buffer would keep the array from growing.
        ends = np.frombuffer(slot.end_ns[first:last], np.int64)
        last = first + int(np.searchsorted(ends, end_ns, "right"))
        slot.taken = last
        latencies.append(np.frombuffer(slot.latency_ns[first:last], np.int64))
        lateness.append(np.frombuffer(slot.lateness_ns[first:last], np.int64))
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
    )


class LoadRun(ABC):
    """A load that runs until it is stopped, or until `limit` requests are through.

    Parameters
    ----------
    server : Server or RemoteServer
    model : str
    requests : sequence of mapping
        Sent in turn, over and over.
    limit : int
        Requests to send in all; 0 for no limit.
    """

    def __init__(self, server: Target, model: str, requests: Sequence[Request], limit: int) -> None:
        self.finished = threading.Event()
        self._server = server
        self._model = model
        self._requests = requests
        tickets: Iterator[int] = iter(range(limit)) if limit else itertools.count()
        # The next request's number; taking it is atomic, whichever threads ask.
        self._tickets = tickets
        self._stopping = False
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

    def _cancel(self) -> None:
        for slot in list(self._slots):
            if slot.future is not None:
                slot.future.cancel()

    @abstractmethod
    def _run(self) -> None: ...

    def _wake(self) -> None:
        """Tell a sender that waits for its next due time to look at `_stopping`."""

    def _next(self) -> Request | None:
        """Return the next request to send, None when no more are to be sent."""
        if self._stopping:
            return None
        ticket = next(self._tickets, None)
        return None if ticket is None else self._requests[ticket % len(self._requests)]


class OneCaller(LoadRun):
    """Concurrency 1: a thread that calls ``infer`` and waits, as a synchronous client does."""

    def _run(self) -> None:
        slot = Slot()
        self._slots.append(slot)
        infer, model, now = self._server.infer, self._model, monotonic_ns
        while (request := self._next()) is not None:
            slot.start_ns = now()
            try:
                infer(model, request)
            except Exception as error:
                self._errors.append((now(), str(error)))
            else:
                slot.succeeded(now())
        self.finished.set()


class _Submitting(LoadRun):
    """What the two loads over ``submit`` share: sending, and hearing of the end."""

    def __init__(self, server: Target, model: str, requests: Sequence[Request], limit: int) -> None:
        super().__init__(server, model, requests, limit)
        self._local = threading.local()

    def _send(self, slot: Slot, request: Request) -> None:
        self._local.sending = True
        slot.start_ns = monotonic_ns()
        try:
            slot.future = future = self._server.submit(self._model, request)
        except Exception as error:
            self._errors.append((monotonic_ns(), str(error)))
            self._free(slot, inline=True)
        else:
            assert slot.callback is not None
            future.add_done_callback(slot.callback)
        finally:
            self._local.sending = False

    def _new_slot(self) -> Slot:
        slot = Slot()

        def ended(future: Pending) -> None:
            end_ns = monotonic_ns()
            error = future.exception()
            if error is None:
                slot.succeeded(end_ns)
            else:
                self._errors.append((end_ns, str(error)))
            self._free(slot, inline=getattr(self._local, "sending", False))

        slot.callback = ended
        return slot

    @abstractmethod
    def _free(self, slot: Slot, *, inline: bool) -> None:
        """The slot's request is through; `inline` if this thread is inside `_send` still."""


class ClosedLoop(_Submitting):
    """Exactly N requests outstanding: a new one starts the moment one ends."""

    def __init__(
        self, server: Target, model: str, requests: Sequence[Request], limit: int, concurrency: int
    ) -> None:
        super().__init__(server, model, requests, limit)
        self._slots = [self._new_slot() for _ in range(concurrency)]
        self._idle: deque[Slot] = deque()
        self._inbox: SimpleQueue[Slot | None] = SimpleQueue()

    def _run(self) -> None:
        for slot in self._slots:
            self._advance(slot)
        while (slot_or_end := self._inbox.get()) is not None:
            self._advance(slot_or_end)
        self.finished.set()

    def _advance(self, slot: Slot) -> None:
        request = self._next()
        if request is None:
            self._idle.append(slot)
            if len(self._idle) == len(self._slots):
                self._inbox.put(None)
            return
        self._send(slot, request)

    def _free(self, slot: Slot, *, inline: bool) -> None:
        if inline:
            self._inbox.put(slot)
        else:
            self._advance(slot)


class OpenLoop(_Submitting):
    """Requests leave at their due times, whatever became of those before."""

    def __init__(
        self,
        server: Target,
        model: str,
        requests: Sequence[Request],
        limit: int,
        load: RequestRate | RequestIntervals,
        seed: int,
    ) -> None:
        super().__init__(server, model, requests, limit)
        self._due = send_times_ns(load, seed=seed)
        self._idle: SimpleQueue[Slot] = SimpleQueue()
        self._stop = threading.Event()

    def _run(self) -> None:
        start_ns = monotonic_ns()
        for due_ns in self._due:
            slot = self._acquire()
            wait_ns = start_ns + due_ns - monotonic_ns()
            if wait_ns > 0:
                self._stop.wait(wait_ns / 1e9)
            request = self._next()
            if request is None:
                self._idle.put(slot)
                break
            # late is what was due before its turn came, not what a timer overslept.
            slot.late_ns = max(0, -wait_ns)
            self._send(slot, request)
        for _ in self._slots:
            self._idle.get()
        self.finished.set()

    def _wake(self) -> None:
        self._stop.set()

    def _acquire(self) -> Slot:
        try:
            return self._idle.get(block=len(self._slots) >= MAX_OUTSTANDING)
        except Empty:
            slot = self._new_slot()
            self._slots.append(slot)
            return slot

    def _free(self, slot: Slot, *, inline: bool) -> None:  # noqa: ARG002  same either way
        self._idle.put(slot)


def make_load(
    server: Target,
    model: str,
    load: Load,
    requests: Sequence[Request],
    *,
    limit: int = 0,
    seed: int = 0,
) -> LoadRun:
    """Return a load on a model, not yet started."""
    match load:
        case Concurrency(value=1):
            return OneCaller(server, model, requests, limit)
        case Concurrency(value=concurrency):
            return ClosedLoop(server, model, requests, limit, concurrency)
        case RequestRate() | RequestIntervals():
            return OpenLoop(server, model, requests, limit, load, seed)
