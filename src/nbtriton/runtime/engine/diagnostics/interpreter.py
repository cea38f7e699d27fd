"""The share of time that the instances of a model wait for the interpreter.

Python code of two instances in one process takes turns: only the holder of the global interpreter
lock runs. NumPy, torch and sleeping code release it. Processor time against wall time does not
tell these apart: a model that sleeps uses none, and on a busy machine every model lacks some. So an
instance probes the lock itself, rarely: it releases it for a moment while another instance of its
model executes, and checks whether it gets it back immediately.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from time import monotonic_ns, sleep, thread_time_ns

from nbtriton.runtime.engine.core.snapshot import InterpreterWait

# The instances of a model give 0.13 ms (the shortest sleep of Linux) each 50 ms, and only while several
# of them execute: 0.3% of one of them.
_INTERVAL_NS = 50_000_000
_SHORTEST_S = 1e-6
# On Linux that sleep takes 50 to 70 us, without the time on a processor and in the queue for one, also on
# a busy machine; what is longer was a wait for the lock. Measured at 8 runnable threads a core: at most 5%
# of the samples of NumPy, torch and sleeping code are, and 90% of those of Python code. (Code that
# releases the lock every 50 us, as decoders of images do, holds it in half of the samples.)
_FREE_NS = 100_000
# Elsewhere a sleep is less exact: only a wait for the forced release of the lock, after 5 ms, is seen.
_FREE_ELSEWHERE_NS = 4_000_000
NEVER_NS = 1 << 62
# Fewer samples or a lower share mean nothing: two instances that take turns have a share of 50%.
_ENOUGH_PROBES = 5
_NOTABLE_SHARE = 0.15


def has_interpreter_lock() -> bool:
    """Return False on a free-threaded interpreter, where threads run Python in parallel."""
    enabled = getattr(sys, "_is_gil_enabled", None)
    return True if enabled is None else bool(enabled())


def is_waiting(wait: InterpreterWait) -> bool:
    """Return True if instances wait for the interpreter so long that processes would bring more."""
    return wait.probes >= _ENOUGH_PROBES and wait.share >= _NOTABLE_SHARE


def advice(model: str, wait: InterpreterWait) -> str:
    """Return a sentence about the instances of a model, with the option to type; empty for none.

    Parameters
    ----------
    model : str
    wait : InterpreterWait
        Of `nbtriton.runtime.engine.core.snapshot.ModelSnapshot`, or of a part of its time.
    """
    if not is_waiting(wait):
        return ""
    return (
        f"the instances of '{model}' waited for each other's Python code {wait.share:.0%} of the time "
        "in which they ran at once: --isolation process lets them run side by side"
    )


class InterpreterProbe:
    """Samples of one model version: whether the interpreter was taken by another instance.

    Parameters
    ----------
    interval_ns : int
        Minimum time between two samples. One instance samples at a time: two at once would both
        find the interpreter free.
    """

    def __init__(self, interval_ns: int = _INTERVAL_NS) -> None:
        self._interval_ns = interval_ns
        self._lock = threading.Lock()
        self._due_ns = 0
        self._probes = 0
        self._waits = 0.0
        exact = Path("/proc/self/schedstat").exists()
        self._free_ns = _FREE_NS if exact else _FREE_ELSEWHERE_NS

    def probe(self, others: int) -> int:
        """Take a sample on an instance's thread, between two executions.

        Parameters
        ----------
        others : int
            Other instances of the model that are executing; without any, nothing is sampled.

        Returns
        -------
        int
            When the instance should sample again, on the clock of `time.monotonic_ns`.
        """
        if not has_interpreter_lock():
            return NEVER_NS
        with self._lock:
            now = monotonic_ns()
            if now < self._due_ns:
                return self._due_ns
            self._due_ns = now + self._interval_ns
        if others:
            queued, computed, start = _run_queue_ns(), thread_time_ns(), monotonic_ns()
            sleep(_SHORTEST_S)
            took = monotonic_ns() - start
            took -= thread_time_ns() - computed + _run_queue_ns() - queued
            with self._lock:
                self._probes += 1
                # Of n that want it at once, one has it: each waits for the others' (n - 1) / n.
                self._waits += others / (others + 1) if took > self._free_ns else 0.0
        return now + self._interval_ns

    def result(self) -> InterpreterWait:
        """Return the samples so far."""
        with self._lock:
            return InterpreterWait(self._probes, self._waits)


def _run_queue_ns() -> int:
    """Return how long this thread has waited for a processor so far: others' load, not the lock.

    0 if the system does not report it.
    """
    try:
        text = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_bytes()
        return int(text.split()[1])
    except (OSError, ValueError, IndexError):
        return 0
