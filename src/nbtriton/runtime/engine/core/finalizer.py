"""The end of a drained version, on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from nbtriton.runtime.engine.interrupts import wait_in_slices

__all__ = ["Finalizer"]


class Finalizer:
    """Finalizes a version once.

    Not on the thread that finds it drained: the last batch may have run on the very thread that is to
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
        """Start the thread, unless it was started before; not for several threads at once."""
        if self._begun:
            return
        self._begun = True
        try:
            self._worker.start()
        except RuntimeError:  # no more threads for this process, or Python is shutting down
            self._deferred = True

    def run(self) -> None:
        """Finalize here and now."""
        self._finalize()
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
