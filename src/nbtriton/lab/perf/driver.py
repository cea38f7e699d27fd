"""Loads: the requests and their send times.

A closed loop has no thread per request: the thread that completes a request sends the next one. A request may
also complete inside `submit`. Then the loop's own thread sends its successor, so that nothing recurses and no
instance's thread is kept from its other responses.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from nbtriton.lab.perf.loads import Concurrency, Load, OpenLoad, PeriodicConcurrency, send_times_ns
from nbtriton.lab.perf.records import Slot, StreamRecord, collect
from nbtriton.lab.perf.traffic import Call, Traffic
from nbtriton.lab.perf.windows import Window
from nbtriton.runtime.engine.core.future import InferenceFuture
from nbtriton.runtime.interrupts import wait_in_slices

if TYPE_CHECKING:
    from nbtriton.lab.perf.remote import Pending, Target

# Open loop: a server that falls behind by this number of requests will not catch up within a window. More
# waiting requests would only need memory; later sends count as delayed.
MAX_OUTSTANDING = 4096
# Seconds for requests in flight to end before they are cancelled: half of the second within which an
# interrupt must have stopped everything.
GRACE_S = 0.5


class Clock:
    """The clock of a schedule."""

    def now_ns(self) -> int:
        """Return the time."""
        return monotonic_ns()

    def wait(self, stop: threading.Event, duration_ns: int) -> None:
        """Wait for a time, or until `stop` is set."""
        stop.wait(duration_ns / 1e9)


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """A load on a model.

    Parameters
    ----------
    target : Server or RemoteServer
    model : str
    load : Load
    traffic : Traffic
    limit : int
        Requests to send in all; 0 for no limit.
    seed : int
        Of a schedule with random gaps.
    streaming : bool
        Record each response, not only the final one.
    lanes : int
        Live sequences that share a request rate, in turn; a closed loop has one per outstanding request.
    serial : bool
        Of an open loop: at most one outstanding request per lane; a request waits for a free lane.
    clock : Clock
        Of an open loop: the clock of its schedule.
    """

    target: Target
    model: str
    load: Load
    traffic: Traffic
    limit: int = 0
    seed: int = 0
    streaming: bool = False
    lanes: int = 1
    serial: bool = False
    clock: Clock = Clock()  # noqa: RUF009 - it has no state


class LoadRun(ABC):
    """A load that runs until it is stopped, or until `spec.limit` requests have ended."""

    def __init__(self, spec: LoadSpec) -> None:
        self.finished = threading.Event()
        self._spec = spec
        # Request numbers; `next` is atomic across threads.
        self._tickets: Iterator[int] = iter(range(spec.limit)) if spec.limit else itertools.count()
        self._stopping = False
        self._cancelled = False
        # With GPUs outputs may be on a device; a response is complete where its reader is.
        self._fetches = bool(getattr(spec.target, "devices", ()))
        self._slots: list[Slot] = []
        self._errors: deque[tuple[int, str]] = deque()
        self._collected_errors = 0
        self._thread = threading.Thread(target=self._send_all, name="nbtriton-perf", daemon=True)

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def sender_s(self) -> float:
        """Return the processor time of the load's own thread so far; nan if unknown."""
        number = self._thread.ident
        if number is None or not self._thread.is_alive():
            return math.nan
        try:
            return time.clock_gettime(time.pthread_getcpuclockid(number))
        except (AttributeError, OSError):  # not Linux, or the thread has just ended
            return math.nan

    def collect(self, start_ns: int, end_ns: int) -> Window:
        """Return the window between two times; each request is in one window only."""
        window = collect(self._slots, self._errors, start_ns, end_ns)
        self._collected_errors += window.errors
        return window

    def completed(self) -> int:
        """Return the number of requests that have ended, failed ones included."""
        failed = self._collected_errors + len(self._errors)
        return sum(len(slot.end_ns) for slot in self._slots) + failed

    def span_ns(self) -> tuple[int, int] | None:
        """Return the first start and the last end of successful requests, None without any."""
        used = [slot for slot in self._slots if slot.end_ns]
        if not used:
            return None
        first = min(slot.end_ns[0] - slot.latency_ns[0] for slot in used)
        return first, max(slot.end_ns[-1] for slot in used)

    def stop(self) -> None:
        """Stop sending, wait for requests in flight, and cancel those that take too long.

        On return no request of this load is left. A request that blocks its sender (one caller at a time)
        cannot be cancelled; it is waited for. A KeyboardInterrupt cancels at once and is raised.
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

    def _record_error(self, slot: Slot, end_ns: int, error: BaseException) -> None:
        if slot.call is None or not slot.call.closing:
            self._errors.append((end_ns, str(error)))

    def _cancel(self) -> None:
        self._cancelled = True
        for slot in list(self._slots):
            if slot.pending is not None:
                _end(slot.pending)

    def _send_all(self) -> None:
        try:
            self._run()
        finally:  # nobody waits forever for a sender that has failed
            self.finished.set()

    @abstractmethod
    def _run(self) -> None: ...

    def _wake(self) -> None:
        """Wake a sender that waits for its next due time."""

    def _next(self, lane: int) -> Call | None:
        """Return the next request of a lane, None at the limit of requests."""
        ticket = None if self._stopping else next(self._tickets, None)
        return self._closing(lane) if ticket is None else self._spec.traffic.next(lane, ticket)

    def _closing(self, lane: int) -> Call | None:
        """Return the request that ends a lane's sequence, None once requests are cancelled."""
        return None if self._cancelled else self._spec.traffic.closing(lane)


