"""One request inside the engine: a ticket for the schedulers, an input for the backends."""

from __future__ import annotations

import itertools
import logging
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import ClassVar, Final

from nbtriton.backends.base import Response
from nbtriton.backends.core.place import copies_of
from nbtriton.common.errors import InternalError, TritonError
from nbtriton.model.tensors import Array
from nbtriton.runtime.engine.core.execution import (
    Completion,
    Execution,
    InferenceResult,
    RequestDetail,
    Statistics,
    StepTimes,
    now_ns,
)
from nbtriton.runtime.engine.core.future import InferenceFuture
from nbtriton.runtime.engine.core.history import ModelHistory, RequestEntry
from nbtriton.runtime.engine.diagnostics.deadlocks import Blockers
from nbtriton.runtime.engine.diagnostics.tracing import Trace
from nbtriton.runtime.interrupts import INTERRUPTS, interrupts_deferred
from nbtriton.scheduling import SEQUENCE_START, Ticket, TicketState

_log = logging.getLogger("nbtriton.runtime.engine")

# (request, response, final): called on the thread that sends; the last call has final=True.
ResponseCallback = Callable[["InferenceRequest", Response, bool], None]

# (completion): called before each response that is one of several of a batch.
JoinBatch = Callable[[Completion], object]

# Means "final, without a separate response"; compared by identity with an empty response.
BARE_FINAL: Final = Response()


def as_triton_error(error: Exception, model: str) -> TritonError:
    """Return an error as one of Triton's; an unexpected one is logged."""
    if isinstance(error, TritonError):
        return error
    _log.error("a request to '%s'", model, exc_info=error)
    return InternalError(f"{type(error).__name__}: {error}")


class RequestOwner:
    """The part of the answering model version that a request uses.

    Attributes
    ----------
    name : str
    version : int
    process : int
        Id of the process in which it lives.
    history : ModelHistory or None
        Its history in the server's recorder, if that is on.
    statistics : Statistics
    """

    name: str
    version: int
    process: int
    history: ModelHistory | None
    statistics: Statistics

    @property
    @abstractmethod
    def iterative(self) -> bool:
        """True if requests may be executed more than once (``iterative_sequence``)."""

    @abstractmethod
    def cancel(self, request: InferenceRequest) -> None:
        """Handle the cancellation of a request by its caller."""

    @abstractmethod
    def refuse(self, request: InferenceRequest, error: TritonError) -> None:
        """Answer a request that could never run."""

    @abstractmethod
    def blockers(self, request: InferenceRequest) -> Blockers:
        """Return what must move before a request can be answered."""

    @abstractmethod
    def respond(self, request: InferenceRequest, response: Response | None, *, final: bool) -> None:
        """Deliver one response that a model has sent.

        Raises
        ------
        InternalError
            The final response was sent already.
        """

    @abstractmethod
    def deliver(
        self,
        request: InferenceRequest,
        response: Response | None,
        *,
        final: bool,
        completion: Completion | None = None,
    ) -> None:
        """Pass on a response; the right to send it has been acquired."""


class ResponseSink:
    """Receiver of the responses of a request, in the order in which they may be seen.

    Attributes
    ----------
    orders_events : bool
        Outputs on a device need not be written yet: their readers wait for the event of the writer.
    """

    orders_events: ClassVar[bool] = False

    @abstractmethod
    def respond(
        self,
        request: InferenceRequest,
        response: Response,
        final: bool,
        completion: Completion | None,
    ) -> None:
        """Handle one response; the last call has ``final``."""


class CallbackSink(ResponseSink):
    """Passes responses on to a function.

    Parameters
    ----------
    on_response : callable
    join_batch : callable, optional
        ``join_batch(completion)`` before a response that is one of several of a batch: a function
        that it defers is called once for all of them.
    """

    __slots__ = ("_join_batch", "_on_response")

    def __init__(self, on_response: ResponseCallback, join_batch: JoinBatch | None = None) -> None:
        self._on_response = on_response
        self._join_batch = join_batch

    def respond(
        self,
        request: InferenceRequest,
        response: Response,
        final: bool,
        completion: Completion | None,
    ) -> None:
        if completion is not None and self._join_batch is not None:
            self._join_batch(completion)
        self._on_response(request, response, final)


