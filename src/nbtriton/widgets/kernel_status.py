"""The kernel says that it is busy again, once a page's message is done while a cell runs."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["resume_busy"]

# Longer than a cell takes to give its shell back once it has said that the kernel is idle.
_CHECK_S = 0.2


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
    # ipykernel >= 7 has both; no public way. Where one has another name the kernel is left alone, too.
    shell = getattr(kernel, "_main_asyncio_lock", None)
    publish = getattr(kernel, "_publish_status", None)
    if shell is None or publish is None or not shell.locked():
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # called by a test or by a host without ipykernel's loops
        return

    def end() -> None:
        # The cell ended while "busy" was on its way: its "idle" may have come before.
        if not shell.locked():
            publish("idle", "shell")

    def begin() -> None:
        if shell.locked():
            publish("busy", "shell")
            loop.call_later(_CHECK_S, end)

    # ipykernel says "idle" without giving way to the loop first.
    loop.call_soon(begin)
