"""Work that waits until a thread has given all the answers of one execution.

An endpoint that is told of each answer of a batch would wake its own thread for each; told once at
the end, it handles them together. The next steps of an ensemble would reach their model one by one,
the first of them alone in a batch; together they are a batch again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Owed", "after_answers", "answering"]


class Owed:
    """What a thread owes while it answers the requests of one execution."""

    __slots__ = ("_calls", "_gathered")

    def __init__(self) -> None:
        self._calls: list[Callable[[], object]] = []
        self._gathered: dict[Any, tuple[Callable[[Any, list[Any]], object], list[Any]]] = {}

    def call(self, function: Callable[[], object]) -> None:
        """Note a call; one is enough however often it is asked for."""
        if function not in self._calls:
            self._calls.append(function)

    def gather(self, function: Callable[[Any, list[Any]], object], key: Any, item: Any) -> None:
        """Note an item for ``function(key, items)``, which has all that were noted for the key.

        A key belongs to one function.
        """
        found = self._gathered.get(key)
        if found is None:
            found = self._gathered[key] = (function, [])
        found[1].append(item)

    def pay(self) -> None:
        """Do what is owed so far: at the end, or before a callback waits for what may need it."""
        gathered, self._gathered = self._gathered, {}
        calls, self._calls = self._calls, []
        for key, (function, items) in gathered.items():
            function(key, items)
        for call in calls:
            call()


class _Answering(threading.local):
    """What this thread owes, or None while it is not answering a batch."""

    owed: Owed | None = None


answering = _Answering()


def after_answers(function: Callable[[], object]) -> None:
    """Call a function once this thread has answered its batch: now, if it is answering none.

    Called once however often it is asked for, after the instance is free again; it must not raise.
    """
    owed = answering.owed
    if owed is None:
        function()
    else:
        owed.call(function)
