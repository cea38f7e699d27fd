"""An instance's own event loop for ``async def execute``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a coroutine: either a value or an error."""

    value: object = None
    error: BaseException | None = None


def wait_for_outcome(future: Future[Outcome], timeout_s: float) -> bool:
    """Wait for a coroutine of `LoopThread.start`; return False after the timeout."""
    try:
        future.exception(timeout_s)
    except CancelledError:
        return True
    except TimeoutError:
        return False
    return True


class LoopThread:
    """A thread that runs coroutines, as Triton's stub process does: tasks outlive ``execute``."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, object]) -> Future[Outcome]:
        """Run a coroutine in the context of the caller; the future never raises its exception."""
        return asyncio.run_coroutine_threadsafe(_outcome(coroutine), self._loop)

    def close(self) -> None:
        """Cancel running coroutines and stop the thread."""
        self._loop.call_soon_threadsafe(self._stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._closing:
                # A task of the model's that exits ends the loop with its error, which whoever awaits it gets as well.
                with suppress(KeyboardInterrupt, SystemExit):
                    self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _stop(self) -> None:
        self._closing = True
        self._loop.stop()


async def _outcome(coroutine: Coroutine[Any, Any, object]) -> Outcome:
    # As a value: SystemExit would end the loop, and a future would add its own frames.
    try:
        return Outcome(value=await coroutine)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return Outcome(error=error)
