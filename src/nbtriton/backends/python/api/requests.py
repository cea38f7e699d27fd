"""`pb_utils.InferenceRequest`: the argument of ``execute``, and a model's requests to others."""

# ruff: noqa: SLF001 - the public names of these classes are Triton's own, the others are ours
from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import numpy as np

from nbtriton.backends.base import BackendRequest, RequestOptions
from nbtriton.backends.forking import per_process
from nbtriton.backends.python.api.bls import (
    SEQUENCE_FLAGS,
    InferenceTrace,
    ModelCall,
    ResponseIterator,
    execute,
    execute_async,
)
from nbtriton.backends.python.api.pybind import (
    MemoryType,
    PreferredMemory,
    TritonModelException,
    as_text,
    as_texts,
    incompatible,
)
from nbtriton.backends.python.api.sender import InferenceResponseSender
from nbtriton.backends.python.core.values import (
    COMPACT,
    InferenceResponse,
    Tensor,
    check_parameters,
)

_RELEASE_RESCHEDULE = 2
_one_sender = per_process(threading.Lock)
# Not `str | bytes`: making that union takes 0.2 us.
_TEXT = (str, bytes)
# Lists for pybind11: anything with a length and indices, such as numpy's arrays.
_SEQUENCES = (Sequence, np.ndarray)
_LARGEST_FLAGS = 2**32 - 1
_END_OF_IDS = 2**64


_UNTRACED = InferenceTrace()
# No preference. Models cannot pass it: None is refused, as in Triton.
_ANYWHERE = PreferredMemory(MemoryType.TRITONSERVER_MEMORY_CPU)


def _is_sequence(value: object) -> bool:
    kind = type(value)
    return kind is list or (isinstance(value, _SEQUENCES) and not isinstance(value, _TEXT))


def _number(name: str, value: int, smallest: int, largest: int) -> int:
    # `index` alone takes as long as the rest.
    number = value if type(value) is int else index(value)
    if not smallest <= number <= largest:
        raise TypeError(
            f"incompatible arguments. Expected {name}: int from {smallest} to {largest}, found "
            f"{number}"
        )
    return number


def _correlation_id(value: int | str) -> int | str:
    if type(value) is int and 0 <= value < _END_OF_IDS:
        return value
    if value is None:
        raise incompatible("", "correlation_id: int or str", value)
    if isinstance(value, str):
        return str(value)
    if not isinstance(value, int):
        raise TritonModelException("Correlation ID must be integer or string")
    if not 0 <= value < _END_OF_IDS:
        raise RuntimeError(
            f"Unable to cast Python instance to C++ type: {value} is no unsigned integer of 64 bits"
        )
    return int(value)


class InferenceRequest(ModelCall):
    """A request to another model, made inside ``execute`` (business logic scripting).

    Names may be ``bytes`` too, such as a BYTES tensor's element. The requests passed to ``execute`` are of
    this type.
    """

    __slots__ = ("__weakref__", "_flags")

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
        preferred_memory: PreferredMemory = _ANYWHERE,
        trace: InferenceTrace = _UNTRACED,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> None:
        if inputs is None or requested_output_names is None or model_name is None:
            given = {
                "inputs": inputs,
                "requested_output_names": requested_output_names,
                "model_name": model_name,
            }
            raise TypeError(
                "__init__(): incompatible constructor arguments. Missing: "
                + ", ".join(name for name, value in given.items() if value is None)
            )
        if not _is_sequence(inputs):
            raise incompatible("", "inputs: list of Tensor", inputs)
        for tensor in inputs:
            if tensor is None:
                raise TritonModelException(
                    f"Input tensor for request with id '{request_id}' and model name "
                    f"'{model_name}' should not be empty."
                )
            if not isinstance(tensor, Tensor):
                raise incompatible("", "inputs: list of Tensor", tensor)
        if not _is_sequence(requested_output_names):
            raise incompatible("", "requested_output_names: list of str", requested_output_names)
        outputs = as_texts(requested_output_names)
        if "" in outputs:
            raise TritonModelException(
                f"Requested output name for request with id '{request_id}' and model name "
                f"'{model_name}' should not be empty."
            )
        if not isinstance(preferred_memory, PreferredMemory):
            raise incompatible("", "preferred_memory: PreferredMemory", preferred_memory)
        if not isinstance(trace, InferenceTrace):
            raise incompatible("", "trace: InferenceTrace", trace)
        self._flags = _number("flags", flags, 0, _LARGEST_FLAGS)
        self._inputs = list(inputs)
        self._model_name = as_text(model_name)
        self._model_version = _number("model_version", model_version, -(2**63), 2**63 - 1)
        self._options = RequestOptions(
            outputs,
            as_text(request_id),
            0,
            _number("timeout", timeout, 0, 2**64 - 1),
            _correlation_id(correlation_id),
            self._flags & SEQUENCE_FLAGS,
            None if parameters is None else check_parameters(parameters) or None,
        )
        self._preferred_memory = None if preferred_memory is _ANYWHERE else preferred_memory
        self._trace = trace

    def inputs(self) -> list[Tensor]:
        """Return the input tensors, in unspecified order."""
        return self._inputs

    def request_id(self) -> str:
        """Return the client's request id, or an empty string."""
        return self._options.request_id

    def correlation_id(self) -> int | str:
        """Return the id of the request's sequence; 0 without one."""
        value = self._options.correlation_id
        return value if isinstance(value, str) else index(value)

    def flags(self) -> int:
        """Return TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END, combined."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Replace the flags."""
        self._flags = _number("flags", flags, 0, _LARGEST_FLAGS)
        self._options = self._options.copy()  # a running call has the others
        self._options.flags = self._flags & SEQUENCE_FLAGS

    def timeout(self) -> int:
        """Return the timeout in microseconds; 0 without one."""
        return index(self._options.timeout_us)

    def parameters(self) -> str:
        """Return the request parameters as JSON."""
        # With blanks, as in Triton's module for requests that a model makes.
        return json.dumps(self._options.parameters or {})

    def requested_output_names(self) -> set[str]:
        """Return the names of the requested outputs."""
        return set(self._options.outputs)

    def trace(self) -> InferenceTrace:
        """Return the request's trace."""
        return self._trace

    def is_cancelled(self) -> bool:
        """Return True if the request was cancelled."""
        return False

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the sender of this request's responses."""
        raise TritonModelException(
            "get_response_sender is only available for requests received by 'execute'."
        )

    def set_release_flags(self, flags: int) -> None:  # noqa: ARG002 - received requests use it
        """Choose what happens to the request when ``execute`` returns."""
        raise TritonModelException(
            "set_release_flags is only available for requests received by 'execute'."
        )

    def exec(self, decoupled: bool = False) -> InferenceResponse | ResponseIterator:
        """Run this request and wait for its response; a failure is a response with ``has_error()``.

        With ``decoupled=True`` return an iterator over the responses.
        """
        return execute(self, decoupled)

    def async_exec(self, decoupled: bool = False) -> Any:
        """Return an awaitable of the result of `exec`."""
        return execute_async(self, decoupled)


