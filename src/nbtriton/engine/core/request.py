"""One request inside the engine: a ticket for the schedulers, an input for the backends."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nbtriton.backends.base import Response
from nbtriton.backends.core.synchronize import copies_of
from nbtriton.engine.core.future import InferenceFuture
from nbtriton.engine.core.now import now_ns
from nbtriton.engine.core.result import InferenceResult
from nbtriton.engine.interrupts import interrupts_deferred
from nbtriton.errors import InternalError, TritonError
from nbtriton.scheduling import Ticket
from nbtriton.tensors import Array

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nbtriton.engine.core.ensemble_execution import EnsembleExecution
    from nbtriton.engine.core.execution import Execution, StepTimes
    from nbtriton.engine.core.instance import Instance
    from nbtriton.engine.core.runtime import Runtime
    from nbtriton.engine.diagnostics.tracing import Trace
    from nbtriton.scheduling import RunBatch

__all__ = ["BARE_FINAL", "InferenceRequest", "ResponseCallback"]

_log = logging.getLogger("nbtriton.engine")

# (request, response, final): called on the thread that sends; the last call has final=True.
ResponseCallback = Callable[["InferenceRequest", Response, bool], None]

# Stands for "final, without a response of its own": told from an empty response by identity.
BARE_FINAL: Final = Response()


_next_number: Final = itertools.count(1).__next__
_NOTHING: Final[frozenset[str]] = frozenset()
_NO_PARAMETERS: Final[Mapping[str, bool | int | str]] = MappingProxyType({})


class InferenceRequest(Ticket):
    """A request from admission to its final response.

    It fulfils `nbtriton.backends.base.BackendRequest`. ``on_response`` gets every response of a
    decoupled model; the final one is kept as the ``outcome`` and resolves the future, if there is
    one. The responses of an ensemble's step go to the ``flight`` that it is part of instead.
    """

    __slots__ = (
        "again",
        "batch_size",
        "cache_key",
        "cancelled",
        "early",
        "execution",
        "flight",
        "future",
        "here",
        "home",
        "inputs",
        "iteration",
        "kind",
        "lookup_ns",
        "number",
        "on_response",
        "open",
        "outcome",
        "owned_inputs",
        "parameters",
        "parent",
        "request_id",
        "requested_outputs",
        "runtime",
        "start_ns",
        "step",
        "step_times",
        "timeout_us",
        "trace",
    )  # fmt: skip

    def __init__(
        self,
        runtime: Runtime | None,
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
        # Unique in the process.
        self.number = _next_number()
        self.runtime = runtime
        self.inputs = inputs
        # Those that nobody else refers to. A caller's are the caller's.
        self.owned_inputs = _NOTHING
        self.requested_outputs = requested_outputs
        self.batch_size = batch_size
        self.kind = kind
        self.request_id = request_id
        self.parameters = parameters or _NO_PARAMETERS
        self.on_response: ResponseCallback | None = None
        # The request that a person sent, of which this is a step; None for such a one itself, which
        # would otherwise hold itself and wait for the garbage collector.
        self.parent = parent
        # Its way through that ensemble, which step it is there, and in which iteration.
        self.flight: EnsembleExecution | None = None
        self.step = 0
        self.iteration = 0
        self.future: InferenceFuture | None = None
        self.outcome: Response | None = None
        # The direct path: the thread that waits for this request and may run what an idle instance
        # can run of it (0 while none may), and the batch that it is to run next.
        self.home = 0
        self.here: tuple[Instance, RunBatch] | None = None
        self.cancelled = False
        self.again = False
        # Sent before the final flag, to a caller who takes one answer.
        self.early: Response | None = None
        self.cache_key = b""
        self.lookup_ns = 0
        # Popping is atomic with and without a GIL: who gets the item may send the final response.
        self.open = [None]
        self.timeout_us = timeout_us
        self.start_ns = now_ns()
        # The batch that it rode in, or rides in now; None while it waits.
        self.execution: Execution | None = None
        # Of an ensemble, once it is answered.
        self.step_times: StepTimes | None = None
        self.trace: Trace | None = None

    def expect(self) -> InferenceFuture:
        """Return the future of this request, made when its sender first wants one.

        Only the sender may call it.
        """
        future = self.future
        if future is None:
            future = self.future = InferenceFuture(self)
            outcome = self.outcome
            # Answered in between: whoever answers looks for the future afterwards.
            if outcome is not None:
                self._resolve(future, outcome)
        return future

    def copy_inputs(self) -> None:
        """Copy the inputs: whoever sent them may go on with their memory while the request waits."""
        self.inputs = copies_of(self.inputs)
        self.owned_inputs = frozenset(self.inputs)

    def is_cancelled(self) -> bool:
        """True after the caller gave up."""
        return self.cancelled or (self.parent is not None and self.parent.cancelled)

    @property
    def log_prefix(self) -> str:
        """How Triton's messages about a single request begin."""
        return f"[request id: {self.request_id or '<id_unknown>'}] "

    def reschedule(self) -> None:
        """The model of an iterative sequence wants to see the request again (IT2).

        Raises
        ------
        InternalError
            The model is not configured for that (IT6).
        """
        assert self.runtime is not None
        if not self.runtime.config.sequence_batching.iterative_sequence:
            raise InternalError(
                "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model "
                "is not configured to handle such a flag."
            )
        self.again = True

    def take_again(self) -> bool:
        """Return whether the request is to be run again, and forget it."""
        again, self.again = self.again, False
        return again and bool(self.open)  # answered meanwhile: nothing is left to be run for

    def is_answered(self) -> bool:
        """True once the final response was sent."""
        return not self.open

    def cancel(self) -> None:
        """The caller gave up: tell the scheduler; an executing model sees `is_cancelled`."""
        self.cancelled = True
        if self.runtime is not None:
            self.runtime.cancel(self)

    def send(self, response: Response | None, *, final: bool) -> None:
        """Deliver one response; the runtime keeps the order and the books."""
        assert self.runtime is not None
        with interrupts_deferred():  # model code calls this, and that may run in the main thread
            self.runtime.respond(self, response, final=final)

    def claim(self) -> bool:
        """Take the right to send the final response; True for one caller only."""
        try:
            self.open.pop()
        except IndexError:
            return False
        return True

    def deliver(self, response: Response | None, *, final: bool) -> None:
        """Give a response to whoever asked; called in the order the responses may be seen.

        The future is resolved by the final response, or with the one before where that is a bare
        flag. A streamed request that ends without tensors of its own resolves to an empty result.
        """
        trace = self.trace
        if trace is not None:
            trace.answering(response, final=final)
        if self.flight is not None or self.on_response is not None:
            told = BARE_FINAL if response is None else response
            try:
                if self.flight is not None:
                    self.flight.responded(self, told, final)
                elif self.on_response is not None:
                    self.on_response(self, told, final)
            except Exception:
                _log.exception("a response callback of request %s raised", self.number)
        elif response is None:
            response = self.early
        elif not final:
            self.early = response
        # A step of an ensemble keeps nothing: its flight has the responses.
        if final and self.parent is None:
            self.outcome = outcome = BARE_FINAL if response is None else response
            if self.future is not None:
                self._resolve(self.future, outcome)
        if final and trace is not None:
            trace.delivered(self)

    def _resolve(self, future: InferenceFuture, outcome: Response) -> None:
        if outcome.error is not None:
            future.resolve(None, outcome.error)
        else:
            future.resolve(self.result_of(outcome), None)

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

    def times(self) -> tuple[int, int, int, int] | None:
        """Return queue, compute_input, compute_infer and compute_output in ns; None before them."""
        execution = self.execution
        steps = self.step_times
        if execution is None:
            if steps is None:
                return None
            return steps.queue_ns, steps.input_ns, steps.infer_ns, steps.output_ns
        input_ns, infer_ns, output_ns = execution.times()
        return execution.start_ns - self.enqueued_ns, input_ns, infer_ns, output_ns

    def timing(self) -> tuple[int, int, int, int, int, int]:
        """Where the time went so far, as `RequestTiming` has it (T9)."""
        total_ns = now_ns() - self.start_ns
        times = self.times()
        if times is None:
            return total_ns, 0, 0, 0, 0, 0
        execution = self.execution
        size = self.size if execution is None else execution.batch_size
        return total_ns, times[0], times[1], times[2], times[3], size

    def fail(self, error: TritonError) -> None:
        """Answer with an error, unless the request is answered already."""
        assert self.runtime is not None
        if self.claim():
            self.runtime.deliver(self, Response(error=error), final=True)
