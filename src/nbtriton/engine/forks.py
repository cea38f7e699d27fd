"""What a forked child has to be told: it has copies of everything, but none of the threads.

DataLoader and multiprocessing fork. Whatever waits for a thread would wait for ever there, locks that
other threads held at that moment stay locked, and sockets stay open as long as the child lives.
"""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

from nbtriton.backends.forking import after_fork
from nbtriton.errors import EngineStoppedError

__all__ = ["InChild", "elsewhere", "tell_children"]


class InChild(Protocol):
    """What is told in each child."""

    def in_child(self) -> None:
        """Be of no harm in a process that was forked; called before anything else runs there."""
        ...


_told: WeakSet[InChild] = WeakSet()


def tell_children(thing: InChild) -> None:
    """Tell something of every fork, as long as it lives."""
    _told.add(thing)


_parents: list[object] = []


def keep_for_good(*things: object) -> object:
    """Keep what the parent had: to let go of it could run code of models that it still uses."""
    _parents.append(things)
    return things


def elsewhere() -> EngineStoppedError:
    """Return the error of what is asked in a child, but lives in its parent."""
    return EngineStoppedError(
        "this process was forked: the server that it asks lives in its parent, with all the threads",
        hint="make an nbtriton.Server() in the child, or ask the parent's over HTTP "
        "(server.serve()); a DataLoader may have num_workers=0 or "
        'multiprocessing_context="spawn"',
    )


def _tell() -> None:
    for thing in list(_told):
        thing.in_child()


after_fork(_tell)
