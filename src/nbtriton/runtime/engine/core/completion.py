"""Completion of an execution: what follows from its responses, and on which thread.

A `Completion` is an argument of every call between an execution and its last response. It is one of
two: an instance's thread answers a batch (`BatchCompletion`), or the thread that waits for a request
executes it itself (`InlineCompletion`). None stands for neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from nbtriton.scheduling import RunBatch, Ticket

__all__ = ["BatchCompletion", "Completion", "Executor", "InlineCompletion"]


class Executor(ABC):
    """An instance, as far as a completion has to know it.

    Attributes
    ----------
    any_thread : bool
        The model's code may run on any thread.
    """

    any_thread: bool

    @abstractmethod
    def put(self, batch: RunBatch) -> None:
        """Execute a batch on the instance's own thread."""

    @abstractmethod
    def execute(self, batch: RunBatch, inline: InlineCompletion | None = None) -> None:
        """Execute a batch on this thread, which is the caller's with an ``inline``."""


class Completion(ABC):
    """The work of a thread that delivers responses, after it has delivered them."""

    @abstractmethod
    def defer(self, function: Callable[[], object]) -> None:
        """Call a function once after the last response, however often it is deferred.

        It is called on this thread, when the instance is free again, and must not raise.
        """


class BatchCompletion(Completion):
    """Completion of a batch: what follows from its responses waits until all are delivered.

    An endpoint that is called for each response of a batch would wake its own thread for each; called
    once at the end, it handles them together. The next steps of an ensemble would reach their model
    one by one, the first of them alone in a batch; together they are a batch again.

    Parameters
    ----------
    unblock_instance : callable, optional
        Lets the instance execute its next batch, although this thread is not done.

    Attributes
    ----------
    answer_remaining : callable or None
        ``answer_remaining(completion)`` delivers the responses that are left. It gets the completion,
        as one that it held would be a cycle of references: only the garbage collector frees those.
    """

    __slots__ = ("_deferred", "_gathered", "_unblock_instance", "answer_remaining")

    def __init__(self, unblock_instance: Callable[[], object] | None = None) -> None:
        self.answer_remaining: Callable[[Completion], object] | None = None
        self._unblock_instance = unblock_instance
        self._deferred: list[Callable[[], object]] = []
        self._gathered: dict[
            Any, tuple[Callable[[Any, list[Any], Completion], object], list[Any]]
        ] = {}

    def defer(self, function: Callable[[], object]) -> None:
        if function not in self._deferred:
            self._deferred.append(function)

    def gather(
        self, function: Callable[[Any, list[Any], Completion], object], key: Any, item: Any
    ) -> None:
        """Keep an item for ``function(key, items, completion)``, with all others of its key.

        A key belongs to one function.
        """
        found = self._gathered.get(key)
        if found is None:
            found = self._gathered[key] = (function, [])
        found[1].append(item)

    def flush(self) -> None:
        """Do what has been gathered and deferred, and what follows from that in turn."""
        # One by one: a callback that waits flushes what is left, or it could wait for that.
        while self._gathered:
            key = next(iter(self._gathered))
            function, items = self._gathered.pop(key)
            function(key, items, self)
        while self._deferred:
            self._deferred.pop(0)()

    def flush_before_wait(self) -> None:
        """Deliver and flush all before a callback waits on this thread, perhaps for some of it."""
        if self.answer_remaining is not None:
            self.answer_remaining(self)
        self.flush()
        if self._unblock_instance is not None:
            self._unblock_instance()


class InlineCompletion(Completion):
    """Completion on the thread that waits for a request: it executes its batches, one by one.

    Parameters
    ----------
    root : Ticket
        The request. Batches of its steps are accepted too, one at a time, so that independent
        branches of an ensemble still run side by side.
    """

    __slots__ = ("_batch", "_executor", "_root")

    def __init__(self, root: Ticket) -> None:
        self._root = root
        self._executor: Executor | None = None
        self._batch: RunBatch | None = None

    def defer(self, function: Callable[[], object]) -> None:
        function()

    def accept(self, executor: Executor, batch: RunBatch, root: Ticket) -> bool:
        """Accept a batch of one request; ``root``: the caller's request that it is, or a step of."""
        if root is not self._root or self._executor is not None or not executor.any_thread:
            return False
        self._executor = executor
        self._batch = batch
        return True

    def execute(self) -> None:
        """Execute what was accepted, and what is accepted meanwhile."""
        while self._executor is not None:
            executor, batch = self._executor, self._batch
            assert batch is not None
            self._executor = self._batch = None
            executor.execute(batch, self)

    def hand_over(self) -> None:
        """Leave what was accepted to the instance: this thread was interrupted."""
        executor, batch = self._executor, self._batch
        if executor is not None and batch is not None:
            self._executor = self._batch = None
            executor.put(batch)
