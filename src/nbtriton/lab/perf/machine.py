"""What other programs take of the machine, and from how much it is no longer quiet."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
# The share of the cores that other programs may use on a quiet machine: a page that shows views needs as much.
_QUIET = 0.1


def disturbed(cores: float | None, cpus: int) -> str:
    """Return what other programs used while something was measured, in words; empty on a quiet machine.

    Parameters
    ----------
    cores : float or None
        Cores that they used; None if unknown.
    cpus : int
        Cores of the machine.
    """
    if cores is None or cores < _QUIET * cpus:
        return ""
    return f"other programs used {cores:.1f} of {cpus} cores"


def disturbance(cores: float | None, cpus: int) -> str:
    """Return the same as a sentence about a measurement."""
    others = disturbed(cores, cpus)
    return f"while it was measured, {others}: measure again when it is quiet" if others else ""


class Others:
    """The cores that other programs use from now on."""

    def __init__(self) -> None:
        self._started_s, self._used_s = time.monotonic(), others_s()

    @property
    def cores(self) -> float | None:
        """Their mean number until now; None where the system does not say."""
        found = (others_s() - self._used_s) / (time.monotonic() - self._started_s)
        return None if math.isnan(found) else max(0.0, found)

    @property
    def disturbance(self) -> str:
        """What they did until now, in a sentence; empty if little or unknown."""
        from nbtriton.runtime.workers.resources import (
            usable_cores,  # NumPy, which a prediction needs not
        )

        return disturbance(self.cores, usable_cores())


def others_s() -> float:
    """Return the processor seconds that others used so far of the cores that this process may use; nan if unknown.

    Others are the programs that are not this process or its descendants, and the other guests of a virtual
    machine's host.
    """
    try:
        rows = [line.split() for line in (_PROC / "stat").read_text("utf-8").splitlines()]
    except OSError:
        return math.nan
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    # user, nice, system, idle, iowait, irq, softirq, steal
    cores = [list(map(int, words[1:9])) for words in rows if words[0] in usable]
    busy = sum(sum(ticks) - ticks[3] - ticks[4] for ticks in cores) if cores else math.nan
    return busy / os.sysconf("SC_CLK_TCK") - time.process_time() - descendants_s()


def descendants_s() -> float:
    """Return the processor time of all descendants of this process; nan without /proc.

    Processes that have ended are counted with their parents.
    """
    if not (_PROC / "self" / "stat").exists():
        return math.nan
    ticks = 0
    pids = {os.getpid()}
    # A parent's process id is nearly always lower than its children's.
    # With a Path for each process this takes three times as long.
    for number in sorted(int(name) for name in os.listdir(_PROC) if name.isdigit()):  # noqa: PTH208
        with suppress(OSError), open(f"{_PROC}/{number}/stat", "rb") as stat:  # noqa: PTH123 - the process may have ended
            fields = stat.read().rpartition(b")")[2].split()
            if int(fields[1]) in pids:
                pids.add(number)
                # utime, stime, cutime, cstime
                ticks += sum(map(int, fields[11:15]))
    ended = os.times()
    return ticks / os.sysconf("SC_CLK_TCK") + ended.children_user + ended.children_system
