"""Ctrl-C without a lost request.

CPython raises KeyboardInterrupt in the main thread between any two bytecodes. Inside the scheduler
that would lose the request at hand. So the main thread defers interrupts while it runs the engine
(`interrupts_deferred`): an interrupt is kept meanwhile, and raised on the way out. Model code and
waiting run with interrupts allowed (`interrupts_allowed`).

Deferring is a SIGINT handler in front of the one that was installed, which is restored on the way
out: `asyncio.run`, trio and servers install theirs only where they find Python's own. Installing and
restoring take 0.8 us together.

This module is never compiled: signals are looked at between bytecodes, so a compiled loop that waits
in slices would not see a Ctrl-C that came between two of them.
"""

from __future__ import annotations

import math
import signal
import threading

# Those in `signal` wrap every answer in an enum, which costs 3 us more.
from _signal import getsignal  # type: ignore[import-not-found]
from _signal import signal as install
from _thread import get_ident
from collections.abc import Callable
from time import monotonic
from types import FrameType, TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from nbtriton.backends.forking import after_fork

_P = ParamSpec("_P")
_T = TypeVar("_T")

_SIGINT = int(signal.SIGINT)

# CPython looks for signals between bytecodes: one that comes when the main thread has lost the GIL
# just before a blocking call is seen only when that call returns (1 in 400 where threads compete).
# So the main thread blocks for a quarter of a second at most, too short to be noticed.
_SLICE_S = 0.25

_Handler = Callable[[int, FrameType | None], Any]


class InterruptState:
    """The state of deferred interrupts of the main thread: one per process, `INTERRUPTS`.

    It is the context manager of `interrupts_deferred`; any other thread passes through it untouched.
    An interrupt may come between any two lines of this class too. Hence their order: from the moment
    that our handler is installed until the other one is restored, it keeps what comes.

    Attributes
    ----------
    main : int
        The main thread: the only one in which interrupts are raised.
    depth : int
        How many blocks defer interrupts now; 0 where they are allowed.
    pending : bool
        True while an interrupt is kept.
    """

    __slots__ = ("_behind", "_handler", "depth", "main", "pending")

    def __init__(self) -> None:
        self.main: int = threading.main_thread().ident or 0
        self.depth = 0
        self.pending = False
        # Bound once: each access makes a new bound method, and handlers are compared by identity.
        self._handler: _Handler = self._handle
        # The handlers that ours stands in front of, the innermost first: (handler, further ones).
        # Several exist where a model's code sets one of its own and then calls another model.
        self._behind: tuple[_Handler | None, Any] | None = None

    def __enter__(self) -> None:
        if get_ident() != self.main:
            return
        if self.depth:
            self.depth += 1
            return
        outer = self._behind
        if outer is None:
            self.pending = False
        found = getsignal(_SIGINT)
        # A handler set from C (None), the default action and an ignored signal never raise, so
        # nothing has to be deferred.
        if found is self._handler or not callable(found):
            found = None
        else:
            install(_SIGINT, self._handler)
        self.depth = 1
        self._behind = (found, outer)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if get_ident() != self.main:
            return
        if self.depth > 1:
            self.depth -= 1
            return
        behind, outer = self._behind or (None, None)
        kept = self.pending
        self._behind = outer
        self.depth = 0
        if behind is not None:
            found = install(_SIGINT, behind)
            if found is not self._handler and found is not None:
                install(_SIGINT, found)  # a model's code has set it, to stay
        if kept or self.pending:
            self.pending = False
            if behind is not None:
                behind(_SIGINT, None)
            else:
                self._pass_on(None)

    def keep(self, error: BaseException) -> None:
        """Keep an interrupt that a caller's callback has raised, where interrupts are deferred."""
        if isinstance(error, KeyboardInterrupt) and get_ident() == self.main:
            self.pending = True

    def flush(self) -> None:
        """Raise the interrupt that was kept, if interrupts are allowed."""
        if self.pending and self.depth == 0:
            self.pending = False
            self._pass_on(None)

    def _handle(self, _: int, frame: FrameType | None) -> None:
        # Without a handler behind it: on the way in or out.
        self.pending = bool(self.depth) or self._behind is None
        if not self.pending:
            self._pass_on(frame)  # together with one that was kept, if any

    def _pass_on(self, frame: FrameType | None) -> None:
        level = self._behind
        while level is not None:
            behind, level = level
            if behind is not None:
                behind(_SIGINT, frame)
                return

    def in_child(self) -> None:
        """Reset in a forked child, whose only thread is the one that forked."""
        if self.main != get_ident() and getsignal(_SIGINT) is self._handler:
            # The main thread was in the engine: it is not here to restore the handler.
            level = self._behind
            while level is not None and level[1] is not None:
                level = level[1]
            if level is not None and level[0] is not None:
                install(_SIGINT, level[0])
            self._behind = None
            self.depth = 0
            self.pending = False
        self.main = get_ident()


INTERRUPTS: Final = InterruptState()
after_fork(INTERRUPTS.in_child)


def interrupts_deferred() -> InterruptState:
    """Return the context manager inside which an interrupt is kept until its end."""
    return INTERRUPTS


def interrupts_allowed(
    function: Callable[_P, _T], /, *arguments: _P.args, **options: _P.kwargs
) -> _T:
    """Call a function with interrupts allowed: the inverse of `interrupts_deferred`.

    A call and not a context manager: an interrupt could come between the end of the block and the
    first line of ``__exit__``, and interrupts would stay allowed.
    """
    state = INTERRUPTS
    if get_ident() != state.main:
        return function(*arguments, **options)
    depth = state.depth
    try:
        state.depth = 0
        state.flush()
        return function(*arguments, **options)
    finally:
        state.depth = depth


def wait_in_slices(wait: Callable[[float], bool], timeout_s: float | None) -> bool:
    """Wait so that Ctrl-C is noticed: ``wait(seconds)`` is called until it returns True.

    Parameters
    ----------
    wait : callable
        Such as `threading.Event.wait`.
    timeout_s : float or None
        Forever if None.
    """
    if get_ident() != INTERRUPTS.main:
        return wait(min(math.inf if timeout_s is None else timeout_s, threading.TIMEOUT_MAX))
    deadline = None if timeout_s is None else monotonic() + timeout_s
    while True:
        left = _SLICE_S if deadline is None else deadline - monotonic()
        if wait(max(0.0, min(left, _SLICE_S))):
            return True
        if deadline is not None and left <= _SLICE_S:
            return False
