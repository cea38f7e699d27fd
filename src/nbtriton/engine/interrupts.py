"""Ctrl-C without a lost request.

CPython raises KeyboardInterrupt in the main thread between any two bytecodes. Inside a scheduler
that would lose the request at hand, so the main thread raises a shield while it is in there: an
interrupt that comes meanwhile is kept and raised on the way out. Model code and waiting run with
the shield lifted.

The shield is a SIGINT handler in front of the one that was there, which comes back on the way out:
`asyncio.run`, trio and servers install theirs only where they find Python's own. Both together take
0.8 us.
"""

from __future__ import annotations

import signal
import threading

# Those in `signal` wrap every answer in an enum, which costs 3 us more.
from _signal import getsignal  # type: ignore[import-not-found]
from _signal import signal as install
from _thread import get_ident
from collections.abc import Callable
from time import monotonic
from types import FrameType, TracebackType
from typing import Any

from nbtriton.backends.forking import after_fork
from nbtriton.engine.core.interrupt_state import Raised

__all__ = ["shield", "wait_in_slices"]

_SIGINT = int(signal.SIGINT)

# CPython looks for signals between bytecodes: one that comes when the main thread has lost the GIL
# just before a blocking call is seen only when that call returns (1 in 400 where threads compete).
# So the main thread blocks a quarter of a second at most, which nobody notices either way.
_SLICE_S = 0.25

_Handler = Callable[[int, FrameType | None], Any]


def wait_in_slices(wait: Callable[[float], bool], timeout_s: float | None) -> bool:
    """Wait so that Ctrl-C is noticed: ``wait(seconds)`` is called until it returns True.

    Parameters
    ----------
    wait : callable
        Such as `threading.Event.wait`.
    timeout_s : float or None
        For ever if None.
    """
    if get_ident() != shield.raised.main:
        return wait(threading.TIMEOUT_MAX if timeout_s is None else timeout_s)
    deadline = None if timeout_s is None else monotonic() + timeout_s
    while True:
        left = _SLICE_S if deadline is None else deadline - monotonic()
        if wait(max(0.0, min(left, _SLICE_S))):
            return True
        if deadline is not None and left <= _SLICE_S:
            return False


class _Shield:
    """Context manager for the main thread; any other thread passes through it untouched.

    An interrupt may come between any two lines of this class too. Hence their order: from the
    moment that our handler stands until the other one is back, it keeps what comes.
    """

    __slots__ = ("_behind", "_handler", "raised")

    def __init__(self) -> None:
        self.raised = Raised()
        # A bound method is made anew each time that it is asked for; handlers are told by identity.
        self._handler: _Handler = self._handle
        # The handlers that ours stands in front of, the innermost first: (handler, further ones).
        # There are several where a model's code sets one of its own and then calls another model.
        self._behind: tuple[_Handler | None, Any] | None = None

    def __enter__(self) -> None:
        raised = self.raised
        if get_ident() != raised.main:
            return
        if raised.depth:
            raised.depth += 1
            return
        outer = self._behind
        if outer is None:
            raised.pending = False
        found = getsignal(_SIGINT)
        # A handler set from C (None), the default action and an ignored signal never raise, so
        # there is nothing to hold back.
        if found is self._handler or not callable(found):
            found = None
        else:
            install(_SIGINT, self._handler)
        raised.depth = 1
        self._behind = (found, outer)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        raised = self.raised
        if get_ident() != raised.main:
            return
        if raised.depth > 1:
            raised.depth -= 1
            return
        behind, outer = self._behind or (None, None)
        kept = raised.pending
        self._behind = outer
        raised.depth = 0
        if behind is not None:
            found = install(_SIGINT, behind)
            if found is not self._handler and found is not None:
                install(_SIGINT, found)  # a model's code has set it, to stay
        if kept or raised.pending:
            raised.pending = False
            if behind is not None:
                behind(_SIGINT, None)
            else:
                self._pass_on(None)

    def flush(self) -> None:
        """Raise the interrupt that was kept, if the shield is down."""
        raised = self.raised
        if raised.pending and raised.depth == 0:
            raised.pending = False
            self._pass_on(None)

    def _handle(self, _: int, frame: FrameType | None) -> None:
        raised = self.raised
        # Without a handler behind it: on the way in or out.
        raised.pending = bool(raised.depth) or self._behind is None
        if not raised.pending:
            self._pass_on(frame)  # together with one that was kept, if any

    def _pass_on(self, frame: FrameType | None) -> None:
        level = self._behind
        while level is not None:
            behind, level = level
            if behind is not None:
                behind(_SIGINT, frame)
                return

    def in_child(self) -> None:
        """Go on in a process that was forked: in its only thread, whatever the others did."""
        raised = self.raised
        if raised.main != get_ident() and getsignal(_SIGINT) is self._handler:
            # The main thread was in the engine: it is not here to put the handler back.
            level = self._behind
            while level is not None and level[1] is not None:
                level = level[1]
            if level is not None and level[0] is not None:
                install(_SIGINT, level[0])
            self._behind = None
            raised.depth = 0
            raised.pending = False
        raised.main = get_ident()


shield = _Shield()
after_fork(shield.in_child)
