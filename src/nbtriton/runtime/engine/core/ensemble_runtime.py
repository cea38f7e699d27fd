"""A version of an ensemble: its composing models, its requests in flight, and the execution of each.

Theory of operation
-------------------
An ensemble has neither a queue nor instances nor a thread (E1). A request becomes an `EnsembleExecution`, which
builds a request for each step and submits it to the version that serves the step. That one batches, delays and
executes it like any other. The execution is the receiver of the step's responses (`ResponseSink`): each of them
comes on the thread that has finished the step, which then starts what has become ready. So an ensemble advances on
the threads of its models.

Three things are kept apart:

- *What runs next* is a pure state machine, `EnsembleRun` in `scheduling/ensemble.py`: it is told of responses and
  says which steps start, which tensors no step needs any more, and when a response of the ensemble is complete.
- *Who serves the steps* is the `EnsembleBinding`: the versions, acquired together, so that none of them is unloaded
  under a request. When a composing model changes, later requests get a new binding; those in flight keep theirs
  (E17).
- *The tensors* are here, by iteration. A decoupled step starts one iteration for each of its responses: it begins
  with a copy of the dictionary, not of the tensors.

Which thread runs the next step depends on the `Completion` that came with the response. The caller's own thread
(`InlineCompletion`) takes the batch of one step at a time: a chain of steps runs on it from end to end, while other
branches go to their instances and run side by side. An instance's thread that answers a batch (`BatchCompletion`)
gathers the steps that its responses make ready and submits them together per model: what was a batch in one step is
a batch in the next.

The first error answers the request. Steps that run are left to run (E13), those that wait for a place begin no
more, and the execution ends with the last of them. Times are the sums over the steps (T4).

What does not work
------------------
- *Submitting a step under the lock.* `submit` may execute it on this very thread, and its response comes back into
  `respond` before `submit` returns. So the lock is held for the dataflow only, and a step is entered into
  `_running` before it is submitted: a response that finds it missing belongs to a step that was refused.
- *Running the next step within the response of the one before.* Each step would stand on the stack of its
  predecessor, and a long chain would end at Python's limit of nested calls. `InlineCompletion.accept` only notes
  the batch; the loop in `InlineCompletion.execute` runs it after the call has returned.
- *Starting ready steps one by one.* As in Triton, all are built and checked before one begins: if one is refused,
  no other one has run.
- *Sending the responses of a decoupled ensemble where they are complete.* Its steps end on several threads, and the
  final response would overtake the ones before it. They go through a `Mailbox` (E14).
- *Limiting the requests in a step by its queue.* A decoupled step would fill the memory with its responses while
  the next step is slow. With max_inflight_requests (E21) the thread that sends waits until everything it sent has a
  place.
- *Passing on a tensor that is read twice.* An output of the ensemble that steps read too is copied for the caller.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from nbtriton.backends.base import Response
from nbtriton.backends.core.messages import RequestOptions
from nbtriton.backends.core.place import copies_of, wait_for_outputs
from nbtriton.common.errors import (
    CancelledError,
    EngineStoppedError,
    InvalidArgumentError,
    TritonError,
)
from nbtriton.model.config import ModelConfig
from nbtriton.model.tensors import Array
from nbtriton.runtime.engine.core.ensemble_steps import (
    EnsembleBinding,
    SequenceMark,
    StepGate,
    Turn,
    adapt,
    completed,
    placed,
    sequence_mark,
)
from nbtriton.runtime.engine.core.execution import BatchCompletion, Completion, StepTimes, now_ns
from nbtriton.runtime.engine.core.request import (
    BARE_FINAL,
    InferenceRequest,
    ResponseSink,
    as_triton_error,
)
from nbtriton.runtime.engine.core.runtime import Mailbox, Runtime
from nbtriton.runtime.engine.core.scheduler_settings import ensemble_plan
from nbtriton.runtime.engine.core.snapshot import ModelSnapshot
from nbtriton.runtime.engine.diagnostics.deadlocks import Blockers
from nbtriton.runtime.interrupts import wait_in_slices
from nbtriton.scheduling import SEQUENCE_END, SEQUENCE_START, EnsembleRun, Start

# Final: rule 13 of docs/compiled.md.
_ndarray: Final = np.ndarray
_TWO_63: Final = 1 << 63
_TWO_64: Final = 1 << 64

# A step to start, in which iteration, its inputs, and its mark if it is not the request's own.
_Ready = tuple[int, int, dict[str, Array], SequenceMark | None]


class EnsembleExecution(ResponseSink):
    """One request through the ensemble; see the head of this module."""

    __slots__ = (
        "_lock", "_marks", "_options", "_outbox", "_running", "_tensors", "_times", "binding",
        "ensemble", "request", "run",
    )  # fmt: skip

    # A step takes the tensors of another one, which orders their streams.
    orders_events: ClassVar[bool] = True

    def __init__(
        self, ensemble: EnsembleRuntime, binding: EnsembleBinding, request: InferenceRequest
    ) -> None:
        self.ensemble = ensemble
        self.binding = binding
        self.request = request
        self.run = EnsembleRun(binding.plan, request.requested_outputs)
        # Tensors by iteration; those that no step needs any more are released.
        self._tensors: dict[int, dict[str, Array]] = {0: dict(request.inputs)}
        # Sequence id and flags of the tensors whose step changed them, by iteration (E6).
        self._marks: dict[int, dict[str, SequenceMark]] | None = None
        # Of each step that has none of its own (E5).
        self._options = RequestOptions(
            (), request.request_id, request.priority, request.timeout_us, request.correlation_id,
            request.flags, request.parameters,
        )  # fmt: skip
        self._lock = threading.Lock()
        # The steps that are in flight.
        self._running: set[InferenceRequest] = set()
        self._times = StepTimes()
        # Responses of a decoupled ensemble: its steps finish on several threads, and the final
        # response must not overtake one before it.
        self._outbox: Mailbox[tuple[Response | None, bool]] | None = (
            Mailbox() if ensemble.signature.decoupled else None
        )

    def begin(self, completion: Completion | None) -> None:
        """Start the steps whose inputs are the ensemble's."""
        # Without the lock: no step runs yet.
        try:
            ready = self._ready(self.run.start().starts, 0)
        except Exception as error:  # a device's, where an input is reshaped
            ready = []
            self._fail(as_triton_error(error, self.ensemble.name), completion)
        if not ready:
            self._conclude(completion)
        self._start(ready, completion)

    def running(self) -> list[InferenceRequest]:
        """Return the steps that are in flight."""
        return list(self._running)

    # -- steps -----------------------------------------------------------------------------------

    def _ready(self, starts: tuple[Start, ...], iteration: int) -> list[_Ready]:
        """Collect the inputs of the steps to start; only then may tensors be released."""
        binding = self.binding
        tensors = self._tensors[iteration]
        marks = self._marks.get(iteration) if self._marks is not None else None
        ready: list[_Ready] = []
        for start in starts:
            step = start.step
            bindings = binding.inputs[step]
            inputs: dict[str, Array] = {}
            for bound in bindings:
                value = tensors.get(bound.tensor)
                if value is None:  # an omitted optional input, or an output not made (E10, E11)
                    continue
                if bound.dims is not None:
                    value = adapt(value, bound.dims, to_batching=binding.batching[step])
                inputs[bound.name] = value
            mark = None
            if marks is not None:
                mark = next((marks[b.tensor] for b in bindings if b.tensor in marks), None)
            ready.append((step, iteration, inputs, mark))
        for start in starts:
            for tensor in start.release:
                if tensor in tensors:
                    del tensors[tensor]
        return ready

    def _start(self, ready: list[_Ready], completion: Completion | None) -> list[Turn]:
        """Start steps; return the turns of those that wait for a place in their step (E21).

        As in Triton, all are checked before one begins: if one is refused, no other one runs.
        """
        turns: list[Turn] = []
        gates = self.ensemble.gates
        if gates:
            for one in ready:
                turn = gates[one[0]].acquire(partial(self._enter, one), completion)
                if turn is not None:
                    turns.append(turn)
        elif len(ready) == 1:
            self._enter(ready[0], completion)
        else:
            for sub in [self._build(one, completion) for one in ready]:
                if sub is not None:
                    self._begin_step(sub, completion)
        return turns

    def _enter(self, ready: _Ready, completion: Completion | None) -> None:
        sub = self._build(ready, completion)
        if sub is not None:
            self._begin_step(sub, completion)

    def _build(self, ready: _Ready, completion: Completion | None) -> InferenceRequest | None:
        """Build the request for a step; None if it is refused."""
        step, iteration, inputs, mark = ready
        binding = self.binding
        request = self.request
        requested = binding.requested[step]
        runtime = binding.runtimes[step]
        foreign = False
        for array in inputs.values():
            foreign = foreign or type(array) is not _ndarray
        options = self._options
        if requested or mark is not None:
            options = options.copy()
            options.outputs = requested
            if mark is not None:
                options.correlation_id, options.flags = mark
        try:
            if foreign and not runtime.orders_inputs:
                wait_for_outputs(inputs.values())
            sub = runtime.signature.build_request(inputs, options, request.parent or request)  # E5
        except Exception as error:
            self._refused(step, iteration, error, completion)
            return None
        sub.step = step
        sub.iteration = iteration
        return sub

    def _begin_step(self, sub: InferenceRequest, completion: Completion | None) -> None:
        binding = self.binding
        request = self.request
        step = sub.step
        runtime = binding.runtimes[step]
        if self.run.failed:  # while this step waited for its place, or on another thread
            error = CancelledError("the ensemble's request failed")
            self._refused(step, sub.iteration, error, completion)
            return
        if request.trace is not None:
            request.trace.child().follow(sub)
        sub.owned_inputs = (
            binding.owned_of_all[step]
            if request.owned_inputs >= binding.ensemble_inputs
            else binding.owned[step]
        )
        sub.sink = self
        sub.caller = request.number
        self._running.add(sub)
        # In a batch: together with the other steps that are ready for this model.
        if isinstance(completion, BatchCompletion) and not sub.is_cancelled():
            completion.gather(_submit_many, runtime, (self, sub))
        else:
            self.submit(runtime, sub, completion)

    def submit(
        self, runtime: Runtime, sub: InferenceRequest, completion: Completion | None
    ) -> None:
        """Submit a step that is ready."""
        try:
            accepted: bool | TritonError = runtime.submit(sub, completion)
        except Exception as error:
            accepted = as_triton_error(error, self.ensemble.name)
        if accepted is not True:
            self.handle_refusal(sub, accepted, completion)

    def handle_refusal(
        self, sub: InferenceRequest, found: bool | TritonError, completion: Completion | None
    ) -> None:
        """Handle a step that was not accepted."""
        with self._lock:
            known = sub in self._running
            self._running.discard(sub)
        if not known:  # it failed after its answer
            return
        stopped = EngineStoppedError("Server is stopping")
        error = found if isinstance(found, TritonError) else stopped
        self._refused(sub.step, sub.iteration, error, completion)

    def _refused(
        self, step: int, iteration: int, error: Exception, completion: Completion | None
    ) -> None:
        """End a step that could not be submitted, and fail the request."""
        with self._lock:
            done = self._finished(iteration)
        self._fail(as_triton_error(error, self.ensemble.name), completion)
        if done:
            self._conclude(completion)
        if self.ensemble.gates:
            self.ensemble.gates[step].release(completion)

    def respond(
        self,
        request: InferenceRequest,
        response: Response,
        final: bool,
        completion: Completion | None,
    ) -> None:
        """Handle the response of a step."""
        step, iteration = request.step, request.iteration
        error = response.error
        emit: Response | None = None
        ready: list[_Ready] = []
        done = False
        outbox = self._outbox
        # By its methods: `with` takes twice their time, half a percent of a step.
        self._lock.acquire()
        try:
            if request not in self._running:  # it was refused when it was submitted
                return
            if final:
                self._running.discard(request)
            if error is None and response is not BARE_FINAL and not self.run.failed:
                ready, emit, done, error = self._advance(step, iteration, response, final)
            elif final:
                done = self._finished(iteration)
            if error is not None:
                self.run.fail()
            if final:
                self._account(request)
            if outbox is not None and (emit is not None or (done and error is None)):
                outbox.post((emit, done))  # E14
        finally:
            self._lock.release()
        if emit is not None and outbox is None:
            emit = completed(emit, self.request)
            error = emit.error
        if error is not None:
            self._fail(error, completion)
        elif outbox is not None:
            self._send(completion)
        elif emit is not None:
            self._answer(emit, completion)
        turns = self._start(ready, completion) if ready else None
        if done:
            self._conclude(completion)
        if final:
            if self.ensemble.gates:
                self.ensemble.gates[step].release(completion)
            return
        # A decoupled model waits until everything that it sent has a place: its next responses
        # would only pile up in memory.
        if turns is not None:
            for turn in turns:
                turn.wait()

    def _advance(
        self, step: int, iteration: int, response: Response, final: bool
    ) -> tuple[list[_Ready], Response | None, bool, TritonError | None]:
        """Store a step's response, and return the next actions; the lock is held.

        Returns
        -------
        ready : steps to start
        emit : a response of the ensemble, if one is complete
        done : True if nothing is running and there is nothing to start
        error : the reason if that is impossible
        """
        binding = self.binding
        decoupled = binding.decoupled[step]
        mark = None
        if response.parameters:
            try:
                mark = sequence_mark(response.parameters)
            except TritonError as error:
                return [], None, final and self._finished(iteration), error
        origin = iteration
        if final and not decoupled:
            advance = self.run.answered(step, iteration)
        else:
            iteration, advance = self.run.response(step, origin, new_iteration=decoupled)
            if iteration not in self._tensors:
                self._tensors[iteration] = self._tensors[origin].copy()
                if self._marks is not None and origin in self._marks:
                    self._marks[iteration] = self._marks[origin].copy()
        tensors = self._tensors[iteration]
        outputs = response.outputs
        for output, tensor in binding.outputs[step]:
            value = outputs.get(output)
            if value is not None:
                tensors[tensor] = value
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
            failure = as_triton_error(raised, self.ensemble.name)
            for _ in advance.starts:  # they are never started
                done = self._finished(iteration)
        if advance.over:
            self._forget(iteration)
        if final and decoupled:
            done = self._finished(origin)
        return ready, emit, done, failure

    def _finished(self, iteration: int) -> bool:
        """Record the end of a step; True if it was the last one. The lock is held."""
        advance = self.run.finished(iteration)
        if advance.over:
            self._forget(iteration)
        return advance.done

    def _forget(self, iteration: int) -> None:
        self._tensors.pop(iteration, None)
        if self._marks is not None:
            self._marks.pop(iteration, None)

    def _outputs(self, iteration: int) -> Response:
        request = self.request
        tensors = self._tensors[iteration]
        marks = self._marks.get(iteration) if self._marks is not None else None
        correlation_id, flags = request.correlation_id, request.flags
        outputs: dict[str, Array] = {}
        read_too: dict[str, Array] = {}  # by steps, perhaps later
        for bound in self.binding.ensemble_outputs:
            name = bound.name
            value = tensors.get(name)
            if value is None or name not in request.requested_outputs:
                continue
            if bound.dims is not None:
                batching = self.ensemble.signature.max_batch_size > 0
                value = adapt(value, bound.dims, to_batching=batching)
            outputs[name] = value
            if bound.shared:
                read_too[name] = value
            if marks is not None:
                correlation_id, flags = marks.get(name, (correlation_id, flags))
        if not outputs:  # E11: without outputs Triton sends no parameters
            return Response({})
        if read_too:
            outputs |= copies_of(read_too)
        if not isinstance(correlation_id, str) and correlation_id >= _TWO_63:
            correlation_id -= _TWO_64  # a parameter is an int64
        parameters = {
            "sequence_id": correlation_id,
            "sequence_start": bool(flags & SEQUENCE_START),
            "sequence_end": bool(flags & SEQUENCE_END),
        }
        return Response(outputs, parameters=parameters)  # E7

    # -- the end ---------------------------------------------------------------------------------

    def _conclude(self, completion: Completion | None) -> None:
        """End the execution: nothing is running, and nothing can start."""
        if not self.request.is_answered() and self._outbox is None:
            self._fail(
                InvalidArgumentError(
                    f"{self.request.log_prefix}unexpected deadlock, at least one output is not set "
                    "while no more ensemble steps can be made"
                ),
                completion,
            )  # E12
        self.ensemble.on_complete(self)

    def _fail(self, error: TritonError, completion: Completion | None) -> None:
        """Answer with the first error; the steps that run are left to run (E13)."""
        response = Response(error=placed(error, self.ensemble.name))
        with self._lock:
            self.run.fail()
            if self._outbox is not None:
                self._outbox.post((response, True))
        if self._outbox is not None:
            self._send(completion)
        else:
            self._answer(response, completion)

    def _send(self, completion: Completion | None) -> None:
        """Deliver the responses of a decoupled ensemble that are in the outbox."""
        request = self.request

        def deliver(message: tuple[Response | None, bool]) -> None:
            response, final = message
            if response is not None:
                response = completed(response, request)
                final = final or response.error is not None
            if final:
                self._answer(response, completion)
            elif response is not None and not request.is_answered():
                self.ensemble.deliver(request, response, final=False, completion=completion)

        assert self._outbox is not None
        self._outbox.drain(deliver)

    def _answer(self, response: Response | None, completion: Completion | None) -> None:
        """Deliver the final response; the first one counts, later ones are dropped."""
        request = self.request
        if not request.try_finish():
            return
        if response is not None and response.error is not None:
            # As in Triton: once for its response, and again for its end if nothing is still running (T4).
            times = 1 if self._running else 2
            self.ensemble.statistics.record_failure(
                times, times * (now_ns() - request.start_ns), "OTHER"
            )
        else:
            self._count_success()
        self.ensemble.deliver(request, response, final=True, completion=completion)

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
        now = now_ns()
        total_ns = now - request.start_ns
        times.size = request.size
        times.total_ns = total_ns
        times.end_ns = now
        request.step_times = times
        request.answered_ns = now
        if self.ensemble.history is not None:
            self.ensemble.history.advance(now)
        statistics = self.ensemble.statistics
        statistics.record_ensemble_request(times)
        if statistics.summaries is not None:
            statistics.summaries.record_execution(
                total_ns, 0, times.input_ns, times.infer_ns, times.output_ns
            )


