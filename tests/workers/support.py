"""Workers of the tests, and what a process has open."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nbtriton.runtime.workers.core.memory import Outgoing
from nbtriton.runtime.workers.launching import Interpreter
from nbtriton.runtime.workers.process import WorkerProcess, start_worker

__all__ = [
    "COMMANDS",
    "ask",
    "blocks",
    "children",
    "descriptors",
    "is_alive",
    "own_children",
    "worker",
    "workers",
]

COMMANDS = Interpreter(entry="tests.workers.commands:main")


@contextmanager
def worker(name: str = "m_0", **options: Any) -> Iterator[WorkerProcess]:
    """A worker that evaluates expressions, ended with the block."""
    made = start_worker(name, interpreter=COMMANDS, **options)
    try:
        yield made
    finally:
        made.close()


def ask(made: WorkerProcess, expression: str) -> str:
    """Return the text of an expression's value in a worker; empty if it ended instead."""
    made.lanes[0].sendall(expression.encode())
    try:
        return made.lanes[0].recv(1 << 20).decode()
    except ConnectionResetError:
        return ""


def blocks(heap: Outgoing) -> int:
    """How many bytes of shared memory a heap has given out."""
    segments = heap._segments.values()
    return heap.size - sum(room for segment in segments for _, room in segment.free)


def is_alive(pid: int) -> bool:
    """True for a process that runs; one that has ended and is not reaped yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def children(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    return [one for child in own_children(pid) for one in (child, *children(child))]


def own_children(pid: int) -> list[int]:
    """The processes that a process has started, and that have not ended meanwhile."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, (task / "children").read_text().split())
    return found


def workers() -> list[int]:
    """The workers of this process: the children of its fork servers."""
    return [worker for server in own_children(os.getpid()) for worker in own_children(server)]


def descriptors() -> int:
    """How many descriptors this process has open, without what nothing refers to any more."""
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
