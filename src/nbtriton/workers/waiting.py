"""The engine's ways of waiting for a worker, as parameters.

Ctrl-C must neither tear a message apart nor wait for the end of an execution.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

__all__ = ["Waiting"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Parameters.

    Parameters
    ----------
    deferred : callable
        Returns a context manager inside which an interrupt of the main thread is kept.
    interruptible : callable
        ``interruptible(wait)`` calls ``wait(seconds)`` until it returns True, with interrupts allowed.
    """

    deferred: Callable[[], AbstractContextManager[Any]]
    interruptible: Callable[[Callable[[float], bool]], object]
