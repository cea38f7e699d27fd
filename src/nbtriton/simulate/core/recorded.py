"""A simulated model that keeps the record of its batches, and the clients of one experiment."""

from __future__ import annotations

from nbtriton.engine.core.snapshot import BatchRecord, RequestRecord
from nbtriton.scheduling import RejectTicket, RunBatch
from nbtriton.simulate.core.instance import Instance
from nbtriton.simulate.core.model import Model
from nbtriton.simulate.core.world import Event, Request, Sink, Thread, World

__all__ = ["Arrival", "Clients", "RecordedModel"]


class RecordedModel(Model):
    """A model with the records that the engine's recorder would have of it.

    Attributes
    ----------
    names : list of str
        Of its instances.
    first : int
        The numbers of its requests begin after it, so that they differ between models.
    batches : list of BatchRecord
    batch_of : dict of int to BatchRecord
        By the number of a request that was executed.
    refused : dict of int to RejectTicket
        By the number of one that was not.
    """

    __slots__ = ("batch_of", "batches", "first", "names", "refused")

    def keep(self, names: list[str], first: int) -> None:
        """Begin to keep records."""
        self.names = names
        self.first = first
        self.batches: list[BatchRecord] = []
        self.batch_of: dict[int, BatchRecord] = {}
        self.refused: dict[int, RejectTicket] = {}

    def _reject(self, thread: Thread, decision: RejectTicket) -> None:
        request = decision.ticket
        assert isinstance(request, Request)
        self.refused[request.number] = decision
        super()._reject(thread, decision)

    def _count_execution(self, instance: Instance, run: RunBatch, requests: list[Request]) -> None:
        super()._count_execution(instance, run, requests)
        start = instance.start_ns
        end = instance.ended_ns
        batch = BatchRecord(
            self.name, 1, self.names[instance.index],
            tuple([self.first + request.number for request in requests]), run.size, run.reason,
            start - min([request.enqueued_ns for request in requests]), start, end, False,
            run.formed_ns, run.waiting, start, end,
        )  # fmt: skip
        self.batches.append(batch)
        for request in requests:
            self.batch_of[request.number] = batch


class Arrival(Event):
    """A request that a client is going to send."""

    __slots__ = ("clients", "priority", "rows", "target", "timeout_ns")

    def __init__(
        self, clients: Clients, target: RecordedModel, rows: int, priority: int, timeout_ns: int
    ) -> None:
        self.clients = clients
        self.target = target
        self.rows = rows
        self.priority = priority
        self.timeout_ns = timeout_ns

    def fire(self, now: int) -> None:
        self.clients.send(now, self)


class Clients(Sink):
    """Clients that send requests when they are due, and some again when one has ended.

    Parameters
    ----------
    world : World
    again : int
        So many requests are sent by clients whose last one has ended, in all.

    Attributes
    ----------
    records : dict of str to list of RequestRecord
        By model, in the order of their answers.
    """

    __slots__ = ("_again", "_sent", "records", "world")

    def __init__(self, world: World, again: int = 0) -> None:
        self.world = world
        self._again = again
        self._sent: dict[Request, Arrival] = {}
        self.records: dict[str, list[RequestRecord]] = {}

    def send(self, now: int, arrival: Arrival) -> None:
        """Send a request; each client has a thread of its own."""
        thread = Thread()
        self.world.resume(thread, now)
        request = Request(self, arrival.rows, 0, arrival.priority, arrival.timeout_ns)
        request.sent_ns = now
        self._sent[request] = arrival
        self.world.work(thread, self.world.costs.submit_ns)
        arrival.target.submit(thread, request)

    def answered(self, thread: Thread, request: Request) -> None:
        self._ended(thread, request, "")

    def failed(self, thread: Thread, request: Request, message: str) -> None:
        self._ended(thread, request, message)

    def _ended(self, thread: Thread, request: Request, message: str) -> None:
        arrival = self._sent.pop(request)
        model = arrival.target
        number = request.number
        refused = model.refused.get(number)
        record = RequestRecord(
            model.name, 1, model.first + number, "", 0, 0, request.size, request.accepted_ns,
            request.enqueued_ns or request.accepted_ns, thread.now, thread.now,
            0 if message else 1, model.batch_of.get(number),
            "" if refused is None else refused.reason,
            "" if refused is None else refused.status, message,
        )  # fmt: skip
        self.records.setdefault(model.name, []).append(record)
        if self._again:
            self._again -= 1
            self.world.calendar.at(thread.now + self.world.costs.loop_ns, arrival)
