"""When live views are sent something: newest wins, ten times a second, one message in flight.

`Publisher` decides for one view and is told the time by a clock; `Hub` owns the one thread that
asks all views, which runs only while there are any.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

__all__ = ["Feed", "Hub", "Publisher", "hub"]

State = TypeVar("State")

# Past 1000 messages a second over 3 s a notebook server drops even the user's own output; a
# person sees about 12 pictures a second.
_HZ = 10.0
# A page that went away never acknowledges what it was sent.
_FORGET_S = 2.0

_log = logging.getLogger("nbtriton.widgets")
# Without a handler the logging module would print to the cell that ran last.
_log.addHandler(logging.NullHandler())


class Publisher(Generic[State]):
    """Decide when the newest state is sent to a view.

    Parameters
    ----------
    send : callable
        Called with the newest state.
    clock : callable, optional
        Seconds, monotonic.
    hz : float, optional
        The most messages a second.
    forget_s : float, optional
        A message that is not acknowledged within this time no longer holds back the next one.
    """

    def __init__(
        self,
        send: Callable[[State], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        hz: float = _HZ,
        forget_s: float = _FORGET_S,
    ) -> None:
        self._send = send
        self._clock = clock
        self._gap_s = 1.0 / hz
        self._forget_s = forget_s
        self._lock = threading.Lock()
        self._newest: list[State] = []
        self._last_s = -float("inf")
        self._in_flight = False

    def offer(self, state: State) -> None:
        """Take a state to be sent; an older one that waits is dropped."""
        with self._lock:
            self._newest = [state]

    def ack(self) -> None:
        """Hear that the view has drawn what it was sent."""
        with self._lock:
            self._in_flight = False

    def poll(self) -> bool:
        """Send the newest state if its time has come, and tell whether it was sent."""
        now = self._clock()
        with self._lock:
            since = now - self._last_s
            busy = self._in_flight and since < self._forget_s
            # A hair of tolerance: ticks at 10 Hz are not exactly 0.1 s apart.
            if not self._newest or busy or since < self._gap_s * 0.9:
                return False
            state = self._newest.pop()
            self._last_s, self._in_flight = now, True
        self._send(state)
        return True

    def flush(self) -> None:
        """Send what waits now, whatever was sent before: the last state must arrive."""
        with self._lock:
            waiting, self._newest = self._newest, []
        for state in waiting:
            self._send(state)


class Feed(Protocol):
    """What the hub asks: one live view."""

    def tick(self) -> None:
        """Look at the world and send what is due."""

    def alive(self) -> bool:
        """Tell whether somebody still looks."""

    def ended(self) -> None:
        """Hear that the hub no longer asks."""


class Hub:
    """Ask every open feed ten times a second; the thread ends with the last of them.

    A feed that raises is closed and the error kept in `last_error`; nothing is ever printed.

    Parameters
    ----------
    threaded : bool, optional
        False leaves it to the caller to call `tick`, as tests do.
    """

    def __init__(self, *, threaded: bool = True) -> None:
        self.last_error: BaseException | None = None
        self._threaded = threaded
        self._lock = threading.Lock()
        self._feeds: list[Feed] = []
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    @property
    def running(self) -> bool:
        """Whether the thread runs."""
        with self._lock:
            return self._thread is not None

    def open(self, feed: Feed) -> None:
        """Ask this feed from now on; asking for it twice is the same."""
        with self._lock:
            if feed not in self._feeds:
                self._feeds.append(feed)
            if self._threaded and self._thread is None:
                self._wake.clear()
                self._thread = threading.Thread(
                    target=self._run, name="nbtriton-views", daemon=True
                )
                self._thread.start()

    def close(self, feed: Feed) -> None:
        """Ask this feed no longer."""
        with self._lock:
            if feed in self._feeds:
                self._feeds.remove(feed)
            if not self._feeds:
                self._wake.set()

    def tick(self) -> None:
        """Ask every feed once."""
        with self._lock:
            feeds = list(self._feeds)
        for feed in feeds:
            try:
                if feed.alive():
                    feed.tick()
                    continue
            except BaseException as error:  # whatever it is, it must not reach a cell
                self.last_error = error
                _log.debug("a live view failed and was closed", exc_info=True)
            self.close(feed)
            try:
                feed.ended()
            except BaseException as error:
                self.last_error = error
                _log.debug("a live view did not end well", exc_info=True)

    def _run(self) -> None:
        while True:
            self.tick()
            with self._lock:
                if not self._feeds:
                    self._thread = None
                    return
                self._wake.clear()
            self._wake.wait(1.0 / _HZ)


_hub = Hub()


def hub() -> Hub:
    """Return the hub that all views share."""
    return _hub
