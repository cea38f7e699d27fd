"""Recorded traffic in virtual time: each request arrives when it is due, at the model that it is for."""

from __future__ import annotations

from typing import Any

from nbtriton.lab.simulate.core.loads import Recorder, request_of
from nbtriton.lab.simulate.core.world import Event, Request, Runtime, Sink, Thread, World


class Replay(Sink):
    """The clients of a recording.

    Parameters
    ----------
    world : World
    requests : list of tuple
        Due time in nanoseconds, model, rows, the number of its inputs, and the
        `nbtriton.lab.perf.traffic.Call` with its options; in the order of their due times.

    Attributes
    ----------
    number : int
        How many were sent.
    """

    __slots__ = ("_recorders", "_requests", "_targets", "number", "world")

    def __init__(self, world: World, requests: list[tuple[int, Runtime, int, int, Any]]) -> None:
        self.world = world
        self.number = 0
        self._requests = requests
        self._recorders: dict[Runtime, Recorder] = {}
        self._targets: dict[int, Runtime] = {}
        for each in requests:
            if each[1] not in self._recorders:
                self._recorders[each[1]] = Recorder()

    def start(self) -> None:
        """Wait for the first request."""
        if self._requests:
            self.world.calendar.at(self._requests[0][0], _Arrival(self))

    def recorder_of(self, target: Runtime) -> Recorder:
        """Return what was recorded of the requests to one model."""
        return self._recorders[target]

    def completed(self) -> int:
        """Return the number of requests that have ended."""
        return sum([recorder.completed() for recorder in self._recorders.values()])

    def latest_ns(self) -> int:
        """Return the time of the last answer."""
        found = [0]
        for recorder in self._recorders.values():
            found += recorder.end_ns
            found += [when for when, _ in recorder.errors]
        return max(found)

    def arrive(self, now: int) -> None:
        """Send the request that is due, and wait for the next one."""
        due, target, rows, key, call = self._requests[self.number]
        if self.number + 1 < len(self._requests):
            self.world.calendar.at(self._requests[self.number + 1][0], _Arrival(self))
        request = request_of(self, rows, key, call)
        # Its number: a replay is no load with lanes.
        request.lane = self.number
        self._targets[self.number] = target
        self.number += 1
        # Each client has a thread of its own.
        thread = Thread()
        self.world.resume(thread, now)
        request.sent_ns = due
        self.world.serve(thread, self.world.costs.submit_ns)
        target.submit(thread, request)

    def answered(self, thread: Thread, request: Request) -> None:
        self._recorders[self._targets.pop(request.lane)].success(thread.now, request)

    def failed(self, thread: Thread, request: Request, message: str) -> None:
        recorder = self._recorders[self._targets.pop(request.lane)]
        recorder.error(thread.now, request, message or "the request was refused")


class _Arrival(Event):
    """The next request of a recording arrives."""

    __slots__ = ("_load",)

    def __init__(self, load: Replay) -> None:
        self._load = load

    def fire(self, now: int) -> None:
        self._load.arrive(now)
