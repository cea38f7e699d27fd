"""A model's code is called as on a thread without an event loop."""

# ruff: noqa: SLF001 - asyncio has no other way to set the running loop
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["without_running_loop"]

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

_running_loop: Final = asyncio._get_running_loop


def without_running_loop(call: Callable[[_Argument], _Result], argument: _Argument) -> _Result:
    """Call a function as on a thread without an event loop.

    A model may call `asyncio.run`. In a notebook it may run on the kernel's own thread, where a
    loop is running already and `asyncio.run` would refuse.
    """
    running = _running_loop()
    if running is None:
        return call(argument)
    asyncio._set_running_loop(None)
    try:
        return call(argument)
    finally:
        asyncio._set_running_loop(running)
