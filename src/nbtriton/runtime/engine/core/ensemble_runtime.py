"""A version of an ensemble: its composing models and its requests in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from nbtriton.common.errors import TritonError
from nbtriton.model.config import ModelConfig, runs_as_graph
from nbtriton.runtime.engine.core.completion import BatchCompletion, Completion
from nbtriton.runtime.engine.core.ensemble_binding import EnsembleBinding
from nbtriton.runtime.engine.core.ensemble_execution import EnsembleExecution, EnsembleOwner
from nbtriton.runtime.engine.core.ensemble_graph import EnsembleGraph, GraphExecution, open_graph
from nbtriton.runtime.engine.core.execution import now_ns
from nbtriton.runtime.engine.core.request import InferenceRequest
from nbtriton.runtime.engine.core.runtime import Runtime
from nbtriton.runtime.engine.core.scheduler_settings import ensemble_plan
from nbtriton.runtime.engine.core.scheduler_thread import SchedulerThread
from nbtriton.runtime.engine.core.snapshot import ModelSnapshot
from nbtriton.runtime.engine.core.step_gate import StepGate
from nbtriton.runtime.engine.core.step_values import placed
from nbtriton.runtime.engine.diagnostics.deadlocks import Blockers
from nbtriton.runtime.engine.interrupts import wait_in_slices

__all__ = ["EnsembleRuntime"]

Resolve = Callable[[str, int], Runtime]


class EnsembleRuntime(EnsembleOwner):
    """One version of an ensemble: no queue and no instances of its own (E1).

    Parameters
    ----------
    config : ModelConfig
    version : int
    resolve : callable
        ``resolve(model_name, version)`` returns the runtime that serves a step now, or raises.
    clock : SchedulerThread
    directory : Path or None
        The ensemble's own, in a repository.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        resolve: Resolve,
        clock: SchedulerThread,
        directory: Path | None = None,
    ) -> None:
        super().__init__(config, version)
        self.directory = directory
        self.counts_twins = True
        self.plan = ensemble_plan(config)
        limit = config.ensemble_scheduling.max_inflight_requests
        self.gates = [StepGate(limit) for _ in self.plan.steps] if limit else []
        self.resolve = resolve
        self._lock = threading.Lock()
        self._binding: EnsembleBinding | None = None
        self._clock = clock
        self._wants_graph = runs_as_graph(config)
        # Of the binding, and of earlier ones.
        self._graph: EnsembleGraph | None = None
        self._graphs: list[EnsembleGraph] = []
        self._executions: dict[InferenceRequest, EnsembleExecution] = {}
        self._draining = False
        self._drained = threading.Event()

    def _enter(self, request: InferenceRequest, completion: Completion | None) -> bool:
        graph = self._graph  # looked at once: another thread may forget it meanwhile
        if graph is not None and graph.is_stale():
            self.members_changed()
        # By its methods: `with` takes twice their time, half a percent of a request.
        self._lock.acquire()
        try:
            if self._draining:
                return False
            binding = self._binding
            if binding is None:
                binding = self._binding = self._bind()
            binding.active += 1
            graph = self._graph
            execution: EnsembleExecution
            if (
                graph is not None
                and not self._executions
                and not isinstance(completion, BatchCompletion)
                and graph.takes(request)
            ):
                execution = GraphExecution(self, binding, graph, request)
            else:
                execution = EnsembleExecution(self, binding, request)
            self._executions[request] = execution
            request.enqueued_ns = now = now_ns()
            if self.history is not None:
                self.history.note_depth(now, len(self._executions))
        finally:
            self._lock.release()
        execution.begin(completion)
        return True

    def submit_many(
        self, requests: Sequence[InferenceRequest], completion: Completion | None = None
    ) -> Sequence[bool | TritonError]:
        """Accept requests of the same moment; their first steps are submitted together."""
        alone = self._wants_graph and len(requests) == 1
        if alone or isinstance(completion, BatchCompletion):
            return super().submit_many(requests, completion)
        batch = BatchCompletion()
        try:
            return super().submit_many(requests, batch)
        finally:
            batch.flush()

    def _bind(self) -> EnsembleBinding:
        """Acquire the versions that serve the steps now.

        Raises
        ------
        NotFoundError, UnavailableError
            A composing model was just unloaded.
        """
        acquired: list[Runtime] = []
        try:
            for step in self.plan.steps:
                # An unpublished version is no longer in the registry: resolve again.
                while not (found := self.resolve(step.model_name, step.model_version)).acquire():
                    continue
                acquired.append(found)
        except TritonError as error:
            for runtime in acquired:
                runtime.release()
            raise placed(error, self.name) from None
        binding = EnsembleBinding(self.plan, self.signature, tuple(acquired))
        if self._wants_graph:
            try:
                self._graph = graph = open_graph(self, binding, self._clock)
            except BaseException:  # Ctrl-C
                binding.release()
                raise
            if graph is not None:
                binding.on_release = graph.close
                self._graphs = [one for one in self._graphs if not one.wait_closed(0)] + [graph]
        return binding

    def run_steps(self, execution: EnsembleExecution, completion: Completion | None) -> None:
        request = execution.request
        with self._lock:
            again = EnsembleExecution(self, execution.held, request)
            self._executions[request] = again
        again.begin(completion)

    def members_changed(self) -> None:
        """Bind later requests to the models that serve then; those in flight keep theirs (E17)."""
        with self._lock:
            binding, self._binding = self._binding, None
            self._graph = None
            idle = binding is not None and not binding.active
        if binding is not None and idle:
            binding.release()

    def blockers(self, request: InferenceRequest) -> Blockers:
        """Return the steps of a request that are in flight."""
        return Blockers(steps=tuple(self._steps(request)))

    def cancel(self, request: InferenceRequest) -> None:
        """Cancel the steps that still wait; steps that run see `is_cancelled`."""
        for step in self._steps(request):
            step.cancel()

    def refuse(self, request: InferenceRequest, error: TritonError) -> None:
        """Refuse the steps that are in flight."""
        for step in self._steps(request):
            step.refuse(error)

    def _steps(self, request: InferenceRequest) -> list[InferenceRequest]:
        with self._lock:
            execution = self._executions.get(request)
        return [] if execution is None else execution.running()

    def on_complete(self, execution: EnsembleExecution) -> None:
        binding = execution.held
        self._lock.acquire()
        try:
            self._executions.pop(execution.request, None)
            binding.active -= 1
            last = not binding.active and binding is not self._binding
            done = self._draining and not self._executions
            if self.history is not None:
                at_ns = execution.request.answered_ns or now_ns()
                self.history.note_depth(at_ns, len(self._executions))
        finally:
            self._lock.release()
        if last:
            binding.release()
        if done:
            self._end()

    def drain(self) -> None:
        """Accept no more requests; those in flight go on."""
        with self._lock:
            self._draining = True
            done = not self._executions
        self.members_changed()
        if done:
            self._end()

    def _end(self) -> None:
        self.end_record()
        self.log_unloaded()
        self._drained.set()

    def fail_pending(self, reason: str) -> None:
        """Fail what waits for the graph; other requests wait in the queues of their steps."""
        for graph in self._graphs:
            graph.runtime.fail_pending(reason)

    def fail_running(self, reason: str) -> None:
        """Fail what the graph runs; for other requests the versions of the steps answer."""
        for graph in self._graphs:
            graph.runtime.fail_running(reason)

    def wait_drained(self, timeout_s: float | None) -> bool:
        """Wait until no request is in flight and no graph is left; False if time ran out."""
        ends_ns = None if timeout_s is None else now_ns() + int(timeout_s * 1e9)
        if not wait_in_slices(self._drained.wait, timeout_s):
            return False
        for graph in self._graphs:
            left_s = None if ends_ns is None else max(0.0, (ends_ns - now_ns()) / 1e9)
            if not graph.wait_closed(left_s):
                return False
        return True

    def in_flight(self) -> int:
        return len(self._executions)

    def requests_inside(self) -> list[InferenceRequest]:
        """Return the accepted requests that are not answered yet."""
        with self._lock:
            inside = list(self._executions)
        return [request for request in inside if not request.is_answered()]

    def snapshot(self, state: str, reason: str) -> ModelSnapshot:
        """Return the state of this version now."""
        return self._snapshot(state, reason, "ensemble", 0, len(self._executions))
