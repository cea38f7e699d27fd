"""Polling for a change in another process: the one place where a test may sleep.

Between threads of one process there is always an event, a future or a queue to wait on. Models of tests
may take time; scenarios of `tests/differential/` and `tests/frontends/starving.py` last as long as they say.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["until"]

# Long enough for a busy machine; a change is seen at once.
PATIENCE_S = 60.0
_PAUSE_S = 0.005


def until(happened: Callable[[], object], seconds: float = PATIENCE_S) -> bool:
    """Poll until the condition holds; return False if it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)
    return True
