"""What a Triton Python model imports as ``pb_utils``.

The module itself exists while a model is loaded: in nbtriton, or in Triton's python backend.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Final, Literal, final, overload

import numpy as np

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: Final = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL: Final = 1
TRITONSERVER_REQUEST_RELEASE_ALL: Final = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: Final = 2
TRITONSERVER_MEMORY_CPU: Final[_MemoryType]
TRITONSERVER_MEMORY_GPU: Final[_MemoryType]
TRITON_STRING_TO_NUMPY: dict[str, Any]

class _Numbered:
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...

class _MemoryType(_Numbered, Enum):
    TRITONSERVER_MEMORY_CPU = 0
    TRITONSERVER_MEMORY_GPU = 1

class _ErrorCode(_Numbered, Enum):
    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

class _LogLevel(_Numbered, Enum):
    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3

class _MetricKind(_Numbered, Enum):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

class TritonModelException(Exception):
    """The exception of every call of this API; a model raises it to fail its batch."""

class TritonError:
    """The error of one response; not an exception."""

    UNKNOWN: ClassVar[_ErrorCode]
    INTERNAL: ClassVar[_ErrorCode]
    NOT_FOUND: ClassVar[_ErrorCode]
    INVALID_ARG: ClassVar[_ErrorCode]
    UNAVAILABLE: ClassVar[_ErrorCode]
    UNSUPPORTED: ClassVar[_ErrorCode]
    ALREADY_EXISTS: ClassVar[_ErrorCode]
    CANCELLED: ClassVar[_ErrorCode]
    def __init__(self, message: str, code: _ErrorCode = ...) -> None: ...
    def message(self) -> str:
        """Return the text."""

    def code(self) -> _ErrorCode:
        """Return the status code."""

class Tensor:
    """A named tensor: ``pb_utils.Tensor("OUT", array)``."""

    def __init__(self, arg0: str | bytes, arg1: np.ndarray[Any, Any], /) -> None: ...
    @staticmethod
    def from_dlpack(name: str | bytes, tensor: object) -> Tensor:
        """Make a tensor from a DLPack capsule or an object with ``__dlpack__``, without a copy."""

    def name(self) -> str:
        """Return the tensor's name."""

    def as_numpy(self) -> np.ndarray[Any, Any]:
        """Return the data; BYTES as an array of objects."""

    def shape(self) -> list[int]:
        """Return the shape."""

    def triton_dtype(self) -> int:
        """Return the number of the datatype, as `triton_to_numpy_type` takes it."""

    def is_cpu(self) -> bool:
        """Return True if the data is in host memory."""

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule of the same memory."""

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class InferenceResponse:
    """The answer to one request; with an error, it fails this request alone."""

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> None: ...
    def output_tensors(self) -> list[Tensor]:
        """Return the tensors."""

    def has_error(self) -> bool:
        """Return True if the request failed."""

    def error(self) -> TritonError | None:
        """Return the error, if there is one."""

    def parameters(self) -> str:
        """Return the parameters as JSON text."""

class PreferredMemory:
    """Where the outputs of a call should be."""

    memory_type: _MemoryType
    device_id: int
    def __init__(
        self, preferred_memory_type: _MemoryType, preferred_device_id: int = 0
    ) -> None: ...

@final
class _InferenceTrace:
    def get_context(self) -> str | None:
        """Return the OpenTelemetry context as JSON, or None."""

@final
class _ResponseSender:
    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response; with ``TRITONSERVER_RESPONSE_COMPLETE_FINAL`` the last one."""

    def is_cancelled(self) -> bool:
        """Return True if nobody waits for the answer any more."""

@final
class _ResponseIterator:
    def __iter__(self) -> Iterator[InferenceResponse]: ...
    def __next__(self) -> InferenceResponse: ...
    def cancel(self) -> None:
        """Ask the model that answers to end; the iterator still ends by itself."""

