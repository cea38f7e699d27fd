"""One request on its way through an ensemble."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from nbtriton.backends.base import Response
from nbtriton.backends.core.request_options import RequestOptions
from nbtriton.backends.core.synchronize import copies_of
from nbtriton.engine.core.completion import owed_here
from nbtriton.engine.core.ensemble_binding import EnsembleBinding
from nbtriton.engine.core.execution import StepTimes
from nbtriton.engine.core.now import now_ns
from nbtriton.engine.core.request import BARE_FINAL, InferenceRequest
from nbtriton.engine.core.runtime import Runtime
from nbtriton.errors import (
    CancelledError,
    EngineStoppedError,
    InternalError,
    InvalidArgumentError,
    TritonError,
)
from nbtriton.scheduling import SEQUENCE_END, SEQUENCE_START, EnsembleRun, Start
from nbtriton.tensors import Array

if TYPE_CHECKING:
    from nbtriton.engine.core.ensemble_runtime import EnsembleRuntime

__all__ = ["EnsembleExecution", "placed"]

_log = logging.getLogger("nbtriton.engine")

# Sequence id and flags.
_Mark = tuple[int | str, int]
# A step to start, in which iteration, its inputs, and its mark if it is not the request's own.
_Ready = tuple[int, int, dict[str, Array], _Mark | None]


class EnsembleExecution:
    """One request through the ensemble.

    Facts come in on whatever thread finished a step; the lock is held for the dataflow only, never
    while a step is submitted or a response delivered.
    """

    __slots__ = (
        "_lock", "_marks", "_outbox", "_running", "_times", "_waves", "crew", "ensemble",
        "request", "run",
    )  # fmt: skip

    def __init__(
        self, ensemble: EnsembleRuntime, crew: EnsembleBinding, request: InferenceRequest
    ) -> None:
        self.ensemble = ensemble
        self.crew = crew
        self.request = request
        self.run = EnsembleRun(ensemble.plan, request.requested_outputs)
        # Tensors by iteration; those that no step needs any more are let go.
        self._waves: dict[int, dict[str, Array]] = {0: dict(request.inputs)}
        # Sequence id and flags of the tensors whose step changed them, by iteration (E6).
        self._marks: dict[int, dict[str, _Mark]] | None = None
        self._lock = threading.Lock()
        # The steps that are in flight.
        self._running: set[InferenceRequest] = set()
        self._times = StepTimes()
        self._outbox = _Outbox() if ensemble.signature.decoupled else None

    def begin(self) -> None:
        """Start the steps whose inputs the ensemble was given."""
        with self._lock:
            ready = self._ready(self.run.start().starts, 0)
        if not ready:
            self._conclude()
        self._start(ready)

    def cancel(self) -> None:
        """Drop the steps that still wait."""
        for step in self.running():
            step.cancel()

    def running(self) -> list[InferenceRequest]:
        """Return the steps that are in flight."""
        return list(self._running)

    # -- steps -----------------------------------------------------------------------------------

    def _ready(self, starts: tuple[Start, ...], iteration: int) -> list[_Ready]:
        """Take the inputs of the steps to start; only then may others be let go."""
        crew = self.crew
        wave = self._waves[iteration]
        marks = self._marks.get(iteration) if self._marks is not None else None
        ready: list[_Ready] = []
        for start in starts:
            step = start.step
            feeds = crew.feeds[step]
            inputs: dict[str, Array] = {}
            for feed in feeds:
                value = wave.get(feed.tensor)
                if value is None:  # an omitted optional input, or an output not made (E10, E11)
                    continue
                if feed.dims is not None:
                    value = _adapt(value, feed.dims, to_batching=crew.batching[step])
                inputs[feed.name] = value
            mark = None
            if marks is not None:
                mark = next((marks[feed.tensor] for feed in feeds if feed.tensor in marks), None)
            ready.append((step, iteration, inputs, mark))
        for start in starts:
            for tensor in start.release:
                if tensor in wave:
                    del wave[tensor]
        return ready

    def _start(self, ready: list[_Ready]) -> list[threading.Event]:
        """Start steps, or leave them to do so when there is a place in them (E21).

        As in Triton, all are checked before one begins: if one is refused, no other one runs.
        """
        turns: list[threading.Event] = []
        gates = self.ensemble.gates
        if gates:
            for step, iteration, inputs, mark in ready:
                turn = gates[step].acquire(partial(self._enter, step, iteration, inputs, mark))
                if turn is not None:
                    turns.append(turn)
        elif len(ready) == 1:
            step, iteration, inputs, mark = ready[0]
            self._enter(step, iteration, inputs, mark)
        else:
            admitted = [self._admit(*one) for one in ready]
            for sub in admitted:
                if sub is not None:
                    self._begin_step(sub)
        return turns

    def _left(self, step: int) -> None:
        """A step is over: its place is free."""
        if self.ensemble.gates:
            self.ensemble.gates[step].release()

    def _enter(
        self, step: int, iteration: int, inputs: dict[str, Array], mark: _Mark | None
    ) -> None:
        sub = self._admit(step, iteration, inputs, mark)
        if sub is not None:
            self._begin_step(sub)

    def _admit(
        self, step: int, iteration: int, inputs: dict[str, Array], mark: _Mark | None
    ) -> InferenceRequest | None:
        """Make the request for a step; None if it is refused."""
        crew = self.crew
        request = self.request
        correlation_id, flags = request.correlation_id, request.flags
        if mark is not None:
            correlation_id, flags = mark
        try:
            sub = crew.runtimes[step].signature.build_request(
                inputs,
                RequestOptions(
                    crew.wanted[step],
                    request.request_id,
                    request.priority,
                    request.timeout_us,
                    correlation_id,
                    flags,
                    request.parameters,
                ),
                request.parent or request,
            )  # E5
        except Exception as error:
            self._refused(step, iteration, error)
            return None
        sub.step = step
        sub.iteration = iteration
        return sub

    def _begin_step(self, sub: InferenceRequest) -> None:
        crew = self.crew
        request = self.request
        step = sub.step
        runtime = crew.runtimes[step]
        if self.run.failed:  # while it waited for its place, or beside it
            error = CancelledError("the ensemble's request failed")
            self._refused(step, sub.iteration, error)
            return
        if request.trace is not None:
            request.trace.child().follow(sub)
        sub.owned_inputs = (
            crew.owned_of_all[step] if request.owned_inputs >= crew.inputs else crew.owned[step]
        )
        sub.flight = self
        self._running.add(sub)
        owed = owed_here()
        if owed is None:
            self.submit(runtime, sub)
        else:  # with what else is ready for this model at the same moment
            owed.gather(_submit_many, runtime, sub)

    def submit(self, runtime: Runtime, sub: InferenceRequest) -> None:
        """Submit a step that is ready."""
        try:
            accepted: bool | TritonError = runtime.submit(sub)
        except Exception as error:
            accepted = _as_triton_error(error)
        if accepted is not True:
            self.turned_away(sub, accepted)

    def turned_away(self, sub: InferenceRequest, found: bool | TritonError) -> None:
        """A step was not accepted."""
        with self._lock:
            known = sub in self._running
            self._running.discard(sub)
        if not known:  # something went wrong behind its answer
            return
        retired = EngineStoppedError("Server is stopping")
        error = found if isinstance(found, TritonError) else retired
        self._refused(sub.step, sub.iteration, error)

    def _refused(self, step: int, iteration: int, error: Exception) -> None:
        """A step could not be entered."""
        with self._lock:
            done = self._finished(iteration)
        self._fail(_as_triton_error(error))
        if done:
            self._conclude()
        self._left(step)

    def responded(self, sub: InferenceRequest, response: Response, final: bool) -> None:
        """A step gave a response."""
        step, iteration = sub.step, sub.iteration
        error = response.error
        emit: Response | None = None
        ready: list[_Ready] = []
        done = False
        outbox = self._outbox
        with self._lock:
            if sub not in self._running:  # it was given up when it was submitted
                return
            if final:
                self._running.discard(sub)
            if error is None and response is not BARE_FINAL and not self.run.failed:
                ready, emit, done, error = self._take(step, iteration, response, final)
            elif final:
                done = self._finished(iteration)
            if error is not None:
                self.run.fail()
            if final:
                self._account(sub)
            if outbox is not None and (emit is not None or (done and error is None)):
                outbox.append(emit, done)  # E14
        if error is not None:
            self._fail(error)
        elif outbox is not None:
            outbox.send(self._send)
        elif emit is not None:
            self._answer(emit)
        turns = self._start(ready) if ready else None
        if done:
            self._conclude()
        if final:
            self._left(step)
            return
        # A decoupled model is held back until what it sent has found its places: its next
        # responses would only pile up in memory.
        if turns is not None:
            for turn in turns:
                turn.wait()

    def _take(
        self, step: int, iteration: int, response: Response, final: bool
    ) -> tuple[list[_Ready], Response | None, bool, TritonError | None]:
        """Take a step's response in; the lock is held.

        Returns
        -------
        ready : steps to start
        emit : a response of the ensemble, if one is complete
        done : True if nothing runs any more and nothing is to be started
        error : what made it impossible
        """
        crew = self.crew
        decoupled = crew.decoupled[step]
        mark = None
        if response.parameters:
            try:
                mark = _mark(response.parameters)
            except TritonError as error:
                return [], None, final and self._finished(iteration), error
        origin = iteration
        if final and not decoupled:
            advance = self.run.answered(step, iteration)
        else:
            iteration, advance = self.run.response(step, origin, new_wave=decoupled)
            if iteration not in self._waves:
                self._waves[iteration] = self._waves[origin].copy()
                if self._marks is not None and origin in self._marks:
                    self._marks[iteration] = self._marks[origin].copy()
        wave = self._waves[iteration]
        outputs = response.outputs
        for output, tensor in crew.makes[step]:
            if output in outputs:
                wave[tensor] = outputs[output]
                if mark is not None:
                    if self._marks is None:
                        self._marks = {}
                    self._marks.setdefault(iteration, {})[tensor] = mark
        done = advance.done
        emit: Response | None = None
        ready: list[_Ready] = []
        failure = None
        try:
            if advance.emit:
                emit = self._outputs(iteration)
            if advance.starts:
                ready = self._ready(advance.starts, iteration)
        except Exception as raised:
            failure = _as_triton_error(raised)
            for _ in advance.starts:  # they never will
                done = self._finished(iteration)
        if advance.over:
            self._forget(iteration)
        if final and decoupled:
            done = self._finished(origin)
        return ready, emit, done, failure

    def _finished(self, iteration: int) -> bool:
        """A step finished, the lock is held; True if it was the last one."""
        advance = self.run.finished(iteration)
        if advance.over:
            self._forget(iteration)
        return advance.done

    def _forget(self, iteration: int) -> None:
        self._waves.pop(iteration, None)
        if self._marks is not None:
            self._marks.pop(iteration, None)

    def _outputs(self, iteration: int) -> Response:
        request = self.request
        wave = self._waves[iteration]
        marks = self._marks.get(iteration) if self._marks is not None else None
        correlation_id, flags = request.correlation_id, request.flags
        outputs: dict[str, Array] = {}
        read_too: dict[str, Array] = {}  # by steps, perhaps later
        for name, dims, shared in self.crew.harvest:
            value = wave.get(name)
            if value is None or name not in request.requested_outputs:
                continue
            if dims is not None:
                batching = self.ensemble.signature.max_batch_size > 0
                value = _adapt(value, dims, to_batching=batching)
            outputs[name] = value
            if shared:
                read_too[name] = value
            if marks is not None:
                correlation_id, flags = marks.get(name, (correlation_id, flags))
        if not outputs:  # E11: then Triton has nothing to take the parameters from
            return Response({})
        if read_too:
            outputs |= copies_of(read_too)
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
        response = Response(error=placed(error, self.ensemble.name))
        with self._lock:
            self.run.fail()
            if self._outbox is not None:
                self._outbox.append(response, True)
        if self._outbox is not None:
            self._outbox.send(self._send)
        else:
            self._answer(response)

    def _send(self, response: Response | None, final: bool) -> None:
        if final:
            self._answer(response)
        elif response is not None and not self.request.is_answered():
            self.ensemble.deliver(self.request, response, final=False)

    def _answer(self, response: Response | None) -> None:
        """Deliver the final response, if there was none; the first one counts."""
        request = self.request
        if not request.claim():
            return
        if response is not None and response.error is not None:
            # As in Triton: once for its answer, and again for its end where nothing runs on (T4).
            times = 1 if self._running else 2
            self.ensemble.statistics.failure(times, times * (now_ns() - request.start_ns), "OTHER")
        else:
            self._count_success()
        self.ensemble.deliver(request, response, final=True)

    def _account(self, sub: InferenceRequest) -> None:
        execution = sub.execution
        steps = sub.step_times
        if execution is not None:
            input_ns, infer_ns, output_ns = execution.times()
            queue_ns = execution.start_ns - sub.enqueued_ns
            self._times.add(queue_ns, input_ns, infer_ns, output_ns)
        elif steps is not None:
            self._times.add(steps.queue_ns, steps.input_ns, steps.infer_ns, steps.output_ns)

    def _count_success(self) -> None:
        request = self.request
        times = self._times
        total_ns = now_ns() - request.start_ns
        request.step_times = times
        books = self.ensemble.statistics
        books.passed(request.size, times, total_ns)
        if books.summaries is not None:
            books.summaries.executed(total_ns, 0, times.input_ns, times.infer_ns, times.output_ns)


class _Outbox:
    """Responses of a decoupled ensemble, in the order in which they may be seen.

    Steps finish on several threads, and the final response must not overtake one before it.
    """

    __slots__ = ("_responses", "_sending")

    def __init__(self) -> None:
        self._responses: deque[tuple[Response | None, bool]] = deque()
        self._sending = threading.Lock()

    def append(self, response: Response | None, final: bool) -> None:
        """Add a response, or none with the end."""
        self._responses.append((response, final))

    def send(self, deliver: Callable[[Response | None, bool], None]) -> None:
        """Deliver what is there, one thread at a time."""
        responses = self._responses
        while responses and self._sending.acquire(blocking=False):
            try:
                while responses:
                    deliver(*responses.popleft())
            finally:
                self._sending.release()


def _submit_many(runtime: Runtime, steps: list[InferenceRequest]) -> None:
    """Submit steps that are ready at the same moment to the model that they have in common."""
    if len(steps) == 1:
        step = steps[0]
        assert step.flight is not None
        step.flight.submit(runtime, step)
        return
    found: Sequence[bool | TritonError] = runtime.submit_many(steps)
    for step, accepted in zip(steps, found, strict=True):
        if accepted is not True:
            assert step.flight is not None
            step.flight.turned_away(step, accepted)


def placed(error: TritonError, ensemble: str) -> TritonError:
    """Return the same error with the ensemble's name in front of its text."""
    found = error.again()
    found.args = (f"in ensemble '{ensemble}', {error.message}",)
    return found


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
