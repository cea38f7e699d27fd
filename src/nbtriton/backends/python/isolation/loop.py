"""The event loop that an instance owns for ``async def execute``."""

# ruff: noqa: SLF001 - asyncio has no other way to ask what tasks await
from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

__all__ = ["LoopThread", "Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a coroutine: either a value or an error."""

    value: object = None
    error: BaseException | None = None


# Futures of calls to other models, as coroutines await them.
_answers: WeakSet[asyncio.Future[Any]] = WeakSet()


def mark_answer(future: asyncio.Future[Any]) -> None:
    """Note that a future is the answer of another model."""
    _answers.add(future)


def only_awaits_answers(loop: asyncio.AbstractEventLoop) -> bool:
    """Return True if every task of a loop waits for answers of other models, and nothing else.

    A timer that is set may end a wait, so with one the answer is False; so it is whenever a task
    waits for something unknown.
    """
    inner: Any = loop
    try:
        tasks = asyncio.all_tasks(loop)
        timers = [timer for timer in inner._scheduled if not timer.cancelled()]
    except RuntimeError:  # changed while we looked: something moves
        return False
    return bool(tasks) and not timers and all(_awaits_answers(task) for task in tasks)


def _awaits_answers(task: Any) -> bool:
    waiter = task._fut_waiter
    if waiter is None:
        return False
    parts = getattr(waiter, "_children", [waiter])  # of a gather
    return all(part.done() or part in _answers or isinstance(part, asyncio.Task) for part in parts)


class LoopThread:
    """A thread that runs coroutines, as Triton's stub process does: tasks outlive ``execute``."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, object]) -> Future[Outcome]:
        """Run a coroutine in the context of the caller; the future never raises its exception."""
        return asyncio.run_coroutine_threadsafe(_outcome(coroutine), self._loop)

    def close(self) -> None:
        """Cancel what still runs and end the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


async def _outcome(coroutine: Coroutine[Any, Any, object]) -> Outcome:
    # As a value: SystemExit would end the loop, and a future would add its own frames.
    try:
        return Outcome(value=await coroutine)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return Outcome(error=error)
