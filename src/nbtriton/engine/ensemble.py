"""An ensemble at work: the dataflow of `nbtriton.scheduling` with real tensors and models."""

from __future__ import annotations

import copy
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from time import monotonic_ns
from typing import NamedTuple

from nbtriton.backends.base import Response
from nbtriton.config import ModelConfig
from nbtriton.engine.admission import Interface
from nbtriton.engine.answering import Owed, answering, together
from nbtriton.engine.inflight import StepGate
from nbtriton.engine.request import BARE_FINAL, InferenceRequest
from nbtriton.engine.result import RequestTiming
from nbtriton.engine.runtime import Runtime
from nbtriton.engine.settings import ensemble_plan
from nbtriton.engine.shield import wait_in_slices
from nbtriton.engine.snapshot import ModelSnapshot
from nbtriton.errors import (
    CancelledError,
    EngineStoppedError,
    InternalError,
    InvalidArgumentError,
    TritonError,
)
from nbtriton.scheduling import (
    SEQUENCE_END,
    SEQUENCE_START,
    EnsemblePlan,
    EnsembleRun,
    Start,
)
from nbtriton.tensors import Array, read_only

__all__ = ["EnsembleRuntime"]

_log = logging.getLogger("nbtriton.engine")

Resolve = Callable[[str, int], Runtime]
# Sequence id and flags.
_Mark = tuple[int | str, int]
# A step to start, its inputs, and its mark if it is not the request's own.
_Ready = tuple[Start, dict[str, Array], _Mark | None]


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
        # The messages of an older tritonclient do not have it.
        limit: int = getattr(config.ensemble_scheduling, "max_inflight_requests", 0)
        self.gates = [StepGate(limit) for _ in self.plan.steps] if limit else []
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

    def submit_many(self, requests: Sequence[InferenceRequest]) -> Sequence[bool | TritonError]:
        """Accept requests that are there at the same moment; their first steps go together."""
        outer = answering.owed
        owed = answering.owed = Owed()
        try:
            return super().submit_many(requests)
        finally:
            answering.owed = outer
            owed.pay()

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
        return _Crew(self.plan, self.interface, tuple(held))

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
        return wait_in_slices(self._retired.wait, timeout_s)

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


class _Feed(NamedTuple):
    """An input of a step."""

    name: str
    tensor: str  # of the ensemble
    # Of the model's input, where the tensor comes from a model that batches and this one does not,
    # or the other way round (E9); None where it can be taken as it is.
    dims: tuple[int, ...] | None
    # Another step or the caller gets the tensor too: this one must not change it.
    shared: bool


class _Crew:
    """The versions that serve the steps, for all requests that began with them (E17)."""

    __slots__ = ("batching", "feeds", "flights", "harvest", "runtimes", "wanted")

    def __init__(
        self, plan: EnsemblePlan, interface: Interface, runtimes: tuple[Runtime, ...]
    ) -> None:
        self.runtimes = runtimes  # one a step, like all that follows
        self.batching = tuple(runtime.interface.max_batch_size > 0 for runtime in runtimes)
        self.wanted = tuple(frozenset(step.output_map) for step in plan.steps)
        own = interface.max_batch_size > 0
        batched = {
            tensor: self.batching[plan.producer[tensor]] if tensor in plan.producer else own
            for tensor in plan.bits
        }
        readers = Counter(chain(*plan.step_inputs, plan.outputs))
        feeds = []
        for step, runtime, batching in zip(plan.steps, runtimes, self.batching, strict=True):
            specs = runtime.interface.inputs
            feeds.append(
                tuple(
                    _Feed(
                        name,
                        tensor,
                        None if batched[tensor] is batching or name not in specs
                        else specs[name].dims,
                        readers[tensor] > 1,
                    )
                    for name, tensor in step.input_map.items()
                )
            )  # fmt: skip
        self.feeds = tuple(feeds)
        # The ensemble's outputs, with dims where the tensor is to be adapted.
        self.harvest = tuple(
            (name, None if batched[name] is own else spec.dims)
            for name, spec in interface.outputs.items()
        )
        self.flights = 0  # guarded by the ensemble's lock

    def disband(self) -> None:
        """The last flight has landed, and none will come."""
        for runtime in self.runtimes:
            runtime.let_go()


