"""The entry point of a worker."""

from __future__ import annotations

import socket

from nbtriton.runtime.workers.worker.core.worker import Worker

__all__ = ["main"]


def main(execute: socket.socket, calls: socket.socket, name: str) -> None:  # noqa: ARG001
    """Run a worker, to its end."""
    Worker(execute, calls).run()