def _end(pending: Pending) -> None:
    """Cancel a request at the end of its load, which no caller has done."""
    if isinstance(pending, InferenceFuture):
        pending.cancel("load_ended")
    else:
        pending.cancel()


def _fetch(result: Any) -> None:
    """Access the outputs of a response, which copies them from a device to the host where needed."""
    for name in result:
        result[name]


class OneCaller(LoadRun):
    """Concurrency 1: a thread that calls ``infer`` and waits, as a synchronous client does."""

    def _run(self) -> None:
        slot = Slot()
        self._slots.append(slot)
        infer, model, now = self._spec.target.infer, self._spec.model, monotonic_ns
        fetches = self._fetches
        while (call := self._next(0)) is not None:
            slot.call = call
            slot.start_ns = now()
            try:
                result = infer(model, call.inputs, **call.options)
                if fetches:
                    _fetch(result)
            except Exception as error:
                self._record_error(slot, now(), error)
            else:
                slot.record_success(now())


class Submitting(LoadRun):
    """The common part of the loads over ``submit``."""

    def __init__(self, spec: LoadSpec) -> None:
        super().__init__(spec)
        self._local = threading.local()

    def _send(self, slot: Slot, call: Call) -> None:
        slot.call = call
        on_response = on_error = None
        if self._spec.streaming:
            on_response, on_error = self._listeners(slot)
        self._local.sending = True
        slot.start_ns = monotonic_ns()
        try:
            slot.pending = pending = self._spec.target.submit(
                call.model or self._spec.model, call.inputs, on_response=on_response, **call.options
            )
        except Exception as error:
            self._record_error(slot, monotonic_ns(), error)
            self._free(slot, inline=True)
        else:
            on_done = on_error or slot.callback
            assert on_done is not None
            pending.add_done_callback(on_done)
            if self._cancelled:  # too late to be cancelled with the others
                _end(pending)
        finally:
            self._local.sending = False

    def _listeners(
        self, slot: Slot
    ) -> tuple[Callable[[Any, bool], None], Callable[[Pending], None]]:
        """Return the callbacks of a slot's next request: for each response, and for a failure."""
        record = slot.stream = slot.stream or StreamRecord()
        record.begin()
        failed: list[BaseException] = []
        # Held by the first end: a cancelled request may still get a response.
        ended = threading.Lock()

        def end(error: BaseException | None) -> None:
            now_ns = monotonic_ns()
            if not ended.acquire(blocking=False):
                return
            if error is None:
                slot.record_success(now_ns)
            else:
                self._record_error(slot, now_ns, error)
            self._free(slot, inline=getattr(self._local, "sending", False))

        def on_response(response: Any, final: bool) -> None:
            if response.error is not None:
                failed.append(response.error)
            elif response.outputs:
                record.now_ns.append(monotonic_ns())
            if final:
                end(failed[0] if failed else None)

        def on_done(pending: Pending) -> None:
            error = pending.exception()
            if error is not None:  # else the final response ends it
                end(error)

        return on_response, on_done

    def _new_slot(self, lane: int = 0) -> Slot:
        slot = Slot(lane)

        fetches = self._fetches

        def on_done(pending: Any) -> None:
            try:
                error = pending.exception()
                if fetches and error is None:
                    _fetch(pending.result())
            except Exception as raised:  # also of one that was cancelled before a thread took it
                error = raised
            end_ns = monotonic_ns()
            if error is None:
                slot.record_success(end_ns)
            else:
                self._record_error(slot, end_ns, error)
            self._free(slot, inline=getattr(self._local, "sending", False))

        slot.callback = on_done
        return slot

    @abstractmethod
    def _free(self, slot: Slot, *, inline: bool) -> None:
        """Handle the end of the slot's request; `inline` if this thread is still inside `_send`."""