class _Flight:
    """One request through the ensemble.

    Facts come in on whatever thread finished a step; the lock is held for the dataflow only, never
    while a step is submitted or a response delivered.
    """

    __slots__ = (
        "_lock", "_marks", "_outbox", "_running", "_sending", "_sums", "_waves", "crew",
        "ensemble", "request", "run",
    )  # fmt: skip

    def __init__(self, ensemble: EnsembleRuntime, crew: _Crew, request: InferenceRequest) -> None:
        self.ensemble = ensemble
        self.crew = crew
        self.request = request
        self.run = EnsembleRun(ensemble.plan, request.requested_outputs)
        # Tensors by iteration; those that no step needs any more are let go.
        self._waves: dict[int, dict[str, Array]] = {0: dict(request.inputs)}
        # Sequence id and flags of the tensors whose step changed them, by iteration (E6).
        self._marks: dict[int, dict[str, _Mark]] = {}
        self._lock = threading.Lock()
        self._running: set[InferenceRequest] = set()
        # queue, compute_input, compute_infer, compute_output: sums over the steps (T4)
        self._sums = [0, 0, 0, 0]
        # Responses of a decoupled ensemble, in the order in which they may be seen: steps finish
        # on several threads, and the final response must not overtake one before it.
        self._outbox: deque[tuple[Response | None, bool]] | None = (
            deque() if ensemble.interface.decoupled else None
        )
        self._sending = threading.Lock()

    def begin(self) -> None:
        """Start the steps whose inputs the ensemble was given."""
        with self._lock:
            ready = self._ready(self.run.start().starts)
        if not ready:
            self._conclude()
        for start, inputs, mark in ready:
            self._start(start, inputs, mark)

    def cancel(self) -> None:
        """Drop the steps that still wait."""
        for step in self.running():
            step.cancel()

    def running(self) -> list[InferenceRequest]:
        """Return the steps that are in flight."""
        with self._lock:
            return list(self._running)

    # -- steps -----------------------------------------------------------------------------------

    def _ready(self, starts: Sequence[Start]) -> list[_Ready]:
        """Take the inputs of the steps to start; only then may others be let go."""
        ready: list[_Ready] = []
        for start in starts:
            tensors = self._waves[start.iteration]
            feeds = self.crew.feeds[start.step]
            inputs: dict[str, Array] = {}
            for name, tensor, dims, shared in feeds:
                value = tensors.get(tensor)
                if value is None:  # an omitted optional input, or an output not made (E10, E11)
                    continue
                if dims is not None:
                    value = _adapt(value, dims, to_batching=self.crew.batching[start.step])
                inputs[name] = read_only(value) if shared else value
            mark = None
            if self._marks:
                marks = self._marks.get(start.iteration, {})
                mark = next((marks[feed.tensor] for feed in feeds if feed.tensor in marks), None)
            ready.append((start, inputs, mark))
        for start in starts:
            for tensor in start.release:
                self._waves[start.iteration].pop(tensor, None)
        return ready

    def _start(
        self, start: Start, inputs: dict[str, Array], mark: _Mark | None
    ) -> threading.Event | None:
        """Start a step, or leave it to do so when there is a place in it (E21)."""
        gates = self.ensemble.gates
        if not gates:
            self._enter(start, inputs, mark)
            return None
        return gates[start.step].enter(partial(self._enter, start, inputs, mark))

    def _left(self, start: Start) -> None:
        """A step is over: its place is free."""
        if self.ensemble.gates:
            self.ensemble.gates[start.step].leave()

    def _enter(self, start: Start, inputs: dict[str, Array], mark: _Mark | None) -> None:
        runtime = self.crew.runtimes[start.step]
        request = self.request
        correlation_id, flags = mark or (request.correlation_id, request.flags)
        try:
            if self.ensemble.gates and self.run.failed:  # while it waited for its place
                raise CancelledError("the ensemble's request failed")
            sub = runtime.admit(
                inputs,
                self.crew.wanted[start.step],
                request.request_id,
                request.priority,
                request.timeout_us,
                correlation_id,
                flags,
                request.parameters,
                partial(self._responded, start),
                request.root,
            )  # E5
            if request.trace is not None:
                request.trace.child().follow(sub)
            with self._lock:
                self._running.add(sub)
        except Exception as error:
            self.refused(start, error)
        else:
            together(_submit, runtime, (self, start, sub))

    def refused(self, start: Start, error: Exception) -> None:
        """A step could not be entered."""
        with self._lock:
            done = self._finished(start)
        self._fail(_as_triton_error(error))
        if done:
            self._conclude()
        self._left(start)

    def _responded(
        self, start: Start, sub: InferenceRequest, response: Response, final: bool
    ) -> None:
        error = response.error
        emit: Response | None = None
        ready: Sequence[_Ready] = ()
        done = False
        outbox = self._outbox
        with self._lock:
            if error is None and response is not BARE_FINAL and not self.run.failed:
                ready, emit, done, error = self._take(start, response, final)
            elif final:
                done = self._finished(start)
            if error is not None:
                self.run.fail()
            if final:
                self._running.discard(sub)
                self._account(sub)
            if outbox is not None and (emit is not None or (done and error is None)):
                outbox.append((emit, done))  # E14
        if error is not None:
            self._fail(error)
        elif outbox is not None:
            self._send()
        elif emit is not None:
            self._answer(emit)
        turns = [self._start(*following) for following in ready]
        if done:
            self._conclude()
        if final:
            self._left(start)
            return
        # A decoupled model is held back until what it sent has found its places: its next
        # responses would only pile up in memory.
        for turn in turns:
            if turn is not None:
                turn.wait()

    def _take(
        self, start: Start, response: Response, final: bool
    ) -> tuple[Sequence[_Ready], Response | None, bool, TritonError | None]:
        """Take a step's response in; the lock is held.

        Returns
        -------
        ready : steps to start
        emit : a response of the ensemble, if one is complete
        done : True if nothing runs any more and nothing is to be started
        error : what made it impossible
        """
        step, iteration = start.step, start.iteration
        decoupled = self.crew.runtimes[step].interface.decoupled
        mark = None
        if response.parameters:
            try:
                mark = _mark(response.parameters)
            except TritonError as error:
                return (), None, final and self._finished(start), error
        if final and not decoupled:
            advance = self.run.answered(step, iteration)
        else:
            iteration, advance = self.run.response(step, iteration, new_wave=decoupled)
        if iteration not in self._waves:
            self._waves[iteration] = self._waves[start.iteration].copy()
            if start.iteration in self._marks:
                self._marks[iteration] = self._marks[start.iteration].copy()
        wave = self._waves[iteration]
        outputs = response.outputs
        for output, tensor in self.ensemble.plan.steps[step].output_map.items():
            if output in outputs:
                wave[tensor] = outputs[output]
                if mark is not None:
                    self._marks.setdefault(iteration, {})[tensor] = mark
        emit: Response | None = None
        ready: Sequence[_Ready] = ()
        done, failure = advance.done, None
        try:
            if advance.emit is not None:
                emit = self._outputs(advance.emit)
            if advance.starts:
                ready = self._ready(advance.starts)
        except Exception as raised:
            failure = _as_triton_error(raised)
            for following in advance.starts:  # they never will
                done = self._finished(following)
        if advance.over is not None:
            self._forget(advance.over)
        if final and decoupled:
            done = self._finished(start)
        return ready, emit, done, failure

    def _finished(self, start: Start) -> bool:
        """A step finished, the lock is held; True if it was the last one."""
        advance = self.run.finished(start.iteration)
        if advance.over is not None:
            self._forget(advance.over)
        return advance.done

    def _forget(self, iteration: int) -> None:
        self._waves.pop(iteration, None)
        self._marks.pop(iteration, None)

    def _outputs(self, iteration: int) -> Response:
        request = self.request
        wave = self._waves[iteration]
        marks = self._marks.get(iteration, {})
        correlation_id, flags = request.correlation_id, request.flags
        outputs: dict[str, Array] = {}
        for name, dims in self.crew.harvest:
            value = wave.get(name)
            if value is None or name not in request.requested_outputs:
                continue
            if dims is not None:
                batching = self.ensemble.interface.max_batch_size > 0
                value = _adapt(value, dims, to_batching=batching)
            outputs[name] = value
            correlation_id, flags = marks.get(name, (correlation_id, flags))
        if not outputs:  # E11: then Triton has nothing to take the parameters from
            return Response({})
        parameters = {
            "sequence_id": correlation_id,
            "sequence_start": bool(flags & SEQUENCE_START),
            "sequence_end": bool(flags & SEQUENCE_END),
        }
        return Response(outputs, parameters=parameters)  # E7

    # -- the end ---------------------------------------------------------------------------------

    def _conclude(self) -> None:
        """Nothing runs any more, and nothing can start."""
        if not self.request.is_answered() and self._outbox is None:
            self._fail(
                InvalidArgumentError(
                    f"{self.request.log_prefix}unexpected deadlock, at least one output is not set "
                    "while no more ensemble steps can be made"
                )
            )  # E12
        self.ensemble.landed(self)

    def _fail(self, error: TritonError) -> None:
        """Answer with the first error; the steps that run are left to run (E13)."""
        response = Response(error=_placed(error, self.ensemble.name))
        with self._lock:
            self.run.fail()
            if self._outbox is not None:
                self._outbox.append((response, True))
        if self._outbox is not None:
            self._send()
        else:
            self._answer(response)

    def _send(self) -> None:
        """Deliver what is in the outbox, one thread at a time."""
        outbox = self._outbox
        assert outbox is not None
        while outbox and self._sending.acquire(blocking=False):
            try:
                while outbox:
                    response, final = outbox.popleft()
                    if final:
                        self._answer(response)
                    elif response is not None and not self.request.is_answered():
                        self.ensemble.deliver(self.request, response, final=False)
            finally:
                self._sending.release()

    def _answer(self, response: Response | None) -> None:
        """Deliver the final response, if there was none; the first one counts."""
        request = self.request
        if not request.claim():
            return
        if response is not None and response.error is not None:
            # Once per request: that Triton counts it twice is a defect (T4).
            self.ensemble.statistics.failure(1, monotonic_ns() - request.start_ns, "OTHER")
        else:
            self._count_success()
        self.ensemble.deliver(request, response, final=True)

    def _account(self, sub: InferenceRequest) -> None:
        sums = self._sums
        if sub.step_timing is not None:  # an ensemble itself
            steps = sub.step_timing
            sums[0] += steps.queue_ns
            sums[1] += steps.compute_input_ns
            sums[2] += steps.compute_infer_ns
            sums[3] += steps.compute_output_ns
        elif sub.execute_start_ns:
            sums[0] += sub.execute_start_ns - sub.enqueued_ns
            sums[1] += sub.compute_start_ns - sub.execute_start_ns
            sums[2] += sub.compute_end_ns - sub.compute_start_ns
            sums[3] += sub.execute_end_ns - sub.compute_end_ns

    def _count_success(self) -> None:
        request = self.request
        queue_ns, input_ns, infer_ns, output_ns = self._sums
        total_ns = monotonic_ns() - request.start_ns
        request.step_timing = RequestTiming(
            total_ns, queue_ns, input_ns, infer_ns, output_ns, request.size
        )
        books = self.ensemble.statistics
        books.execution(request.size, input_ns, infer_ns, output_ns, 1, request.size, total_ns)
        if books.summaries is not None:
            books.summaries.executed(total_ns, 0, input_ns, infer_ns, output_ns)


