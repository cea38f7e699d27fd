"""Calls from one model to another (business logic scripting) and to the repository."""

# ruff: noqa: SLF001 - the public names of these classes are Triton's own, the others are ours
from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any
from weakref import ref

from nbtriton.backends.base import RequestOptions, RequestTrace, Response, ServerHandle
from nbtriton.backends.python.api.pybind import (
    PreferredMemory,
    TritonError,
    TritonErrorCode,
    TritonModelException,
    as_text,
    incompatible,
    place,
    warn_newer,
)
from nbtriton.backends.python.core.values import InferenceResponse, Tensor, answer_of, wire_array
from nbtriton.backends.python.running import current, current_server, with_instance
from nbtriton.backends.unread import UnreadResponses
from nbtriton.common.errors import CancelledError
from nbtriton.common.errors import TritonError as EngineError
from nbtriton.model.tensors import Array

if TYPE_CHECKING:
    import asyncio


SEQUENCE_FLAGS = 3  # flags of the start and the end of a sequence
_REFUSED = "Model {} - Error when running inference: {}"
_ONLY_DURING_EXECUTE = "BLS is only supported during the 'execute' function."


class InferenceTrace:
    """The trace of a request; pass it to the requests that the model sends."""

    __slots__ = ("_context", "_trace")

    def __init__(self, context: str | None = None, *, _trace: RequestTrace | None = None) -> None:
        self._context = context
        self._trace = _trace

    def get_context(self) -> str | None:
        """Return the OpenTelemetry context as JSON, or None."""
        if self._context is None and self._trace is not None:
            return self._trace.context
        return self._context


class ModelCall:
    """A call of a model: the base of `pb_utils.InferenceRequest`, without its methods."""

    __slots__ = (
        "_inputs", "_model_name", "_model_version", "_options", "_preferred_memory", "_trace",
    )  # fmt: skip

    _inputs: list[Tensor]
    _model_name: str
    _model_version: int
    _options: RequestOptions
    _preferred_memory: PreferredMemory | None
    _trace: InferenceTrace


class ResponseIterator:
    """The responses of one call, in order; ends after the final one.

    Notes
    -----
    A decoupled target that ends with a bare final flag gives one last response without tensors. A second loop
    gets the same responses again, unless the target has MAX_UNREAD_RESPONSES: its responses may be without end,
    and are not kept. After a loop that ended early the next one continues.
    """

    def __init__(
        self,
        request: ModelCall,
        on_first: Callable[[ResponseIterator], None] | None = None,
        limit: Callable[[], int] = lambda: 0,
    ) -> None:
        self._model_name = request._model_name
        self._unread = UnreadResponses(limit)
        self._preferred = request._preferred_memory
        self._on_first = on_first  # called with the first response
        # Responses, each with whether it is the last one; None for an end without a response.
        self._queue: SimpleQueue[tuple[InferenceResponse, bool] | None] = SimpleQueue()
        self._future: Any = None
        self._cancelled = False
        self._ended = False  # the producer's side
        self._exhausted = False  # the consumer's side
        self._responses: list[InferenceResponse] = []
        self._position = 0  # of the next one, after the first pass

    def __iter__(self) -> Iterator[InferenceResponse]:
        if self._exhausted and self._position >= len(self._responses):
            self._position = 0
        return self

    def __next__(self) -> InferenceResponse:
        if self._exhausted:
            if self._position >= len(self._responses):
                raise StopIteration
            self._position += 1
            return self._responses[self._position - 1]
        item = self._next()
        self._unread.read()
        if item is not None and not self._unread.is_limited:
            self._responses.append(item[0])
        if item is None or item[1]:
            self._exhausted = True
            self._position = len(self._responses)
        if item is None:
            raise StopIteration
        return item[0]

    def _next(self) -> tuple[InferenceResponse, bool] | None:
        if self._future is None:  # refused: its one response is in the queue
            return self._queue.get()
        popped: list[tuple[InferenceResponse, bool] | None] = []

        def pop(timeout_s: float) -> bool:
            try:
                popped.append(self._queue.get(timeout=timeout_s))
            except Empty:
                return False
            return True

        if not pop(0):
            self._future._wait_for(pop)
        return popped[0]

    def __del__(self) -> None:
        self._unread.end()  # nobody reads any more: the target sends to no one

    def cancel(self) -> None:
        """Request the target's cancellation; the iterator still ends by itself.

        A target that honours it ends with an error of the code CANCELLED.
        """
        warn_newer("cancel() of the responses of a decoupled call", "bls-cancel")
        if self._future is not None and not self._exhausted:
            self._cancelled = True
            self._future._ask_to_end()
            self._unread.end()

    def _on_response(self, response: Response | None, final: bool) -> None:
        if self._ended:
            return
        self._ended = final
        answer = response or Response()
        if answer.error is not None:
            text = _late_text(self._model_name, answer.error)
            self._put((_failed(text, self._code(answer.error)), final))
        else:
            self._put((_respond(answer.outputs, answer.parameters, self._preferred), final))

    def _on_done(self, future: Any) -> None:
        # Requests that failed before their model got them may end without any response.
        if self._ended:
            return
        error = future.exception()
        if error is None:
            self._ended = True
            self._put(None)
        else:
            self._fail(_failed(_late_text(self._model_name, error), self._code(error)))

    def _code(self, error: BaseException) -> TritonErrorCode:
        # INTERNAL for every status of the target, as in Triton (PB60), except that the caller can
        # distinguish a cancelled call from a failure.
        cancelled = self._cancelled and isinstance(error, CancelledError)
        return TritonErrorCode.CANCELLED if cancelled else TritonErrorCode.INTERNAL

    def _fail(self, response: InferenceResponse) -> None:
        self._ended = True
        self._put((response, True))

    def _put(self, item: tuple[InferenceResponse, bool] | None) -> None:
        self._queue.put(item)
        on_first, self._on_first = self._on_first, None
        if on_first is not None:
            on_first(self)


