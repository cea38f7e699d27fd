"""The executing instance: the link from the code inside a model to its caller.

One context variable serves the engine and the backends: it is set around every call of a model, and
a second one would make a step of an ensemble 5% dearer. Tasks and `asyncio.to_thread` inherit it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

__all__ = ["EXECUTING", "Executing", "running_as"]


class Executing:
    """The context in which a model's code runs; immutable.

    Attributes
    ----------
    callers : tuple
        The engine's instances whose code calls, the outermost first: a call that takes the direct
        path runs the callee's instance inside the caller's.
    running : object
        What the innermost one's backend lets the code of its model know (`BackendInstance.running`).
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
