"""An ensemble at work: who serves its steps, and the requests that are on their way through it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from nbtriton.config import ModelConfig
from nbtriton.engine.core.completion import owe, owed_here
from nbtriton.engine.core.ensemble_binding import EnsembleBinding
from nbtriton.engine.core.ensemble_execution import EnsembleExecution, placed
from nbtriton.engine.core.now import now_ns
from nbtriton.engine.core.owed import BatchCompletion
from nbtriton.engine.core.request import InferenceRequest
from nbtriton.engine.core.runtime import Runtime
from nbtriton.engine.core.scheduler_settings import ensemble_plan
from nbtriton.engine.core.snapshot import ModelSnapshot
from nbtriton.engine.core.step_gate import StepGate
from nbtriton.engine.interrupts import wait_in_slices
from nbtriton.errors import TritonError

__all__ = ["EnsembleRuntime"]

Resolve = Callable[[str, int], Runtime]


class EnsembleRuntime(Runtime):
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
        self, config: ModelConfig, version: int, resolve: Resolve, directory: Path | None = None
    ) -> None:
        super().__init__(config, version)
        self.directory = directory
        self.counts_twins = True
        self.plan = ensemble_plan(config)
        # The messages of an older tritonclient do not have it.
        limit: int = getattr(config.ensemble_scheduling, "max_inflight_requests", 0)
        self.gates = [StepGate(limit) for _ in self.plan.steps] if limit else []
        self.resolve = resolve
        self._lock = threading.Lock()
        self._crew: EnsembleBinding | None = None
        self._flights: set[EnsembleExecution] = set()
        self._retiring = False
        self._retired = threading.Event()

    def _enter(self, request: InferenceRequest) -> bool:
        with self._lock:
            if self._retiring:
                return False
            crew = self._crew
            if crew is None:
                crew = self._crew = self._muster()
            crew.flights += 1
            flight = EnsembleExecution(self, crew, request)
            self._flights.add(flight)
        request.enqueued_ns = now_ns()
        flight.begin()
        return True

    def submit_many(self, requests: Sequence[InferenceRequest]) -> Sequence[bool | TritonError]:
        """Accept requests that are there at the same moment; their first steps go together."""
        outer = owed_here()
        owed = BatchCompletion()
        owe(owed)
        try:
            return super().submit_many(requests)
        finally:
            owe(outer)
            owed.pay()

    def _muster(self) -> EnsembleBinding:
        """Hold the versions that serve the steps now.

        Raises
        ------
        NotFoundError, UnavailableError
            A composing model has just gone.
        """
        held: list[Runtime] = []
        try:
            for step in self.plan.steps:
                # A version that leaves is not in the registry any more: look again.
                while not (found := self.resolve(step.model_name, step.model_version)).acquire():
                    continue
                held.append(found)
        except TritonError as error:
            for runtime in held:
                runtime.release()
            raise placed(error, self.name) from None
        return EnsembleBinding(self.plan, self.signature, tuple(held))

    def members_changed(self) -> None:
        """Let later requests find the composing models anew; those in flight keep theirs (E17)."""
        with self._lock:
            crew, self._crew = self._crew, None
            idle = crew is not None and not crew.flights
        if crew is not None and idle:
            crew.disband()

    def blockers(self, request: InferenceRequest) -> list[InferenceRequest]:
        """Return the steps of a request that are in flight."""
        with self._lock:
            flights = [flight for flight in self._flights if flight.request is request]
        return [step for flight in flights for step in flight.running()]

    def cancel(self, request: InferenceRequest) -> None:
        """Cancel the steps that still wait; steps that run see `is_cancelled`."""
        with self._lock:
            found = [flight for flight in self._flights if flight.request is request]
        for flight in found:
            flight.cancel()

    def refuse(self, request: InferenceRequest, error: TritonError) -> None:
        """Refuse the steps that are in flight."""
        for step in self.blockers(request):
            assert step.runtime is not None
            step.runtime.refuse(step, error)

    def landed(self, flight: EnsembleExecution) -> None:
        """Nothing of this flight runs any more."""
        crew = flight.crew
        with self._lock:
            self._flights.discard(flight)
            crew.flights -= 1
            last = not crew.flights and crew is not self._crew
            done = self._retiring and not self._flights
        if last:
            crew.disband()
        if done:
            self.log_unloaded()
            self._retired.set()

    def drain(self) -> None:
        """Take no more requests; those in flight go on."""
        with self._lock:
            self._retiring = True
            done = not self._flights
        self.members_changed()
        if done:
            self.log_unloaded()
            self._retired.set()

    def fail_pending(self, reason: str) -> None:
        """Nothing waits here; the steps' own queues answer."""

    def fail_running(self, reason: str) -> None:
        """Nothing runs here; the steps' own versions answer."""

    def wait_drained(self, timeout_s: float | None) -> bool:
        """Wait until no request is in flight; False if time ran out."""
        return wait_in_slices(self._retired.wait, timeout_s)

    def in_flight(self) -> int:
        return len(self._flights)

    def snapshot(self, state: str, reason: str) -> ModelSnapshot:
        """Return what can be seen of this version now."""
        books = self.statistics
        counts, ns = books.counts, books.ns  # each adds the books up
        return ModelSnapshot(
            self.name, self.version, state, reason, "ensemble", self.signature.max_batch_size,
            0, len(self._flights), (), books.inference_count, books.execution_count,
            counts["success"], counts["fail"], ns["success"], ns["queue"],
            ns["compute_input"], ns["compute_infer"], ns["compute_output"],
            books.sizes(),
        )  # fmt: skip
