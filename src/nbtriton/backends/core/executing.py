"""The executing instance: the link from the code inside a model to its caller.

The engine and the backends share one context variable, which is set around every call of a model. A
second one would slow down an ensemble's step by 5%. Tasks and `asyncio.to_thread` inherit it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final


class Executing:
    """The context of a model's running code; immutable.

    Attributes
    ----------
    callers : tuple
        The engine's instances whose code calls, the outermost first: a call on the direct path runs the
        callee's instance inside the caller's.
    running : object
        The context that the innermost instance's backend provides (`BackendInstance.running`).
    """

    __slots__ = ("callers", "running")

    def __init__(self, callers: tuple[Any, ...] = (), running: object = None) -> None:
        self.callers = callers
        self.running = running


_NO_CONTEXT: Final = Executing()
EXECUTING: Final[ContextVar[Executing]] = ContextVar("nbtriton_executing", default=_NO_CONTEXT)


@contextmanager
def running_as(running: object) -> Iterator[None]:
    """Set the executing instance around calls of a model other than ``execute``."""
    token = EXECUTING.set(Executing(EXECUTING.get().callers, running))
    try:
        yield
    finally:
        EXECUTING.reset(token)
