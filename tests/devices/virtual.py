"""A clock for simulated GPUs that advances when a thread waits."""

from __future__ import annotations

import nbtriton as nt
from nbtriton.extensions.simulated_gpus.streams import Clock

__all__ = ["VirtualClock", "stop_time"]


class VirtualClock(Clock):
    """A clock whose time passes in no time."""

    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        return self.now

    def sleep_until(self, when_ns: int) -> None:
        self.now = max(self.now, when_ns)


def stop_time(server: nt.Server, clock: Clock | None = None) -> None:
    """Let the time of a server's simulated GPUs pass only where a thread waits for them."""
    clock = clock or VirtualClock()
    for device in server.devices.values():
        device.timeline.clock = clock