class InferenceRequest:
    """A request that ``execute`` got, or one to another model (business logic scripting)."""

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
        preferred_memory: PreferredMemory = ...,
        trace: _InferenceTrace = ...,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> None: ...
    def inputs(self) -> list[Tensor]:
        """Return the input tensors."""

    def request_id(self) -> str:
        """Return the request's id, which may be empty."""

    def correlation_id(self) -> int | str:
        """Return the id of the sequence; 0 or empty outside of sequences."""

    def flags(self) -> int:
        """Return the flags of a sequence's start and end."""

    def set_flags(self, flags: int) -> None:
        """Set the flags of a sequence's start and end."""

    def timeout(self) -> int:
        """Return the timeout in microseconds; 0 without one."""

    def parameters(self) -> str:
        """Return the parameters as JSON text."""

    def requested_output_names(self) -> set[str]:
        """Return the names of the outputs that the answer is to have."""

    def trace(self) -> _InferenceTrace:
        """Return the trace; give it to requests that follow from this one."""

    def is_cancelled(self) -> bool:
        """Return True if nobody waits for the answer any more."""

    def get_response_sender(self) -> _ResponseSender:
        """Return what answers this request, now or later."""

    def set_release_flags(self, flags: int) -> None:
        """Set whether the request is rescheduled after ``execute``."""

    @overload
    def exec(self, decoupled: Literal[False] = False) -> InferenceResponse: ...
    @overload
    def exec(self, decoupled: Literal[True]) -> _ResponseIterator:
        """Run the request on its model and wait; of a decoupled one, iterate over the responses."""

    @overload
    def async_exec(
        self, decoupled: Literal[False] = False
    ) -> asyncio.Future[InferenceResponse]: ...
    @overload
    def async_exec(self, decoupled: Literal[True]) -> asyncio.Future[_ResponseIterator]:
        """Return an awaitable of what `exec` returns."""

class Logger:
    """Writes to the server's log."""

    INFO: ClassVar[_LogLevel]
    WARNING: ClassVar[_LogLevel]
    ERROR: ClassVar[_LogLevel]
    VERBOSE: ClassVar[_LogLevel]
    LogLevel: ClassVar[type[_LogLevel]]
    def __init__(self) -> None: ...
    @staticmethod
    def log(message: str, level: _LogLevel = ...) -> None:
        """Log a line at a level."""

    @staticmethod
    def log_info(message: str) -> None:
        """Log a line of information."""

    @staticmethod
    def log_warn(message: str) -> None:
        """Log a warning."""

    @staticmethod
    def log_error(message: str) -> None:
        """Log an error."""

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log a line for who asked for many."""

@final
class _Metric:
    def increment(self, value: float) -> None:
        """Add to a counter (0 or more) or to a gauge."""

    def set(self, value: float) -> None:
        """Set a gauge."""

    def observe(self, value: float) -> None:
        """Add an observation to a histogram."""

    def value(self) -> float:
        """Return the value of a counter or a gauge."""

class MetricFamily:
    """Metrics of one name, distinguished by labels."""

    COUNTER: ClassVar[_MetricKind]
    GAUGE: ClassVar[_MetricKind]
    HISTOGRAM: ClassVar[_MetricKind]
    def __init__(self, name: str, description: str, kind: _MetricKind) -> None: ...
    def Metric(
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> _Metric:
        """Return the metric with these labels; a histogram needs ascending upper bounds."""

class ModelConfig:
    """A configuration that ``auto_complete_config`` completes."""

    def __init__(self, config: str | bytes) -> None: ...
    def as_dict(self) -> dict[str, Any]:
        """Return the configuration as the server reports it; changes to the dict stick."""

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch; one that is configured can be raised, not lowered."""

    def set_dynamic_batching(self) -> None:
        """Choose the dynamic batcher."""

    def add_input(self, input: Mapping[str, Any]) -> None:
        """Add an input: ``name``, ``data_type``, ``dims`` and ``optional``."""

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add an output: ``name``, ``data_type`` and ``dims``."""

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """Set whether the model is decoupled: ``{"decoupled": True}``."""

def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """Return the request's input of this name, or None."""

def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """Return the response's output of this name, or None."""

def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the input of this name in a configuration (``json.loads(args["model_config"])``)."""

def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the output of this name in a configuration (``json.loads(args["model_config"])``)."""

def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Return True if the configuration lets the model send any number of responses."""

def triton_to_numpy_type(data_type: int) -> Any:
    """Return the NumPy type of a datatype's number; None for those that NumPy does not have."""

def numpy_to_triton_type(data_type: Any) -> int | None:
    """Return the datatype's number of a NumPy type or dtype; None for those Triton does not have."""

def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return the NumPy type of a configuration's datatype, such as ``"TYPE_FP32"``."""

def serialize_byte_tensor(input_tensor: np.ndarray[Any, Any]) -> bytes | tuple[()] | None:
    """Serialize a BYTES tensor; ``()`` when it is empty, None for other dtypes."""

def deserialize_bytes_tensor(encoded_tensor: bytes) -> np.ndarray[Any, Any]:
    """Return the elements of a serialized BYTES tensor as a one-dimensional object array."""

def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load or reload a model of the server's repository."""

def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model; unknown names are no error."""

def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return True if the model can be called now."""

def get_model_dir() -> str:
    """Return the version directory of the model that runs."""