def _submit_many(
    runtime: Runtime,
    steps: list[tuple[EnsembleExecution, InferenceRequest]],
    completion: Completion,
) -> None:
    """Submit steps that are ready at the same moment to their common model."""
    if len(steps) == 1:
        execution, step = steps[0]
        execution.submit(runtime, step, None)
        return
    found = runtime.submit_many([step for _, step in steps], completion)
    for (execution, step), accepted in zip(steps, found, strict=True):
        if accepted is not True:
            execution.handle_refusal(step, accepted, completion)


Resolve = Callable[[str, int], Runtime]


class EnsembleRuntime(Runtime):
    """One version of an ensemble: it has neither a queue nor instances (E1).

    Parameters
    ----------
    config : ModelConfig
    version : int
    resolve : callable
        ``resolve(model_name, version)`` returns the runtime that serves a step now, or raises.
    directory : Path or None
        The ensemble's own directory, in a repository.

    Attributes
    ----------
    plan : EnsemblePlan
    gates : list of StepGate
        One per step if the requests in a step are limited (E21), else none.
    """

    def __init__(
        self, config: ModelConfig, version: int, resolve: Resolve, directory: Path | None = None
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
            A composing model has just been unloaded.
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
        """Cancel the steps that are waiting; running steps see `is_cancelled`."""
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
        """Remove an execution of which nothing is running any more."""
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
        """Accept no more requests; those in flight continue."""
        with self._lock:
            done = not (self._draining or self._executions)
            self._draining = True
        self.members_changed()
        if done:
            self._end()

    def _end(self) -> None:
        self.end_record()
        self.log_unloaded()
        self._drained.set()

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
