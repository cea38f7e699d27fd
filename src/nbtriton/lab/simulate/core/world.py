"""Virtual time: ordered events, threads with a time of their own, the interpreter that they share.

Theory of operation
-------------------
The calendar is the only clock: it fires one event after the other, and an event may add later ones. Between events
there are threads, of which only the times are kept: a caller, an instance, the scheduler. An event gives a thread its
time, and what the thread does next adds the costs of the engine to it (`work`). So the time of a thread runs ahead of
the event that it handles, and what it causes is an event at the time that it has reached then.

Three things are shared, and make a step dearer than its cost:

- *The interpreter.* `free_ns` is when it is free again; work that needs it begins then at the earliest. A thread that
  comes back while an execution holds the interpreter gets it after `SWITCH_NS`, or when the execution ends.
- *The cores.* A thread that wakes up beside executions waits for one (`wake`, `set_timer`): mostly for no time, rarely until
  another thread has had its slice. `enter` and `leave` add up what the executions demand. Those that contend are stretched, all of them at
  each begin and end (`set_pace`): the time that is left of them, not the time that they drew.
- *The rest of the process.* What the engine does for requests while a model computes delays it by a measured share
  (`serve`), and a scheduler's wake-up takes a core, or the interpreter, for a moment (`disturb`). The models that can
  be delayed are in a list of their own, so that others cost nothing.

What does not work
------------------
- *Drawing a longer time where the machine is full.* The load of the machine changes while an execution runs, and its
  end has to follow.
- *Adding and subtracting demands without an end.* They are floats: where nothing runs, the sums begin at 0 again.
"""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from typing import Final

from nbtriton.lab.simulate.core.device import OnDevice, Transfer
from nbtriton.lab.simulate.core.service import ServiceTimes
from nbtriton.scheduling import RunBatch, Ticket

# A thread that waits for the interpreter gets it after this time (`sys.getswitchinterval`).
SWITCH_NS: Final = 5_000_000
# Executions that hold the interpreter for at least this share of their time delay other threads.
HOLDS_FROM: Final = 0.5
# Executions that keep a core busy for at least this share lose it to other threads where no core is free,
COMPUTES_FROM: Final = 0.5
# that is, where less than this part of a core is free.
FREE_FROM: Final = 0.5


class Event:
    """Something that happens at a time."""

    __slots__ = ()

    def fire(self, now: int) -> None:
        """Handle the event at its time."""
        raise NotImplementedError


class Calendar:
    """Events in the order of their times; simultaneous events in the order in which they were added."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._count = 0
        self._heap: list[tuple[int, int, Event]] = []

    def at(self, when: int, event: Event) -> None:
        """Schedule an event."""
        self._count += 1
        heappush(self._heap, (when, self._count, event))

    def run(self, until: int, most: int) -> int:
        """Fire events up to a time, at most ``most``; return their number."""
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
    """Times of the engine and of the client in nanoseconds: the `EngineCosts` of a profile."""

    __slots__ = (
        "answer_ns", "inline_ns", "late_ns", "loop_ns", "settle_ns", "start_ns", "step_ns", "submit_ns",
        "timer_ns", "wait_ns", "wake_ns", "ways_ns",
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
        self.ways_ns: list[int] = []
        self.late_ns: list[int] = []


class Request(Ticket):
    """A request of a client, or a step of one in an ensemble.

    Attributes
    ----------
    key : int
        Equal for requests with the same inputs; read by the response cache only.
    sent_ns : int
        When the client sent it.
    accepted_ns : int
        When the server received it.
    root : Request or None
        The client's request, of which this is a step.
    lane, step : int
        The client's lane; the step of the ensemble.
    late_ns : int
        Delay of the client after its due time.
    ready_ns : int
        When a device has written its inputs; after the response, its outputs.
    ends, closing : bool
        Of a sequence: it is the last request; it ends the sequence early and does not count.
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
    """Receiver of the one response of a request, on the thread that delivers it."""

    __slots__ = ()

    def answered(self, thread: Thread, request: Request) -> None:
        """Handle a response."""
        raise NotImplementedError

    def failed(self, thread: Thread, request: Request, message: str) -> None:
        """Handle an error."""
        raise NotImplementedError

    def wait_for_devices(self, request: Request, ready_ns: int, until: int) -> int:  # noqa: ARG002
        """Return when the delivering thread has finished its work on devices for a response.

        A caller gets outputs that are written.

        Parameters
        ----------
        request : Request
        ready_ns : int
            When a device has written its outputs.
        until : int
            When the thread's work so far ends.
        """
        return max(until, ready_ns)


