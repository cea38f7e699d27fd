"""Responders of inference requests, for any protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from nbtriton.runtime.engine import Submission

if TYPE_CHECKING:
    from nbtriton.backends.base import Response
    from nbtriton.runtime.engine import InferenceRequest, ModelSignature, Trace
    from nbtriton.serving.frontends.kserve.call import InferCall

__all__ = ["Responder"]


class Responder(ABC):
    """A request from the end of its reading to its last response.

    Parameters
    ----------
    signature : ModelSignature
        Signature of the model.
    version : int
        Version of the model, -1 for any.
    call : InferCall
        Inputs, options and requested outputs.
    """

    __slots__ = ("call", "signature", "trace", "version")

    def __init__(self, signature: ModelSignature, version: int, call: InferCall) -> None:
        self.signature = signature
        self.version = version
        self.call = call
        self.trace: Trace | None = None

    def start_trace(
        self, trace: Trace | None, first: str, last: str, received_ns: tuple[int, int]
    ) -> None:
        """Set the request's trace, if it is traced, with the times of its arrival."""
        self.trace = trace
        if trace is not None:
            trace.received(first, last, received_ns)

    def submission(self) -> Submission:
        """Return the request for the engine."""
        call = self.call
        return Submission(
            self.signature.name,
            self.version,
            call.arrays,
            call.options,
            self.handle_response,
            self.trace,
            not call.leases or all(lease.tensor is None for lease in call.leases),
        )

    def record(self, *activities: str) -> None:
        """Record activities in the request's trace, if any."""
        if self.trace is not None:
            for activity in activities:
                self.trace.answered(activity)

    def close(self) -> None:
        """Release the request's resources after the last response."""
        self.call.release()
        self.end_trace()

    def end_trace(self) -> None:
        """Complete the request's trace, if any."""
        if self.trace is not None:
            self.trace.sample.release()

    @abstractmethod
    def handle_response(self, request: InferenceRequest, response: Response, final: bool) -> None:
        """Handle a response, on the model's thread; the model may reuse the memory afterwards."""