next_number: Final = itertools.count(1).__next__
_NOTHING: Final[frozenset[str]] = frozenset()
_NO_PARAMETERS: Final[Mapping[str, bool | int | str]] = MappingProxyType({})


class InferenceRequest(Ticket):
    """A request from admission to its final response.

    It fulfils `nbtriton.backends.base.BackendRequest`. Every response goes to the ``sink``, if
    any. The final response resolves the future, if any. An answered request does not refer to its
    error, whose traceback refers to the frames of the model's code, the request and its tensors.

    Attributes
    ----------
    number : int
        Unique in the process.
    owned_inputs : frozenset of str
        Inputs that nothing else refers to. A caller's memory is never among them.
    parent : InferenceRequest or None
        The caller's request, of which this is a step. None for a caller's own request, which would
        otherwise refer to itself and wait for the garbage collector.
    caller : int
        The number of the request that led to it: the ensemble's, or the first one of the batch whose
        model called; 0 for a caller's own.
    step, iteration : int
        The step of the ensemble, and the iteration.
    cancelled : str
        Why it is cancelled, a key of `REASONS`; empty while it is not.
    outcome : str
        Why no instance executed it, a key of `REASONS` or ``"cache_hit"``; empty otherwise.
    answered_ns : int
        When the recorder recorded its final response, or an ensemble counted it; else 0.
    first_ns, responses : int
        The time of its first response before the final one, and how many of these it had.
    keeps_response : bool
        Keep the final response for `expect`: its sender may ask for the future after the answer.
    failure : (str, str) or None
        Status and text of its error, if the recorder recorded it.
    buffered_response : Response or None
        A response sent before the final flag, for a caller that expects one answer.
    execution : Execution or None
        The execution of its batch; None while it waits.
    step_times : StepTimes or None
        For an ensemble, once it is answered.
    """

    __slots__ = (
        "_unanswered", "answered_ns", "batch_size", "buffered_response", "cache_key", "caller", "cancelled",
        "execution", "failure", "final_response", "first_ns", "future", "inputs", "iteration",
        "keeps_response", "kind", "lookup_ns", "number", "outcome", "owned_inputs", "parameters", "parent", "request_id",
        "requested_outputs", "rescheduled", "responses", "runtime", "sink", "start_ns", "step",
        "step_times", "timeout_us", "trace",
    )  # fmt: skip

    # Responses are passed on as they are.
    copies_outputs: ClassVar[bool] = False

    def __init__(
        self,
        runtime: RequestOwner | None,
        inputs: dict[str, Array],
        requested_outputs: frozenset[str],
        batch_size: int,
        kind: str,
        shape_key: Hashable = None,
        priority: int = 0,
        timeout_us: int = 0,
        request_id: str = "",
        correlation_id: int | str = 0,
        flags: int = 0,
        parameters: Mapping[str, bool | int | str] | None = None,
        parent: InferenceRequest | None = None,
    ) -> None:
        super().__init__(
            batch_size or 1, shape_key, priority, timeout_us * 1000, correlation_id, flags
        )
        self.number = next_number()
        self.runtime = runtime
        self.inputs = inputs
        self.owned_inputs = _NOTHING
        self.requested_outputs = requested_outputs
        self.batch_size = batch_size
        self.kind = kind
        self.request_id = request_id
        self.parameters = parameters or _NO_PARAMETERS
        self.parent = parent
        self.sink: ResponseSink | None = None
        self.caller = 0
        self.step = 0
        self.iteration = 0
        self.outcome = ""
        self.answered_ns = 0
        self.first_ns = 0
        self.responses = 0
        self.future: InferenceFuture | None = None
        self.keeps_response = False
        self.failure: tuple[str, str] | None = None
        self.final_response: Response | None = None
        self.buffered_response: Response | None = None
        self.cancelled = ""
        self.rescheduled = False
        self.cache_key = b""
        self.lookup_ns = 0
        # Popping is atomic with and without a GIL: the thread that gets the item may send the final
        # response.
        self._unanswered = [None]
        self.timeout_us = timeout_us
        self.start_ns = now_ns()
        self.execution: Execution | None = None
        self.step_times: StepTimes | None = None
        self.trace: Trace | None = None

    def expect(self) -> InferenceFuture:
        """Return the future of this request.

        Only the sender may call it, before it submits the request or if this `keeps_response`.
        """
        future = self.future
        if future is None:
            future = self.future = InferenceFuture(self)
            response = self.final_response
            # Answered in between: the answering thread reads the future afterwards.
            if response is not None:
                self._resolve(future, response)
        return future

    def copy_inputs(self) -> None:
        """Copy the inputs: their sender may reuse the memory while the request waits."""
        self.inputs = copies_of(self.inputs)
        self.owned_inputs = frozenset(self.inputs)

    @property
    def orders_events(self) -> bool:
        """Whether the receiver of a response orders its device work after the writers of the outputs."""
        sink = self.sink
        return sink is not None and sink.orders_events

    @property
    def root(self) -> InferenceRequest:
        """The caller's request: this one, or the request of which it is a step."""
        return self if self.parent is None else self.parent

    def is_cancelled(self) -> bool:
        """True after the caller has cancelled."""
        parent = self.parent
        return bool(self.cancelled or (parent is not None and parent.cancelled))

    @property
    def log_prefix(self) -> str:
        """The beginning of Triton's messages about a single request."""
        return f"[request id: {self.request_id or '<id_unknown>'}] "

    def reschedule(self) -> None:
        """The model of an iterative sequence wants to execute the request again (IT2).

        Raises
        ------
        InternalError
            The model is not configured for that (IT6).
        """
        assert self.runtime is not None
        if not self.runtime.iterative:
            raise InternalError(
                "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model "
                "is not configured to handle such a flag."
            )
        self.rescheduled = True

    def pop_rescheduled(self) -> bool:
        """Return whether the request has to be executed again, and reset that."""
        again, self.rescheduled = self.rescheduled, False
        return again and not self.is_answered()

    def is_answered(self) -> bool:
        """True once the final response was sent."""
        return not self._unanswered

    def cancel(self, reason: str = "cancelled") -> None:
        """Cancel: a waiting request is dropped; an executing model sees `is_cancelled`.

        The reason is a key of `REASONS`.
        """
        self.cancelled = reason
        if self.runtime is not None:
            self.runtime.cancel(self)

    def blockers(self) -> Blockers:
        """Return what must move before this request can be answered."""
        assert self.runtime is not None
        return self.runtime.blockers(self)

    def refuse(self, error: TritonError) -> None:
        """Answer with an error, and remove the request from its queue: it could never run."""
        assert self.runtime is not None
        self.runtime.refuse(self, error)

    @property
    def executes(self) -> bool:
        """True while an instance executes the request."""
        return self.state is TicketState.RUNNING

    @property
    def model_name(self) -> str:
        assert self.runtime is not None
        return self.runtime.name

    def send(self, response: Response | None, *, final: bool) -> None:
        """Deliver one response; the runtime keeps the order and the statistics."""
        assert self.runtime is not None
        with interrupts_deferred():  # model code calls this, and may run on the main thread
            self.runtime.respond(self, response, final=final)

    def try_finish(self) -> bool:
        """Acquire the right to send the final response; True for one caller only."""
        try:
            self._unanswered.pop()
        except IndexError:
            return False
        return True

    def start_response(self, *, final: bool) -> None:
        """Acquire the right to send one response that a model sends itself.

        Raises
        ------
        InternalError
            The final response was sent already.
        """
        if self.is_answered() or (final and not self.try_finish()):
            raise InternalError("Unable to send response. Response sender has been closed.")

    def deliver(
        self, response: Response | None, *, final: bool, completion: Completion | None = None
    ) -> None:
        """Deliver a response to the caller; called in the order in which responses may be seen.

        The future is resolved by the final response, or by the previous one if that is a bare flag.
        A streamed request that ends without further tensors resolves to an empty result.
        """
        trace = self.trace
        if trace is not None:
            trace.answering(response, final=final)
        if final:
            self._record(response)
        else:
            self.responses += 1
            self.first_ns = self.first_ns or now_ns()
        sink = self.sink
        if sink is not None:
            try:
                sink.respond(self, BARE_FINAL if response is None else response, final, completion)
            except BaseException as error:  # such as SystemExit: others wait for this thread
                INTERRUPTS.keep(error)
                _log.exception("a response callback of request %s raised", self.number)
        elif response is None:
            response = self.buffered_response
        elif not final:
            self.buffered_response = response
        # Nothing is kept for a step: the execution of the ensemble has the responses.
        if final and self.parent is None:
            last = BARE_FINAL if response is None else response
            if self.keeps_response:
                self.final_response = last
            future = self.future
            if future is not None:
                self.future = None  # it has the error
                self._resolve(future, last)
        if final and trace is not None:
            trace.delivered(self)

    def _record(self, response: Response | None) -> None:
        """Record the request in the history of its model, before its answer is seen."""
        runtime = self.runtime
        history = None if runtime is None else runtime.history
        if history is None:
            return
        detail = None
        if (
            self.outcome
            or self.responses
            or self.correlation_id
            or (response is not None and response.error is not None)
        ):
            status = text = ""
            if response is not None and response.error is not None:
                status, text = response.error.status, response.error.message
                self.failure = status, text
            detail = RequestDetail(
                self.outcome, status, text, self.first_ns, self.responses, self.correlation_id,
                bool(self.flags & SEQUENCE_START),
            )  # fmt: skip
        execution = self.execution
        # Reading the clock costs a fiftieth of a step, and its execution or its ensemble has just
        # done so. The time at the end of a caller's own request is also used by `timing`.
        answered_ns = self.answered_ns
        if not answered_ns and execution is not None and self.parent is not None:
            answered_ns = execution.end_ns
        if not answered_ns:
            answered_ns = now_ns()
        self.answered_ns = answered_ns
        if execution is not None and execution.count == 1 and execution.reached:
            execution.answered_ns = answered_ns
            execution.caller = self.caller
            execution.step = self.step
            execution.request_id = self.request_id
            execution.detail = detail
            return
        history.note(
            RequestEntry(
                self.number, self.caller, self.step, self.size, self.start_ns, self.enqueued_ns,
                answered_ns, self.request_id, execution, detail,
            )
        )  # fmt: skip

    def _resolve(self, future: InferenceFuture, response: Response) -> None:
        error = response.error
        result = self.result_of(response) if error is None else None
        future._resolve(result, error)  # noqa: SLF001 - the engine's side of it

    def result_of(self, response: Response) -> InferenceResult:
        """Wrap a response for the caller."""
        assert self.runtime is not None
        return InferenceResult(
            response.outputs,
            self.kind,
            self.runtime.name,
            self.runtime.version,
            self.request_id,
            response.parameters,
            self.timing(),
        )

    def timing(self) -> tuple[int, int, int, int, int, int, bool]:
        """Return how the time was spent so far, as a `RequestTiming`."""
        total_ns = (self.answered_ns or now_ns()) - self.start_ns
        execution, steps = self.execution, self.step_times
        if execution is not None:
            queue_ns = execution.start_ns - self.enqueued_ns
            input_ns, infer_ns, output_ns = execution.times()
            size, first = execution.batch_size, execution.first
            return total_ns, queue_ns, input_ns, infer_ns, output_ns, size, first
        if steps is not None:
            return (
                total_ns, steps.queue_ns, steps.input_ns, steps.infer_ns, steps.output_ns,
                self.size, steps.first,
            )  # fmt: skip
        return total_ns, 0, 0, 0, 0, 0, False

    def fail(self, error: TritonError, completion: Completion | None = None) -> None:
        """Answer with an error, unless the request is already answered."""
        assert self.runtime is not None
        if self.try_finish():
            self.runtime.deliver(self, Response(error=error), final=True, completion=completion)
