"""Simulated clients: the loads of `perf.driver`, and recorded requests, in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from nbtriton.lab.simulate.core.model import continue_inline
from nbtriton.lab.simulate.core.world import Calendar, Event, Request, Runtime, Sink, Thread, World
from nbtriton.scheduling import sequence_flags

# As in `perf.driver`: beyond it the sender of an open loop waits.
MAX_OUTSTANDING: Final = 4096
# Least time between two requests of a client that is answered at once (refused, or from the cache): where
# nothing costs time, virtual time would stand still.
SHORTEST_NS: Final = 1000


class Recorder:
    """The record of a load: times of each request that has ended, in nanoseconds.

    Attributes
    ----------
    collected : int
        Requests that an earlier window has.
    """

    __slots__ = ("collected", "end_ns", "errors", "latency_ns", "lateness_ns", "sequence_end_ns")

    def __init__(self) -> None:
        self.end_ns: list[int] = []
        self.latency_ns: list[int] = []
        self.lateness_ns: list[int] = []
        self.sequence_end_ns: list[int] = []
        self.errors: list[tuple[int, str]] = []
        self.collected = 0

    def completed(self) -> int:
        """Return the number of requests that have ended."""
        return self.collected + len(self.end_ns) + len(self.errors)

    def success(self, now: int, request: Request) -> None:
        """Record an answer."""
        if request.closing:
            return
        if request.ends:
            self.sequence_end_ns.append(now)
        self.latency_ns.append(now - request.sent_ns)
        self.lateness_ns.append(request.late_ns)
        self.end_ns.append(now)

    def error(self, now: int, request: Request, message: str) -> None:
        """Record a failure."""
        if not request.closing:
            self.errors.append((now, message))


def request_of(sink: Sink, rows: int, key: int, call: Any) -> Request:
    """Return the request of a `nbtriton.lab.perf.traffic.Call` with its options."""
    options = call.options
    flags = sequence_flags(options.get("sequence_start"), options.get("sequence_end"))
    request = Request(
        sink, rows, key, options.get("priority", 0), options.get("timeout_us", 0) * 1000,
        options.get("sequence_id", 0), flags,
    )  # fmt: skip
    request.ends = call.ends
    return request


class Load(Sink):
    """A client that sends requests to a model.

    Parameters
    ----------
    world : World
    target : Runtime
    traffic : Traffic
        `nbtriton.lab.perf.traffic.Traffic`: the next request of a lane.
    rows : int
        Rows per request.
    limit : int
        Requests to send in all; 0 for no limit.
    """

    __slots__ = ("_keys", "_rows", "_traffic", "limit", "number", "recorder", "target", "world")

    def __init__(
        self, world: World, target: Runtime, traffic: Any, rows: int, limit: int = 0
    ) -> None:
        self.world = world
        self.target = target
        self.limit = limit
        self.recorder = Recorder()
        self._traffic = traffic
        self._rows = rows
        self.number = 0
        self._keys: dict[int, int] = {}

    def start(self) -> None:
        """Begin to send."""
        raise NotImplementedError

    def wait_for_devices(self, request: Request, ready_ns: int, until: int) -> int:
        """Let the thread that ends a request fetch its outputs too, one after the other, as `perf.driver` does."""
        until = max(until, ready_ns)
        for transfer in self.world.leaving:
            until = transfer.occupy(until, request.size)
        return until

    def _next(self, lane: int) -> Request | None:
        """Return the next request of a lane, None when no more are to be sent."""
        number = self.number
        if self.limit and number >= self.limit:
            return None
        self.number = number + 1
        call = self._traffic.next(lane, number)
        key = self._keys.setdefault(id(call.inputs), len(self._keys))
        if call.options:
            request = request_of(self, self._rows, key, call)
        else:
            request = Request(self, self._rows, key)
        request.lane = lane
        return request

    def _send(self, thread: Thread, request: Request) -> None:
        request.sent_ns = thread.now
        self.world.serve(thread, self.world.costs.submit_ns)
        # Only the next steps of the requests of a batch are gathered, not what a callback sends meanwhile.
        gathered, thread.gathered = thread.gathered, None
        self.target.submit(thread, request)
        thread.gathered = gathered


class OneCaller(Load):
    """Concurrency 1: a thread that waits for each response, and executes what it can itself."""

    __slots__ = ("_done", "_message", "_own")

    def __init__(
        self, world: World, target: Runtime, traffic: Any, rows: int, limit: int = 0
    ) -> None:
        super().__init__(world, target, traffic, rows, limit)
        self._own = Thread()
        self._own.after = _Woken(self, None)
        self._done = False
        self._message = ""

    def start(self) -> None:
        self.go_on(None)

    def answered(self, thread: Thread, request: Request) -> None:
        self._end(thread, request, "")

    def failed(self, thread: Thread, request: Request, message: str) -> None:
        self._end(thread, request, message or "the request was refused")

    def _end(self, thread: Thread, request: Request, message: str) -> None:
        self._done = True
        self._message = message
        if thread is not self._own:  # the caller sleeps, or looks when it has executed something
            self.world.wake(thread.now, _Woken(self, request))

    def woken(self, now: int, request: Request | None) -> None:
        """Go on, where that is the request that it waits for; None is its own work."""
        own = self._own
        root = own.root
        if root is None or not self._done or own.executing or request not in (None, root):
            return
        if request is not None:
            self.world.resume(own, now)
        self.go_on(root)

    def go_on(self, root: Request | None) -> None:
        """Record a request that has ended, and send the next one."""
        own = self._own
        world = self.world
        if root is not None:
            if self._message:
                self.recorder.error(own.now, root, self._message)
            else:
                self.recorder.success(own.now, root)
            world.serve(own, world.costs.loop_ns)
            own.root = None
        request = self._next(0)
        if request is None:
            return
        self._done = False
        own.root = request
        self._send(own, request)
        # What it executes, or another thread, comes back here.
        if continue_inline(world, own) or not self._done:
            return
        # Answered at once: what happens meanwhile comes before the next request.
        when = max(own.now, request.sent_ns + SHORTEST_NS)
        world.calendar.at(when, _Woken(self, request))


class _Woken(Event):
    """The thread of a caller wakes up, or has executed what it could."""

    __slots__ = ("_load", "_request")

    def __init__(self, load: OneCaller, request: Request | None) -> None:
        self._load = load
        self._request = request

    def fire(self, now: int) -> None:
        self._load.woken(now, self._request)


class _Submitting(Load):
    """The common part of the loads that have several requests outstanding."""

    __slots__ = ()

    def answered(self, thread: Thread, request: Request) -> None:
        self.recorder.success(thread.now, request)
        self._ended(thread, request)

    def failed(self, thread: Thread, request: Request, message: str) -> None:
        self.recorder.error(thread.now, request, message or "the request was refused")
        self._ended(thread, request)

    def _ended(self, thread: Thread, request: Request) -> None:
        """Go on after the end of a request."""
        raise NotImplementedError


class ClosedLoop(_Submitting):
    """Exactly N requests outstanding: the thread that ends one sends the next."""

    __slots__ = ("_concurrency", "_inbox", "_own", "_sender", "_sending")

    def __init__(
        self, world: World, target: Runtime, traffic: Any, rows: int, limit: int, concurrency: int
    ) -> None:
        super().__init__(world, target, traffic, rows, limit)
        self._concurrency = concurrency
        self._own = Thread()
        # Lanes whose request ended while it was sent: the loop's own thread goes on with them, one an event,
        # as instances go on meanwhile.
        self._inbox: deque[int] = deque()
        self._sending: Request | None = None
        self._sender = _Resender(self)

    def start(self) -> None:
        for lane in range(self._concurrency):
            self._advance(self._own, lane)

    def send_again(self, now: int) -> None:
        """Send the next request of a lane that was answered at once."""
        lane = self._inbox.popleft()
        own, world = self._own, self.world
        world.resume(own, max(now, world.free_ns))
        world.serve(own, world.costs.loop_ns)
        if self._inbox:
            world.calendar.at(max(own.now, now + SHORTEST_NS), self._sender)
        self._advance(own, lane)

    def _ended(self, thread: Thread, request: Request) -> None:
        if request is self._sending:
            if not self._inbox:
                when = max(thread.now, request.sent_ns + SHORTEST_NS)
                self.world.calendar.at(when, self._sender)
            self._inbox.append(request.lane)
            return
        self.world.serve(thread, self.world.costs.loop_ns)
        outer = self._sending
        self._advance(thread, request.lane)
        self._sending = outer

    def _advance(self, thread: Thread, lane: int) -> None:
        request = self._next(lane)
        if request is not None:
            self._sending = request
            self._send(thread, request)
            self._sending = None


class _Resender(Event):
    """The thread of a closed loop goes on with what was answered at once."""

    __slots__ = ("_load",)

    def __init__(self, load: ClosedLoop) -> None:
        self._load = load

    def fire(self, now: int) -> None:
        self._load.send_again(now)


class OpenLoop(_Submitting):
    """Requests are sent at their due times, whether or not those before have ended.

    Parameters
    ----------
    due_ns : iterator of int
        `perf.loads.send_times_ns`.
    lanes : int
        Live sequences that share the rate, in turn.
    serial : bool
        At most one request outstanding a lane.
    """

    __slots__ = (
        "_blocked", "_due", "_next_due", "_outstanding", "_own", "_sender", "_serial", "_turns",
    )  # fmt: skip

    def __init__(
        self,
        world: World,
        target: Runtime,
        traffic: Any,
        rows: int,
        limit: int,
        due_ns: Iterator[int],
        lanes: int = 1,
        *,
        serial: bool = False,
    ) -> None:
        super().__init__(world, target, traffic, rows, limit)
        self._due = due_ns
        self._next_due = 0
        self._own = Thread()
        self._outstanding = 0
        self._blocked = False
        self._serial = serial
        self._turns: deque[int] = deque(range(lanes))
        self._sender = _Sender(self)

    def start(self) -> None:
        self._plan()

    def _plan(self) -> None:
        """Wait for the due time of the next request."""
        self._next_due = due = next(self._due)
        own = self._own
        if due > own.now:
            self.world.set_timer(due, self._sender)
        else:
            self.world.calendar.at(own.now, self._sender)

    def send_due(self, now: int) -> None:
        """Send the request that is due, and wait for the next one."""
        own = self._own
        due = self._next_due
        late_ns = own.now - due if own.now > due else 0
        if self._outstanding >= MAX_OUTSTANDING or not self._turns:
            self._blocked = True  # until a request ends
            return
        if own.now < now:
            self.world.resume(own, now)
            self.world.occupy(self.world.costs.wait_ns)
        lane = self._turns.popleft()
        request = self._next(lane)
        if request is None:
            return
        if not self._serial:
            self._turns.append(lane)
        request.late_ns = late_ns
        self._outstanding += 1
        self._send(own, request)
        self._plan()

    def _ended(self, thread: Thread, request: Request) -> None:
        self._outstanding -= 1
        if self._serial:
            self._turns.append(request.lane)
        if self._blocked:
            self._blocked = False
            own = self._own
            # What it is late by counts from here.
            own.now = max(own.now, thread.now)
            self.world.wake(own.now, self._sender)


class _Sender(Event):
    """The sender of an open loop wakes up."""

    __slots__ = ("_load",)

    def __init__(self, load: OpenLoop) -> None:
        self._load = load

    def fire(self, now: int) -> None:
        self._load.send_due(now)


class Way(Runtime):
    """The way between a client elsewhere and a model or an ensemble: instances do not wait for it.

    Parameters
    ----------
    world : World
    target : Runtime
    """

    __slots__ = ("_target", "_world")

    def __init__(self, world: World, target: Runtime) -> None:
        super().__init__(target.name)
        self._world = world
        self._target = target

    def submit(self, thread: Thread, request: Request) -> None:
        world = self._world
        ways = world.costs.ways_ns
        way_ns = ways[int(world.random.random() * len(ways))]
        request.sink = _WayBack(world.calendar, request.sink, way_ns)
        world.calendar.at(thread.now + way_ns, _AtEnd(request, self._target))


class _WayBack(Sink):
    __slots__ = ("_calendar", "_client", "_way_ns")

    def __init__(self, calendar: Calendar, client: Sink, way_ns: int) -> None:
        self._calendar = calendar
        self._client = client
        self._way_ns = way_ns

    def answered(self, thread: Thread, request: Request) -> None:
        request.sink = self._client
        self._calendar.at(thread.now + self._way_ns, _AtEnd(request))

    def failed(self, thread: Thread, request: Request, message: str) -> None:
        request.sink = self._client
        self._calendar.at(thread.now + self._way_ns, _AtEnd(request, None, message))


class _AtEnd(Event):
    """A request at a server, or its response at the client: an error, if it has a message."""

    __slots__ = ("_message", "_request", "_target")

    def __init__(
        self, request: Request, target: Runtime | None = None, message: str | None = None
    ) -> None:
        self._request = request
        self._target = target
        self._message = message

    def fire(self, now: int) -> None:
        thread, request = Thread(), self._request
        thread.now = now
        if self._target is not None:
            self._target.submit(thread, request)
        elif self._message is not None:
            request.sink.failed(thread, request, self._message)
        else:
            request.sink.answered(thread, request)


class Replay(Sink):
    """The clients of a recording.

    Parameters
    ----------
    world : World
    requests : list of tuple
        Due time in nanoseconds, model, rows, the number of its inputs, and the
        `nbtriton.lab.perf.traffic.Call` with its options; in the order of their due times.

    Attributes
    ----------
    number : int
        How many were sent.
    """

    __slots__ = ("_recorders", "_requests", "_targets", "number", "world")

    def __init__(self, world: World, requests: list[tuple[int, Runtime, int, int, Any]]) -> None:
        self.world = world
        self.number = 0
        self._requests = requests
        self._recorders: dict[Runtime, Recorder] = {}
        self._targets: dict[int, Runtime] = {}
        for each in requests:
            if each[1] not in self._recorders:
                self._recorders[each[1]] = Recorder()

    def start(self) -> None:
        """Wait for the first request."""
        if self._requests:
            self.world.calendar.at(self._requests[0][0], _Arrival(self))

    def recorder_of(self, target: Runtime) -> Recorder:
        """Return what was recorded of the requests to one model."""
        return self._recorders[target]

    def completed(self) -> int:
        """Return the number of requests that have ended."""
        return sum([recorder.completed() for recorder in self._recorders.values()])

    def latest_ns(self) -> int:
        """Return the time of the last answer."""
        found = [0]
        for recorder in self._recorders.values():
            found += recorder.end_ns
            found += [when for when, _ in recorder.errors]
        return max(found)

    def arrive(self, now: int) -> None:
        """Send the request that is due, and wait for the next one."""
        due, target, rows, key, call = self._requests[self.number]
        if self.number + 1 < len(self._requests):
            self.world.calendar.at(self._requests[self.number + 1][0], _Arrival(self))
        request = request_of(self, rows, key, call)
        # Its number: a replay is no load with lanes.
        request.lane = self.number
        self._targets[self.number] = target
        self.number += 1
        # Each client has a thread of its own.
        thread = Thread()
        self.world.resume(thread, now)
        request.sent_ns = due
        self.world.serve(thread, self.world.costs.submit_ns)
        target.submit(thread, request)

    def answered(self, thread: Thread, request: Request) -> None:
        self._recorders[self._targets.pop(request.lane)].success(thread.now, request)

    def failed(self, thread: Thread, request: Request, message: str) -> None:
        recorder = self._recorders[self._targets.pop(request.lane)]
        recorder.error(thread.now, request, message or "the request was refused")


class _Arrival(Event):
    """The next request of a recording arrives."""

    __slots__ = ("_load",)

    def __init__(self, load: Replay) -> None:
        self._load = load

    def fire(self, now: int) -> None:
        self._load.arrive(now)
