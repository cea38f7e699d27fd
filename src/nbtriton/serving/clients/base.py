"""Interface of a client, and its responses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from nbtriton.common.closing import Closing
from nbtriton.common.errors import CancelledError, InternalError, TritonError, UnsupportedError
from nbtriton.model import tensors
from nbtriton.model.config import ModelConfig

Protocol = Literal["http", "grpc"]
Parameters = Mapping[str, bool | int | str]
EncodedT = TypeVar("EncodedT")
NO_STREAMS = "Streaming is only allowed with gRPC protocol and in the process."
# Default timeout of one call; loading a model may take long.
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class InferResponse:
    """Response to a request: arrays by name, model version, response parameters."""

    outputs: Mapping[str, np.ndarray[Any, Any]]
    model_version: int
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamResponse:
    """One response of a stream.

    Attributes
    ----------
    outputs : mapping of str to numpy.ndarray
        Empty for an error, and for a final flag without tensors.
    error : TritonError or None
    final : bool
        True for the last response of its request.
    """

    outputs: Mapping[str, Any]
    error: TritonError | None = None
    final: bool = False


class SharedTensor(NamedTuple):
    """A tensor in a registered region of shared memory: an input, or the space for an output.

    Attributes
    ----------
    datatype : str
    shape : tuple of int
        Empty for an output, whose shape the server returns.
    region : str
        Name of the region.
    byte_size, offset : int
        Part of the region in bytes.
    """

    datatype: str
    shape: tuple[int, ...]
    region: str
    byte_size: int
    offset: int = 0

    @property
    def parameters(self) -> Mapping[str, str | int]:
        """Parameters of the tensor in a request."""
        fields: dict[str, str | int] = {
            "shared_memory_region": self.region,
            "shared_memory_byte_size": self.byte_size,
        }
        return {**fields, "shared_memory_offset": self.offset} if self.offset else fields


# Requested outputs: names, or places in shared memory by name.
Outputs = Sequence[str] | Mapping[str, SharedTensor]


# Called on a thread of the client with each response of a request, and whether it is the last one.
ResponseListener = Callable[[StreamResponse, bool], object]


class PendingRequest(Future[object]):
    """A request in flight, whose result is the response for `Client.decode`.

    `cancel` ends it with a `CancelledError`, even while it is being sent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.abort: Callable[[], object] | None = None

    def finish(self, error: Exception | None, response: object = None) -> bool:
        """Set the outcome; False if the request has already ended."""
        try:
            if error is None:
                self.set_result(response)
            else:
                self.set_exception(error)
        except InvalidStateError:
            return False
        return True

    def cancel(self) -> bool:
        """Cancel the request; False if it has already ended."""
        cancelled = self.finish(CancelledError("the request was cancelled by the caller"))
        abort = self.abort
        if cancelled and abort is not None:
            abort()
        return cancelled


class Client(Closing, ABC, Generic[EncodedT]):
    """A client of one server; a context manager that closes its connections.

    A request is encoded once and may be sent any number of times, from any thread.

    Parameters
    ----------
    url : str
        ``host:port``.
    timeout_s : float
        Timeout of one call in seconds.
    """

    protocol: ClassVar[Protocol]

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url
        self.timeout_s = timeout_s

    @abstractmethod
    def close(self) -> None:
        """Close the connections; requests in flight end with an error."""

    @abstractmethod
    def encode(
        self, name: str, inputs: Mapping[str, Any], version: int = -1, outputs: Outputs = ()
    ) -> EncodedT:
        """Return an encoded request; without `outputs` for all outputs.

        An input may be a `SharedTensor`.
        """

    @abstractmethod
    def with_parameters(
        self, request: EncodedT, parameters: Parameters, request_id: str = ""
    ) -> EncodedT:
        """Return an encoded request with further parameters; its tensors are not encoded again."""

    @abstractmethod
    def send(self, request: EncodedT) -> object:
        """Send an encoded request and return its response for `decode`; raises as `infer`."""

    @abstractmethod
    def decode(self, response: Any) -> InferResponse:
        """Read a response of `send`."""

    def infer(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        version: int = -1,
        parameters: Parameters | None = None,
    ) -> InferResponse:
        """Send one request and wait for its response.

        Raises
        ------
        TritonError
            The server's error; UnavailableError if it cannot be reached.
        """
        request = self.encode(name, inputs, version)
        return self.decode(self.send(self.with_parameters(request, parameters or {})))

    @abstractmethod
    def submit(self, request: EncodedT) -> PendingRequest:
        """Send an encoded request and return at once."""

    def submit_streaming(
        self,
        request: EncodedT,  # noqa: ARG002 - a protocol with streams uses both
        on_response: ResponseListener,  # noqa: ARG002
    ) -> PendingRequest:
        """Send an encoded request over a stream and return at once.

        `on_response` is called with each response, its outputs not decoded unless the client was made so. The
        returned `PendingRequest` ends only if it is cancelled.

        Raises
        ------
        UnsupportedError
            The protocol has no streams.
        """
        raise UnsupportedError(NO_STREAMS)

    @abstractmethod
    def is_model_ready(self, name: str, version: int = -1) -> bool:
        """Return whether a model answers requests now; False also without an answer."""

    @abstractmethod
    def config(self, name: str, version: int = -1) -> ModelConfig:
        """Return a model's completed configuration, without fields unknown to this release."""

    @abstractmethod
    def statistics(self, name: str = "", version: int = -1) -> dict[str, Any]:
        """Return the statistics of one model or of all, in the form of the HTTP endpoint's JSON."""

    @abstractmethod
    def register_memory(self, region: str, key: str, byte_size: int) -> None:
        """Register POSIX shared memory with the server, which is on this machine."""

    @abstractmethod
    def unregister_memory(self, region: str) -> None:
        """Unregister a region."""

    @abstractmethod
    def describe(self) -> str:
        """Return the server's name and version."""


def tensor_bytes(value: Any) -> bytes:
    """Return a tensor's bytes in the protocols' layout."""
    array = tensors.to_numpy(value)
    if tensors.datatype_of(value) == "BYTES":
        return tensors.serialize_bytes(array)
    return bytes(array.tobytes())


def tensor_of(datatype: str, shape: list[int], body: bytes | memoryview) -> Any:
    """Return the tensor of received bytes.

    Raises
    ------
    InternalError
        The bytes do not match the shape, for example because a python backend's NumPy does not match its stub.
    """
    try:
        if datatype == "BYTES":
            return tensors.deserialize_bytes(body).reshape(shape)
        return np.frombuffer(body, tensors.numpy_dtype(datatype)).reshape(shape)
    except ValueError:
        raise InternalError(
            f"the server sent {len(body)} bytes for a tensor of {datatype} with shape {shape}"
        ) from None