class Runtime:
    """A model or an ensemble that accepts requests, with its statistics (T1 to T4)."""

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
        # Number of executions and their nanoseconds, by batch size.
        self.sizes: dict[int, list[int]] = {}

    def submit(self, thread: Thread, request: Request) -> None:
        """Accept a request."""
        raise NotImplementedError

    def submit_many(self, thread: Thread, requests: list[Request]) -> None:
        """Accept several simultaneous requests."""
        for request in requests:
            self.submit(thread, request)


class Thread:
    """A thread: its time, and its state between calls.

    Attributes
    ----------
    now : int
        Its time. It runs ahead of the current event by the work done in that event.
    instance : Executor or None
        The instance whose own thread it is.
    next_run : RunBatch or None
        The batch that its instance executes next, without a hand-over.
    root : Request or None
        The request that it waits for; it may execute batches of that request itself.
    accepted, accepted_on
        The batch that it is going to execute, and the instance.
    executing : bool
        It executes a batch.
    after : Event or None
        The event after the last batch that it accepted.
    gathered : list or None
        Steps that wait until a whole batch is answered.
    """

    __slots__ = (
        "accepted", "accepted_on", "after", "executing", "gathered", "instance", "next_run", "now",
        "root",
    )  # fmt: skip

    def __init__(self) -> None:
        self.now = 0
        self.instance: Executor | None = None
        self.next_run: RunBatch | None = None
        self.root: Request | None = None
        self.accepted: RunBatch | None = None
        self.accepted_on: Executor | None = None
        self.executing = False
        self.after: Event | None = None
        self.gathered: list[tuple[Runtime, Request]] | None = None


class Executor(Event):
    """An instance, as the world and threads see it.

    Attributes
    ----------
    model : ModelExecutions
    run : RunBatch or None
        The current batch.
    start_ns, ended_ns : int
        Begin of the current execution, and end of the last one.
    """

    __slots__ = ("ended_ns", "model", "run", "start_ns")

    def __init__(self, model: ModelExecutions) -> None:
        self.model = model
        self.run: RunBatch | None = None
        self.start_ns = 0
        self.ended_ns = 0

    def begin(self, now: int, run: RunBatch, inline: Thread | None) -> None:
        """Begin to execute a batch, on the thread of a caller or on its own."""
        raise NotImplementedError

    def ends_at(self) -> int:
        """Return when the execution will end, delayed by the work of other threads."""
        raise NotImplementedError

    def set_pace(self, now: int) -> None:
        """Adapt the expected end: other executions began or ended."""
        raise NotImplementedError


class ModelExecutions(Runtime):
    """The executions of a model: how long they take, and what they take from others.

    Parameters
    ----------
    name : str
    world : World
    service : ServiceTimes
    demand, python : float
        Cores that an execution alone keeps busy, and the share of its time in which it holds the
        interpreter.
    contends : bool
        Its executions slow each other down.
    gives_way : list of (float, float)
        By number of concurrent executions, ascending: the share of other threads' work that delays each.
    uneven : list of float
        Factors of that delay, by equal parts of the distribution of execution times.
    threaded : bool
        Its instances are threads of the server's process.
    device : OnDevice or None
        The use of devices by its executions; None where all is on the host.

    Attributes
    ----------
    running : int
        Executions now.
    ended_ns : int
        End of the last execution.
    highest_level : float
        The most executions at once that an execution began among.
    yields : float
        The share of other threads' work that delays an execution now.
    lost_ns : int
        Cumulative delay of a permanent execution by the work for requests.
    taken_ns : int
        Cumulative delay by threads that woke up.
    """

    __slots__ = (
        "contends", "demand", "device", "ended_ns", "gives_way", "highest_level", "lost_ns", "python", "running", "service", "taken_ns",
        "threaded", "uneven", "world", "yields",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        world: World,
        service: ServiceTimes,
        demand: float,
        python: float,
        contends: bool,
        gives_way: list[tuple[float, float]],
        uneven: list[float],
        threaded: bool,
        device: OnDevice | None,
    ) -> None:
        super().__init__(name)
        self.world = world
        self.service = service
        self.demand = demand
        self.python = python
        self.contends = contends
        self.gives_way = gives_way
        self.uneven = uneven
        self.threaded = threaded
        self.device = device
        self.running = 0
        self.ended_ns = 0
        self.highest_level = 0.0
        self.yields = 0.0
        self.lost_ns = 0
        self.taken_ns = 0

    def ended(self, instance: Executor, run: RunBatch, now: int) -> None:
        """Handle the end of an execution."""
        raise NotImplementedError

    def level(self) -> float:
        """Return the number of concurrent executions; those of other models count by demand."""
        own = float(self.running)
        if self.demand < 0.05:
            return own
        level = self.world.demand / self.demand
        return max(own, level)

    def pace(self, rows: int, level: float) -> float:
        """Return the mean execution time at a level of contention, relative to an execution alone."""
        return self.service.mean(rows, level) / self.service.mean(rows, 1.0)

    def yields_at(self, level: float) -> float:
        """Return the share of other threads' work that delays an execution at a level of contention."""
        if not self.gives_way:
            return 0.0
        below, found = 0.0, self.gives_way[0][1]
        for measured, share in self.gives_way:
            if level < measured:
                return found + (share - found) * (level - below) / (measured - below)
            below, found = measured, share
        return found


