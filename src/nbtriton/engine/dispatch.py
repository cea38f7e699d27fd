"""Where requests enter: a version is looked up, the request built, and submitted to the version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from nbtriton.backends.base import RequestOptions, Response
from nbtriton.engine.core.registry import Registry
from nbtriton.engine.core.request import (
    CallbackSink,
    InferenceRequest,
    JoinBatch,
    ResponseCallback,
)
from nbtriton.engine.core.runtime import Runtime
from nbtriton.engine.diagnostics.tracing import Trace
from nbtriton.engine.interrupts import interrupts_deferred
from nbtriton.engine.lifecycle.stopping import refusal
from nbtriton.errors import TritonError

__all__ = ["RequestDispatcher", "Submission"]


class Submission(NamedTuple):
    """One call of `RequestDispatcher.submit_many`.

    ``owned`` says that no one else refers to the memory of the inputs.
    """

    name: str
    version: int
    inputs: Mapping[str, Any]
    options: RequestOptions
    on_response: ResponseCallback
    trace: Trace | None = None
    owned: bool = False


class RequestDispatcher:
    """The entrance for requests of a server's users, endpoints and models.

    Parameters
    ----------
    registry : Registry
        Of the server's models.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def call(
        self,
        name: str,
        version: int,
        inputs: Mapping[str, Any],
        options: RequestOptions,
        caller: int = 0,
    ) -> tuple[InferenceRequest, Response]:
        """Send one request and return it with its response, which may be an error.

        A request that was refused raises; one that failed has the error in its response. Where an
        instance is idle the request runs in this very thread. `caller` as in `InferenceRequest`.
        """
        with interrupts_deferred():
            accepted = False
            while not accepted:  # replaced between the look-up and now: its successor takes it
                runtime = self._registry.find(name, version, False)
                request = runtime.signature.build_request(inputs, options)
                request.caller = caller
                accepted = runtime.submit_inline(request)
            if request.final_response is None:
                try:
                    request.expect().exception()
                except BaseException:
                    request.expect().cancel()  # after Ctrl-C no one waits for the answer any more
                    raise
            assert request.final_response is not None
            return request, request.final_response

    def submit(
        self,
        name: str,
        version: int,
        inputs: Mapping[str, Any],
        options: RequestOptions,
        on_response: Callable[[Response, bool], None] | None = None,
        trace: Trace | None = None,
        caller: int = 0,
    ) -> InferenceRequest:
        """Send one request, which has a future, and return at once; see `nbtriton.Server.submit`."""
        with interrupts_deferred():
            try:
                while True:
                    runtime = self._registry.find(name, version, on_response is not None)
                    request = runtime.signature.build_request(inputs, options)
                    request.caller = caller
                    if not runtime.signature.reads_only:
                        request.copy_inputs()
                    if trace is not None:
                        trace.follow(request)
                    request.expect()
                    if on_response is not None:
                        request.sink = CallbackSink(partial(_pass_on, on_response))
                    # False: replaced between the look-up and now; its successor takes the request.
                    if runtime.submit(request):
                        return request
            except BaseException:
                if trace is not None:
                    trace.refused()
                raise

    def submit_many(
        self, calls: Sequence[Submission], join_batch: JoinBatch | None = None
    ) -> list[InferenceRequest | TritonError]:
        """Send requests that came at the same moment, those for one model together.

        For endpoints: an idle model gets them as one batch, not the first alone and then the others.
        The requests have no future: all responses, errors too, go to ``on_response``.

        Parameters
        ----------
        calls : sequence of Submission
        join_batch : callable, optional
            ``join_batch(completion)`` before each response that is one of several of a batch. A
            function that it defers is called once, behind the last of them: an endpoint
            wakes its own thread for all of them together.

        Returns
        -------
        list
            For each call the request, to be cancelled, or why it was refused.
        """
        found: list[InferenceRequest | TritonError] = []
        with interrupts_deferred():
            places: dict[Runtime, list[int]] = {}
            for place, call in enumerate(calls):
                try:
                    runtime = self._registry.find(call.name, call.version, True)
                    request = runtime.signature.build_request(call.inputs, call.options)
                    if self._registry.stopping and (error := refusal(runtime, request)) is not None:
                        raise error
                except TritonError as error:
                    found.append(error)
                    if call.trace is not None:
                        call.trace.refused()
                    continue
                if call.trace is not None:
                    call.trace.follow(request)
                request.sink = CallbackSink(call.on_response, join_batch)
                if call.owned:
                    request.owned_inputs = frozenset(call.inputs)
                found.append(request)
                places.setdefault(runtime, []).append(place)
            for runtime, where in places.items():
                requests: list[Any] = [found[place] for place in where]
                for place, accepted in zip(where, runtime.submit_many(requests), strict=True):
                    if isinstance(accepted, TritonError):
                        found[place] = accepted
                        trace = calls[place].trace
                        if trace is not None:
                            trace.refused()
                    elif not accepted:  # replaced between the look-up and now
                        found[place] = self.submit_many([calls[place]], join_batch)[0]
        return found


def _pass_on(
    on_response: Callable[[Response, bool], None],
    _: InferenceRequest,
    response: Response,
    final: bool,
) -> None:
    on_response(response, final)
