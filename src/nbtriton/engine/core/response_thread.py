"""A second thread of an instance: it answers one batch while the instance computes the next."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Final

from nbtriton.engine.core.threads import EngineThread, engine_thread

__all__ = ["ResponseThread"]

_log = logging.getLogger("nbtriton.engine")

# A hand-over costs 0.1 ms a batch (two switches between threads, caches that are cold) and saves
# what the answers take, some 10 us each, where the model lets go of the GIL. Of shorter executions
# it would cost more than a fifth where the model does not.
_LONG_NS: Final = 500_000
# For so many executions at most a thread that did not help is not asked again: its cost is then
# less than a hundredth.
_LONGEST_REST: Final = 128


class ResponseThread:
    """Gives the answers of an instance that has its next batch already.

    It has one batch at a time, so answers leave in the order of the batches, and an instance is
    held back by callers who are slower than it is. All methods are for the instance's thread.

    Parameters
    ----------
    name : str
        Of the thread, which is started when it is first wanted.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # An instance is not blocked by what waits here.
        self.thread = EngineThread()
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Held while it answers: taken by who hands over, given back by its thread.
        self._busy = threading.Lock()
        # A callback waits on its thread, which has given `_busy` back.
        self._aside = False
        self._worker: threading.Thread | None = None
        # What was handed over last: since the last execution; begun already.
        self._handed = False
        self._begun = False
        # Executions for which it is not asked, now and when it does not help the next time.
        self._rest = 0
        self._next_rest = 1

    def wait_idle(self) -> None:
        """Wait until all that was handed over is answered; the next batch has been computed."""
        if self._worker is None:
            return
        if self._handed:
            self._handed = False
            if self._begun:
                self._next_rest = 1
            else:  # the model kept the GIL all the time, or the machine is busy
                self._rest = self._next_rest
                self._next_rest = min(2 * self._next_rest, _LONGEST_REST)
        with self._busy:
            pass

    def should_offload(self, took_ns: int) -> bool:
        """Tell whether to hand over, by how long the last execution took."""
        if took_ns < _LONG_NS:
            return False
        if self._aside:
            return False
        if self._rest:
            self._rest -= 1
            return False
        if self._worker is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads for this process, or Python is shutting down
                self._rest = _LONGEST_REST
                return False
            self._worker = thread
        return True

    def put(self, answer: Callable[[], None]) -> None:
        """Hand over what answers a batch."""
        self._busy.acquire()
        self._handed = True
        self._begun = False
        self._inbox.put(answer)

    def step_aside(self) -> None:
        """Let the instance go on: a callback waits, perhaps for what it does next.

        Called on the thread itself, once all of the batch is answered.
        """
        if not self._aside:
            self._aside = True
            self._busy.release()

    def stop(self) -> None:
        """End the thread, after what it has; one whose callback waits is not waited for."""
        if self._worker is not None:
            self._inbox.put(None)
            if not self._aside:
                self._worker.join()

    def _run(self) -> None:
        with engine_thread(self.thread):
            self._answer()

    def _answer(self) -> None:
        while (answer := self._inbox.get()) is not None:
            self._begun = True
            try:
                answer()
            except BaseException:
                _log.exception("answering a batch ended abnormally")
            finally:
                del answer  # its requests hold tensors and connections: not until the next batch
                if self._aside:
                    self._aside = False
                else:
                    self._busy.release()
