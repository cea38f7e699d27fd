"""The engine's ways of waiting for a worker, as parameters.

Ctrl-C must neither split a message nor wait for the end of an execution.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

__all__ = ["Waiting"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Functions for waits and interrupts.

    Parameters
    ----------
    deferred : callable
        Returns a context manager that defers an interrupt of the main thread.
    interruptible : callable
        ``interruptible(wait)`` calls ``wait(seconds)`` until it returns True, with interrupts allowed.
    """

    deferred: Callable[[], AbstractContextManager[Any]]
    interruptible: Callable[[Callable[[float], bool]], object]
