"""Wait until another process has handled all requests that it has received."""

from __future__ import annotations

import time
from pathlib import Path

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
        ran_ns: dict[Path, int] = {}
        awake = list(Path(f"/proc/{pid}/task").iterdir())
        while awake := [thread for thread in awake if not _has_slept(thread, ran_ns)]:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
    return True


def _has_slept(thread: Path, ran_ns: dict[Path, int]) -> bool:
    try:
        if (thread / "stat").read_text().rpartition(")")[2].split()[0] == "S":
            return True
        now = int((thread / "schedstat").read_text().split()[0])
    except (OSError, ValueError):  # it has ended, or the system has no such file
        return True
    return now - ran_ns.setdefault(thread, now) > _LONG_NS