class ReceivedRequest(InferenceRequest):
    """A request as an argument of ``execute``: a thin view on the engine's own, read on demand."""

    __slots__ = (
        "_backend_request",
        "_decoupled",
        "_own_flags",
        "_rescheduled",
        "_sender",
        "_tensors",
    )

    def __init__(
        self, request: BackendRequest, tensors: dict[str, Tensor], decoupled: bool
    ) -> None:
        self._backend_request = request
        self._tensors = tensors
        self._decoupled = decoupled
        self._sender: InferenceResponseSender | None = None
        self._own_flags: int | None = None
        self._rescheduled = False

    def inputs(self) -> list[Tensor]:
        return list(self._tensors.values())

    def request_id(self) -> str:
        return self._backend_request.request_id

    def correlation_id(self) -> int | str:
        return self._backend_request.correlation_id

    def flags(self) -> int:
        return self._backend_request.flags if self._own_flags is None else self._own_flags

    def set_flags(self, flags: int) -> None:
        self._own_flags = _number("flags", flags, 0, _LARGEST_FLAGS)

    def timeout(self) -> int:
        return self._backend_request.timeout_us

    def parameters(self) -> str:
        return json.dumps(dict(self._backend_request.parameters), separators=COMPACT)

    def requested_output_names(self) -> set[str]:
        return set(self._backend_request.requested_outputs)

    def trace(self) -> InferenceTrace:
        return InferenceTrace(_trace=self._backend_request.trace)

    def is_cancelled(self) -> bool:
        return self._backend_request.is_cancelled()

    def get_response_sender(self) -> InferenceResponseSender:
        if self._sender is None:
            # The instance's thread may ask concurrently with the model's own: a second sender would answer
            # the request when it is released.
            with _one_sender():
                if self._sender is None:
                    self._sender = InferenceResponseSender(
                        self._backend_request, decoupled=self._decoupled
                    )
        return self._sender

    def set_release_flags(self, flags: int) -> None:
        self._rescheduled = bool(flags & _RELEASE_RESCHEDULE)

    def exec(self, decoupled: bool = False) -> InferenceResponse | ResponseIterator:  # noqa: ARG002
        raise TritonModelException("A received request cannot be executed; construct a new one.")

    def async_exec(self, decoupled: bool = False) -> Any:  # noqa: ARG002
        raise TritonModelException("A received request cannot be executed; construct a new one.")


ReceivedRequest.__name__ = ReceivedRequest.__qualname__ = InferenceRequest.__name__


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """Return the request's input of this name, or None."""
    if type(inference_request) is ReceivedRequest:
        return inference_request._tensors.get(name)
    return _by_name(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """Return the response's output of this name, or None."""
    return _by_name(inference_response.output_tensors(), name)


def _by_name(tensors: list[Tensor], name: str) -> Tensor | None:
    return next((tensor for tensor in tensors if tensor.name() == name), None)
