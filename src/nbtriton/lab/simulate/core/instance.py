"""A simulated instance: it executes one batch at a time, at a pace that depends on the others."""

from __future__ import annotations

from nbtriton.lab.simulate.core.device import Stream
from nbtriton.lab.simulate.core.world import Event, Executor, ModelExecutions, Request, Thread
from nbtriton.scheduling import RunBatch


class Instance(Executor):
    """An instance of a model; also the event of its execution's end.

    Attributes
    ----------
    thread : Thread
        The instance's own thread.
    inline : Thread or None
        The caller's thread, where that executes the batch.
    due : int
        The expected end of the current execution.
    answering_until : int
        When its response thread will have answered an earlier batch.
    holds : bool
        It holds resources of the rate limiter.
    stream : Stream
        Its work on its device.
    """

    __slots__ = (
        "_loses", "_lost", "_pace", "_queued", "_since", "_taken", "_waiting", "answering_until", "due", "holds", "index",
        "inline", "stream", "thread",
    )  # fmt: skip

    def __init__(self, model: ModelExecutions, index: int) -> None:
        super().__init__(model)
        self.index = index
        self.thread = Thread()
        self.thread.instance = self
        self.inline: Thread | None = None
        self.due = 0
        self.answering_until = 0
        self.holds = False
        self.stream = Stream()
        self._waiting = False  # for devices, before it answers
        self._queued = -1
        self._pace = 1.0  # mean execution time now, relative to an execution alone
        self._since = 0
        # Cumulative losses of the model's executions to other work and to threads, as last applied here.
        self._lost = self._taken = 0
        self._loses = 1.0  # factor of the former

    def begin(self, now: int, run: RunBatch, inline: Thread | None) -> None:
        model = self.model
        world = model.world
        self.run = run
        self.inline = inline
        self.start_ns = self._since = now
        level = world.enter(self)
        service = model.service
        # One quantile for all: added times were measured from quantile to quantile.
        chance = world.random.random()
        execution_ns = service.draw(run.size, len(run.tickets), level, chance)
        # Threads share caches, weights and a processor that is awake: another instance's execution keeps them warm.
        idle_since = model.ended_ns if model.threaded else self.ended_ns
        execution_ns += service.after_idle(now - idle_since, chance)
        execution_ns += service.stall(execution_ns, world.random)
        if model.contends:
            self._pace = model.pace(run.size, level)
        model.highest_level = max(model.highest_level, level)
        self._lost, self._taken = model.lost_ns, model.taken_ns
        uneven = model.uneven
        if len(uneven) > 1:
            self._loses = uneven[int(chance * len(uneven))]
        device = model.device
        if device is None:
            self.due = now + execution_ns
        else:
            ready = 0
            for ticket in run.tickets:
                assert isinstance(ticket, Request)
                ready = max(ready, ticket.ready_ns)
            self.due = device.begin(self.stream, run.size, ready, now, execution_ns)
        self._queued = self.due
        world.calendar.at(self.due, self)

    def ends_at(self) -> int:
        lost_ns, taken_ns = self.model.lost_ns, self.model.taken_ns
        self.due += int(self._loses * (lost_ns - self._lost)) + taken_ns - self._taken
        self._lost, self._taken = lost_ns, taken_ns
        return self.due

    def set_pace(self, now: int) -> None:
        run = self.run
        if run is None or self.start_ns >= now:
            return
        pace = self.model.pace(run.size, self.model.level())
        if pace == self._pace:
            return
        left = self.ends_at() - (max(self._since, now))
        if left > 0:
            self.due = now + int(left * pace / self._pace)
            if self.due < self._queued:
                self._queued = self.due
                self.model.world.calendar.at(self.due, self)
        self._pace = pace
        self._since = now

    def fire(self, now: int) -> None:
        run = self.run
        if run is None or now != self._queued:  # the end was moved forward
            return
        if self.ends_at() > now:  # the end was moved back
            # The uneven factor does not apply to the added time again.
            self._loses = 1.0
            self._queued = self.due
            self.model.world.calendar.at(self.due, self)
            return
        device = self.model.device
        if device is not None and not self._waiting:
            device.computed(self.stream, now)
            until = now
            for ticket in run.tickets:
                assert isinstance(ticket, Request)
                until = ticket.sink.wait_for_devices(ticket, self.stream.written_ns, until)
            if until > now:
                self._waiting = True
                self.due = self._queued = until
                self.model.world.calendar.at(until, self)
                return
        self._waiting = False
        self._queued = -1
        self.run = None
        self.ended_ns = self.model.ended_ns = now
        self.model.world.leave(self)
        self.model.ended(self, run, now)


class Start(Event):
    """Wake-up of an instance's thread with a batch."""

    __slots__ = ("_instance", "_run")

    def __init__(self, instance: Instance, run: RunBatch) -> None:
        self._instance = instance
        self._run = run

    def fire(self, now: int) -> None:
        instance = self._instance
        world = instance.model.world
        thread = instance.thread
        world.resume(thread, now)
        world.work(thread, world.costs.start_ns)
        instance.begin(thread.now, self._run, None)
