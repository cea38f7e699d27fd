"""Ctrl-C without a lost request.

CPython raises KeyboardInterrupt in the main thread between any two bytecodes. Inside a scheduler
that would lose the request at hand, so the main thread raises a shield while it is in there: an
interrupt that comes meanwhile is kept and raised on the way out. Model code and waiting run with
the shield lifted.

The shield is a SIGINT handler in front of the one that was there. ipykernel installs its own for
every cell, therefore it is looked at on every entry (some 60 ns) and set only when it changed.
"""

from __future__ import annotations

import signal
import threading

# The one in `signal` wraps every answer in an enum, which costs 3 us more.
from _signal import getsignal  # type: ignore[import-not-found]
from _thread import get_ident
from collections.abc import Callable
from time import monotonic
from types import FrameType, TracebackType
from typing import Any

from nbtriton.engine.raised import Raised

__all__ = ["MAIN_THREAD", "shield", "wait_in_slices"]

MAIN_THREAD: int = threading.main_thread().ident or 0

# CPython looks for signals between bytecodes: one that comes when the main thread has lost the GIL
# just before a blocking call is seen only when that call returns (1 in 400 where threads compete).
# So the main thread blocks a quarter of a second at most, which nobody notices either way.
_SLICE_S = 0.25


def wait_in_slices(wait: Callable[[float], bool], timeout_s: float | None) -> bool:
    """Wait so that Ctrl-C is noticed: ``wait(seconds)`` is called until it returns True.

    Parameters
    ----------
    wait : callable
        Such as `threading.Event.wait`.
    timeout_s : float or None
        For ever if None.
    """
    if get_ident() != MAIN_THREAD:
        return wait(threading.TIMEOUT_MAX if timeout_s is None else timeout_s)
    deadline = None if timeout_s is None else monotonic() + timeout_s
    while True:
        left = _SLICE_S if deadline is None else deadline - monotonic()
        if wait(max(0.0, min(left, _SLICE_S))):
            return True
        if deadline is not None and left <= _SLICE_S:
            return False


class _Shield:
    """Context manager for the main thread; any other thread passes through it untouched."""

    __slots__ = ("_behind", "raised")

    def __init__(self) -> None:
        self.raised = Raised()
        self._behind: Callable[[int, FrameType | None], Any] | int | None = None

    def __enter__(self) -> None:
        if get_ident() != MAIN_THREAD:
            return
        raised = self.raised
        if raised.depth == 0:
            current = getsignal(signal.SIGINT)
            # Bound methods are equal, not identical. A handler set from C (None) or an ignored
            # signal never raises, so there is nothing to hold back.
            if callable(current) and current != self._handle:
                self._behind = current
                signal.signal(signal.SIGINT, self._handle)
        raised.depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if get_ident() != MAIN_THREAD:
            return
        self.raised.depth -= 1
        self.flush()

    def flush(self) -> None:
        """Raise the interrupt that was kept, if the shield is down."""
        raised = self.raised
        if raised.pending and raised.depth == 0:
            raised.pending = False
            if callable(self._behind):
                self._behind(signal.SIGINT, None)

    def remove(self) -> None:
        """Put the handler back that was there before, if ours still stands."""
        if get_ident() == MAIN_THREAD and getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._behind)
            self._behind = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        raised = self.raised
        raised.pending = bool(raised.depth)
        if not raised.pending and callable(self._behind):
            self._behind(number, frame)  # together with one that was kept, if any


shield = _Shield()
