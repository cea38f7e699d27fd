"""The thread that polls repositories at an interval."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from typing import Protocol

from nbtriton.common.errors import TritonError

__all__ = ["start_polling"]


class _Pollable(Protocol):
    def poll_now(self) -> None: ...


def start_polling(
    control: weakref.ref[_Pollable], closed: threading.Event, poll_s: float
) -> threading.Thread:
    """Poll until the control is closed or collected; the thread holds no reference to it."""
    thread = threading.Thread(
        target=_poll, args=(control, closed, poll_s), name="nbtriton-poll", daemon=True
    )
    thread.start()
    return thread


def _poll(control: weakref.ref[_Pollable], closed: threading.Event, poll_s: float) -> None:
    while not closed.wait(poll_s):
        pollable = control()
        if pollable is None:
            return
        # A repository that is missing for a while is polled again next time.
        with suppress(TritonError):
            pollable.poll_now()
        del pollable
