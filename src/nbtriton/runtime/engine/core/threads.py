"""The engine's own threads. A wait on one of them may block the very thing it waits for, so all are registered by id.

Two of them belong to no instance: the scheduler thread of a server, which wakes batchers at their
times, and the thread on which a drained version ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from threading import TIMEOUT_MAX, get_ident
from time import monotonic_ns
from typing import Any, Final

from nbtriton.backends.core.executing import EXECUTING
from nbtriton.backends.forking import after_fork
from nbtriton.runtime.engine.core.execution import BatchCompletion
from nbtriton.runtime.interrupts import wait_in_slices


class EngineThread:
    """A thread on which responses are delivered, and with them callbacks of callers.

    Attributes
    ----------
    instance : object
        The instance that owns the thread; None for a thread that no instance depends on.
    completion : BatchCompletion or None
        The completion of the batch that it is answering.
    """

    __slots__ = ("completion", "instance")

    def __init__(self, instance: Any = None) -> None:
        self.instance = instance
        self.completion: BatchCompletion | None = None


_THREADS: Final[dict[int, EngineThread]] = {}
after_fork(_THREADS.clear)  # none of them exists in the child


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
    """Return the model whose instance is being created on this thread; empty elsewhere."""
    thread = this_thread()
    home = None if thread is None else thread.instance
    return "" if home is None else str(home.starting)


def blocked_here() -> tuple[Any, ...]:
    """Return the instances that a wait on this thread blocks, the outermost first."""
    callers = EXECUTING.get().callers
    if callers:  # A decoupled model's code blocks no instance once execute has returned.
        callers = tuple(
            caller for caller in callers if not caller.decoupled or caller.thread == get_ident()
        )
    thread = this_thread()
    home = None if thread is None else thread.instance
    return callers if home is None or home in callers else (home, *callers)


_log = logging.getLogger("nbtriton.runtime.engine")

Wake = Callable[[], None]


class SchedulerThread:
    """One thread per server that calls ``wake`` functions at their times.

    It starts with the first timer, so a server without queue delays and timeouts has none.
    A timer cannot be withdrawn: the woken batcher checks its own state, as after any spurious
    wake-up.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._heap: list[tuple[int, int, Wake]] = []
        self._sequence = count()
        self._worker: threading.Thread | None = None
        self._stopping = False

    def call_at(self, when_ns: int, wake: Wake) -> bool:
        """Call ``wake()`` at ``when_ns`` (`time.monotonic_ns`) or soon after; False if that will not be."""
        with self._condition:
            if self._stopping:
                return False
            if self._worker is None:
                worker = threading.Thread(target=self._run, name="nbtriton-scheduler", daemon=True)
                try:
                    worker.start()
                except RuntimeError:  # no more threads for this process: the next timer tries again
                    return False
                self._worker = worker
            heappush(self._heap, (when_ns, next(self._sequence), wake))
            if self._heap[0][0] == when_ns:
                self._condition.notify()
            return True

    def stop(self, timeout_s: float) -> None:
        """End the thread, unless a callback keeps it for longer; timers that have not fired are dropped."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
            thread = self._worker
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self) -> None:
        with engine_thread(EngineThread()):
            while (wake := self._next()) is not None:
                try:
                    wake()
                except BaseException:
                    _log.exception("the scheduler thread: a wake-up raised")

    def _next(self) -> Wake | None:
        """Wait for the time of the next timer; None at the end."""
        with self._condition:
            while not self._stopping:
                now = monotonic_ns()
                if self._heap and self._heap[0][0] <= now:
                    return heappop(self._heap)[2]
                # Without a timer: until one is added. A configuration may ask for half a million years.
                left_s = (self._heap[0][0] - now) / 1e9 if self._heap else TIMEOUT_MAX
                self._condition.wait(min(left_s, TIMEOUT_MAX))
        return None


class Finalizer:
    """Finalizes a version once.

    Not on the thread that finds it drained: the last batch may have run on the very thread that has to
    be joined.

    Parameters
    ----------
    name : str
        Of the thread.
    finalize : callable
    """

    __slots__ = ("_begun", "_deferred", "_done", "_finalize", "_worker")

    def __init__(self, name: str, finalize: Callable[[], None]) -> None:
        self._finalize = finalize
        self._worker = threading.Thread(target=self.run, name=name, daemon=True)
        self._begun = False
        self._deferred = False  # to `wait`, as the thread could not be started
        self._done = threading.Event()

    def start(self) -> None:
        """Start the thread, unless it was already started; not thread-safe."""
        if self._begun:
            return
        self._begun = True
        try:
            self._worker.start()
        except RuntimeError:  # no more threads for this process, or Python is shutting down
            self._deferred = True

    def run(self) -> None:
        """Finalize on the calling thread."""
        try:
            self._finalize()
        except Exception:  # of a backend's `close`
            _log.exception("the end of a version raised")
        finally:
            self._done.set()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until the version is finalized; False if time ran out."""
        if self._deferred:
            self._deferred = False
            self.run()
        done = wait_in_slices(self._done.wait, timeout_s)
        if done and self._worker.ident is not None:
            self._worker.join()  # it has finished: no thread is left behind
        return done
