"""The pacing of messages to live views: newest wins, five times a second, three messages in flight.

`Publisher` decides for one view, with the time from a clock. `Hub` owns the thread that ticks all
views; it runs only while there are views.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

State = TypeVar("State")

# Above 1000 messages a second over 3 s a notebook server drops even the user's own output. Nobody
# reads counters faster than this, and drawing them costs the page some 8 ms.
_HZ = 5.0
_TICKS_PER_S = 10.0
# A view costs the kernel less than a hundredth of a core: where a frame costs more than 1 ms there are fewer, at
# least one in two seconds, and recorded requests, some 6 us each, are read every one to ten seconds.
_SHARE = 0.005
_SLOWEST_S = 2.0
_READING_SHARE = 0.0025
_READING_S = (1.0, 10.0)
_READ_AT_ONCE = 3_000
# A page acknowledges every third message: each acknowledgement is work for kernel and server.
_IN_FLIGHT = 3
# A page that was closed never acknowledges its messages.
_FORGET_S = 2.0
# For the messages that the thread is sending as the interpreter exits.
_EXIT_S = 5.0

_log = logging.getLogger("nbtriton.widgets")
# Without a handler, the logging module would print into the last cell.
_log.addHandler(logging.NullHandler())


def gap_for(cost_s: float, least_s: float = 1.0 / _HZ) -> float:
    """Return the time between two frames that cost this much processor time each."""
    return min(_SLOWEST_S, max(least_s, cost_s / _SHARE))


def reading_gap_for(cost_s: float) -> float:
    """Return the time between two readings of recorded requests that cost this much processor time each."""
    often_s, seldom_s = _READING_S
    return min(seldom_s, max(often_s, cost_s / _READING_SHARE))


def most_read(models: int) -> int:
    """Return how many records of each model a live view reads at once: all that are kept of some five models, fewer of more."""
    return max(50, _READ_AT_ONCE // max(1, models))


class Publisher(Generic[State]):
    """Decide when the newest state is sent to a view.

    Parameters
    ----------
    send : callable
        Called with the newest state.
    clock : callable, optional
        Seconds, monotonic.
    hz : float, optional
        Limit of messages per second.
    """

    def __init__(
        self,
        send: Callable[[State], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        hz: float = _HZ,
    ) -> None:
        self._send = send
        self._clock = clock
        self._least_s = self._gap_s = 1.0 / hz
        self._cost_s = 0.0
        self._lock = threading.Lock()
        self._newest: list[State] = []
        self._last_s = -float("inf")
        self._in_flight = 0

    def offer(self, state: State) -> None:
        """Offer a state to send; it replaces an older one that is waiting."""
        with self._lock:
            self._newest = [state]

    def ack(self) -> None:
        """Record that the page has drawn what it was sent."""
        with self._lock:
            self._in_flight = 0

    def record_cost(self, cost_s: float) -> None:
        """Record the processor time of a frame; a single expensive one, such as a new structure, slows nothing."""
        self._gap_s = gap_for(min(self._cost_s, cost_s), self._least_s)
        self._cost_s = cost_s

    def is_due(self) -> bool:
        """Return True if a state offered now would be sent."""
        with self._lock:
            return self._due(self._clock())

    def _due(self, now: float) -> bool:
        since = now - self._last_s
        busy = self._in_flight >= _IN_FLIGHT and since < _FORGET_S
        # A hair of tolerance: ticks are not exactly 0.1 s apart.
        return not busy and since >= self._gap_s * 0.9

    def poll(self) -> bool:
        """Send the newest state if its time has come; True if it was sent."""
        now = self._clock()
        with self._lock:
            if not self._newest or not self._due(now):
                return False
            state = self._newest.pop()
            self._last_s = now
            self._in_flight = min(_IN_FLIGHT, self._in_flight + 1)
        self._send(state)
        return True


class Polled(Protocol):
    """A live view, as the hub ticks it."""

    def tick(self) -> None:
        """Observe, and send what is due."""

    def alive(self) -> bool:
        """Return True while a page shows it."""


class Hub:
    """Tick every open view ten times a second; the thread ends with the last of them.

    A view that raises is closed; nothing is printed.

    Parameters
    ----------
    threaded : bool, optional
        If False the caller calls `tick`, as tests do.
    """

    def __init__(self, *, threaded: bool = True) -> None:
        self._threaded = threaded
        self._stopped = False
        self._lock = threading.Lock()
        self._views: list[Polled] = []
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    @property
    def views(self) -> tuple[Polled, ...]:
        """The open views."""
        with self._lock:
            return tuple(self._views)

    def open(self, view: Polled) -> None:
        """Tick this view from now on; opening it twice, or once the interpreter exits, has no effect."""
        with self._lock:
            # A page's messages still arrive, on ipykernel's threads, while the interpreter exits.
            if self._stopped:
                return
            if view not in self._views:
                self._views.append(view)
            # Not alive: it could not be started, or an interrupt came before it was.
            alive = self._thread is not None and self._thread.is_alive()
            if self._threaded and not alive:
                self._wake.clear()
                self._thread = threading.Thread(
                    target=self._run, name="nbtriton-views", daemon=True
                )
                self._thread.start()

    def close(self, view: Polled) -> None:
        """Stop ticking this view."""
        with self._lock:
            if view in self._views:
                self._views.remove(view)
            if not self._views:
                self._wake.set()

    def stop(self) -> None:
        """Stop ticking for good, and wait for the thread; called when the interpreter exits.

        ipykernel then ends its thread that sends, after which each thread sends by itself: the frames of two
        messages may mix, and an assertion of ZeroMQ fails where a socket is closed meanwhile.
        """
        self._stopped = True
        # In a forked child the lock may be held forever by a thread of the parent.
        if self._lock.acquire(timeout=_EXIT_S):
            self._views.clear()
            thread = self._thread
            self._lock.release()
            self._wake.set()
            if thread is not None:
                thread.join(_EXIT_S)

    def tick(self) -> None:
        """Tick every view once."""
        for view in self.views:
            try:
                if view.alive():
                    view.tick()
                    continue
            except BaseException:  # of any kind: it must not reach the cell
                _log.debug("a live view failed and was closed", exc_info=True)
            self.close(view)

    def _run(self) -> None:
        while True:
            self.tick()
            with self._lock:
                if not self._views:
                    self._thread = None
                    return
                self._wake.clear()
            self._wake.wait(1.0 / _TICKS_PER_S)


_hub = Hub()
atexit.register(_hub.stop)


def hub() -> Hub:
    """Return the hub that all views share."""
    return _hub
