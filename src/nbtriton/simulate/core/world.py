"""Virtual time: events in order, threads with a time of their own, the interpreter that they share."""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Final

from nbtriton.scheduling import RunBatch, Ticket
from nbtriton.simulate.core.device import Transfer

if TYPE_CHECKING:
    from nbtriton.simulate.core.instance import Instance
    from nbtriton.simulate.core.model import Model

__all__ = [
    "Calendar", "Costs", "Event", "Request", "Runtime", "Sink", "Thread", "Trace", "World",
]  # fmt: skip

# A thread that waits for the interpreter gets it after this time (`sys.getswitchinterval`).
SWITCH_NS: Final = 5_000_000
# A model whose executions hold the interpreter for at least this share keeps other threads waiting.
HOLDS_FROM: Final = 0.5
# One that keeps a core busy for at least this share loses it to other threads where none is free,
COMPUTES_FROM: Final = 0.5
# which is where less than this part of a core is.
FREE_FROM: Final = 0.5


class Event:
    """Something that happens at a time."""

    __slots__ = ()

    def fire(self, now: int) -> None:
        """Handle the event; its time has come."""
        raise NotImplementedError


class Calendar:
    """Events in the order of their times; those of one time in the order in which they were added."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._count = 0
        self._heap: list[tuple[int, int, Event]] = []

    def at(self, when: int, event: Event) -> None:
        """Let an event happen at a time."""
        self._count += 1
        heappush(self._heap, (when, self._count, event))

    def run(self, until: int, most: int) -> int:
        """Fire events up to a time, at most ``most``; return how many were fired."""
        heap = self._heap
        fired = 0
        while fired < most and heap and heap[0][0] <= until:
            when, _, event = heappop(heap)
            event.fire(when)
            fired += 1
        return fired

    def next(self) -> int:
        """Return the time of the next event, -1 without one."""
        return self._heap[0][0] if self._heap else -1


class Costs:
    """Times of the engine and of the client in nanoseconds, as `EngineCosts` of a profile has them."""

    __slots__ = (
        "answer_ns", "inline_ns", "loop_ns", "settle_ns", "start_ns", "step_ns", "submit_ns",
        "timer_ns", "wait_ns", "wake_ns",
    )  # fmt: skip

    def __init__(
        self,
        submit_ns: int = 0,
        inline_ns: int = 0,
        start_ns: int = 0,
        wake_ns: int = 0,
        settle_ns: int = 0,
        answer_ns: int = 0,
        loop_ns: int = 0,
        step_ns: int = 0,
        timer_ns: int = 0,
        wait_ns: int = 0,
    ) -> None:
        self.submit_ns = submit_ns
        self.inline_ns = inline_ns
        self.start_ns = start_ns
        self.wake_ns = wake_ns
        self.settle_ns = settle_ns
        self.answer_ns = answer_ns
        self.loop_ns = loop_ns
        self.step_ns = step_ns
        self.timer_ns = timer_ns
        self.wait_ns = wait_ns


class Request(Ticket):
    """A request of a client, or a step of one in an ensemble.

    Attributes
    ----------
    key : int
        Requests with the same inputs have the same one; only the response cache looks at it.
    sent_ns : int
        When the client sent it.
    accepted_ns : int
        When the server got it.
    root : Request or None
        The client's request, of which this is a step.
    lane, step : int
        The client's lane; the step of the ensemble.
    late_ns : int
        How long after its due time the client came to it.
    ready_ns : int
        When a device has written its inputs; once it is answered, its outputs.
    ends, closing : bool
        Of a sequence: its last request; one that ends it early and does not count.
    """

    __slots__ = (
        "accepted_ns", "closing", "ends", "key", "lane", "late_ns", "missed", "number", "ready_ns",
        "root", "sent_ns", "sink", "step",
    )  # fmt: skip

    def __init__(
        self,
        sink: Sink,
        size: int,
        key: int = 0,
        priority: int = 0,
        timeout_ns: int = 0,
        correlation_id: int | str = 0,
        flags: int = 0,
    ) -> None:
        super().__init__(size, None, priority, timeout_ns, correlation_id, flags)
        self.sink = sink
        self.key = key
        self.number = 0
        self.sent_ns = 0
        self.accepted_ns = 0
        self.root: Request | None = None
        self.lane = 0
        self.step = 0
        self.late_ns = 0
        self.ready_ns = 0
        self.ends = False
        self.closing = False
        self.missed = False


class Sink:
    """Receives the one response of a request, on the thread that delivers it."""

    __slots__ = ()

    def answered(self, thread: Thread, request: Request) -> None:
        """Handle a response."""
        raise NotImplementedError

    def failed(self, thread: Thread, request: Request, message: str) -> None:
        """Handle an error."""
        raise NotImplementedError

    def wait_for_devices(self, request: Request, ready_ns: int, until: int) -> int:  # noqa: ARG002
        """Return when the thread that is about to deliver a response has done what it does on devices for it.

        A caller gets outputs that are written.

        Parameters
        ----------
        request : Request
        ready_ns : int
            When a device has written its outputs.
        until : int
            Until when the thread is busy so far.
        """
        return max(until, ready_ns)


class Runtime:
    """A model or an ensemble that takes requests, and what it counts (T1 to T4)."""

    __slots__ = (
        "compute_ns", "executions", "failures", "hits", "inferences", "lookup_ns", "misses", "name",
        "queue_ns", "sizes", "successes", "total_ns",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.successes = 0
        self.failures = 0
        self.hits = 0
        self.misses = 0
        self.lookup_ns = 0
        self.inferences = 0
        self.executions = 0
        self.queue_ns = 0
        self.compute_ns = 0
        self.total_ns = 0
        # Executions and their nanoseconds, by batch size.
        self.sizes: dict[int, list[int]] = {}

    def submit(self, thread: Thread, request: Request) -> None:
        """Accept a request."""
        raise NotImplementedError

    def submit_many(self, thread: Thread, requests: list[Request]) -> None:
        """Accept requests of the same moment."""
        for request in requests:
            self.submit(thread, request)


class Thread:
    """A thread: how far it has come, and what it carries from one call to the next.

    Attributes
    ----------
    now : int
        Its time. It runs ahead of the event in which it acts, by what it has done in it.
    instance : Instance or None
        The instance whose own thread it is.
    next_run : RunBatch or None
        The batch that its instance executes next, without a hand-over.
    root : Request or None
        It waits for this request, and may execute batches of it itself.
    accepted, accepted_on
        The batch that it is going to execute, and the instance.
    executing : bool
        It executes a batch.
    after : Event or None
        What it does when it has executed all that it accepted.
    gathered : list or None
        Steps that wait until a whole batch is answered.
    """

    __slots__ = (
        "accepted", "accepted_on", "after", "executing", "gathered", "instance", "next_run", "now",
        "root",
    )  # fmt: skip

    def __init__(self) -> None:
        self.now = 0
        self.instance: Instance | None = None
        self.next_run: RunBatch | None = None
        self.root: Request | None = None
        self.accepted: RunBatch | None = None
        self.accepted_on: Instance | None = None
        self.executing = False
        self.after: Event | None = None
        self.gathered: list[tuple[Runtime, Request]] | None = None


class Trace:
    """Everything that happened, for those who want to look at each request; times in nanoseconds.

    Attributes
    ----------
    executions : list of (str, int, RunBatch, int, int)
        Model, instance, batch, begin and end, in the order of their ends.
    answers : list of (str, Request, int, str, str)
        Of models and ensembles: who answered, when, and with an error the reason and the message.
    """

    __slots__ = ("answers", "executions")

    def __init__(self) -> None:
        self.executions: list[tuple[str, int, RunBatch, int, int]] = []
        self.answers: list[tuple[str, Request, int, str, str]] = []


class World:
    """The common state of all simulated models: time, the interpreter, and the cores of the machine.

    Attributes
    ----------
    trace : Trace or None
        Where each execution and each answer is written down; None by default, as it only grows.
    shared_interpreter : bool
        One thread at a time runs Python (false in a free-threaded build).
    free_ns : int
        When the interpreter is free again.
    leaving : list of Transfer
        Copies of the outputs that callers fetch from devices.
    demand : float
        Cores that the running executions of models that contend want, each if it were alone.
    busy : float
        Cores that all running executions want.
    cores : int
        Of the machine; 0 for as many as are wanted.
    """

    __slots__ = (
        "_beside", "_contending", "_holding", "_running", "busy", "calendar", "cores", "costs",
        "demand", "free_ns", "leaving", "random", "shared_interpreter", "trace",
    )  # fmt: skip

    def __init__(
        self, costs: Costs, seed: int = 0, *, shared_interpreter: bool = True, cores: int = 0
    ) -> None:
        self.calendar = Calendar()
        self.costs = costs
        self.trace: Trace | None = None
        self.random = Random(seed)  # noqa: S311 - service times, not secrets
        self.shared_interpreter = shared_interpreter
        self.free_ns = 0
        self.demand = 0.0
        self.busy = 0.0
        self.cores = cores
        self.leaving: list[Transfer] = []
        self._running = 0
        self._contending: list[Instance] = []
        self._holding: list[Instance] = []
        # Models with executions that other work puts off.
        self._beside: list[Model] = []

    def work(self, thread: Thread, cost_ns: int) -> None:
        """Let a thread run Python for a time, once the interpreter is free."""
        if not cost_ns:
            return
        if not self.shared_interpreter:
            thread.now += cost_ns
            return
        start = max(self.free_ns, thread.now)
        thread.now = self.free_ns = start + cost_ns

    def serve(self, thread: Thread, cost_ns: int) -> None:
        """Let a thread work for a request: executions beside it are put off by what was measured.

        (What a batch costs is in the times that executions take beside others.)
        """
        for model in self._beside:
            model.lost_ns += int(model.yields * cost_ns)
        self.work(thread, cost_ns)

    def occupy(self, cost_ns: int) -> None:
        """Occupy a core for a time on behalf of a thread that needs no interpreter meanwhile.

        Where no core is free, all executions that compute lose as much of theirs.
        """
        self._put_off(cost_ns, interpreter=False)

    def disturb(self, cost_ns: int) -> None:
        """Let the scheduler's thread wake up and run Python for a time.

        An execution in a thread finds the interpreter taken, and has to be woken up itself.
        """
        self._put_off(cost_ns, interpreter=self.shared_interpreter)

    def resume(self, thread: Thread, now: int) -> None:
        """Let a thread that slept or computed without the interpreter go on at a time."""
        holding = self._holding
        if holding and self.shared_interpreter:
            left = min([instance.ends_at() for instance in holding]) - now
            if left > 0:
                now += min(SWITCH_NS, left)
        thread.now = now

    def enter(self, instance: Instance) -> float:
        """Count an execution that begins; return how many executions it shares the machine with."""
        model = instance.model
        model.running += 1
        self._running += 1
        self.busy += model.demand
        if model.contends:
            self.demand += model.demand
            self._stretch(instance)
            self._contending.append(instance)
        if model.python >= HOLDS_FROM:
            self._holding.append(instance)
        if model.running == 1 and (model.gives_way or model.demand >= COMPUTES_FROM):
            self._beside.append(model)
        self._share()
        return model.level()

    def leave(self, instance: Instance) -> None:
        """Forget an execution that has ended."""
        model = instance.model
        model.running -= 1
        self.busy -= model.demand
        self._running -= 1
        if not self._running:
            self.busy = 0.0  # without the rounding errors of what came before
        if model.python >= HOLDS_FROM:
            self._holding.remove(instance)
        if model.contends:
            self.demand -= model.demand
            self._contending.remove(instance)
            if self._contending:
                self._stretch(instance)
            else:
                self.demand = 0.0  # likewise
        if not model.running and model in self._beside:
            self._beside.remove(model)
        self._share()

    def _put_off(self, cost_ns: int, *, interpreter: bool) -> None:
        """Put off the executions that compute: a core is busy elsewhere, and the interpreter or not."""
        full = self.cores > 0 and self.busy > self.cores - FREE_FROM
        if not full and not interpreter:
            return
        for model in self._beside:
            if model.demand < COMPUTES_FROM:
                continue
            if interpreter and model.threaded:
                model.taken_ns += cost_ns
            elif full:
                model.taken_ns += cost_ns // self.cores

    def _share(self) -> None:
        """Update what each model's executions lose to other threads from here on."""
        for model in self._beside:
            model.yields = model.yields_at(model.level())

    def _stretch(self, cause: Instance) -> None:
        """Let the running executions go on faster or slower, as one begins or ends."""
        now = cause.start_ns if cause.run is not None else cause.ended_ns
        for instance in self._contending:
            instance.set_pace(now)
