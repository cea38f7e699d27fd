"""A function run in a forked child, and what it returned."""

from __future__ import annotations

import os
import pickle
import select
import signal
from collections.abc import Callable
from typing import Any

__all__ = ["in_child", "start_child"]

# Long enough for a loaded machine; a child that hangs is ended and the test fails.
_WAIT_S = 60.0


def in_child(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a forked child; an exception is returned as one."""
    return start_child(function)()


def start_child(function: Callable[[], Any]) -> Callable[[], Any]:
    """Fork, and return a function that waits for the child's answer.

    A child that hangs is aborted: faulthandler, which pytest enables, writes its stacks.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # nothing of pytest may run here
        try:
            os.close(reading)
            try:
                answer = function()
            except BaseException as error:
                answer = error
            os.write(writing, pickle.dumps(answer))
        finally:
            os._exit(0)
    os.close(writing)

    def wait() -> Any:
        try:
            ready, _, _ = select.select([reading], [], [], _WAIT_S)
            if not ready:
                os.kill(child, signal.SIGABRT)
            data = os.read(reading, 1 << 20)
        finally:
            os.waitpid(child, 0)
            os.close(reading)
        assert ready, "the child hangs: its stacks are in the output"
        assert data, "the child ended without an answer"
        return pickle.loads(data)

    return wait
