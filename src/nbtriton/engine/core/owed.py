"""What is left to be done until a thread has given all the answers of one execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["BatchCompletion"]


class BatchCompletion:
    """What a thread owes while it answers the requests of one execution."""

    __slots__ = ("_calls", "_gathered", "_step_aside", "rest")

    def __init__(self, step_aside: Callable[[], object] | None = None) -> None:
        # What gives the answers that are left, and what lets others go on without this thread.
        self.rest: Callable[[], object] | None = None
        self._step_aside = step_aside
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

    def make_way(self) -> None:
        """A callback is going to wait: nothing that it may wait for must wait for this thread."""
        if self.rest is not None:
            self.rest()
        self.pay()
        if self._step_aside is not None:
            self._step_aside()

    def pay(self) -> None:
        """Do what is owed so far."""
        gathered, self._gathered = self._gathered, {}
        calls, self._calls = self._calls, []
        for key, (function, items) in gathered.items():
            function(key, items)
        for call in calls:
            call()
