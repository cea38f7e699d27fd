"""A simulated model: the engine's scheduler, with instances that only let time pass."""

from __future__ import annotations

from typing import Final

from nbtriton.lab.simulate.core.device import OnDevice
from nbtriton.lab.simulate.core.instance import Instance, Start
from nbtriton.lab.simulate.core.service import ServiceTimes
from nbtriton.lab.simulate.core.world import (
    Event,
    Executor,
    ModelExecutions,
    Request,
    Runtime,
    Thread,
    World,
)
from nbtriton.scheduling import (
    Batcher,
    CacheSpace,
    Decision,
    RateLimiter,
    RejectTicket,
    ResponseOrder,
    RetireInstance,
    ReturnResources,
    RunBatch,
    SequenceBatcher,
    StageInstance,
)

# As in `engine/core/responding.py`: shorter executions answer on their own thread.
_LONG_NS: Final = 500_000


class Limiter:
    """The rate limiter of a server, as `engine.core.instance_set` drives it (R1 to R9)."""

    __slots__ = ("_staged", "limiter")

    def __init__(self, limiter: RateLimiter) -> None:
        self.limiter = limiter
        self._staged: set[Instance] = set()

    def stage(self, thread: Thread, instance: Instance) -> None:
        """Grant an instance its resources as soon as they are free."""
        self._staged.add(instance)
        if not instance.holds:  # otherwise it is staged when it releases them (R8)
            self._grant(thread, self.limiter.stage(instance))

    def finished(self, thread: Thread, instance: Instance) -> None:
        """Release an instance's resources."""
        instance.holds = False
        more = instance in self._staged
        self._grant(thread, self.limiter.release(instance, more=more))

    def _grant(self, thread: Thread, granted: list[object]) -> None:
        chosen: list[Instance] = []
        for one in granted:
            assert isinstance(one, Instance)
            one.holds = True
            self._staged.discard(one)
            chosen.append(one)
        for instance in chosen:
            model = instance.model
            assert isinstance(model, Model)
            model.granted(thread, instance)


class _Answers(Event):
    """Responses of an instance's response thread to one batch."""

    __slots__ = ("_instance", "_model", "_requests")

    def __init__(self, model: Model, instance: Instance, requests: list[Request]) -> None:
        self._model = model
        self._instance = instance
        self._requests = requests

    def fire(self, now: int) -> None:
        thread = Thread()
        self._model.world.resume(thread, now)
        self._model.answer_batch(thread, self._requests, None)
        self._instance.answering_until = thread.now


