"""Wait until another process has handled all requests that it has received."""

from __future__ import annotations

import os
import time

__all__ = ["come_to_rest"]

# A thread that has run for this long since has handled everything: a batcher without room for
# another batch polls again and again.
_LONG_NS = 2_000_000
# One thread hands a request over, another one decides about it; one more for a lock between them.
_ROUNDS = 3


def come_to_rest(pid: int, seconds: float) -> bool:
    """Wait until each thread of a process has slept, and again after that, except those that spin.

    A thread that only waits for a processor does not sleep, however busy the machine is.

    Returns
    -------
    bool
        False if that takes longer than `seconds`.
    """
    deadline = time.monotonic() + seconds
    for _ in range(_ROUNDS):
        ran_ns: dict[str, int] = {}
        awake = [f"/proc/{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - below
        while awake := [thread for thread in awake if not _has_slept(thread, ran_ns)]:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
    return True


def _has_slept(thread: str, ran_ns: dict[str, int]) -> bool:
    # Some 500 threads, three times for each request: a Path costs as much again as the file.
    try:
        with open(f"{thread}/stat", "rb", 0) as file:  # noqa: PTH123
            if file.read().rpartition(b")")[2].split()[0] == b"S":
                return True
        with open(f"{thread}/schedstat", "rb", 0) as file:  # noqa: PTH123
            now = int(file.read().split()[0])
    except (OSError, ValueError):  # it has ended, or the system has no such file
        return True
    return now - ran_ns.setdefault(thread, now) > _LONG_NS