def execute(request: ModelCall, decoupled: bool) -> InferenceResponse | ResponseIterator:
    """Run a request and wait; see `InferenceRequest.exec`."""
    server = _server(request)
    if decoupled:
        return _iterate(server, request)
    if request._trace._trace is not None:
        # A traced call takes the general path: its speed does not matter.
        future = _submit(server, request)
        if isinstance(future, InferenceResponse):
            return future
        try:
            result = future.result()
        except EngineError as error:
            return _failed(_late_text(request._model_name, error))
        return _respond(result, result.parameters, request._preferred_memory)
    try:
        response = server.call(
            request._model_name, request._model_version, _inputs(request), request._options
        )
    except EngineError as error:
        return _failed(_refusal_text(server, request, error))
    if response.error is not None:
        return _failed(_late_text(request._model_name, response.error))
    return _respond(response.outputs, response.parameters, request._preferred_memory)


def execute_async(request: ModelCall, decoupled: bool) -> asyncio.Future[Any]:
    """Return an awaitable of the result of `execute`; needs a running event loop.

    An iterator is the result with its first response: nothing blocks the loop.
    """
    import asyncio  # deferred until a model needs it: it takes 30 ms of a worker's start

    loop = asyncio.get_running_loop()
    server = _server(request)
    answer: asyncio.Future[Any] = loop.create_future()

    def set_answer(response: InferenceResponse | ResponseIterator) -> None:
        if not answer.done():
            answer.set_result(response)

    def deliver(response: InferenceResponse | ResponseIterator) -> None:
        # the loop was closed
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(set_answer, response)

    def done(future: Any) -> None:
        error = future.exception()
        if error is None:
            result = future.result()
            deliver(_respond(result, result.parameters, request._preferred_memory))
        else:
            deliver(_failed(_late_text(request._model_name, error)))

    if decoupled:
        responses = _iterate(server, request, deliver)
        future = responses._future
        answer.add_done_callback(lambda _: responses)  # which nothing else keeps until then
        if future is None:
            return answer
    else:
        future = _submit(server, request)
        if isinstance(future, InferenceResponse):
            answer.set_result(future)
            return answer
        future.add_done_callback(done)
    server.awaits(future)
    return answer


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load or reload a model of the server's repository.

    Parameters
    ----------
    model_name : str
    config : str
        JSON that replaces the model's configuration.
    files : dict of str to bytes
        Files of the model directory, by path, instead of those on disk.

    Raises
    ------
    TritonModelException
        The server could not load it.
    """
    if not isinstance(config, str):
        raise incompatible("load_model", "config: str", config)
    for path, content in (files or {}).items():
        if not isinstance(content, bytes):
            raise incompatible("load_model", f"bytes for file '{path}'", content)
    try:
        _any_server().load_model(as_text(model_name), config, files)
    except EngineError as error:
        raise TritonModelException(
            f"Failed to load model: {with_instance(error.message)}"
        ) from error


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model; unknown names are ignored."""
    try:
        _any_server().unload_model(as_text(model_name), unload_dependents)
    except EngineError as error:
        raise TritonModelException(
            f"Failed to unload model: {with_instance(error.message)}"
        ) from error


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return True if the model can be called now."""
    if not isinstance(model_version, str):
        raise incompatible("is_model_ready", "model_version: str", model_version)
    version = -1
    if model_version:
        number = re.match(r"\s*[+-]?\d+", model_version)  # as C++'s stol reads it
        version = int(number[0]) if number else 0
        if version < 1:
            details = "" if number else " (details: stol)"
            text = with_instance(
                f"failed to get model version from specified version string '{model_version}'{details}, "
                "version should be an integral value > 0"
            )
            raise TritonModelException(f"Failed to check model readiness: {text}")
    return _any_server().is_model_ready(as_text(model_name), version)


def _server(request: ModelCall) -> ServerHandle:
    server = current_server()
    if server is None:
        raise TritonModelException(_ONLY_DURING_EXECUTE)
    running = current()
    if running is not None:
        server.note_call(running.model_name, request._model_name)
    return server


def _any_server() -> ServerHandle:
    # Unlike inference, model control is allowed in initialize and finalize.
    running = current()
    server = running.server if running is not None else current_server()
    if server is None:
        raise TritonModelException("Model control needs a model that a server runs.")
    return server


def _submit(server: ServerHandle, request: ModelCall) -> Any | InferenceResponse:
    """Return the engine's future, or the response of a refused request."""
    try:
        return server.submit(
            request._model_name,
            request._model_version,
            _inputs(request),
            request._options,
            trace=_trace(request),
        )
    except EngineError as error:
        return _failed(_refusal_text(server, request, error))


