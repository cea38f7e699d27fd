"""A clock for simulated GPUs that advances when a thread waits."""

from __future__ import annotations

from nbtriton.extensions.simulated_gpus.streams import Clock

__all__ = ["VirtualClock"]


class VirtualClock(Clock):
    """A clock whose time passes in no time."""

    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        return self.now

    def sleep_until(self, when_ns: int) -> None:
        self.now = max(self.now, when_ns)
