"""The background scheduler thread: it wakes the batchers whose time has come."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from time import monotonic_ns

from nbtriton.runtime.engine.core.threads import EngineThread, engine_thread

__all__ = ["SchedulerThread"]

_log = logging.getLogger("nbtriton.runtime.engine")

Wake = Callable[[], None]


class SchedulerThread:
    """One thread per server that calls ``wake`` functions at their time.

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

    def call_at(self, when_ns: int, wake: Wake) -> None:
        """Call ``wake()`` at ``when_ns`` (`time.monotonic_ns`) or soon after."""
        with self._condition:
            if self._stopping:
                return
            heappush(self._heap, (when_ns, next(self._sequence), wake))
            if self._worker is None:
                self._worker = threading.Thread(
                    target=self._run, name="nbtriton-scheduler", daemon=True
                )
                self._worker.start()
            elif self._heap[0][2] is wake and self._heap[0][0] == when_ns:
                self._condition.notify()

    def stop(self) -> None:
        """End the thread; timers that have not fired are dropped."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
            thread = self._worker
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        with engine_thread(EngineThread()):
            self._wake_in_time()

    def _wake_in_time(self) -> None:
        while True:
            with self._condition:
                while not self._stopping:
                    now = monotonic_ns()
                    if self._heap and self._heap[0][0] <= now:
                        break
                    # Without a timer: until one is added.
                    self._condition.wait((self._heap[0][0] - now) / 1e9 if self._heap else None)
                if self._stopping:
                    return
                _, _, wake = heappop(self._heap)
            try:
                wake()
            except Exception:
                _log.exception("the scheduler thread: a wake-up raised")
