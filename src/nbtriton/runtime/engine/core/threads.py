"""The engine's own threads, by their ids: a wait on one of them may block what it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Final

from nbtriton.backends.core.executing import EXECUTING
from nbtriton.backends.forking import after_fork
from nbtriton.runtime.engine.core.completion import BatchCompletion

__all__ = ["EngineThread", "blocked_here", "engine_thread", "starting_here", "this_thread"]


class EngineThread:
    """A thread on which responses are delivered, and with them callbacks of callers.

    Attributes
    ----------
    instance : object
        Whose thread it is; None for a thread that no instance depends on.
    completion : BatchCompletion or None
        Of the batch that it answers now.
    """

    __slots__ = ("completion", "instance")

    def __init__(self, instance: Any = None) -> None:
        self.instance = instance
        self.completion: BatchCompletion | None = None


_THREADS: Final[dict[int, EngineThread]] = {}
after_fork(_THREADS.clear)  # none of them is in the child


@contextmanager
def engine_thread(thread: EngineThread) -> Iterator[None]:
    """Register this thread as one of the engine's."""
    _THREADS[get_ident()] = thread
    try:
        yield
    finally:
        _THREADS.pop(get_ident(), None)


def this_thread() -> EngineThread | None:
    """Return the engine's record of this thread, if it is one of its own."""
    return _THREADS.get(get_ident())


def starting_here() -> str:
    """Return the model of which an instance is created in this thread; empty elsewhere."""
    thread = this_thread()
    home = None if thread is None else thread.instance
    return "" if home is None else str(home.starting)


def blocked_here() -> tuple[Any, ...]:
    """Return the instances that a wait in this thread blocks, the outermost first."""
    callers = EXECUTING.get().callers
    if callers:  # A decoupled model's code blocks no instance once execute has returned.
        callers = tuple(
            caller for caller in callers if not caller.decoupled or caller.thread == get_ident()
        )
    thread = this_thread()
    home = None if thread is None else thread.instance
    return callers if home is None or home in callers else (home, *callers)
