"""Process state that a forked child must renew."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

_Value = TypeVar("_Value")


def after_fork(function: Callable[[], object]) -> None:
    """Call a function in every forked child; for state that lives as long as the process.

    The child has only the thread that forked: a lock of another thread stays locked, and other threads' work
    is not done.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=function)


def per_process(make: Callable[[], _Value]) -> Callable[[], _Value]:
    """Return a function that returns one value, such as a lock, and makes a new one in a forked child."""
    value = make()

    def renew() -> None:
        nonlocal value
        value = make()

    after_fork(renew)
    return lambda: value
