"""Work that waits until a thread has given all the answers of one execution.

An endpoint that is told of each answer of a batch would wake its own thread for each; told once at
the end, it handles them together. The next steps of an ensemble would reach their model one by one,
the first of them alone in a batch; together they are a batch again.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from typing import Final

from nbtriton.backends.forking import after_fork
from nbtriton.engine.core.owed import BatchCompletion

__all__ = ["after_answers", "owe", "owed_here"]

# Final: rule 13 of docs/compiled.md.
_thread_id: Final = get_ident

# By thread, and empty while none answers a batch, which is all that a request alone needs to know: a
# thread-local object would take 2% of a step of an ensemble.
_owed: Final[dict[int, BatchCompletion]] = {}


after_fork(_owed.clear)


def owed_here() -> BatchCompletion | None:
    """Return what this thread owes, or None while it is not answering a batch."""
    return _owed.get(_thread_id()) if _owed else None


def owe(owed: BatchCompletion | None) -> None:
    """Let this thread owe that from now on; None for nothing."""
    if owed is None:
        _owed.pop(_thread_id(), None)
    else:
        _owed[_thread_id()] = owed


def after_answers(function: Callable[[], object]) -> None:
    """Call a function once this thread has answered its batch: now, if it is answering none.

    Called once however often it is asked for, after the instance is free again; it must not raise.
    """
    owed = owed_here()
    if owed is None:
        function()
    else:
        owed.call(function)