def _iterate(
    server: ServerHandle,
    request: ModelCall,
    on_first: Callable[[ResponseIterator], None] | None = None,
) -> ResponseIterator:
    name, version = request._model_name, request._model_version
    responses = ResponseIterator(
        request, on_first, lambda: server.max_unread_responses(name, version)
    )
    on_response, on_done = _weakly(responses)
    try:
        future = server.submit(
            request._model_name,
            request._model_version,
            _inputs(request),
            request._options,
            on_response,
            _trace(request),
        )
    except EngineError as error:
        responses._fail(_failed(_admission_text(server, request, error)))
        return responses
    responses._future = future
    future.add_done_callback(on_done)
    return responses


def _weakly(
    responses: ResponseIterator,
) -> tuple[Callable[[Response, bool], None], Callable[[Any], None]]:
    """Return the two callbacks of an iterator that may be dropped, even while its target waits for it."""
    reader, unread = ref(responses), responses._unread

    def on_response(response: Response, final: bool) -> None:
        found = reader()
        if found is not None:
            found._on_response(response, final)
            del found
            unread.sent(final=final)

    def on_done(future: Any) -> None:
        found = reader()
        if found is not None:
            found._on_done(future)

    return on_response, on_done


def _inputs(request: ModelCall) -> dict[str, Array]:
    return {tensor._name: wire_array(tensor._array) for tensor in request._inputs}


def _trace(request: ModelCall) -> Any:
    trace = request._trace._trace
    return None if trace is None else trace.child()


def _refusal_text(server: ServerHandle, request: ModelCall, error: EngineError) -> str:
    """Return the error text of a refused request with a single response."""
    name = request._model_name
    if server.is_decoupled(name, request._model_version):
        return (
            f"Model {name} - Error when running inference: Model {name} is using the "
            "decoupled. The current BLS request call doesn't support models using the "
            "decoupled transaction policy. Please use 'decoupled=True' argument to the "
            "'exec' or 'async_exec' calls for decoupled models.'"
        )
    return _admission_text(server, request, error)


def _admission_text(server: ServerHandle, request: ModelCall, error: EngineError) -> str:
    name = request._model_name
    text = error.message
    if not server.is_model_ready(name, request._model_version):
        text = f"Failed for execute the inference request. Model '{name}' is not ready."
    return _REFUSED.format(name, text)


def _late_text(name: str, error: BaseException) -> str:
    """Return the error text of a request that was submitted: the target's own, unless it was refused."""
    if not isinstance(error, EngineError):
        return f"{type(error).__name__}: {error}"
    return error.message if error.accepted else _REFUSED.format(name, error.message)


def _failed(message: str, code: TritonErrorCode = TritonErrorCode.INTERNAL) -> InferenceResponse:
    return InferenceResponse([], TritonError(message, code))


def _respond(
    outputs: Mapping[str, Array],
    parameters: Mapping[str, bool | int | str],
    preferred: PreferredMemory | None,
) -> InferenceResponse:
    if preferred is not None:
        outputs = {name: place(array, preferred) for name, array in outputs.items()}
    return answer_of(outputs, parameters)
