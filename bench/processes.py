"""Other processes: ports, children, processor time and suspension."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

__all__ = ["busy", "cpu_s", "family", "free_ports", "lives", "stopped"]


def free_ports(count: int) -> list[int]:
    """Return different free ports; another process may bind them before the caller."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def family(pid: int) -> dict[int, int]:
    """Return a process and its descendants, with the processor ticks of each."""
    found: dict[int, int] = {}
    for path in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with suppress(OSError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if int(path.name) == pid or int(fields[1]) in found:
                # utime, stime, and both of ended children.
                found[int(path.name)] = sum(map(int, fields[11:15]))
    return found


def cpu_s(pid: int) -> float:
    """Return the processor time of a process and its descendants so far."""
    return sum(family(pid).values()) / os.sysconf("SC_CLK_TCK")


def lives(pid: int) -> bool:
    """Return True for a process that has not ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep cores busy during the block with processes that are no children of this one."""
    # A shell that ends leaves them to the first process of the machine.
    one = f"{sys.executable} -c 'while True: pass' >/dev/null 2>&1 & echo $!;"
    made = subprocess.run(["/bin/sh", "-c", one * count], capture_output=True, check=True)
    pids = [int(line) for line in made.stdout.split()]
    try:
        yield
    finally:
        _send(pids, signal.SIGKILL)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Suspend a process and its descendants during the block."""
    members = list(family(pid))
    try:
        _send(members, signal.SIGSTOP)
        yield
    finally:
        _send(members, signal.SIGCONT)


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
