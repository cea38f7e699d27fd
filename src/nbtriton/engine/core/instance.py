"""One instance of a model: its thread, and the way of a batch through it."""

from __future__ import annotations

import logging
import queue
import threading
from _thread import get_ident
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from nbtriton.backends.base import Backend, BackendInstance, InstanceContext, Response
from nbtriton.backends.core.executing import EXECUTING, Executing
from nbtriton.engine.core.completion import owe, owed_here
from nbtriton.engine.core.execution import Execution
from nbtriton.engine.core.owed import BatchCompletion
from nbtriton.engine.core.request import InferenceRequest
from nbtriton.engine.core.response_thread import ResponseThread
from nbtriton.engine.core.snapshot import InstanceSnapshot
from nbtriton.engine.core.warmup import warm_up
from nbtriton.engine.diagnostics.deadlocks import waits
from nbtriton.engine.interrupts import INTERRUPTS, interrupts_allowed, wait_in_slices
from nbtriton.errors import InternalError, InvalidArgumentError, TritonError
from nbtriton.scheduling import RunBatch

if TYPE_CHECKING:
    from nbtriton.engine.core.model_runtime import ModelRuntime

__all__ = ["Instance"]

_log = logging.getLogger("nbtriton.engine")

# Final: rule 13 of docs/compiled.md.
_interrupts: Final = INTERRUPTS
_thread_id: Final = get_ident


