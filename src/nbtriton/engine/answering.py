"""Work that waits until a thread has given all the answers of one execution.

An endpoint that is told of each answer of a batch would wake its own thread for each; told once at
the end, it handles them together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["after_answers", "answering"]


class _Answering(threading.local):
    """The calls that this thread owes, or None while it is not answering a batch."""

    owed: list[Callable[[], object]] | None = None


answering = _Answering()


def after_answers(function: Callable[[], object]) -> None:
    """Call a function once this thread has answered its batch: now, if it is answering none.

    Called once however often it is asked for, after the instance is free again; it must not raise.
    """
    owed = answering.owed
    if owed is None:
        function()
    elif function not in owed:
        owed.append(function)
