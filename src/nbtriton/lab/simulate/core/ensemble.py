"""A simulated ensemble: the engine's dataflow between simulated models (E1 to E21)."""

from __future__ import annotations

from collections import deque

from nbtriton.lab.simulate.core.world import Request, Runtime, Sink, Thread, World
from nbtriton.scheduling import EnsemblePlan, EnsembleRun, Start


class Ensemble(Runtime):
    """An ensemble.

    Parameters
    ----------
    world : World
    name : str
    plan : EnsemblePlan
    steps : list of Runtime
        The model or ensemble of each step.
    most_inflight : int
        Concurrent requests in a step (E21); 0 for no limit.
    writers : list of list of int, optional
        By step: the steps whose outputs it reads, where devices may write these after the steps end.
    on_host : list of bool, optional
        By step: whether its inputs have to be written before it starts.
    """

    __slots__ = ("_gates", "on_host", "outputs", "plan", "steps", "world", "writers")

    def __init__(
        self,
        world: World,
        name: str,
        plan: EnsemblePlan,
        steps: list[Runtime],
        most_inflight: int = 0,
        writers: list[list[int]] | None = None,
        on_host: list[bool] | None = None,
    ) -> None:
        super().__init__(name)
        self.world = world
        self.plan = plan
        self.steps = steps
        self.outputs = frozenset(plan.outputs)
        self.writers = writers or []
        self.on_host = on_host or []
        self._gates = [_Gate(most_inflight) for _ in steps] if most_inflight else []

    def submit(self, thread: Thread, request: Request) -> None:
        request.accepted_ns = thread.now
        execution = _Execution(self, request)
        execution.begin(thread)

    def enter(self, thread: Thread, step: Request) -> None:
        """Submit a step as soon as the limit of concurrent requests allows (E21)."""
        if self._gates:
            gate = self._gates[step.step]
            if gate.inside >= gate.limit:
                gate.waiting.append(step)
                return
            gate.inside += 1
        self._submit(thread, step)

    def left(self, thread: Thread, step: Request) -> None:
        """Pass the place of a step on to the next request."""
        if not self._gates:
            return
        gate = self._gates[step.step]
        gate.inside -= 1
        if gate.waiting:
            gate.inside += 1
            self._submit(thread, gate.waiting.popleft())

    def _submit(self, thread: Thread, step: Request) -> None:
        self.world.serve(thread, self.world.costs.step_ns)
        runtime = self.steps[step.step]
        if thread.gathered is not None:
            thread.gathered.append((runtime, step))
        else:
            runtime.submit(thread, step)


class _Gate:
    """The limit of concurrent requests in one step (E21): first come, first served."""

    __slots__ = ("inside", "limit", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.inside = 0
        self.waiting: deque[Request] = deque()


class _Execution(Sink):
    """One request through an ensemble; receives the responses of its steps."""

    __slots__ = ("_ensemble", "_failed", "_ready_ns", "_request", "_run")

    def __init__(self, ensemble: Ensemble, request: Request) -> None:
        self._ensemble = ensemble
        self._request = request
        self._run = EnsembleRun(ensemble.plan, ensemble.outputs)
        self._failed = False
        # When devices have written the outputs of each step.
        self._ready_ns = [0] * len(ensemble.writers)

    def begin(self, thread: Thread) -> None:
        """Start the steps that read only the ensemble's inputs."""
        self._start(thread, self._run.start().starts)

    def answered(self, thread: Thread, request: Request) -> None:
        if self._ready_ns:
            self._ready_ns[request.step] = request.ready_ns
        advance = self._run.answered(request.step, 0)
        if advance.emit and not self._failed:
            ensemble = self._ensemble
            ensemble.successes += 1
            ensemble.inferences += self._request.size
            ensemble.executions += 1
            ensemble.total_ns += thread.now - self._request.accepted_ns
            trace = ensemble.world.trace
            if trace is not None:
                trace.answers.append((ensemble.name, self._request, thread.now, "", ""))
            if self._ready_ns:
                self._request.ready_ns = max(self._ready_ns)
            self._request.sink.answered(thread, self._request)
        if advance.starts:
            self._start(thread, advance.starts)
        self._ensemble.left(thread, request)

    def wait_for_devices(self, request: Request, ready_ns: int, until: int) -> int:
        """Wait for the inputs of the next steps on the host, and at the last step for all outputs."""
        ready = self._ready_ns
        if self._failed or not ready:
            return until
        ready[request.step] = ready_ns
        ensemble = self._ensemble
        starts, emits = self._run.foreseen(request.step, 0)
        for step in starts:
            if ensemble.on_host[step]:
                until = max(until, self._request.ready_ns)
                for writer in ensemble.writers[step]:
                    until = max(until, ready[writer])
        if emits:
            outer = self._request
            until = outer.sink.wait_for_devices(outer, max(ready), until)
        return until

    def failed(self, thread: Thread, request: Request, message: str) -> None:
        first = self._run.fail()
        self._run.finished(0)
        if first:
            self._failed = True
            ensemble = self._ensemble
            ensemble.failures += 1
            text = f"in ensemble '{ensemble.name}', {message}"
            trace = ensemble.world.trace
            if trace is not None:
                trace.answers.append(
                    (ensemble.name, self._request, thread.now, "failed_step", text)
                )
            self._request.sink.failed(thread, self._request, text)
        self._ensemble.left(thread, request)

    def _start(self, thread: Thread, starts: tuple[Start, ...]) -> None:
        # All requests are made before one is submitted, as in the engine.
        steps: list[Request] = []
        request = self._request
        for start in starts:
            step = Request(
                self, request.size, request.key, request.priority, request.timeout_ns,
                request.correlation_id, request.flags,
            )  # fmt: skip
            step.root = request if request.root is None else request.root
            step.step = start.step
            if self._ready_ns:
                step.ready_ns = request.ready_ns
                for writer in self._ensemble.writers[start.step]:
                    step.ready_ns = max(step.ready_ns, self._ready_ns[writer])
            steps.append(step)
        for step in steps:
            self._ensemble.enter(thread, step)
