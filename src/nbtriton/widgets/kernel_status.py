"""The kernel says that it is busy again, once a page's message is done while a cell runs."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakSet

__all__ = ["resume_busy"]

# Kernels that will say "idle" after the cell that runs: once, however many messages a page sends meanwhile.
_ENDING: WeakSet[Any] = WeakSet()


def resume_busy(kernel: Any) -> None:
    """Let the kernel say that it is busy, after the message that is handled now and if a cell runs.

    ipykernel says busy and idle around every message, also around one that a subshell handles while a
    cell runs on the main shell. Front ends take the last word for the kernel's: JupyterLab's status bar
    said "Idle" from the first acknowledgement of a live view to the end of the cell.

    Parameters
    ----------
    kernel : ipykernel.kernelbase.Kernel
        One without subshells handles messages between cells, and is left alone.
    """
    # ipykernel >= 7 has all; no public way. Where one has another name the kernel is left alone, too.
    shell = getattr(kernel, "_main_asyncio_lock", None)
    publish = getattr(kernel, "_publish_status", None)
    main_loop = getattr(kernel, "io_loop", None)
    if shell is None or publish is None or main_loop is None or not shell.locked():
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # called by a test or by a host without ipykernel's loops
        return

    async def end() -> None:
        # A cell says "idle" before it gives its shell back: "busy" may have come in between.
        async with shell:
            # Before "idle": who says "busy" from now on finds that another end is needed.
            _ENDING.discard(kernel)
            publish("idle", "shell")

    def begin() -> None:
        if shell.locked():
            publish("busy", "shell")
            if kernel not in _ENDING:
                _ENDING.add(kernel)
                # Not on this loop, which ends with the page's subshell.
                main_loop.add_callback(end)

    # ipykernel says "idle" without giving way to the loop first.
    loop.call_soon(begin)
