"""`pb_utils` requests and responses, and the sender that answers a request piece by piece."""

# ruff: noqa: SLF001 - the public names of these classes are Triton's own, the others are ours
from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from enum import IntEnum
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from nbtriton.backends.base import BackendRequest, Response
from nbtriton.backends.python.errors import TritonError, TritonModelException, as_engine_error
from nbtriton.backends.python.tensor import Tensor, own_outputs, wire_array
from nbtriton.errors import InternalError
from nbtriton.errors import TritonError as EngineError

if TYPE_CHECKING:
    from nbtriton.backends.python.bls import ResponseIterator

__all__ = [
    "COMPLETE_FINAL",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceTrace",
    "MemoryType",
    "PreferredMemory",
    "ReceivedRequest",
    "ResponseSender",
    "to_engine_response",
]

COMPLETE_FINAL = 1
_RELEASE_ALL = 1

_log = logging.getLogger("nbtriton.python")


class MemoryType(IntEnum):
    """Where a tensor is wanted."""

    TRITONSERVER_MEMORY_CPU = 0
    TRITONSERVER_MEMORY_GPU = 2


class PreferredMemory:
    """Where the outputs of a call to another model are wanted."""

    __slots__ = ("_device_id", "_memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        self._memory_type = MemoryType(preferred_memory_type)
        self._device_id = preferred_device_id

    def preferred_memory_type(self) -> MemoryType:
        """Return the kind of memory."""
        return self._memory_type

    def preferred_device_id(self) -> int:
        """Return the device within that kind."""
        return self._device_id


class InferenceTrace:
    """The trace that a request belongs to."""

    __slots__ = ("_context",)

    def __init__(self, context: str | None = None) -> None:
        self._context = context

    def get_context(self) -> str | None:
        """Return the OpenTelemetry context as JSON, or None."""
        return self._context


class InferenceResponse:
    """The answer to one request.

    Parameters
    ----------
    output_tensors : sequence of Tensor
    error : TritonError, optional
        Fails this request alone; the tensors are then ignored.
    parameters : dict, optional
        bool, int or str values by name.
    """

    __slots__ = ("_error", "_output_tensors", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> None:
        for tensor in output_tensors:
            if not isinstance(tensor, Tensor):
                raise TypeError(
                    "__init__(): incompatible constructor arguments. Expected a list of Tensor, "
                    f"found type {type(tensor).__name__}"
                )
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(
                "__init__(): incompatible constructor arguments. Expected error: TritonError, "
                f"found type {type(error).__name__}"
            )
        self._output_tensors = list(output_tensors)
        self._error = error
        self._parameters = check_parameters(parameters) if parameters else {}

    def output_tensors(self) -> list[Tensor]:
        """Return the tensors."""
        return self._output_tensors

    def has_error(self) -> bool:
        """Return True if the request failed."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error or None."""
        return self._error

    def parameters(self) -> str:
        """Return the response parameters as JSON."""
        return json.dumps(self._parameters)


class InferenceRequest:
    """A request to another model, made inside ``execute`` (business logic scripting).

    The requests that ``execute`` receives are of this type too.
    """

    __slots__ = (
        "__weakref__",
        "_correlation_id",
        "_flags",
        "_inputs",
        "_model_name",
        "_model_version",
        "_parameters",
        "_preferred_memory",
        "_request_id",
        "_requested_output_names",
        "_timeout",
        "_trace",
    )

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] | None = None,
        requested_output_names: Sequence[str] | None = None,
        model_name: str | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> None:
        missing = [
            name
            for name, value in (
                ("inputs", inputs),
                ("requested_output_names", requested_output_names),
                ("model_name", model_name),
            )
            if value is None
        ]
        if inputs is None or requested_output_names is None or model_name is None:
            raise TypeError(
                "__init__(): incompatible constructor arguments. Missing: " + ", ".join(missing)
            )
        for tensor in inputs:
            if not isinstance(tensor, Tensor):
                raise TypeError(
                    "__init__(): incompatible constructor arguments. Expected inputs to be a list "
                    f"of Tensor, found type {type(tensor).__name__}"
                )
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._requested_output_names = list(requested_output_names)
        self._model_name = model_name
        self._model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._preferred_memory = preferred_memory
        self._trace = trace or InferenceTrace()
        self._parameters = {} if parameters is None else check_parameters(parameters)

    def inputs(self) -> list[Tensor]:
        """Return the input tensors, in no promised order."""
        return self._inputs

    def request_id(self) -> str:
        """Return the id that the client gave, or an empty string."""
        return self._request_id

    def correlation_id(self) -> int | str:
        """Return the id of the sequence that this belongs to; 0 without one."""
        return self._correlation_id

    def flags(self) -> int:
        """Return TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END, combined."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Replace the flags."""
        self._flags = flags

    def timeout(self) -> int:
        """Return the timeout in microseconds; 0 without one."""
        return self._timeout

    def parameters(self) -> str:
        """Return the request parameters as JSON."""
        return json.dumps(self._parameters)

    def preferred_memory(self) -> PreferredMemory | None:
        """Return where the outputs are wanted."""
        return self._preferred_memory

    def requested_output_names(self) -> set[str]:
        """Return the names of the outputs that are wanted."""
        return set(self._requested_output_names)

    def trace(self) -> InferenceTrace:
        """Return the trace that this request belongs to."""
        return self._trace

    def is_cancelled(self) -> bool:
        """Return True once nobody waits for the answer any more."""
        return False

    def get_response_sender(self) -> ResponseSender:
        """Return the object that answers this request."""
        raise TritonModelException(
            "get_response_sender is only available for requests received by 'execute'."
        )

    def set_release_flags(self, flags: int) -> None:  # noqa: ARG002 - received requests use it
        """Say what happens to the request when ``execute`` returns."""
        raise TritonModelException(
            "set_release_flags is only available for requests received by 'execute'."
        )

    def exec(self, decoupled: bool = False) -> InferenceResponse | ResponseIterator:
        """Run this request and wait for its response; failures come back as ``has_error()``.

        With ``decoupled=True`` return an iterator over the responses.
        """
        from nbtriton.backends.python import bls

        return bls.execute(self, decoupled)

    def async_exec(self, decoupled: bool = False) -> Any:
        """Return an awaitable of what `exec` returns."""
        from nbtriton.backends.python import bls

        return bls.execute_async(self, decoupled)


class ReceivedRequest(InferenceRequest):
    """A request as ``execute`` gets it: a thin view on the engine's own, read on demand."""

    __slots__ = ("_backend_request", "_decoupled", "_own_flags", "_sender", "_tensors")

    def __init__(
        self, request: BackendRequest, tensors: dict[str, Tensor], *, decoupled: bool
    ) -> None:
        self._backend_request = request
        self._tensors = tensors
        self._decoupled = decoupled
        self._sender: ResponseSender | None = None
        self._own_flags: int | None = None

    def inputs(self) -> list[Tensor]:
        return list(self._tensors.values())

    def request_id(self) -> str:
        return self._backend_request.request_id

    def correlation_id(self) -> int | str:
        return self._backend_request.correlation_id

    def flags(self) -> int:
        return self._backend_request.flags if self._own_flags is None else self._own_flags

    def set_flags(self, flags: int) -> None:
        self._own_flags = flags

    def timeout(self) -> int:
        return self._backend_request.timeout_us

    def parameters(self) -> str:
        return json.dumps(dict(self._backend_request.parameters))

    def preferred_memory(self) -> None:
        return None

    def requested_output_names(self) -> set[str]:
        return set(self._backend_request.requested_outputs)

    def trace(self) -> InferenceTrace:
        return InferenceTrace()

    def is_cancelled(self) -> bool:
        return self._backend_request.is_cancelled()

    def get_response_sender(self) -> ResponseSender:
        if self._sender is None:
            self._sender = ResponseSender(self._backend_request, decoupled=self._decoupled)
        return self._sender

    def set_release_flags(self, flags: int) -> None:
        if flags != _RELEASE_ALL:
            raise TritonModelException(
                "Rescheduling a request needs sequence_batching { iterative_sequence: true }."
            )

    def exec(self, decoupled: bool = False) -> InferenceResponse | ResponseIterator:  # noqa: ARG002
        raise TritonModelException("A received request cannot be executed; construct a new one.")

    def async_exec(self, decoupled: bool = False) -> Any:  # noqa: ARG002
        raise TritonModelException("A received request cannot be executed; construct a new one.")


class ResponseSender:
    """Answers one request: any number of responses for a decoupled model, else one.

    Notes
    -----
    When the last reference to a sender goes before the final flag was sent, nobody can ever answer
    the request. Triton lets its client wait for ever; here it is answered with an error.
    """

    __slots__ = ("_closed", "_count", "_decoupled", "_lock", "_request")

    def __init__(self, request: BackendRequest, *, decoupled: bool) -> None:
        self._request = request
        self._decoupled = decoupled
        self._closed = False
        self._count = 0
        # Reentrant: whoever waits for this response may be called back on this very thread.
        self._lock = threading.RLock()
        _abandoned.start()

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send one response, the final flag, or both.

        Raises
        ------
        TritonModelException
            The texts of Triton's response sender.
        """
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(
                "send(): incompatible function arguments. Expected response: InferenceResponse, "
                f"found type {type(response).__name__}"
            )
        if flags not in (0, COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if flags == 0 and response is None:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        final = flags == COMPLETE_FINAL
        with self._lock:
            self._check_and_count(response, final)
            reply = None
            if response is not None:
                own_outputs(response._output_tensors)
                reply = to_engine_response(response, self._request)
            try:
                self._request.send(reply, final=final)
            except EngineError as error:
                raise TritonModelException(
                    "Unable to send response. Response sender has been closed."
                ) from error

    def close(self) -> None:
        """Note that the request was answered in another way."""
        self._closed = True

    def was_used(self) -> bool:
        """Return True if a response was sent."""
        return self._count > 0

    def is_cancelled(self) -> bool:
        """Return True once nobody waits for the answer any more; the final flag is still needed."""
        return self._request.is_cancelled()

    def _check_and_count(self, response: InferenceResponse | None, final: bool) -> None:
        # The order of these checks is Triton's.
        if not self._decoupled:
            if response is not None and self._count > 0:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send more than one response."
                )
            if response is None and self._count == 0:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final "
                    "before sending a response."
                )
        if self._closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        self._closed = final
        self._count += 1

    def __del__(self) -> None:
        # Not `self._request.send`: a finalizer may run anywhere, also under the engine's lock.
        if not getattr(self, "_closed", True):
            _abandoned.put(self._request)


class _Abandoned:
    """Answers requests whose sender is gone, on a thread of its own."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[BackendRequest] = SimpleQueue()
        self._started = False
        self._lock = threading.Lock()

    def start(self) -> None:
        if self._started:
            return
        with self._lock:
            if not self._started:
                threading.Thread(
                    target=self._run, name="nbtriton-abandoned-requests", daemon=True
                ).start()
                self._started = True

    def put(self, request: BackendRequest) -> None:
        self._queue.put(request)

    def _run(self) -> None:
        while True:
            request = self._queue.get()
            try:
                if not request.is_answered():
                    request.send(Response(error=unanswered_error()), final=True)
            except EngineError as error:  # answered in between, or the server is closed
                _log.debug("abandoned request: %s", error)
            del request


_abandoned = _Abandoned()


def unanswered_error() -> InternalError:
    """Return the error of a request that its model let go without an answer."""
    return InternalError(
        "The model finished with the request without sending a final response.",
        hint="return an InferenceResponse for it, or call "
        "sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)",
    )


def to_engine_response(response: InferenceResponse, request: BackendRequest) -> Response:
    """Return the engine's form of a response: the requested outputs, or the error alone."""
    if response._error is not None:
        return Response(error=as_engine_error(response._error), parameters=response._parameters)
    requested = request.requested_outputs
    outputs = {
        tensor._name: wire_array(tensor._array)
        for tensor in response._output_tensors
        if tensor._name in requested
    }
    return Response(outputs, None, response._parameters)


def check_parameters(parameters: Any) -> dict[str, Any]:
    """Return a copy of request or response parameters; TritonModelException with Triton's texts."""
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect N8pybind114dictE, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(
                f"Expect parameters keys to have type str, found type {type(key)}"
            )
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}"
            )
    return dict(parameters)