class Model(ModelExecutions):
    """A model with instances; the event of its timer.

    Parameters
    ----------
    world : World
    name : str
    batcher : Batcher or SequenceBatcher
        The engine's own scheduler.
    instances : int
    ordered : bool
        Responses leave in the order of their requests.
    service, demand, python, contends, gives_way, uneven, threaded, device
        As `ModelExecutions` has them.
    """

    __slots__ = (
        "_count", "_order", "_sequences", "_timer", "_woken_at", "batcher", "cache", "header_bytes", "insert_ns", "instances",
        "largest", "limiter", "lookup_cost_ns", "offloads", "reasons", "row_bytes",
    )  # fmt: skip

    def __init__(
        self,
        world: World,
        name: str,
        batcher: Batcher | SequenceBatcher,
        instances: int,
        service: ServiceTimes,
        *,
        demand: float = 0.0,
        python: float = 0.0,
        contends: bool = False,
        gives_way: list[tuple[float, float]] | None = None,
        uneven: list[float] | None = None,
        threaded: bool = True,
        ordered: bool = False,
        device: OnDevice | None = None,
    ) -> None:
        super().__init__(
            name, world, service, demand, python, contends, gives_way or [], uneven or [1.0], threaded, device
        )  # fmt: skip
        self.batcher = batcher
        # A second thread does not help a model that keeps the interpreter.
        self.offloads = python < 0.5
        self.largest = 0
        self.reasons: dict[str, int] = {}
        self.cache: CacheSpace | None = None
        self.lookup_cost_ns = 0
        self.insert_ns = 0
        # Of an entry in the cache.
        self.header_bytes = 0
        self.row_bytes = 0
        self.limiter: Limiter | None = None
        self.instances = [Instance(self, index) for index in range(instances)]
        self._sequences = isinstance(batcher, SequenceBatcher)
        self._order: ResponseOrder[Request] | None = ResponseOrder() if ordered else None
        self._count = 0
        self._woken_at = -1
        self._timer = _Timer(self)

    # -- requests --------------------------------------------------------------------------------

    def submit(self, thread: Thread, request: Request) -> None:
        request.accepted_ns = thread.now
        self._count += 1
        request.number = self._count
        cache = self.cache
        if cache is not None:
            looked_up = thread.now
            self.world.serve(thread, self.lookup_cost_ns)
            entry = (self.name, request.key)
            if cache.holds(entry):
                cache.use(entry)
                self.hits += 1
                self.successes += 1
                self.lookup_ns += thread.now - looked_up
                self.total_ns += thread.now - request.accepted_ns
                if self._order is not None:
                    self._order.accept(request.number)
                self._deliver(thread, request)
                return
            request.missed = True
        self._carry_out(thread, self.batcher.submit(thread.now, request))

    def submit_many(self, thread: Thread, requests: list[Request]) -> None:
        batcher = self.batcher
        if not isinstance(batcher, Batcher) or self.cache is not None:
            for request in requests:
                self.submit(thread, request)
            return
        for request in requests:
            request.accepted_ns = thread.now
            self._count += 1
            request.number = self._count
        self._carry_out(thread, batcher.submit_many(thread.now, requests))

    def granted(self, thread: Thread, instance: Instance) -> None:
        """Run the batch of a staged instance, which has its resources."""
        self._carry_out(thread, self.batcher.granted(thread.now, instance.index))

    def tick(self, thread: Thread) -> None:
        """Handle the timer."""
        self._woken_at = -1
        self._carry_out(thread, self.batcher.tick(thread.now))

    # -- decisions -------------------------------------------------------------------------------

    def _carry_out(self, thread: Thread, decisions: list[Decision]) -> None:
        wake = self.batcher.wake_at()
        if wake is not None and (self._woken_at < 0 or wake < self._woken_at):
            self._woken_at = wake
            # The scheduler's thread is woken, and waits until then.
            self.world.disturb(self.world.costs.wait_ns)
            self.world.set_timer(max(thread.now, wake), self._timer)
        for decision in decisions:
            if isinstance(decision, RunBatch):
                if self._order is not None:
                    for ticket in decision.tickets:
                        assert isinstance(ticket, Request)
                        self._order.accept(ticket.number)
                self._run(thread, decision)
            elif isinstance(decision, RejectTicket):
                self._reject(thread, decision)
            elif isinstance(decision, StageInstance):
                assert self.limiter is not None
                self.limiter.stage(thread, self.instances[decision.instance])
            elif isinstance(decision, ReturnResources):
                assert self.limiter is not None
                self.limiter.finished(thread, self.instances[decision.instance])
            else:
                assert isinstance(decision, RetireInstance)

    def _run(self, thread: Thread, run: RunBatch) -> None:
        instance = self.instances[run.instance]
        self.reasons[run.reason] = self.reasons.get(run.reason, 0) + 1
        self.largest = max(self.largest, run.size)
        root = thread.root
        if root is not None and thread.accepted is None and len(run.tickets) == 1:
            ticket = run.tickets[0]
            assert isinstance(ticket, Request)
            if ticket is root or ticket.root is root:
                thread.accepted = run
                thread.accepted_on = instance
                return
        if thread.instance is instance:
            thread.next_run = run
        else:
            self.world.wake(thread.now, Start(instance, run))

    def _reject(self, thread: Thread, decision: RejectTicket) -> None:
        request = decision.ticket
        assert isinstance(request, Request)
        # Refused requests were not accepted, and do not count (Q4).
        if decision.reason not in ("queue_full", "sequence_rule"):
            self.failures += 1
        trace = self.world.trace
        if trace is not None:
            answer = (self.name, request, thread.now, decision.reason, decision.message)
            trace.answers.append(answer)
        request.sink.failed(thread, request, decision.message)

    # -- executions ------------------------------------------------------------------------------

    def ended(self, instance: Executor, run: RunBatch, now: int) -> None:
        """Respond, and become idle."""
        assert isinstance(instance, Instance)
        world = self.world
        inline = instance.inline
        thread = instance.thread if inline is None else inline
        if self.python < 0.5:
            world.resume(thread, now)
        else:
            thread.now = now
        if inline is None and instance.answering_until > thread.now:
            thread.now = instance.answering_until
        requests: list[Request] = []
        for ticket in run.tickets:
            assert isinstance(ticket, Request)
            requests.append(ticket)
            ticket.ready_ns = instance.stream.written_ns
        self._count_execution(instance, run, requests)
        world.work(thread, world.costs.settle_ns)
        if inline is not None:
            if not self._sequences:
                self._free(thread, instance, requests)
            self._answer(thread, requests)
            if self._sequences:
                self._free(thread, instance, requests)
            thread.executing = False
            if not continue_inline(world, thread) and thread.after is not None:
                thread.after.fire(thread.now)
            return
        batcher = self.batcher
        execution_ns = now - instance.start_ns
        if (
            len(requests) > 1
            and execution_ns >= _LONG_NS
            and self.offloads
            and isinstance(batcher, Batcher)
            and batcher.has_next
        ):
            self._free(thread, instance, requests)
            world.wake(thread.now, _Answers(self, instance, requests))
        elif len(requests) > 1:
            self.answer_batch(thread, requests, instance)
        else:
            self._answer(thread, requests)
            self._free(thread, instance, requests)
        following = thread.next_run
        if following is not None:
            thread.next_run = None
            world.work(thread, world.costs.start_ns)
            instance.begin(thread.now, following, None)

    def answer_batch(
        self, thread: Thread, requests: list[Request], instance: Instance | None
    ) -> None:
        """Answer requests, free the instance if this is its thread, and continue."""
        gathered: list[tuple[Runtime, Request]] = []
        thread.gathered = gathered
        self._answer(thread, requests)
        if instance is not None:
            self._free(thread, instance, requests)
        # One model at a time, then the models that follow from its responses.
        while gathered:
            runtime = gathered[0][0]
            steps = [step for other, step in gathered if other is runtime]
            gathered[:] = [one for one in gathered if one[0] is not runtime]
            runtime.submit_many(thread, steps)
        thread.gathered = None

    def _answer(self, thread: Thread, requests: list[Request]) -> None:
        world = self.world
        cost = world.costs.answer_ns
        for request in requests:
            world.serve(thread, cost)
            cache = self.cache
            if cache is not None and request.missed:
                world.serve(thread, self.insert_ns)
                entry = (self.name, request.key)
                if not cache.holds(entry):
                    cache.insert(entry, self.header_bytes + self.row_bytes * request.size)
                    self.misses += 1
            self._deliver(thread, request)

    def _deliver(self, thread: Thread, request: Request) -> None:
        order = self._order
        if order is None:
            self._respond(thread, request)
            return
        for ready in order.respond(request.number, request, final=True):
            self._respond(thread, ready)

    def _respond(self, thread: Thread, request: Request) -> None:
        trace = self.world.trace
        if trace is not None:
            trace.answers.append((self.name, request, thread.now, "", ""))
        request.sink.answered(thread, request)

    def _free(self, thread: Thread, instance: Instance, requests: list[Request]) -> None:
        limiter = self.limiter
        batcher = self.batcher
        ahead = False
        if limiter is not None:
            ahead = batcher.forms_ahead
            if not ahead:
                limiter.finished(thread, instance)
        if isinstance(batcher, Batcher):
            decisions = batcher.finish(thread.now, instance.index)
        else:
            decisions = batcher.finish(thread.now, instance.index, requests)
        self._carry_out(thread, decisions)
        if limiter is not None and ahead:
            limiter.finished(thread, instance)

    def _count_execution(self, instance: Instance, run: RunBatch, requests: list[Request]) -> None:
        start = instance.start_ns
        end = instance.ended_ns
        execution_ns = end - start
        trace = self.world.trace
        if trace is not None:
            trace.executions.append((self.name, instance.index, run, start, end))
        for request in requests:
            self.successes += 1
            self.inferences += request.size
            self.queue_ns += start - request.enqueued_ns
            self.compute_ns += execution_ns
            self.total_ns += end - request.accepted_ns
        self.executions += 1
        entry = self.sizes.get(run.size)
        if entry is None:
            entry = self.sizes[run.size] = [0, 0]
        entry[0] += 1
        entry[1] += execution_ns


class _Timer(Event):
    """Wake-up of a batcher by the scheduler thread."""

    __slots__ = ("_model", "_own")

    def __init__(self, model: Model) -> None:
        self._model = model
        self._own = Thread()

    def fire(self, now: int) -> None:
        world = self._model.world
        world.resume(self._own, now)
        world.disturb(world.costs.wait_ns)
        self._model.tick(self._own)


def continue_inline(world: World, thread: Thread) -> bool:
    """Execute the batch that a caller's thread has accepted; return false without one."""
    run = thread.accepted
    instance = thread.accepted_on
    if run is None or instance is None:
        return False
    thread.accepted = None
    thread.accepted_on = None
    thread.executing = True
    world.work(thread, world.costs.inline_ns)
    instance.begin(thread.now, run, thread)
    return True
