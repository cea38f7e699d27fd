"""A limit on the requests of an ensemble in one step at a time (max_inflight_requests, E21)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from nbtriton.runtime.engine.core.completion import Completion

__all__ = ["StepGate", "Turn"]

# Set once the waiting request has its place.
Turn = threading.Event


class StepGate:
    """The places in one step, shared by all requests of an ensemble; first come, first served.

    Parameters
    ----------
    limit : int
        At least 1.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._inside = 0
        self._handing_on = False
        self._waiting: deque[tuple[Callable[[Completion | None], None], Turn]] = deque()

    def acquire(
        self, go: Callable[[Completion | None], None], completion: Completion | None = None
    ) -> Turn | None:
        """Call ``go(completion)`` now, or when a place becomes free.

        Returns
        -------
        Turn or None
            None if it was called at once.
        """
        with self._lock:
            if self._inside >= self._limit:
                turn = Turn()
                self._waiting.append((go, turn))
                return turn
            self._inside += 1
        go(completion)
        return None

    def release(self, completion: Completion | None = None) -> None:
        """Release a place; the next request starts on this thread."""
        with self._lock:
            self._inside -= 1
            # A loop on one thread: a request that starts may leave at once, and must not nest.
            if self._handing_on:
                return
            self._handing_on = True
        while True:
            with self._lock:
                if not self._waiting or self._inside >= self._limit:
                    self._handing_on = False
                    return
                self._inside += 1
                go, turn = self._waiting.popleft()
            turn.set()
            go(completion)
