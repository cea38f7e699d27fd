"""The entrance of requests: the version is looked up, the request built and submitted to the version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock, get_ident
from typing import Any, Final, NamedTuple, Protocol

from nbtriton.backends.base import RequestOptions, Response
from nbtriton.common.errors import TritonError
from nbtriton.runtime.engine.core.future import InferenceFuture
from nbtriton.runtime.engine.core.registry import Registry
from nbtriton.runtime.engine.core.request import (
    CallbackSink,
    InferenceRequest,
    JoinBatch,
    ResponseCallback,
)
from nbtriton.runtime.engine.core.runtime import Runtime
from nbtriton.runtime.engine.core.stopping import refusal
from nbtriton.runtime.engine.diagnostics.tracing import Trace
from nbtriton.runtime.engine.interrupts import INTERRUPTS

__all__ = ["ArrivalListener", "RequestDispatcher", "Submission"]

# Final: rule 13 of docs/compiled.md.
_interrupts: Final = INTERRUPTS
_thread_id: Final = get_ident


class ArrivalListener(Protocol):
    """Receives each request of a client before it is submitted: a recording, planned faults."""

    def __call__(
        self, request: InferenceRequest, version: int, options: RequestOptions
    ) -> TritonError | None:
        """Handle a request, on the thread that sends it; it must not raise.

        Parameters
        ----------
        request : InferenceRequest
            Admitted, with its inputs.
        version : int
            The one that the client asked for, -1 for any.
        options : RequestOptions
            As the client gave them.

        Returns
        -------
        TritonError or None
            An error refuses the request, as a full queue does.
        """

    def close(self) -> None:
        """Handle the end of the server."""


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
        Of the server's models; it refuses what is no name or version of a model.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        # A new tuple with each change: requests read it without a lock.
        self._listeners: tuple[ArrivalListener, ...] = ()
        self._changing = Lock()

    @property
    def listeners(self) -> tuple[ArrivalListener, ...]:
        """Those that get each request now."""
        return self._listeners

    def listen(self, listener: ArrivalListener) -> None:
        """Pass each request of a client to a listener from now on; not calls by models."""
        with self._changing:
            self._listeners = (*self._listeners, listener)

    def stop_listening(self, listener: ArrivalListener) -> None:
        """Pass nothing more to a listener."""
        with self._changing:
            self._listeners = tuple([one for one in self._listeners if one is not listener])

    def close(self) -> None:
        """Close the listeners: the server has ended."""
        for listener in self._listeners:
            listener.close()

    def _is_refused(self, request: InferenceRequest, version: Any, options: RequestOptions) -> bool:
        """Pass a request to the listeners; True if one of them has refused it."""
        for listener in self._listeners:
            error = listener(request, version, options)
            if error is not None:
                assert isinstance(request.runtime, Runtime)
                request.runtime.refuse_new(request, error)
                return True
        return False

    def call(
        self,
        name: object,
        version: Any,
        inputs: Mapping[str, Any],
        options: RequestOptions,
        caller: int = 0,
    ) -> tuple[InferenceRequest, Response]:
        """Send one request and return it with its response, which may be an error.

        A request that was refused raises; one that failed has the error in its response. Where an
        instance is idle the request runs in this very thread. `caller` as in `InferenceRequest`.
        """
        if _thread_id() != _interrupts.main:  # the block takes 0.2 us, 2% of a request
            return self._call(name, version, inputs, options, caller)
        with _interrupts:
            return self._call(name, version, inputs, options, caller)

    def _call(
        self,
        name: object,
        version: Any,
        inputs: Mapping[str, Any],
        options: RequestOptions,
        caller: int,
    ) -> tuple[InferenceRequest, Response]:
        accepted = False
        heard = caller != 0 or not self._listeners
        while not accepted:  # replaced between the look-up and now: its successor takes it
            runtime = self._registry.find(name, version, False)
            request = runtime.signature.build_request(inputs, options)
            request.caller = caller
            request.keeps_response = True
            if not heard:
                heard = True
                if self._is_refused(request, version, options):
                    break
            accepted = runtime.submit_inline(request)
        if request.final_response is None:
            try:
                request.expect().exception()
            except BaseException:
                request.expect().cancel()  # after Ctrl-C no one waits for the answer any more
                raise
        try:
            return request, request.final_response  # type: ignore[return-value]
        finally:  # without a name here: the frames of a response's error may hold this one
            request.final_response = None

    def submit(
        self,
        name: object,
        version: Any,
        inputs: Mapping[str, Any],
        options: RequestOptions,
        on_response: Callable[[Response, bool], None] | None = None,
        trace: Trace | None = None,
        caller: int = 0,
    ) -> tuple[InferenceRequest, InferenceFuture]:
        """Send one request and return it with its future at once; see `nbtriton.Server.submit`."""
        if _thread_id() != _interrupts.main:
            return self._submit(name, version, inputs, options, on_response, trace, caller)
        with _interrupts:
            return self._submit(name, version, inputs, options, on_response, trace, caller)

    def _submit(
        self,
        name: object,
        version: Any,
        inputs: Mapping[str, Any],
        options: RequestOptions,
        on_response: Callable[[Response, bool], None] | None,
        trace: Trace | None,
        caller: int,
    ) -> tuple[InferenceRequest, InferenceFuture]:
        heard = caller != 0 or not self._listeners
        try:
            while True:
                runtime = self._registry.find(name, version, on_response is not None)
                request = runtime.signature.build_request(inputs, options)
                request.caller = caller
                if not runtime.signature.reads_only:
                    request.copy_inputs()
                if trace is not None:
                    trace.follow(request)
                future = request.expect()
                if on_response is not None:
                    request.sink = CallbackSink(partial(_pass_on, on_response))
                if not heard:
                    heard = True
                    if self._is_refused(request, version, options):
                        return request, future
                # False: replaced between the look-up and now; its successor takes the request.
                if runtime.submit(request):
                    return request, future
        except BaseException:
            if trace is not None:
                trace.refused()
            raise

    def submit_many(
        self,
        calls: Sequence[Submission],
        join_batch: JoinBatch | None = None,
        *,
        heard: bool = False,
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
        heard : bool
            The listeners know of these requests already.

        Returns
        -------
        list
            For each call the request, to be cancelled, or why it was refused.
        """
        found: list[InferenceRequest | TritonError] = []
        with _interrupts:
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
                if (
                    self._listeners
                    and not heard
                    and self._is_refused(request, call.version, call.options)
                ):
                    continue
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
                        (found[place],) = self.submit_many([calls[place]], join_batch, heard=True)
        return found


def _pass_on(
    on_response: Callable[[Response, bool], None],
    _: InferenceRequest,
    response: Response,
    final: bool,
) -> None:
    on_response(response, final)
