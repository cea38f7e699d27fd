"""A request of the engine in a worker, for a backend."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from nbtriton.backends.base import Response
from nbtriton.backends.compiling import mypyc_attr
from nbtriton.common.errors import InternalError
from nbtriton.model.tensors import Array

__all__ = ["NO_PARAMETERS", "RemoteRequest"]

NO_PARAMETERS: Final[Mapping[str, bool | int | str]] = MappingProxyType({})


@mypyc_attr(allow_interpreted_subclasses=True)
class RemoteRequest:
    """One request of a batch; implements `nbtriton.backends.base.BackendRequest`.

    Attributes
    ----------
    batch, index : int
        Its execution, and its index there, by which the engine identifies it.
    link : object
        The worker: ``link.send(request, response, final)``, ``link.iterative``.
    cancelled : bool
        Set by the thread that receives the cancellation.
    rescheduled : bool
        The model wants to execute it again.
    """

    __slots__ = (
        "_unanswered", "batch", "batch_size", "cancelled", "copies_outputs", "correlation_id", "flags",
        "index", "inputs", "link", "orders_events", "owned_inputs", "parameters", "priority", "request_id", "requested_outputs",
        "rescheduled", "timeout_us", "trace",
    )  # fmt: skip

    def __init__(
        self,
        link: Any,
        batch: int,
        index: int,
        inputs: dict[str, Array],
        owned_inputs: frozenset[str],
        requested_outputs: frozenset[str],
        batch_size: int,
    ) -> None:
        self.link = link
        self.batch = batch
        self.index = index
        self.inputs = inputs
        # The memory belongs to this process alone.
        self.owned_inputs = owned_inputs
        self.requested_outputs = requested_outputs
        self.batch_size = batch_size
        # They are written to a message, or to shared memory, before `send` or `execute` returns.
        self.copies_outputs = True
        self.orders_events = False
        self.request_id = ""
        self.correlation_id: int | str = 0
        self.flags = 0
        self.timeout_us = 0
        self.priority = 0
        self.parameters: Mapping[str, bool | int | str] = NO_PARAMETERS
        self.trace: Any = None
        self.cancelled = False
        self.rescheduled = False
        # Popping is atomic with and without a GIL, as in the engine's own request.
        self._unanswered = [None]

    def is_cancelled(self) -> bool:
        """Return True if the request was cancelled."""
        return self.cancelled

    def is_answered(self) -> bool:
        """Return True if the final response was sent."""
        return not self._unanswered

    def try_finish(self) -> bool:
        """Acquire the right to send the final response; True for one caller only."""
        try:
            self._unanswered.pop()
        except IndexError:
            return False
        return True

    def reschedule(self) -> None:
        """Execute the request again after this batch; see `BackendRequest`."""
        if not self.link.iterative:
            raise InternalError(
                "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model "
                "is not configured to handle such a flag."
            )
        self.rescheduled = True

    def send(self, response: Response | None, *, final: bool) -> None:
        """Send one response before the end of the execution, from any thread."""
        if self.is_answered() or (final and not self.try_finish()):
            raise InternalError("Unable to send response. Response sender has been closed.")
        self.link.send(self, response, final)
