"""One request inside the engine: a ticket for the schedulers, an input for the backends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from nbtriton.backends.base import Response
from nbtriton.engine.future import InferenceFuture
from nbtriton.engine.result import InferenceResult, RequestTiming
from nbtriton.engine.shield import shield
from nbtriton.errors import InternalError, TritonError
from nbtriton.scheduling import Ticket
from nbtriton.tensors import Array

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nbtriton.engine.runtime import Runtime

__all__ = ["BARE_FINAL", "InferenceRequest", "ResponseCallback"]

_log = logging.getLogger("nbtriton.engine")

# (request, response, final): called on the thread that sends; the last call has final=True.
ResponseCallback = Callable[["InferenceRequest", Response, bool], None]

# Stands for "final, without a response of its own": told from an empty response by identity.
BARE_FINAL: Final = Response()


class InferenceRequest(Ticket):
    """A request from admission to its final response.

    It fulfils `nbtriton.backends.base.BackendRequest`. ``on_response`` gets every response of a
    decoupled model; the future is resolved by the final one.
    """

    __slots__ = (
        "_root",
        "again",
        "batch_size",
        "cache_key",
        "cancelled",
        "compute_end_ns",
        "compute_start_ns",
        "early",
        "execute_end_ns",
        "execute_start_ns",
        "future",
        "inputs",
        "kind",
        "lookup_ns",
        "number",
        "on_response",
        "open",
        "parameters",
        "request_id",
        "requested_outputs",
        "ridden_size",
        "runtime",
        "start_ns",
        "step_timing",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        inputs: Mapping[str, Array],
        requested_outputs: frozenset[str],
        batch_size: int,
        kind: str,
        *,
        shape_key: Hashable = None,
        priority: int = 0,
        timeout_us: int = 0,
        request_id: str = "",
        correlation_id: int | str = 0,
        flags: int = 0,
        parameters: Mapping[str, bool | int | str] | None = None,
        on_response: ResponseCallback | None = None,
        root: InferenceRequest | None = None,
    ) -> None:
        super().__init__(
            max(1, batch_size), shape_key, priority, timeout_us * 1000, correlation_id, flags
        )
        self.number = number
        self.inputs = inputs
        self.requested_outputs = requested_outputs
        self.batch_size = batch_size
        self.kind = kind
        self.request_id = request_id
        self.parameters = parameters if parameters is not None else {}
        self.on_response = on_response
        self._root = root
        self.runtime: Runtime | None = None
        self.future = InferenceFuture(self) if root is None else None
        self.cancelled = False
        self.again = False
        # Sent before the final flag, to a caller who takes one answer.
        self.early: Response | None = None
        self.cache_key = b""
        self.lookup_ns = 0
        # Popping is atomic with and without a GIL: who gets the item may send the final response.
        self.open = [None]
        self.start_ns = monotonic_ns()
        self.execute_start_ns = 0
        self.compute_start_ns = 0
        self.compute_end_ns = 0
        self.execute_end_ns = 0
        self.ridden_size = 0
        self.step_timing: RequestTiming | None = None

    @property
    def root(self) -> InferenceRequest:
        """The request that a person sent: itself, or the ensemble's that this is a step of."""
        # Not stored for a root: it would hold itself, and wait for the garbage collector.
        return self if self._root is None else self._root

    @property
    def timeout_us(self) -> int:
        """The request's own queue timeout in microseconds, 0 for none."""
        return self.timeout_ns // 1000

    def is_cancelled(self) -> bool:
        """True after the caller gave up."""
        return self.cancelled or (self._root is not None and self._root.cancelled)

    @property
    def log_prefix(self) -> str:
        """How Triton's messages about a single request begin."""
        return f"[request id: {self.request_id or '<id_unknown>'}] "

    def reschedule(self) -> None:
        """The model of an iterative sequence wants to see the request again (IT-2).

        Raises
        ------
        InternalError
            The model is not configured for that (IT-6).
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
        with shield:  # model code calls this, and that may run in the main thread
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
        if self.on_response is not None:
            self._report_response(BARE_FINAL if response is None else response, final)
        elif response is None:
            response = self.early
        elif not final:
            self.early = response
        # A step of an ensemble has no future: its ensemble listens to the responses.
        if not final or self.future is None:
            return
        if response is not None and response.error is not None:
            self.future.resolve(None, response.error)
        else:
            self.future.resolve(self.result_of(BARE_FINAL if response is None else response), None)

    def result_of(self, response: Response) -> InferenceResult:
        """Wrap a response for the caller."""
        assert self.runtime is not None
        return InferenceResult(
            response.outputs,
            self.kind,
            model_name=self.runtime.name,
            model_version=self.runtime.version,
            request_id=self.request_id,
            parameters=response.parameters,
            timing=self.timing(),
        )

    def timing(self) -> RequestTiming:
        """Where the time went so far (scheduling.md §18)."""
        now = monotonic_ns()
        if self.step_timing is not None:
            steps = self.step_timing
            return RequestTiming(
                now - self.start_ns, steps.queue_ns, steps.compute_input_ns,
                steps.compute_infer_ns, steps.compute_output_ns, steps.batch_size,
            )  # fmt: skip
        if not self.execute_start_ns:
            return RequestTiming(total_ns=now - self.start_ns)
        return RequestTiming(
            now - self.start_ns,
            self.execute_start_ns - self.enqueued_ns,
            self.compute_start_ns - self.execute_start_ns,
            self.compute_end_ns - self.compute_start_ns,
            self.execute_end_ns - self.compute_end_ns,
            self.ridden_size,
        )

    def fail(self, error: TritonError) -> None:
        """Answer with an error, unless the request is answered already."""
        assert self.runtime is not None
        if self.claim():
            self.runtime.deliver(self, Response(error=error), final=True)

    def _report_response(self, response: Response, final: bool) -> None:
        assert self.on_response is not None
        try:
            self.on_response(self, response, final)
        except Exception:
            _log.exception("a response callback of request %s raised", self.number)
