"""The clients of one experiment: each sends at its due time, and some send again after their response."""

from __future__ import annotations

from nbtriton.lab.simulate.core.world import Event, Request, Runtime, Sink, Thread, World

__all__ = ["Arrival", "Clients"]


class Arrival(Event):
    """A request that a client is going to send."""

    __slots__ = ("clients", "priority", "rows", "target", "timeout_ns")

    def __init__(
        self, clients: Clients, target: Runtime, rows: int, priority: int, timeout_ns: int
    ) -> None:
        self.clients = clients
        self.target = target
        self.rows = rows
        self.priority = priority
        self.timeout_ns = timeout_ns

    def fire(self, now: int) -> None:
        self.clients.send(now, self)


class Clients(Sink):
    """Clients with one thread each; the lane of a request is its number, from 0.

    Parameters
    ----------
    world : World
    again : int
        Number of further requests, in all, sent by clients whose last request has ended.
    """

    __slots__ = ("_again", "_sent", "_waiting", "world")

    def __init__(self, world: World, again: int = 0) -> None:
        self.world = world
        self._again = again
        self._sent = 0
        self._waiting: dict[int, Arrival] = {}

    def send(self, now: int, arrival: Arrival) -> None:
        """Send a request."""
        thread = Thread()
        self.world.resume(thread, now)
        request = Request(self, arrival.rows, 0, arrival.priority, arrival.timeout_ns)
        request.sent_ns = now
        request.lane = self._sent
        self._sent += 1
        self._waiting[request.lane] = arrival
        self.world.work(thread, self.world.costs.submit_ns)
        arrival.target.submit(thread, request)

    def answered(self, thread: Thread, request: Request) -> None:
        self._ended(thread, request)

    def failed(self, thread: Thread, request: Request, message: str) -> None:  # noqa: ARG002
        self._ended(thread, request)

    def _ended(self, thread: Thread, request: Request) -> None:
        arrival = self._waiting.pop(request.lane)
        if self._again:
            self._again -= 1
            self.world.calendar.at(thread.now + self.world.costs.loop_ns, arrival)
