"""Work that waits until a thread has given all the answers of one execution.

An endpoint that is told of each answer of a batch would wake its own thread for each; told once at
the end, it handles them together. The next steps of an ensemble would reach their model one by one,
the first of them alone in a batch; together they are a batch again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from nbtriton.engine.owed import Owed

__all__ = ["after_answers", "answering"]


class _Answering(threading.local):
    """What this thread owes, or None while it is not answering a batch.

    Not to be compiled: mypyc gives its classes a layout of their own, which a base in C has not.
    """

    owed: Owed | None = None


answering = _Answering()


def after_answers(function: Callable[[], object]) -> None:
    """Call a function once this thread has answered its batch: now, if it is answering none.

    Called once however often it is asked for, after the instance is free again; it must not raise.
    """
    owed = answering.owed
    if owed is None:
        function()
    else:
        owed.call(function)
