"""An ensemble at work: the dataflow of `nbtriton.scheduling` with real tensors and models."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic_ns

from nbtriton.backends.base import Response
from nbtriton.config import ModelConfig
from nbtriton.engine.request import BARE_FINAL, InferenceRequest
from nbtriton.engine.result import RequestTiming
from nbtriton.engine.runtime import Runtime
from nbtriton.engine.settings import ensemble_plan
from nbtriton.engine.snapshot import ModelSnapshot
from nbtriton.errors import EngineStoppedError, InternalError, InvalidArgumentError, TritonError
from nbtriton.scheduling import Advance, EnsembleRun, Start
from nbtriton.tensors import Array

__all__ = ["EnsembleRuntime"]

_log = logging.getLogger("nbtriton.engine")

Resolve = Callable[[str, int], Runtime]
# model input -> (ensemble tensor, whether it has a batch dimension)
_Tensors = dict[str, tuple[Array, bool]]


class EnsembleRuntime(Runtime):
    """One version of an ensemble: no queue and no instances of its own (E1).

    Parameters
    ----------
    config : ModelConfig
    version : int
    resolve : callable
        ``resolve(model_name, version)`` returns the runtime that serves a step now, or raises.
    """

    def __init__(self, config: ModelConfig, version: int, resolve: Resolve) -> None:
        super().__init__(config, version)
        self.plan = ensemble_plan(config)
        self.resolve = resolve
        self._lock = threading.Lock()
        self._crew: _Crew | None = None
        self._flights: set[_Flight] = set()
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
            flight = _Flight(self, crew, request)
            self._flights.add(flight)
        request.enqueued_ns = monotonic_ns()
        flight.begin()
        return True

    def _muster(self) -> _Crew:
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
                while not (found := self.resolve(step.model_name, step.model_version)).hold():
                    continue
                held.append(found)
        except TritonError as error:
            for runtime in held:
                runtime.let_go()
            raise _placed(error, self.name) from None
        return _Crew(tuple(held))

    def members_changed(self) -> None:
        """Let later requests find the composing models anew; those in flight keep theirs (E17)."""
        with self._lock:
            crew, self._crew = self._crew, None
            idle = crew is not None and not crew.flights
        if crew is not None and idle:
            crew.disband()

    def cancel(self, request: InferenceRequest) -> None:
        """Cancel the steps that still wait; steps that run see `is_cancelled`."""
        with self._lock:
            found = [flight for flight in self._flights if flight.request is request]
        for flight in found:
            flight.cancel()

    def landed(self, flight: _Flight) -> None:
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
            self._retired.set()

    def retire(self) -> None:
        """Take no more requests; those in flight go on."""
        with self._lock:
            self._retiring = True
            done = not self._flights
        self.members_changed()
        if done:
            self._retired.set()

    def abandon(self, reason: str) -> None:
        """Nothing waits here; the steps' own queues answer."""

    def wait_retired(self, timeout_s: float | None) -> bool:
        """Wait until no request is in flight; False if time ran out."""
        return self._retired.wait(timeout_s)

    def snapshot(self, state: str, reason: str) -> ModelSnapshot:
        """Return what can be seen of this version now."""
        books = self.statistics
        return ModelSnapshot(
            self.name, self.version, state, reason, "ensemble", self.interface.max_batch_size,
            0, len(self._flights), (), books.inference_count, books.execution_count,
            books.counts["success"], books.counts["fail"], books.ns["success"], books.ns["queue"],
            books.ns["compute_input"], books.ns["compute_infer"], books.ns["compute_output"],
            books.sizes(),
        )  # fmt: skip


class _Crew:
    """The versions that serve the steps, for all requests that began with them (E17)."""

    __slots__ = ("flights", "runtimes")

    def __init__(self, runtimes: tuple[Runtime, ...]) -> None:
        self.runtimes = runtimes  # one a step
        self.flights = 0  # guarded by the ensemble's lock

    def disband(self) -> None:
        """The last flight has landed, and none will come."""
        for runtime in self.runtimes:
            runtime.let_go()


class _Wave:
    """The tensors of one iteration; those that no step needs any more are let go.

    ``marks`` are the sequence id and flags of tensors whose step changed them (E6).
    """

    __slots__ = ("batched", "marks", "tensors")

    def __init__(
        self,
        tensors: dict[str, Array],
        batched: dict[str, bool],
        marks: dict[str, tuple[int | str, int]],
    ) -> None:
        self.tensors = tensors
        self.batched = batched
        self.marks = marks


