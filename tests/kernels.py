"""A kernel that runs cells; one that falls silent dumps the stacks of its threads and fails the test."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

from jupyter_client.manager import KernelManager
from traitlets.config import Config

__all__ = ["ARGUMENTS", "SILENT_S", "Kernel", "over_ipc", "started_kernel"]

# Only a kernel that hangs is silent for so long.
SILENT_S = 120.0
# All kernels of a user write their history into one file: one that finds it locked for five seconds says so in a cell.
ARGUMENTS = ["--IPKernelApp.log_level=ERROR", "--HistoryManager.enabled=False"]

Message = dict[str, Any]


@contextmanager
def over_ipc() -> Iterator[Config]:
    """Yield a configuration by which one kernel has sockets in a folder of its own instead of ports.

    Jupyter gives a kernel ports that were free a moment ago: beside other tests it finds one in use now
    and then, and ends.
    """
    with TemporaryDirectory(prefix="kernel-") as folder:
        yield Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/socket"}})


class Kernel:
    """Runs cells in a kernel and collects what it says."""

    def __init__(self, config: Config) -> None:
        self.manager = KernelManager(kernel_name="python3", config=config)
        self.manager.start_kernel(extra_arguments=ARGUMENTS)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SILENT_S)

    def send(self, cell: str) -> str:
        """Let it run a cell; return the identifier of the request."""
        sent: str = self.client.execute(cell)
        return sent

    def next_message(self) -> Message:
        """Return what it says next.

        Silence fails the test: the kernel is aborted, and faulthandler writes its stacks.
        """
        try:
            message: Message = self.client.get_iopub_msg(timeout=SILENT_S)
        except queue.Empty:
            self.manager.provisioner.process.send_signal(signal.SIGABRT)
            raise AssertionError(f"the kernel said nothing for {SILENT_S:g} s") from None
        return message

    def until_idle(self, sent: str) -> list[Message]:
        """Return every message of a cell, until the kernel is idle again."""
        messages = []
        while True:
            message = self.next_message()
            if message["parent_header"].get("msg_id") != sent:
                continue
            messages.append(message)
            if _is_idle(message):
                return messages

    def wait_for(self, sent: str, kind: str) -> Message:
        """Return the next message of a cell of this kind; a cell that ends without one fails the test."""
        others = []
        deadline = time.monotonic() + SILENT_S
        while time.monotonic() < deadline:
            message = self.next_message()
            if message["parent_header"].get("msg_id") != sent:
                continue
            if message["msg_type"] == kind:
                return message
            others.append((message["msg_type"], message["content"]))
            assert not _is_idle(message), f"the cell ended without {kind}: {others}"
        raise AssertionError(f"no {kind} within {SILENT_S:g} s: {others}")

    def run(self, cell: str) -> list[Message]:
        """Run a cell; return all its messages."""
        return self.until_idle(self.send(cell))

    def text(self, cell: str) -> str:
        """Run a cell; return what it printed."""
        return "".join(
            m["content"]["text"] for m in self.run(cell) if m["msg_type"] == "stream"
        ).strip()


def _is_idle(message: Message) -> bool:
    return message["msg_type"] == "status" and message["content"].get("execution_state") == "idle"


@contextmanager
def started_kernel() -> Iterator[Kernel]:
    """Yield a kernel, and end it."""
    with over_ipc() as config:
        kernel = Kernel(config)
        try:
            yield kernel
        finally:
            kernel.client.stop_channels()
            kernel.manager.shutdown_kernel(now=True)
