"""Waiting for what happens in another process: the one place where a test may sleep.

Between threads of our own there is always something to wait on: an event, a future, a queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["until"]

# Long enough for a busy machine; what has happened is seen at once.
PATIENCE_S = 30.0
_PAUSE_S = 0.005


def until(happened: Callable[[], object], seconds: float = PATIENCE_S) -> bool:
    """Ask until something has happened; False if it has not in so many seconds."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)
    return True