def _submit(runtime: Runtime, entered: list[tuple[_Flight, Start, InferenceRequest]]) -> None:
    """Submit steps that are ready at the same moment to the model that they have in common."""
    if len(entered) == 1:
        ((flight, start, sub),) = entered
        try:
            accepted: bool | TritonError = runtime.submit(sub)
        except Exception as error:
            accepted = _as_triton_error(error)
        if accepted is not True:
            flight.refused(start, accepted or EngineStoppedError("Server is stopping"))
        return
    found = runtime.submit_many([sub for _, _, sub in entered])
    for (flight, start, _), accepted in zip(entered, found, strict=True):
        if accepted is not True:
            flight.refused(start, accepted or EngineStoppedError("Server is stopping"))


def _placed(error: TritonError, ensemble: str) -> TritonError:
    """Return the same error with the ensemble's name in front of its text."""
    placed = copy.copy(error)
    placed.args = (f"in ensemble '{ensemble}', {error.message}",)
    return placed


def _as_triton_error(error: Exception) -> TritonError:
    if isinstance(error, TritonError):
        return error
    _log.error("a step of an ensemble", exc_info=error)
    return InternalError(f"{type(error).__name__}: {error}")


def _mark(parameters: Mapping[str, bool | int | str]) -> _Mark | None:
    """Return the sequence id and flags that a step's response sets for the steps behind it (E6)."""
    if not any(name in parameters for name in ("sequence_id", "sequence_start", "sequence_end")):
        return None
    correlation_id = parameters.get("sequence_id", 0)
    if isinstance(correlation_id, bool) or not isinstance(correlation_id, (int, str)):
        raise InvalidArgumentError(
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or "
            "TRITONSERVER_PARAMETER_STRING"
        )
    flags = 0
    for name, flag in (("sequence_start", SEQUENCE_START), ("sequence_end", SEQUENCE_END)):
        value = parameters.get(name, False)
        if not isinstance(value, bool):
            raise InvalidArgumentError(
                f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL"
            )
        flags |= flag * value
    return correlation_id, flags


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
