"""Concurrent calls in threads that an interrupt does not wait for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

__all__ = ["in_parallel"]

ItemT = TypeVar("ItemT")


def in_parallel(
    work: Callable[[ItemT], None],
    items: Sequence[ItemT],
    threads: int,
    on_end: Callable[[], None] = lambda: None,
) -> None:
    """Call `work` for all items concurrently; an interrupt does not wait for running calls.

    `on_end` is called on this thread after each call.

    Raises
    ------
    BaseException
        The first error, once all calls have ended.
    """
    if len(items) == 1:
        work(items[0])
        on_end()
        return
    waiting: queue.SimpleQueue[ItemT] = queue.SimpleQueue()
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)

    def run() -> None:
        with suppress(queue.Empty):
            while True:
                item = waiting.get_nowait()
                try:
                    work(item)
                except BaseException as error:
                    ended.put(error)
                else:
                    ended.put(None)

    for _ in range(min(threads, len(items))):
        threading.Thread(target=run, name="nbtriton-load", daemon=True).start()
    try:
        errors = []
        for _ in items:
            errors.append(ended.get())
            on_end()
    except BaseException:
        with suppress(queue.Empty):
            while True:
                waiting.get_nowait()
        raise
    for error in errors:
        if error is not None:
            raise error
