"""Responses in the order in which their requests left the queue (preserve_ordering, D12)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from nbtriton.backends.base import Response
from nbtriton.runtime.engine.core.completion import Completion
from nbtriton.runtime.engine.core.mailbox import Mailbox
from nbtriton.runtime.engine.core.request import InferenceRequest
from nbtriton.scheduling import Decision, ResponseOrder, RetireInstance, RunBatch

__all__ = ["InOrder"]


class InOrder:
    """Hold early responses of a model back.

    Parameters
    ----------
    deliver : callable
        ``deliver(request, response, final, completion)`` gets them, one at a time.
    per_instance : bool
        True under the oldest strategy of sequences: each instance has a batcher of its own, and with
        it an order of its own.
    """

    __slots__ = ("_deliver", "_lock", "_order", "_outgoing", "_per_instance")

    def __init__(
        self,
        deliver: Callable[[InferenceRequest, Response | None, bool, Completion | None], None],
        *,
        per_instance: bool,
    ) -> None:
        self._deliver = deliver
        self._per_instance = per_instance
        self._order: ResponseOrder[tuple[InferenceRequest, Response | None, bool]] = ResponseOrder()
        self._lock = threading.Lock()
        # One thread at a time sends, or what was put in order could overtake itself.
        self._outgoing: Mailbox[tuple[InferenceRequest, Response | None, bool]] = Mailbox()

    def line_up(self, decisions: Sequence[Decision]) -> None:
        """Record the order in which requests leave the queue; refused ones have no place."""
        for decision in decisions:
            if isinstance(decision, RunBatch):
                for ticket in decision.tickets:
                    self.accept(ticket, decision.instance)  # type: ignore[arg-type]
            elif isinstance(decision, RetireInstance) and self._per_instance:
                with self._lock:
                    self._order.remove_line(decision.instance)

    def accept(self, request: InferenceRequest, instance: int = 0) -> None:
        """Record a request's place, behind all others or those of its instance."""
        with self._lock:
            self._order.accept(request.number, instance if self._per_instance else 0)

    def respond(
        self,
        request: InferenceRequest,
        response: Response | None,
        *,
        final: bool,
        completion: Completion | None,
    ) -> None:
        """Deliver a response, and those that waited for it, as soon as it may be seen."""
        with self._lock:
            ready = self._order.respond(request.number, (request, response, final), final=final)
            for message in ready:
                self._outgoing.post(message)
        self._outgoing.drain(lambda message: self._deliver(*message, completion))
