"""One instance of a model: its thread, the execution of a batch, and its recovery when its process is lost."""

from __future__ import annotations

import logging
import queue
import threading
from _thread import get_ident
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from nbtriton.backends.base import Backend, BackendInstance, InstanceContext, Response
from nbtriton.backends.core.executing import EXECUTING, Executing
from nbtriton.backends.on_device import create_instance
from nbtriton.common.errors import InternalError, InvalidArgumentError, TritonError
from nbtriton.runtime.engine.core.execution import (
    BatchCompletion,
    Completion,
    Execution,
    Executor,
    InlineCompletion,
    now_ns,
)
from nbtriton.runtime.engine.core.history import Meter
from nbtriton.runtime.engine.core.request import InferenceRequest, as_triton_error
from nbtriton.runtime.engine.core.responding import ResponseThread
from nbtriton.runtime.engine.core.runtime import EventKind, Runtime
from nbtriton.runtime.engine.core.sequence_tensors import SequenceTensors
from nbtriton.runtime.engine.core.snapshot import InstanceSnapshot
from nbtriton.runtime.engine.core.threads import EngineThread, engine_thread
from nbtriton.runtime.engine.core.warmup import warm_up
from nbtriton.runtime.interrupts import INTERRUPTS, wait_in_slices
from nbtriton.runtime.workers.supervisor import RestartPolicy, Supervisor, restart_policy
from nbtriton.scheduling import RunBatch

_log = logging.getLogger("nbtriton.runtime.engine")


def lost_text(instance: str) -> str:
    """Return Triton's message of a request to an instance whose process has ended (PB92)."""
    return f"Stub process '{instance}' is not healthy."


class Recovery:
    """The restarts of one instance, on its thread, as a `Supervisor` decides them.

    Parameters
    ----------
    name : str
        Of the instance.
    policy : RestartPolicy

    Attributes
    ----------
    supervisor : Supervisor
    wanted : bool
        It is lost and will be restarted.
    restarting : bool
        It is being created again, which may take as long as its model's ``initialize``.
    down : bool
        It is lost and will not be restarted.
    stopped : Event
        Set once it is about to be finalized: it is not restarted any more.
    """

    def __init__(self, name: str, policy: RestartPolicy) -> None:
        self._name = name
        self.supervisor = Supervisor(policy)
        self._cause = ""
        self.stopped = threading.Event()
        self.wanted = False
        self.restarting = False
        self.down = False

    def lost(self, cause: str) -> None:
        """Handle a loss, on any thread."""
        self._cause = cause
        self.wanted = True

    def run(self, restart: Callable[[], None]) -> bool:
        """Restart it until it runs; False if it is given up or finalized.

        This takes as long as the waits between the restarts.
        """
        while self.wanted and not self.down:
            if self.stopped.is_set():
                return False
            due = self.supervisor.ended(now_ns(), self._cause)
            if due is None:
                self.down, self.wanted = True, False
                _log.error("%s is not restarted any more: %s", self._name, self._cause)
                return False
            _log.warning("%s is restarted: %s", self._name, self._cause)
            if self.stopped.wait(max(0, due - now_ns()) / 1e9):
                return False
            self.restarting = True
            self.wanted = False
            try:
                restart()
            except TritonError as error:
                self.lost(f"{error.message} ({error.hint})" if error.hint else error.message)
            except BaseException as error:  # also SystemExit from a model's initialize
                self.lost(f"{type(error).__name__}: {error}")
            else:
                self.supervisor.started(now_ns())
            finally:
                self.restarting = False
        return not self.down


# Final: rule 13 of docs/compiled.md.
_interrupts: Final = INTERRUPTS
_thread_id: Final = get_ident


