"""The thread that looks at repositories again and again."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from typing import Protocol

from nbtriton.errors import TritonError

__all__ = ["start_polling"]


class _Polls(Protocol):
    def poll_now(self) -> None: ...


def start_polling(
    control: weakref.ref[_Polls], ended: threading.Event, poll_s: float
) -> threading.Thread:
    """Poll as long as somebody holds the control; the thread itself does not."""
    thread = threading.Thread(
        target=_poll_until_ended,
        args=(control, ended, poll_s),
        name="nbtriton-poll",
        daemon=True,
    )
    thread.start()
    return thread


def _poll_until_ended(control: weakref.ref[_Polls], ended: threading.Event, poll_s: float) -> None:
    while not ended.wait(poll_s):
        polling = control()
        if polling is None:
            return
        # A repository that is away for a moment is looked for again next time.
        with suppress(TritonError):
            polling.poll_now()
        del polling