class ClosedLoop(Submitting):
    """Exactly N outstanding requests: the end of one starts the next."""

    def __init__(self, spec: LoadSpec, concurrency: int) -> None:
        super().__init__(spec)
        self._slots = [self._new_slot(lane) for lane in range(concurrency)]
        self._idle: deque[Slot] = deque()
        self._inbox: SimpleQueue[Slot | None] = SimpleQueue()

    def _run(self) -> None:
        for slot in self._slots:
            self._advance(slot)
        while (slot_or_end := self._inbox.get()) is not None:
            self._advance(slot_or_end)

    def _advance(self, slot: Slot) -> None:
        call = None
        try:
            call = self._next(slot.lane)
        finally:
            if call is None:  # also where there is no memory for it
                self._idle.append(slot)
                if len(self._idle) == len(self._slots):
                    self._inbox.put(None)
        if call is not None:
            self._send(slot, call)

    def _free(self, slot: Slot, *, inline: bool) -> None:
        if inline:
            self._inbox.put(slot)
        else:
            self._advance(slot)


class OpenLoop(Submitting):
    """Requests are sent at their due times, whether or not earlier ones have ended."""

    def __init__(self, spec: LoadSpec, load: OpenLoad) -> None:
        super().__init__(spec)
        self._due = send_times_ns(load, seed=spec.seed)
        self._idle: SimpleQueue[Slot] = SimpleQueue()
        self._stop = threading.Event()
        self._lanes = range(spec.lanes)
        # Lanes in turn; None to stop the load.
        self._turns: SimpleQueue[int | None] = SimpleQueue()

    def _run(self) -> None:
        clock = self._spec.clock
        start_ns = clock.now_ns()
        for lane in self._lanes:
            self._turns.put(lane)
        for due_ns in self._due:
            slot = self._acquire()
            wait_ns = start_ns + due_ns - clock.now_ns()
            if wait_ns > 0:
                clock.wait(self._stop, wait_ns)
            turn = self._turns.get()
            if self._spec.serial:
                wait_ns = min(wait_ns, start_ns + due_ns - clock.now_ns())
            call = None if turn is None else self._next(turn)
            if turn is None or call is None:
                self._idle.put(slot)
                break
            slot.lane = turn
            # PA14: a request is late if it was due before its turn, not if a timer overslept.
            slot.late_ns = max(0, -wait_ns)
            if not self._spec.serial:
                self._turns.put(turn)
            self._send(slot, call)
            if call.closing:
                break
        self._wait_idle()
        for lane in self._lanes:
            call = self._closing(lane)
            if call is not None:
                slot = self._acquire()
                slot.lane = lane
                self._send(slot, call)
        self._wait_idle()

    def _wait_idle(self) -> None:
        """Wait until no request is outstanding."""
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
        if self._spec.serial:
            self._turns.put(slot.lane)
        self._idle.put(slot)


class PeriodicLoop(Submitting):
    """Groups of requests: each follows when the requests of the last one have had enough responses, or ended.

    Each request is sent once. The thread of the load sends all of them.
    """

    def __init__(self, spec: LoadSpec, load: PeriodicConcurrency) -> None:
        super().__init__(spec)
        self._load = load
        # Slots that have had their responses (False) or have ended (True); None for the end of the load.
        self._inbox: SimpleQueue[tuple[Slot, bool] | None] = SimpleQueue()

    def _run(self) -> None:
        load = self._load
        sent = ended = 0
        while sent < load.end and not self._stopping:
            size = load.step if sent else load.start
            sent += size
            waiting: set[Slot] = set()
            for _ in range(size):
                call = self._next(0)
                if call is None:
                    break
                slot = self._new_slot()
                self._slots.append(slot)
                waiting.add(slot)
                self._send(slot, call)
            while waiting and not self._stopping:
                ended += self._handle(waiting)
        while ended < len(self._slots):
            ended += self._handle(set())

    def _handle(self, waiting: set[Slot]) -> bool:
        """Handle one message; return whether a request has ended."""
        message = self._inbox.get()
        if message is None:
            return False
        slot, has_ended = message
        waiting.discard(slot)
        return has_ended

    def _listeners(
        self, slot: Slot
    ) -> tuple[Callable[[Any, bool], None], Callable[[Pending], None]]:
        on_response, on_done = super()._listeners(slot)
        countdown = itertools.count(self._load.period - 1, -1)

        def counted(response: Any, final: bool) -> None:
            on_response(response, final)
            if response.outputs and next(countdown) == 0:
                self._inbox.put((slot, False))

        return counted, on_done

    def _wake(self) -> None:
        self._inbox.put(None)

    def _free(self, slot: Slot, *, inline: bool) -> None:  # noqa: ARG002  same either way
        self._inbox.put((slot, True))


def make_load(spec: LoadSpec) -> LoadRun:
    """Return a load on a model, not yet started."""
    match spec.load:
        case Concurrency(value=1) if not spec.streaming:
            return OneCaller(spec)
        case Concurrency(value=concurrency):
            return ClosedLoop(spec, concurrency)
        case PeriodicConcurrency():
            return PeriodicLoop(spec, spec.load)
        case _:
            return OpenLoop(spec, spec.load)