class InstanceOwner(Runtime):
    """The part of a version that its instances use.

    Attributes
    ----------
    sequences : SequenceTensors or None
        Of a model with sequence batching.
    """

    sequences: SequenceTensors | None

    @property
    @abstractmethod
    def has_next(self) -> bool:
        """True if an instance that becomes free immediately gets a batch that no longer grows."""

    @abstractmethod
    def free(
        self,
        instance: Instance,
        requests: Sequence[InferenceRequest],
        completion: Completion | None,
    ) -> int:
        """Make an instance idle; return how many of the requests it has to execute again."""

    @abstractmethod
    def keep(self, request: InferenceRequest) -> None:
        """Record a request that its model answers after the execution, from one of the model's threads."""

    @abstractmethod
    def record_ended(self, count: int) -> None:
        """Record the end of this many requests."""

    @abstractmethod
    def probe_interpreter(self, instance: Instance) -> int:
        """Sample the interpreter between two executions of an instance; return the time of the next sample."""

    @abstractmethod
    def tell(self, kind: int, instance: int) -> None:
        """Suspend a lost instance, which recovers once it executes no batch, resume it or give it up: an `EventKind`."""

    @abstractmethod
    def suspend_later(self, instance: int) -> None:
        """Suspend a lost instance, on another thread than this one."""


