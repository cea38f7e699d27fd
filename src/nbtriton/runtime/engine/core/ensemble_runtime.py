"""A version of an ensemble: its composing models and its requests in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from nbtriton.common.errors import TritonError
from nbtriton.model.config import ModelConfig
from nbtriton.runtime.engine.core.completion import BatchCompletion, Completion
from nbtriton.runtime.engine.core.ensemble_binding import EnsembleBinding
from nbtriton.runtime.engine.core.ensemble_execution import EnsembleExecution, EnsembleOwner
from nbtriton.runtime.engine.core.execution import now_ns
from nbtriton.runtime.engine.core.request import InferenceRequest
from nbtriton.runtime.engine.core.runtime import Runtime
from nbtriton.runtime.engine.core.scheduler_settings import ensemble_plan
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
    directory : Path or None
        The ensemble's own, in a repository.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        resolve: Resolve,
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
        self._executions: dict[InferenceRequest, EnsembleExecution] = {}
        self._draining = False
        self._drained = threading.Event()

    def _enter(self, request: InferenceRequest, completion: Completion | None) -> bool:
        # By its methods: `with` takes twice their time, half a percent of a request.
        self._lock.acquire()
        try:
            if self._draining:
                return False
            binding = self._binding
            if binding is None:
                binding = self._binding = self._bind()
            binding.active += 1
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
        if isinstance(completion, BatchCompletion):
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
        return EnsembleBinding(self.plan, self.signature, tuple(acquired))

    def members_changed(self) -> None:
        """Bind later requests to the models that serve then; those in flight keep theirs (E17)."""
        with self._lock:
            binding, self._binding = self._binding, None
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
        binding = execution.binding
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
        """Do nothing: requests wait in the queues of their steps."""

    def fail_running(self, reason: str) -> None:
        """Do nothing: the versions of the steps answer."""

    def wait_drained(self, timeout_s: float | None) -> bool:
        """Wait until no request is in flight; False if time ran out."""
        return wait_in_slices(self._drained.wait, timeout_s)

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
