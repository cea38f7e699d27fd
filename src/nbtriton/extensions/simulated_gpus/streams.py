"""The streams of a simulated GPU: order, time, and which reads are allowed; no arrays.

There are two clocks. The *device's time* is when work begins and ends: work begins once its stream
and the unit that does it are free, and a waiting thread sleeps until it ends. The *order* is
logical: from its waits for events, a stream knows how much of every other stream's work is done
before its own continues. Work that touches memory whose last writer is not ordered before it is an
error on every run, not only when the timing is bad.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from nbtriton.backends.devices.base import Event, Stream
from nbtriton.backends.devices.ledger import CopyLedger
from nbtriton.common.errors import InternalError
from nbtriton.scheduling.bookings import Bookings

# Work of a stream, as (stream, position).
_Place = tuple[int, int]


class Clock:
    """The clock of simulated devices."""

    __slots__ = ()

    def now_ns(self) -> int:
        """Return the time in nanoseconds."""
        return time.monotonic_ns()

    def sleep_until(self, when_ns: int) -> None:
        """Block the calling thread until a time."""
        while (left := when_ns - self.now_ns()) > 0:
            time.sleep(left / 1e9)


class UnorderedError(InternalError):
    """Work touches memory that another stream may still write or read: on a GPU the result would be undefined."""


@dataclass(slots=True, eq=False)
class Access:
    """The last writer of a piece of memory, and its readers since.

    Attributes
    ----------
    ready : SimulatedEvent or None
        Recorded by the last writer when it handed the memory over.
    """

    written: _Place | None = None
    read: dict[int, int] = field(default_factory=dict)
    ready: SimulatedEvent | None = None
    label: str = ""


class SimulatedEvent(Event):
    """A point in the work of a simulated stream.

    Attributes
    ----------
    reached_ns : int
        When the event is reached, on the device's clock.
    """

    __slots__ = ("_stream", "order", "reached_ns")

    def __init__(self, stream: SimulatedStream, order: dict[int, int], reached_ns: int) -> None:
        self._stream = stream
        self.order = order
        self.reached_ns = reached_ns

    def is_reached(self) -> bool:
        """Return whether all work before it is done."""
        return self._stream.timeline.clock.now_ns() >= self.reached_ns

    def synchronize(self) -> None:
        """Block the calling thread until it is reached."""
        self._stream.block(self)


class _Entered(threading.local):
    """The streams that a thread has entered, the current one last: as in torch and CuPy, each has its own."""

    def __init__(self) -> None:
        self.streams: list[SimulatedStream] = []


class Timeline:
    """The clocks of one device, and which stream each thread works in.

    Parameters
    ----------
    name : str
        Of the device.
    ledger : CopyLedger
    clock : Clock

    Attributes
    ----------
    faults : list of Exception
        Errors that would go unnoticed on a real GPU: unordered reads and writes, host access to device memory.
    lock : threading.RLock
        Held while work is added.
    known : dict of int to int
        How much of each stream's work a host thread has waited for; later work comes after it. (One
        for all threads: it may miss an error if another thread did the waiting, but never reports a
        false one.)
    units : dict of str to Bookings
        Copies to the device, copies from it, and computing run in parallel; each does one piece of work at a time.
    """

    def __init__(self, name: str, ledger: CopyLedger, clock: Clock) -> None:
        self.name = name
        self.ledger = ledger
        self.clock = clock
        self.faults: list[Exception] = []
        self.lock = threading.RLock()
        self.known: dict[int, int] = {}
        self.streams: dict[int, SimulatedStream] = {}
        self.next_number = itertools.count().__next__
        self.units: defaultdict[str, Bookings] = defaultdict(Bookings)
        self.entered = _Entered()
        self.default = SimulatedStream(self, "the default stream")

    def current(self) -> SimulatedStream:
        """Return the stream of the calling thread."""
        entered = self.entered.streams
        return entered[-1] if entered else self.default


class SimulatedStream(Stream):
    """A stream of a simulated GPU.

    A stream waits for another only after `wait`: as in torch and CuPy, streams and the default
    stream do not wait for each other (``cudaStreamNonBlocking``).

    Parameters
    ----------
    timeline : Timeline
        Of its device.
    owner : str
    """

    def __init__(self, timeline: Timeline, owner: str) -> None:
        self.timeline = timeline
        self.owner = owner
        self.number = timeline.next_number()
        self.position = 0
        self.order: dict[int, int] = {}
        self.ready_ns = 0
        with timeline.lock:
            timeline.streams[self.number] = self

    def __repr__(self) -> str:
        return f"<stream {self.number} of {self.timeline.name}: {self.owner}>"

    def __enter__(self) -> None:
        self.timeline.entered.streams.append(self)

    def __exit__(self, *error: object) -> None:
        self.timeline.entered.streams.pop()

    def record(self) -> SimulatedEvent:
        """Return an event after all work that is in the stream now."""
        with self.timeline.lock:
            return SimulatedEvent(self, {**self.order, self.number: self.position}, self.ready_ns)

    def wait(self, event: Event) -> None:
        """Let later work wait for an event; the calling thread does not wait."""
        assert isinstance(event, SimulatedEvent)
        with self.timeline.lock:
            _merge(self.order, event.order)
            self.ready_ns = max(self.ready_ns, event.reached_ns)

    def synchronize(self) -> None:
        """Block the calling thread until all work is done."""
        self.block(self.record())

    def block(self, event: SimulatedEvent) -> None:
        """Block the calling thread until an event of this stream is reached."""
        self.timeline.ledger.waited(self.owner, self.timeline.name)
        self.timeline.clock.sleep_until(event.reached_ns)
        with self.timeline.lock:
            _merge(self.timeline.known, event.order)

    def close(self) -> None:
        """Forget the stream: its work is ordered before all later work, as that of every stream that is not there."""
        with self.timeline.lock:
            self.timeline.known.pop(self.number, None)
            self.timeline.streams.pop(self.number, None)

    def launch(
        self,
        unit: str,
        reads: Iterable[Access],
        writes: Iterable[Access],
        duration_ns: Callable[[], int],
        began_ns: int | None = None,
    ) -> int:
        """Add work to the stream; return how long it takes on the device's clock.

        `duration_ns` does the work and returns that; what was done before has `began_ns`, on the device's
        clock.

        Raises
        ------
        UnorderedError
            It touches memory that another stream may still be using.
        """
        timeline = self.timeline
        reads, writes = list(reads), list(writes)
        with timeline.lock:
            _merge(self.order, timeline.known)
            for access in reads:
                self._check(access, "reads", access.written)
            for access in writes:
                self._check(access, "writes to", access.written)
                for place in access.read.items():
                    self._check(access, "writes to", place)
            self.position += 1
            for access in reads:
                access.read[self.number] = self.position
            for access in writes:
                access.written = (self.number, self.position)
                access.read = {}
                access.ready = None
        began = timeline.clock.now_ns() if began_ns is None else began_ns
        # Not under the lock: it computes. No other thread gives work to this stream at the same time.
        duration = duration_ns()
        with timeline.lock:
            self.ready_ns = timeline.units[unit].book(max(self.ready_ns, began), duration)
        return duration

    def _check(self, access: Access, verb: str, place: _Place | None) -> None:
        if place is None or place[0] == self.number:
            return
        number, position = place
        if self.order.get(number, 0) >= position or self.timeline.known.get(number, 0) >= position:
            return
        other = self.timeline.streams.get(number)
        if other is None:  # all its work was done when it was closed
            return
        what = access.label or "memory"
        error = UnorderedError(
            f"'{self.owner}' {verb} {what} on {self.timeline.name} before the work of '{other.owner}' "
            "on it is done",
            hint="on a GPU this gives wrong numbers now and then: let the stream wait for the event of "
            "the other one",
        )
        self.timeline.faults.append(error)
        raise error


def _merge(order: dict[int, int], other: dict[int, int]) -> None:
    for number, position in other.items():
        if order.get(number, 0) < position:
            order[number] = position