class Trace:
    """A record of every execution and response; times in nanoseconds.

    Attributes
    ----------
    executions : list of (str, int, RunBatch, int, int)
        Model, instance, batch, begin and end, in the order of their ends.
    answers : list of (str, Request, int, str, str)
        By model or ensemble: its name, the request, the time, and of an error the reason and the message.
    """

    __slots__ = ("answers", "executions")

    def __init__(self) -> None:
        self.executions: list[tuple[str, int, RunBatch, int, int]] = []
        self.answers: list[tuple[str, Request, int, str, str]] = []


class World:
    """The common state of all simulated models: time, the interpreter, and the machine's cores.

    Attributes
    ----------
    trace : Trace or None
        The record of each execution and response; None by default, as it only grows.
    shared_interpreter : bool
        One thread at a time runs Python (false in a free-threaded build).
    free_ns : int
        When the interpreter is free again.
    leaving : list of Transfer
        Copies of the outputs that callers fetch from devices.
    demand : float
        Cores wanted by the running executions of models that contend, each as if alone.
    busy : float
        Cores wanted by all running executions.
    cores : int
        The machine's cores; 0 for no limit.
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
        # Not the stream of the load: its gaps have the same seed, and a long one would always meet a long execution.
        self.random = Random(f"service times {seed}")  # noqa: S311 - not secrets
        self.shared_interpreter = shared_interpreter
        self.free_ns = 0
        self.demand = 0.0
        self.busy = 0.0
        self.cores = cores
        self.leaving: list[Transfer] = []
        self._running = 0
        self._contending: list[Executor] = []
        self._holding: list[Executor] = []
        # Models with executions that other work delays.
        self._beside: list[ModelExecutions] = []

    def wake(self, now: int, event: Event) -> None:
        """Wake a sleeping thread: its event comes once it runs."""
        self.calendar.at(now + self.costs.wake_ns + self._late_ns(), event)

    def set_timer(self, when: int, event: Event) -> None:
        """Let a thread sleep until a time."""
        self.calendar.at(when + self.costs.timer_ns + self._late_ns(), event)

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
        """Let a thread work for a request, which delays executions by their measured share.

        (The cost of a batch is part of the execution times under contention.)
        """
        for model in self._beside:
            model.lost_ns += int(model.yields * cost_ns)
        self.work(thread, cost_ns)

    def occupy(self, cost_ns: int) -> None:
        """Occupy a core for a thread that needs no interpreter.

        Where no core is free, all computing executions lose as much time.
        """
        self._put_off(cost_ns, interpreter=False)

    def disturb(self, cost_ns: int) -> None:
        """Let the scheduler's thread wake up and run Python for a time.

        An execution in a thread finds the interpreter taken, and has to be woken up itself.
        """
        self._put_off(cost_ns, interpreter=self.shared_interpreter)

    def resume(self, thread: Thread, now: int) -> None:
        """Continue a thread that slept or computed without the interpreter."""
        holding = self._holding
        if holding and self.shared_interpreter:
            left = min([instance.ends_at() for instance in holding]) - now
            if left > 0:
                now += min(SWITCH_NS, left)
        thread.now = now

    def enter(self, instance: Executor) -> float:
        """Count an execution that begins; return the number of executions that share the machine."""
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

    def leave(self, instance: Executor) -> None:
        """Uncount an execution that has ended."""
        model = instance.model
        model.running -= 1
        self.busy -= model.demand
        self._running -= 1
        if not self._running:
            self.busy = 0.0  # without earlier rounding errors
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

    def _late_ns(self) -> int:
        """Return how much longer a thread sleeps beside executions that compute, mostly 0: each waits for a core."""
        late_ns = self.costs.late_ns
        if not late_ns or self.busy < COMPUTES_FROM:
            return 0
        return late_ns[int(self.random.random() * len(late_ns))]

    def _put_off(self, cost_ns: int, *, interpreter: bool) -> None:
        """Delay the computing executions: a core is busy elsewhere, and perhaps the interpreter."""
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
        """Update the share of other threads' work that delays each model's executions."""
        for model in self._beside:
            model.yields = model.yields_at(model.level())

    def _stretch(self, cause: Executor) -> None:
        """Adapt the ends of running executions to one that begins or ends."""
        now = cause.start_ns if cause.run is not None else cause.ended_ns
        for instance in self._contending:
            instance.set_pace(now)
