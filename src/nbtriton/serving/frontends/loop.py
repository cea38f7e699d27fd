"""Event loop in its own thread, on which the endpoints listen, read and write."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import threading
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from nbtriton.runtime.engine import Completion

# Limit of one turn of the loop for one busy client, for all deferred calls, and for all calls posted by
# other threads.
TURN_S = 0.001

_T = TypeVar("_T")

_log = logging.getLogger("nbtriton.serving.frontends")

_WORKERS = 4
# For tasks that are about to end when the loop stops; one that hangs is left behind.
_LAST_TASKS_S = 1.0


class _Workers:
    """Threads for long tasks.

    They do not keep the process alive, unlike those of `concurrent.futures`: loading a model may hang.
    """

    def __init__(self, count: int, name: str) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]
        self._started = 0  # by `submit`, which one thread at a time calls

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task after those that are waiting."""
        self._tasks.put(task)
        if self._started < len(self._threads):
            self._threads[self._started].start()
            self._started += 1

    def stop(self, timeout_s: float) -> None:
        """End the threads; tasks that wait are dropped."""
        with contextlib.suppress(Empty):
            while True:
                self._tasks.get_nowait()
        threads = self._threads = self._threads[: self._started]
        for _ in threads:
            self._tasks.put(None)
        deadline = monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline - monotonic()))

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BaseException:  # also SystemExit from a model's code: this thread has more to do
                _log.exception("a long task failed")
            del task  # with its request, rather than when the next task comes


class LoopThread:
    """An event loop with its thread, and workers for long tasks.

    Parameters
    ----------
    name : str
        Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self.loop = _new_loop()
        self._posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._awake = False
        # The threads that answer a batch, and wake the loop at its end.
        self._in_batch: set[int] = set()
        self._deferred: deque[Callable[[], object]] = deque()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._workers = _Workers(_WORKERS, f"{name}-worker")
        self._loaders = _Workers(_WORKERS, f"{name}-loader")
        self.ident = 0
        self._thread.start()

    def _run(self) -> None:
        self.ident = get_ident()
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Run a function on the loop soon, in order; from any thread; harmless after `stop`."""
        self._posted.append((function, arguments))
        if not self._awake and get_ident() not in self._in_batch:
            self._wake()

    def join_batch(self, completion: Completion) -> None:
        """Hold back this thread's posts until the end of a batch, so that the loop is woken once."""
        if get_ident() not in self._in_batch:
            self._in_batch.add(get_ident())
            completion.defer(self._end_batch)

    def _end_batch(self) -> None:
        self._in_batch.discard(get_ident())
        if self._posted:
            self._wake()

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            with contextlib.suppress(RuntimeError):  # closed in the meantime
                self.loop.call_soon_threadsafe(self._run_posted)

    def _run_posted(self) -> None:
        turn_end = monotonic() + TURN_S
        while self._posted:
            function, arguments = self._posted.popleft()
            try:
                function(*arguments)
            except Exception:  # otherwise nothing would wake the loop any more
                _log.exception("a posted call failed")
            if self._posted and monotonic() > turn_end:  # other callbacks first
                self.loop.call_soon(self._run_posted)
                return
        self._awake = False
        if self._posted:  # by a thread that has not noticed
            self._wake()

    def defer(self, function: Callable[[], object]) -> None:
        """Run a function in a later turn, after short requests of other clients; called on the loop."""
        if not self._deferred:
            self.loop.call_soon(self._run_deferred)
        self._deferred.append(function)

    def _run_deferred(self) -> None:
        """Run deferred functions in order for at most one turn."""
        turn_end = monotonic() + TURN_S
        for _ in range(len(self._deferred)):
            try:
                self._deferred[0]()
            except Exception:
                _log.exception("a deferred call failed")
            self._deferred.popleft()
            if monotonic() > turn_end:
                break
        if self._deferred:
            self.loop.call_soon(self._run_deferred)

    def start(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Start a coroutine on the loop; from any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop, and wait for its result; from another thread."""
        return self.start(coroutine).result()

    def run_on_worker(self, task: Callable[[], None], *, loads: bool = False) -> None:
        """Run a long task on a worker; called on the loop, dropped after `stop`.

        One that `loads` a model, which may hang, has another one than requests.
        """
        (self._loaders if loads else self._workers).submit(task)

    def stop(self) -> None:
        """End all threads; harmless when repeated."""
        self._workers.stop(_LAST_TASKS_S)
        self._loaders.stop(_LAST_TASKS_S)
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self._posted = deque(maxlen=0)  # models may go on sending


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        uvloop = importlib.import_module("uvloop")  # not available on Windows
    except ImportError:
        return asyncio.new_event_loop()
    return cast("asyncio.AbstractEventLoop", uvloop.new_event_loop())