class Instance(Executor):
    """A backend instance with its own thread.

    The thread creates it, runs its batches and finalizes it. An idle instance may also execute a
    batch in the thread of the request's caller; the scheduler keeps the two apart.

    Attributes
    ----------
    name : str
        In records and views.
    index : int
        Its number for the batcher.
    running : sequence of InferenceRequest
        The batch that it executes.
    busy : bool
        It executes a batch, or answers one on its own thread.
    thread : int
        The thread that executes now, or did last.
    meter : Meter
        Its busy time.
    """

    def __init__(
        self,
        owner: InstanceOwner,
        backend: Backend,
        context: InstanceContext,
        index: int,
        label: str,
    ) -> None:
        self.name = label
        self.any_thread = False
        self.readiness: Callable[[], bool] | None = None
        self._owner = owner
        self._backend = backend
        self._context = context
        device = context.device
        self._simulated: bool = device is not None and device.simulated
        self.index = index
        self._batches: queue.SimpleQueue[RunBatch | Recovery | None] = queue.SimpleQueue()
        self._created = threading.Event()
        self._error: BaseException | None = None
        self.running: Sequence[InferenceRequest] = ()
        self.busy = False
        self.decoupled = owner.signature.decoupled
        self._finalizing = False
        self._own_thread = 0
        self.thread = 0
        self._batch_size = 0
        self._probe_due_ns = 0
        self.meter = Meter((label, context.kind, context.device_id))
        self._model: BackendInstance | None = None
        self._response_thread = ResponseThread(f"nbtriton-{context.name}-answers")
        self._engine_thread = EngineThread(self)
        self.recovery = Recovery(context.name, restart_policy(context.model.config))
        # The context of its model's code, if no other model's code called it.
        self._executing = Executing((self,))
        self._worker = threading.Thread(
            target=self._live, name=f"nbtriton-{context.name}", daemon=True
        )

    def start(self) -> None:
        """Start the thread, which creates the backend's instance."""
        self._worker.start()

    def wait_created(self) -> BaseException | None:
        """Wait until the backend's instance is created; return its error, if any."""
        wait_in_slices(self._created.wait, None)
        return self._error

    def put(self, run: RunBatch) -> None:
        """Hand a batch to the thread; until that begins, `close` finds its requests here."""
        self.running = run.tickets  # type: ignore[assignment]
        self._batches.put(run)

    def stop(self) -> None:
        """Finalize after the batches that were put."""
        self.recovery.stopped.set()
        self._batches.put(None)

    def recover(self) -> None:
        """Create the lost instance again, on the thread."""
        self._batches.put(self.recovery)

    def exchange(self, make: Callable[[BackendInstance], BackendInstance]) -> None:
        """From the next batch on, execute with what ``make`` returns for the backend's instance."""
        model = self._model
        if model is not None:
            self._model = make(model)

    def abandon(self) -> None:
        """Abort what the model is doing: a batch whose requests have been answered, its restart or its finalize."""
        self.recovery.stopped.set()
        model = self._model
        if model is not None and (self.running or self.recovery.restarting or self._finalizing):
            model.abandon()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread's end; False if it still runs, as on the thread itself."""
        # A removed instance that finishes its last batch may be the one that removes the next; and
        # an interrupted load has not started all of them.
        if self._worker.ident not in (None, get_ident()):
            self._worker.join(timeout_s)
        return not self._worker.is_alive()

    @property
    def starting(self) -> str:
        """The model, until the instance is created; then empty."""
        return "" if self._created.is_set() else self._context.model.name

    @property
    def executing(self) -> bool:
        """True while the model's code runs."""
        return self._batch_size > 0

    def snapshot(self) -> InstanceSnapshot:
        """Return the state of the instance now."""
        model = self._model
        return InstanceSnapshot(
            self.name,
            self._context.kind,
            self._context.device_id,
            self._batch_size,
            self.meter.executions,
            self.meter.busy_ns,
            self.recovery.supervisor.state,
            self._simulated,
            None if model is None else model.placement(),
        )

    def execute(self, run: RunBatch, inline: InlineCompletion | None = None) -> None:
        """Execute one batch and answer each of its requests exactly once.

        KeyboardInterrupt passes through, after the requests have been answered and the instance is
        free again.
        """
        assert self._model is not None
        if self.recovery.wanted and self._put_off(run):
            return
        requests: list[InferenceRequest] = list(run.tickets)  # type: ignore[arg-type]
        run.tickets = ()  # the caller keeps the list longer than the requests live
        self._batch_size = run.size
        self.running = requests
        self.busy = True
        execution = Execution(
            run.size, self.name, requests[0].number, len(requests), run.reason, run.formed_ns,
            run.waiting,
        )  # fmt: skip
        self.meter.started_ns = execution.start_ns
        for request in requests:
            request.execution = execution
        error: TritonError | None = None
        responses: Sequence[Response | None] | None = None
        owner = self._owner
        try:
            if owner.sequences is None:
                if owner.signature.may_lack_inputs:
                    _refuse_without_inputs(requests, execution)
                responses = self._call(requests, execution)
            else:
                responses = owner.sequences.responses(
                    run, self._call(owner.sequences.batch(run, requests), execution)
                )
            if responses is not None and len(responses) != len(requests):
                raise InternalError(
                    f"'{self.name}' gave {len(responses)} responses to {len(requests)} requests"
                )
        except Exception as raised:
            # Without the engine's frames, which refer to the batch; the cause has the model's own frames.
            error = as_triton_error(raised, self.name).with_traceback(None)
            if self.recovery.wanted:  # before it is idle again
                owner.tell(EventKind.SUSPEND, self.index)
        except BaseException:
            error = InternalError(f"the execution of '{self.name}' was interrupted")
            # Ctrl-C is raised in the main thread only: on other threads a library raised it.
            if self.thread in (_interrupts.main, self._own_thread):
                raise
        finally:
            self._settle(requests, responses, error, execution, inline)
            error = None  # otherwise it would refer to this frame, which refers to it: a cycle
            if execution.end_ns >= self._probe_due_ns:
                self._probe_due_ns = owner.probe_interpreter(self)

    def _call(
        self, batch: Sequence[InferenceRequest], execution: Execution
    ) -> Sequence[Response | None] | None:
        """Run the user's code, with interrupts allowed."""
        assert self._model is not None
        self.thread = thread = _thread_id()
        executing = self._executing
        callers = EXECUTING.get().callers
        if callers:
            executing = Executing((*callers, self), executing.running)
        token = EXECUTING.set(executing)
        try:
            if thread != _interrupts.main:
                return self._model.execute(batch, execution)
            # This is `interrupts_allowed`, inlined: as a Python call it takes 5% of an ensemble's step.
            depth = _interrupts.depth
            try:
                _interrupts.depth = 0
                if _interrupts.pending:
                    _interrupts.flush()
                return self._model.execute(batch, execution)
            finally:
                _interrupts.depth = depth
        finally:
            EXECUTING.reset(token)

    def _settle(
        self,
        requests: list[InferenceRequest],
        responses: Sequence[Response | None] | None,
        error: TritonError | None,
        execution: Execution,
        inline: InlineCompletion | None,
    ) -> None:
        execution.end()
        start, end = execution.start_ns, execution.end_ns
        owner = self._owner
        queued = total = inferences = 0
        oldest = start
        for request in requests:
            enqueued = request.enqueued_ns
            queued += start - enqueued
            if enqueued < oldest:  # noqa: PLR1730 - min() costs a third of this loop
                oldest = enqueued
            total += end - request.start_ns
            inferences += request.size
            if request.trace is not None:
                request.trace.executed(request)
        count = len(requests)
        statistics = owner.statistics
        meter = self.meter
        if owner.history is not None and end >= owner.history.due_ns:
            owner.history.advance(end)
        execution.longest_ns = start - oldest
        execution.failed = error is not None
        execution.inferences = inferences
        execution.queue_ns = queued
        execution.total_ns = total
        if execution.reached:
            statistics.record_execution(execution)
        if error is not None:
            statistics.record_failure(count, total, "BACKEND")
        elif statistics.summaries is not None:
            input_ns, infer_ns, output_ns = execution.times()
            for request in requests:
                statistics.summaries.record_execution(
                    end - request.start_ns, start - request.enqueued_ns,
                    input_ns, infer_ns, output_ns,
                )  # fmt: skip
        meter.executions += 1
        meter.started_ns = 0
        meter.busy_ns += end - start
        self._batch_size = 0
        if inline is not None:
            # It becomes idle before it answers: the next step of an ensemble, for example, may need
            # it. (But the state of a sequence has to be stored before its next request.)
            early = owner.sequences is None
            if early:
                owner.free(self, requests, inline)
            self._answer_all(requests, responses, error, inline, frees=not early)
            return
        response_thread = self._response_thread
        response_thread.wait_idle()
        # The waiting batch is complete: nothing that follows from these answers could join it.
        if (
            count > 1
            and not self.decoupled
            and owner.has_next
            and response_thread.should_offload(end - start)
        ):
            owner.free(self, requests, None)
            response_thread.put(
                partial(self._answer_batch, requests, responses, error, response_thread.thread)
            )
        elif count > 1:
            self._answer_batch(requests, responses, error, self._engine_thread)
        else:  # its own thread is not idle while it answers
            self._answer_all(requests, responses, error, None, frees=True)

    def _answer_batch(
        self,
        requests: list[InferenceRequest],
        responses: Sequence[Response | None] | None,
        error: TritonError | None,
        thread: EngineThread,
    ) -> None:
        """Answer several requests, on this instance's thread or on its response thread."""
        own = thread is self._engine_thread
        completion = BatchCompletion(None if own else self._response_thread.unblock_instance)
        thread.completion = completion
        try:
            try:
                self._answer_all(requests, responses, error, completion, frees=own)
            finally:
                completion.flush()
        finally:
            thread.completion = None

    def _answer_all(
        self,
        requests: list[InferenceRequest],
        responses: Sequence[Response | None] | None,
        error: TritonError | None,
        completion: Completion | None,
        *,
        frees: bool,
    ) -> None:
        """Answer a batch; with ``frees`` the instance is idle afterwards."""
        owner = self._owner
        count = len(requests)
        again = 0
        batch = completion if isinstance(completion, BatchCompletion) else None
        try:
            if error is not None:
                if batch is not None:
                    batch.answer_remaining = partial(_fail, requests, error)
                _fail(requests, error, completion)
            elif responses is not None:
                left = requests if owner.sequences is None else requests.copy()
                if batch is not None:
                    batch.answer_remaining = partial(self._answer_remaining, left, responses)
                left.reverse()
                self._answer_remaining(left, responses, completion)
            else:  # a decoupled model, which may send its own responses for a long time
                for request in requests:
                    self._sent_or_late(request)
        finally:
            if frees:
                again = owner.free(self, requests, completion)
            owner.record_ended(count - again)

    def _answer_remaining(
        self,
        requests: list[InferenceRequest],
        responses: Sequence[Response | None],
        completion: Completion | None,
    ) -> None:
        """Answer the remaining requests, the last one first, and remove each from the lists.

        Its memory is then free for the next request. If the whole batch were kept until its last
        answer, the garbage collector would see many new objects that stay: with batches of 256 to a
        torch MLP it took a tenth of the time. A callback may call this method again.
        """
        owner = self._owner
        made = responses if isinstance(responses, list) else None
        count = len(responses)
        while requests:
            at = count - len(requests)
            request = requests.pop()
            response = responses[at]
            if made is not None:
                made[at] = None
            if response is None:
                self._sent_or_late(request)
            elif request.try_finish():
                owner.deliver(request, response, final=True, completion=completion)

    def _sent_or_late(self, request: InferenceRequest) -> None:
        """Keep a request without a response, unless it is already answered or rescheduled."""
        if not request.is_answered() and not request.rescheduled:
            self._owner.keep(request)

    def _live(self) -> None:
        self._own_thread = get_ident()
        with engine_thread(self._engine_thread):
            self._create()
            if self._error is None:
                self._serve()
        self._response_thread.stop()
        self.readiness = None
        if self._model is not None:
            self._finalizing = True
            try:
                self._model.finalize()
            except BaseException:  # also SystemExit
                _log.exception("finalize of %s raised", self.name)
            # Weights are freed now, not by the garbage collector, which does not see their size; and behind the
            # assignment, as `abandon` may read the attribute meanwhile (rule 12 of docs/compiled.md).
            model, self._model = self._model, None
            del model
            self._executing = Executing((self,))

    def _create(self) -> None:
        try:
            self._model = create_instance(self._backend, self._context)
            self.any_thread = self._model.any_thread
            self.readiness = self._model.readiness
            self._executing = Executing((self,), self._model.running)
            warm_up(self._owner, self._context, self._model)
            self.recovery.supervisor.started(now_ns())
            self._model.watch(self.lost)
        except BaseException as error:  # also SystemExit from a model's initialize
            self._error = error
        finally:
            self._created.set()

    def lost(self, cause: str) -> None:
        """Handle a loss, on any thread, even one that must not run callbacks of requests."""
        self.recovery.lost(cause)
        self._owner.suspend_later(self.index)

    def _put_off(self, run: RunBatch) -> bool:
        """Recover before a batch that came just as the idle instance was lost; True if it waits.

        The instance has nothing of the batch yet, so it need not fail, unless it has a request of a
        sequence, whose state is lost.
        """
        owner = self._owner
        if owner.sequences is not None:
            return False
        if get_ident() != self._own_thread:
            self.put(run)
            return True
        owner.tell(EventKind.SUSPEND, self.index)
        self.recovery.run(self._restart)
        return False

    def _restart(self) -> None:
        assert self._model is not None
        self._model.restart()
        warm_up(self._owner, self._context, self._model)

    def _recover(self) -> None:
        recovery = self.recovery
        if recovery.run(self._restart):
            self._owner.tell(EventKind.RESUME, self.index)
            if recovery.wanted:  # lost again, before it was resumed
                self._owner.tell(EventKind.SUSPEND, self.index)
        elif recovery.down:
            self._owner.tell(EventKind.GIVE_UP, self.index)

    def _serve(self) -> None:
        while (run := self._batches.get()) is not None:
            try:
                if isinstance(run, Recovery):
                    self._recover()
                else:
                    self.execute(run)
            except BaseException:
                # The requests are answered; the instance continues.
                _log.exception("an execution of %s ended abnormally", self.name)
            del run  # its requests hold tensors and connections: not until the next batch


def _fail(
    requests: Sequence[InferenceRequest], error: TritonError, completion: Completion | None
) -> None:
    for request in requests:
        request.fail(error, completion)
        error = error.again()  # a copy for each request


def _refuse_without_inputs(requests: Sequence[InferenceRequest], execution: Execution) -> None:
    """Fail a batch if one of its requests omits all inputs, which are optional."""
    for request in requests:
        if not request.inputs:
            execution.reached = False
            raise InvalidArgumentError(
                f"{request.log_prefix}out of bounds index 0: request has 0 inputs",
                hint="with a batch dimension a request needs an input that gives its batch size",
            )
