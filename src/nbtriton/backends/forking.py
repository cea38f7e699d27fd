"""A forked child: process state that it must renew, and objects whose threads it does not have.

DataLoader and multiprocessing fork. In the child, waiting for a thread would never end, locks held
by other threads at that moment stay locked, and sockets stay open while the child lives.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol, TypeVar
from weakref import WeakSet

from nbtriton.common.errors import EngineStoppedError

_Value = TypeVar("_Value")


def after_fork(function: Callable[[], object]) -> None:
    """Call a function in every forked child; for state that lives as long as the process.

    The child has only the thread that forked: a lock of another thread stays locked, and other threads' work
    is not done.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=function)


def per_process(make: Callable[[], _Value]) -> Callable[[], _Value]:
    """Return a function that returns one value, such as a lock, and makes a new one in a forked child."""
    value = make()

    def renew() -> None:
        nonlocal value
        value = make()

    after_fork(renew)
    return lambda: value


class ForkAware(Protocol):
    """An object that is notified in every forked child."""

    def in_child(self) -> None:
        """Become harmless in a forked child; called before anything else runs in it."""


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
