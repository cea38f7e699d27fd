"""Wait until another process has handled all requests that it has received."""

from __future__ import annotations

import os
import time

__all__ = ["Threads"]

# A thread that has run for this long since has handled everything: a batcher without room for
# another batch polls again and again.
_LONG_NS = 2_000_000
# One thread hands a request over, another one decides about it; one more for a lock between them.
_ROUNDS = 3
_CPUCLOCK_SCHED = 2


class Threads:
    """The threads of a process, some 500 for a tritonserver, to be looked at for each request.

    Their files stay open until `close`: to open them costs four times as much as to read them.
    """

    def __init__(self, pid: int) -> None:
        self._folder = f"/proc/{pid}/task"
        self._files: dict[str, int] = {}
        # What clock_getcpuclockid() returns: how long all of its threads have run.
        self._clock = (~pid << 3) | _CPUCLOCK_SCHED

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.popitem()[1])

    def come_to_rest(self, seconds: float) -> bool:
        """Wait until each thread has slept while none has run; where some spin, until the others have slept three times.

        A thread that only waits for a processor does not sleep, however busy the machine is.

        Returns
        -------
        bool
            False if that takes longer than `seconds`.
        """
        deadline = time.monotonic() + seconds
        for _ in range(_ROUNDS):
            before = time.clock_gettime_ns(self._clock)
            ran_ns: dict[str, int] = {}
            awake = os.listdir(self._folder)  # noqa: PTH208 - a Path for each costs as much again
            while awake := [thread for thread in awake if not self._has_slept(thread, ran_ns)]:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.001)
            if time.clock_gettime_ns(self._clock) == before:
                break
        return True

    def _has_slept(self, thread: str, ran_ns: dict[str, int]) -> bool:
        try:
            if b") S " in self._stat(thread):
                return True
            with open(f"{self._folder}/{thread}/schedstat", "rb", 0) as file:  # noqa: PTH123
                now = int(file.read().split()[0])
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return True  # it has ended, or the system has no such file
        return now - ran_ns.setdefault(thread, now) > _LONG_NS

    def _stat(self, thread: str) -> bytes:
        file = self._files.get(thread)
        if file is not None:
            try:
                return os.pread(file, 512, 0)
            except ProcessLookupError:  # another one may have its number
                os.close(self._files.pop(thread))
        file = self._files[thread] = os.open(f"{self._folder}/{thread}/stat", os.O_RDONLY)
        return os.pread(file, 512, 0)
