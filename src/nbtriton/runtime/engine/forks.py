"""Objects in a forked child: it has copies of everything, but none of the threads.

DataLoader and multiprocessing fork. In the child, waiting for a thread would never end, locks held
by other threads at that moment stay locked, and sockets stay open while the child lives.
"""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

from nbtriton.backends.forking import after_fork
from nbtriton.common.errors import EngineStoppedError


class ForkAware(Protocol):
    """An object that is notified in every forked child."""

    def in_child(self) -> None:
        """Become harmless in a forked child; called before anything else runs in it."""
        ...


_notified: WeakSet[ForkAware] = WeakSet()


def notify_in_children(thing: ForkAware) -> None:
    """Notify an object of every fork while it lives."""
    _notified.add(thing)


_parents: list[object] = []


def keep_forever(*things: object) -> None:
    """Keep the parent's objects alive: finalizers could run code of models that the parent still uses."""
    _parents.append(things)


def elsewhere() -> EngineStoppedError:
    """Return the error of a call in a child to an object that lives in its parent."""
    return EngineStoppedError(
        "this process was forked: the server that it asks lives in its parent, with all the threads",
        hint="make an nbtriton.Server() in the child, or ask the parent's over HTTP "
        "(server.serve()); a DataLoader may have num_workers=0 or "
        'multiprocessing_context="spawn"',
    )


def _notify() -> None:
    for thing in list(_notified):
        thing.in_child()


after_fork(_notify)