class _Flight:
    """One request through the ensemble.

    Facts come in on whatever thread finished a step; the lock is held for the dataflow only, never
    while a step is submitted or a response delivered.
    """

    __slots__ = ("_lock", "_running", "_sums", "_waves", "crew", "ensemble", "request", "run")

    def __init__(self, ensemble: EnsembleRuntime, crew: _Crew, request: InferenceRequest) -> None:
        self.ensemble = ensemble
        self.crew = crew
        self.request = request
        self.run = EnsembleRun(ensemble.plan, request.requested_outputs)
        batched = ensemble.interface.max_batch_size > 0
        self._waves = {0: _Wave(dict(request.inputs), dict.fromkeys(request.inputs, batched), {})}
        self._lock = threading.Lock()
        self._running: set[InferenceRequest] = set()
        # queue, compute_input, compute_infer, compute_output: sums over the steps (T4)
        self._sums = [0, 0, 0, 0]

    def begin(self) -> None:
        """Start the steps whose inputs the ensemble was given."""
        with self._lock:
            advance = self.run.start()
            ready = self._ready(advance)
        if not ready:
            self._conclude()
        for start, tensors in ready:
            self._start(start, tensors)

    def cancel(self) -> None:
        """Drop the steps that still wait."""
        with self._lock:
            running = list(self._running)
        for step in running:
            step.cancel()

    # -- steps -----------------------------------------------------------------------------------

    def _ready(self, advance: Advance) -> list[tuple[Start, _Tensors]]:
        """Take the input tensors of the steps to start; only then may others be let go."""
        ready = []
        for start in advance.starts:
            wave = self._waves[start.iteration]
            tensors = {
                name: (wave.tensors[tensor], wave.batched[tensor])
                for name, tensor in self.ensemble.plan.steps[start.step].input_map.items()
                # Absent: an omitted optional input, or an output that was not made (E10, E11).
                if tensor in wave.tensors
            }
            ready.append((start, tensors))
        for start in advance.starts:
            for tensor in start.release:
                self._waves[start.iteration].tensors.pop(tensor, None)
        return ready

    def _start(self, start: Start, tensors: _Tensors) -> None:
        step = self.ensemble.plan.steps[start.step]
        request = self.request
        try:
            while True:
                runtime = self.ensemble.resolve(step.model_name, step.model_version)
                sub = runtime.admit(
                    _inputs(tensors, runtime),
                    outputs=step.output_map,
                    request_id=request.request_id,
                    priority=request.priority,
                    timeout_us=request.timeout_us,
                    correlation_id=request.correlation_id,
                    flags=request.flags,
                    parameters=request.parameters,
                    root=request.root,
                    on_response=partial(self._responded, start, runtime),
                )  # E5
                with self._lock:
                    self._running.add(sub)
                # False: replaced since it was resolved; its successor takes the step.
                if runtime.submit(sub):
                    return
                with self._lock:
                    self._running.discard(sub)
        except TritonError as error:
            with self._lock:
                done = self._finished(start)
            self._fail(error)
            if done:
                self._conclude()

    def _responded(
        self,
        start: Start,
        runtime: Runtime,
        sub: InferenceRequest,
        response: Response,
        final: bool,
    ) -> None:
        emit: Response | None = None
        ready: list[tuple[Start, _Tensors]] = []
        done = False
        if response.error is not None:
            self._fail(response.error)
        with self._lock:
            if response.error is None and response is not BARE_FINAL and not self.run.failed:
                ready, emit = self._take(start, runtime, response)
            if final:
                self._running.discard(sub)
                self._account(sub)
                done = self._finished(start)
        if emit is not None:
            self._emit(emit, final=done or not self.ensemble.interface.decoupled)
        for following, tensors in ready:
            self._start(following, tensors)
        if done:
            self._conclude()

    def _take(
        self, start: Start, runtime: Runtime, response: Response
    ) -> tuple[list[tuple[Start, _Tensors]], Response | None]:
        iteration, advance = self.run.response(
            start.step, start.iteration, new_wave=runtime.interface.decoupled
        )
        wave = self._waves.get(iteration)
        if wave is None:
            origin = self._waves[start.iteration]
            wave = self._waves[iteration] = _Wave(dict(origin.tensors), dict(origin.batched))
        batched = runtime.interface.max_batch_size > 0
        for output, tensor in self.ensemble.plan.steps[start.step].output_map.items():
            if output in response.outputs:
                wave.tensors[tensor] = response.outputs[output]
                wave.batched[tensor] = batched
        emit = None if advance.emit is None else self._outputs(self._waves[advance.emit])
        ready = self._ready(advance)
        if advance.over is not None:
            del self._waves[advance.over]
        return ready, emit

    def _finished(self, start: Start) -> bool:
        """A step finished, the lock is held; True if it was the last one."""
        advance = self.run.finished(start.iteration)
        if advance.over is not None:
            self._waves.pop(advance.over, None)
        return advance.done

    def _outputs(self, wave: _Wave) -> Response:
        own = self.ensemble.interface
        request = self.request
        batching = own.max_batch_size > 0
        outputs: dict[str, Array] = {}
        for name, spec in own.outputs.items():
            if name in request.requested_outputs and name in wave.tensors:
                value = wave.tensors[name]
                if wave.batched[name] is not batching:
                    value = _adapt(value, spec.dims, to_batching=batching)
                outputs[name] = value
        parameters = {
            "sequence_id": request.correlation_id,
            "sequence_start": bool(request.flags & 1),
            "sequence_end": bool(request.flags & 2),
        }
        return Response(outputs, parameters=parameters)  # E7

    # -- the end ---------------------------------------------------------------------------------

    def _conclude(self) -> None:
        """Nothing runs any more, and nothing can start."""
        if self.ensemble.interface.decoupled:
            self._emit(None, final=True)
        else:
            self._fail(
                InvalidArgumentError(
                    f"[request id: {self.request.request_id or '<id_unknown>'}] unexpected "
                    "deadlock, at least one output is not set while no more ensemble steps can be "
                    "made"
                )
            )  # E12; of no effect where an answer was given
        self.ensemble.landed(self)

    def _emit(self, response: Response | None, *, final: bool) -> None:
        request = self.request
        if not final:
            request.send(response, final=False)
        elif request.claim():
            self._count_success()
            self.ensemble.deliver(request, response, final=True)

    def _fail(self, error: TritonError) -> None:
        """Answer with the first error; the steps that run are left to run (E13)."""
        with self._lock:
            self.run.fail()
        request = self.request
        if not request.claim():
            return
        message = f"in ensemble '{self.ensemble.name}', {error.message}"
        wrapped: TritonError
        if isinstance(error, ModelError):
            wrapped = ModelError(message, hint=error.hint, user_traceback=error.user_traceback)
        else:
            wrapped = error_from_status(error.status, message)
            wrapped.hint = error.hint
        # Once per request: that Triton counts it twice is a defect (T4).
        self.ensemble.statistics.failure(1, monotonic_ns() - request.start_ns)
        self.ensemble.deliver(request, Response(error=wrapped), final=True)

    def _account(self, sub: InferenceRequest) -> None:
        timing = sub.timing()
        sums = self._sums
        sums[0] += timing.queue_ns
        sums[1] += timing.compute_input_ns
        sums[2] += timing.compute_infer_ns
        sums[3] += timing.compute_output_ns

    def _count_success(self) -> None:
        request = self.request
        queue_ns, input_ns, infer_ns, output_ns = self._sums
        total_ns = monotonic_ns() - request.start_ns
        request.step_timing = RequestTiming(
            total_ns, queue_ns, input_ns, infer_ns, output_ns, request.size
        )
        books = self.ensemble.statistics
        books.execution(request.size, input_ns, infer_ns, output_ns)
        books.success(1, request.size, total_ns, 0, input_ns, infer_ns, output_ns)


def _inputs(tensors: _Tensors, runtime: Runtime) -> dict[str, Array]:
    batching = runtime.interface.max_batch_size > 0
    specs = runtime.interface.inputs
    return {
        name: value
        if batched is batching or name not in specs
        else _adapt(value, specs[name].dims, to_batching=batching)
        for name, (value, batched) in tensors.items()
    }


def _adapt(value: Array, dims: Sequence[int], *, to_batching: bool) -> Array:
    """Pass a tensor between a batching and a non-batching model (E9)."""
    shape = tuple(value.shape)
    fits = len(shape) == len(dims) and all(
        want in (-1, found) for want, found in zip(dims, shape, strict=True)
    )
    if to_batching:
        return value.reshape((1, *shape)) if fits else value
    if fits or not shape or shape[0] != 1:
        return value
    return value.reshape(shape[1:])