class Instance:
    """A backend instance with a thread of its own.

    The thread creates it, runs its batches and finalizes it. An idle instance may also run a batch
    in the thread of the request's caller; the scheduler's books keep the two apart.
    """

    def __init__(
        self, owner: ModelRuntime, backend: Backend, context: InstanceContext, index: int
    ) -> None:
        self.name = context.name
        self.any_thread = False
        self.readiness: Callable[[], bool] | None = None
        self._owner = owner
        self._backend = backend
        self._context = context
        self._index = index
        self._inbox: queue.SimpleQueue[RunBatch | None] = queue.SimpleQueue()
        self._created = threading.Event()
        self._error: BaseException | None = None
        self.running: Sequence[InferenceRequest] = ()
        self.busy = False  # runs a batch, or answers it on its own thread
        self.decoupled = owner.signature.decoupled
        self._home = 0  # its own thread
        self.thread = 0  # where it executes now, or did last
        self._batch_size = 0
        self._executions = 0
        self._busy_ns = 0
        self._model: BackendInstance | None = None
        self._answerer = ResponseThread(f"nbtriton-{context.name}-answers")
        # What its model's code knows, where no other model's code called it.
        self._executing = Executing((self,))
        self._worker = threading.Thread(
            target=self._live, name=f"nbtriton-{context.name}", daemon=True
        )

    def start(self) -> None:
        """Start the thread, which creates the backend's instance."""
        self._worker.start()

    def wait_created(self) -> BaseException | None:
        """Wait until the backend's instance is there; returns what went wrong, if anything."""
        wait_in_slices(self._created.wait, None)
        return self._error

    def put(self, run: RunBatch) -> None:
        """Hand a batch to the thread."""
        self._inbox.put(run)

    def stop(self) -> None:
        """Finalize once everything in the inbox is done."""
        self._inbox.put(None)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread's end; False if it still runs, as it does when it asks itself."""
        # It may: a removed instance that finishes its last batch can be who removes the next one.
        if self._worker.ident != get_ident():
            self._worker.join(timeout_s)
        return not self._worker.is_alive()

    @property
    def executing(self) -> bool:
        """True while the model's code runs."""
        return self._batch_size > 0

    def snapshot(self) -> InstanceSnapshot:
        """Return what the instance is doing now."""
        return InstanceSnapshot(
            self.name,
            self._context.kind,
            self._context.device_id,
            self._batch_size,
            self._executions,
            self._busy_ns,
        )

    def execute(self, run: RunBatch) -> None:
        """Run one batch and answer each of its requests exactly once.

        KeyboardInterrupt passes through, after the requests have been answered and the instance is
        free again.
        """
        assert self._model is not None
        requests: list[InferenceRequest] = run.take()  # type: ignore[assignment]
        self._batch_size = run.size
        self.running = requests
        self.busy = True
        # (One alone in a third of the time.)
        numbers = (
            (requests[0].number,)
            if len(requests) == 1
            else tuple([request.number for request in requests])
        )
        execution = Execution(run.size, self.name, numbers, run.reason)
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
        except TritonError as raised:
            # Without our frames, which hold the batch; the model's own are with its cause.
            error = raised.with_traceback(None)
        except Exception as raised:
            _log.exception("the backend of %s raised", self.name)
            error = InternalError(f"{type(raised).__name__}: {raised}")
        except BaseException:
            error = InternalError(f"the execution of '{self.name}' was interrupted")
            # Ctrl-C comes up in the main thread only: anywhere else a library raised it.
            if self.thread in (_interrupts.main, self._home):
                raise
        finally:
            self._settle(requests, responses, error, execution)

    def _call(
        self, batch: Sequence[InferenceRequest], execution: Execution
    ) -> Sequence[Response | None] | None:
        """Run the user's code: it can be interrupted, ours cannot."""
        assert self._model is not None
        self.thread = thread = _thread_id()
        root = batch[0].parent or batch[0]
        home = root.home
        # What follows from a response that the code sends early cannot wait for its return.
        root.home = 0
        executing = self._executing
        callers = EXECUTING.get().callers
        if callers:
            executing = Executing((*callers, self), executing.running)
        token = EXECUTING.set(executing)
        try:
            if thread != _interrupts.main:
                return self._model.execute(batch, execution)
            return interrupts_allowed(self._model.execute, batch, execution)
        finally:
            EXECUTING.reset(token)
            root.home = home

    def _settle(
        self,
        requests: list[InferenceRequest],
        responses: Sequence[Response | None] | None,
        error: TritonError | None,
        execution: Execution,
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
        books = owner.statistics
        execution.longest_ns = start - oldest
        execution.failed = error is not None
        execution.inferences = inferences
        execution.queue_ns = queued
        execution.total_ns = total
        if execution.reached:
            books.executed(execution)
        if error is not None:
            books.failure(count, total, "BACKEND")
        elif books.summaries is not None:
            input_ns, infer_ns, output_ns = execution.times()
            for request in requests:
                books.summaries.executed(
                    end - request.start_ns, start - request.enqueued_ns,
                    input_ns, infer_ns, output_ns,
                )  # fmt: skip
        self._executions += 1
        self._busy_ns += end - start
        self._batch_size = 0
        answerer = self._answerer
        own = self.thread == self._home
        if own:
            answerer.catch_up()
            # What waits is complete: nothing that follows from these answers could be with it.
            if count > 1 and not self.decoupled and owner.has_next and answerer.helps(end - start):
                self._free(requests)
                answerer.put(partial(self._answer_all, requests, responses, error, answerer))
                return
        # On the direct path it is idle before it answers: what follows from the answer, such as the
        # next step of an ensemble, may want it. (Before a sequence goes on, its state has to be
        # kept; and a thread of its own is not idle while it answers.)
        early = not own and owner.sequences is None
        if early:
            self._free(requests)
            self._answer_all(requests, responses, error, None)
        else:
            self._answer_all(requests, responses, error, self)

    def _free(self, requests: Sequence[InferenceRequest]) -> int:
        """Have a new batch; return how many of the requests are to be seen once more."""
        self.running = ()
        self.busy = False
        return self._owner.free(self._index, requests)

    def _answer_all(
        self,
        requests: list[InferenceRequest],
        responses: Sequence[Response | None] | None,
        error: TritonError | None,
        by: Instance | ResponseThread | None,
    ) -> None:
        """Answer a batch.

        Parameters
        ----------
        by : Instance, Answerer or None
            Whose work it is: the instance is freed behind its own; an answerer can step aside.
        """
        owner = self._owner
        count = len(requests)
        again = 0
        outer = owed_here()
        # A single answer has nothing to be gathered with.
        owed = None
        if count > 1:
            owed = BatchCompletion(by.step_aside if isinstance(by, ResponseThread) else None)
        if owed is not outer:
            owe(owed)
        try:
            if error is not None:
                if owed is not None:
                    owed.rest = partial(_fail, requests, error)
                _fail(requests, error)
            elif responses is not None:
                left = requests if owner.sequences is None else requests.copy()
                if owed is not None:
                    owed.rest = partial(self._answer_rest, left, responses)
                self._answer(left, responses)
            else:  # a decoupled model, which sends on its own, perhaps for long
                for request in requests:
                    self._sent_or_late(request)
        finally:
            if owed is not outer:
                owe(outer)
            if isinstance(by, Instance):
                again = self._free(requests)
            owner.over(count - again)
            if owed is not None:
                owed.pay()

    def _answer(
        self, requests: list[InferenceRequest], responses: Sequence[Response | None]
    ) -> None:
        """Answer each request and let go of it: of a batch nothing is left in the lists.

        What a request holds is made again for the one that follows from its answer. Were all of a
        batch kept until its last answer, each batch would look like new objects that stay: with
        batches of 256 to a torch MLP the garbage collector then took a tenth of the time.
        """
        owner = self._owner
        if len(requests) == 1:
            only = responses[0]
            if only is None:
                self._sent_or_late(requests[0])
            elif requests[0].claim():
                owner.deliver(requests[0], only, final=True)
            return
        requests.reverse()
        self._answer_rest(requests, responses)

    def _answer_rest(
        self, requests: list[InferenceRequest], responses: Sequence[Response | None]
    ) -> None:
        """Answer those that are left, the last one first; a callback of one may call it again."""
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
            elif request.claim():
                owner.deliver(request, response, final=True)

    def _sent_or_late(self, request: InferenceRequest) -> None:
        """No response: sent already, to be sent later from another thread, or to be run again."""
        if not request.is_answered() and not request.again:
            self._owner.keep(request)

    def _live(self) -> None:
        self._home = get_ident()
        try:
            self._model = self._backend.create_instance(self._context)
            self.any_thread = self._model.any_thread
            self.readiness = self._model.readiness
            self._executing = Executing((self,), self._model.running)
            warm_up(self._owner, self._context, self._model)
        except BaseException as error:  # also SystemExit from a model's initialize
            self._error = error
        finally:
            self._created.set()
        if self._error is None:
            self._serve()
        self._answerer.stop()
        self.readiness = None
        if self._model is not None:
            try:
                self._model.finalize()
            except Exception:
                _log.exception("finalize of %s raised", self.name)
            # Weights are freed now and not by the garbage collector, which does not see their size.
            self._model = None
            self._executing = Executing((self,))

    def _serve(self) -> None:
        waits.threads[self._home] = self
        try:
            self._run_batches()
        finally:
            waits.threads.pop(self._home, None)

    def _run_batches(self) -> None:
        while (run := self._inbox.get()) is not None:
            try:
                self.execute(run)
            except BaseException:
                # The requests are answered; the instance goes on.
                _log.exception("an execution of %s ended abnormally", self.name)
            del run  # its requests hold tensors and connections: not until the next batch


def _fail(requests: Sequence[InferenceRequest], error: TritonError) -> None:
    for request in requests:
        request.fail(error)
        error = error.again()  # each has its own


def _refuse_without_inputs(requests: Sequence[InferenceRequest], execution: Execution) -> None:
    """Fail a batch if one of its requests leaves out all of its inputs, which are optional."""
    for request in requests:
        if not request.inputs:
            execution.reached = False
            raise InvalidArgumentError(
                f"{request.log_prefix}out of bounds index 0: request has 0 inputs",
                hint="with a batch dimension a request needs an input that tells its batch size",
            )
