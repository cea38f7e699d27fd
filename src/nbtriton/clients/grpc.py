"""A small client of the gRPC protocol: what verification and measuring need; wants the extra ``serve``."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from nbtriton.clients.http import Reply, tensor_bytes, tensor_of
from nbtriton.config import ModelConfig
from nbtriton.errors import (
    AlreadyExistsError,
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
    UnsupportedError,
)
from nbtriton.packages import needed
from nbtriton.tensors import datatype_of, shape_of

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["GrpcClient", "LiveStream", "Part"]

_BY_CODE: dict[str, type[TritonError]] = {
    "INVALID_ARGUMENT": InvalidArgumentError,
    "NOT_FOUND": NotFoundError,
    "ALREADY_EXISTS": AlreadyExistsError,
    "UNIMPLEMENTED": UnsupportedError,
    "UNAVAILABLE": UnavailableError,
    "CANCELLED": CancelledError,
}
_SERVICE = "/inference.GRPCInferenceService/"
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


@dataclass(frozen=True, slots=True)
class Part:
    """One response of a stream.

    Attributes
    ----------
    outputs : mapping of str to numpy.ndarray
        Empty for an error, and for a final flag without tensors.
    error : str
        Empty if it is none.
    final : bool
        True for the last response of its request.
    """

    outputs: Mapping[str, np.ndarray[Any, Any]]
    error: str = ""
    final: bool = False


@dataclass(frozen=True, slots=True)
class LiveStream:
    """A stream that is open; see `GrpcClient.open_stream`."""

    requests: queue.SimpleQueue[bytes | None]
    call: Any
    thread: threading.Thread

    def send(self, request: bytes) -> None:
        """Send an encoded request."""
        self.requests.put(request)

    def close(self) -> None:
        """End the stream, whatever is under way, and wait for its thread."""
        self.requests.put(None)
        self.call.cancel()
        if self.thread is not threading.current_thread():
            self.thread.join()


class GrpcClient:
    """Talks to one server; a context manager that closes the connection.

    Parameters
    ----------
    url : str
        ``host:port``.
    timeout_s : float
        Of one call.

    Raises
    ------
    UnsupportedError
        The package ``grpcio`` is not installed.
    """

    def __init__(self, url: str, timeout_s: float = 120.0) -> None:
        with needed("gRPC", extra="serve", package="grpc"):
            import grpc
            from tritonclient.grpc import service_pb2  # type: ignore[import-untyped]
        self.url = url
        self._timeout_s = timeout_s
        self._grpc: Any = grpc
        self._messages: Any = service_pb2
        self._channel = grpc.insecure_channel(url, options=_OPTIONS)
        self._infer = self._channel.unary_unary(_SERVICE + "ModelInfer")
        self._stream = self._channel.stream_stream(_SERVICE + "ModelStreamInfer")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; calls that are under way are cancelled."""
        self._channel.close()

    def encode(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        version: int = -1,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> bytes:
        """Return the bytes of one request, which may be sent any number of times."""
        request = self._messages.ModelInferRequest(
            model_name=name, model_version="" if version == -1 else str(version)
        )
        for tensor, value in inputs.items():
            request.inputs.add(name=tensor, datatype=datatype_of(value), shape=shape_of(value))
            request.raw_input_contents.append(tensor_bytes(value))
        data: bytes = request.SerializeToString()
        return data + self.encode_parameters(parameters) if parameters else data

    def encode_parameters(self, parameters: Mapping[str, bool | int | str]) -> bytes:
        """Return the bytes that, after those of a request, give it parameters."""
        request = self._messages.ModelInferRequest()
        for key, given in parameters.items():
            kind = (
                "bool"
                if isinstance(given, bool)
                else "int64"
                if isinstance(given, int)
                else "string"
            )
            setattr(request.parameters[key], f"{kind}_param", given)
        data: bytes = request.SerializeToString()
        return data

    def infer(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        version: int = -1,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> Reply:
        """Send one request and wait for its answer.

        Raises
        ------
        TritonError
            What the server answered.
        """
        data = self.send(self.encode(name, inputs, version=version, parameters=parameters))
        response = self._messages.ModelInferResponse.FromString(data)
        return Reply(self._outputs(response), int(response.model_version or -1))

    def send(self, request: bytes) -> bytes:
        """Send an encoded request and return the encoded answer; raises as `infer`."""
        try:
            data: bytes = self._infer(request, timeout=self._timeout_s)
        except self._grpc.RpcError as error:
            raise self.error_of(error) from None
        return data

    def begin(
        self, request: bytes, on_done: Callable[[TritonError | None], object]
    ) -> Callable[[], object]:
        """Send an encoded request; `on_done` is called on another thread. Returns what cancels it."""
        call = self._infer.future(request, timeout=self._timeout_s)

        def done(call: Any) -> None:
            error: TritonError | None = None
            if call.cancelled():
                error = CancelledError("the request was cancelled by the caller")
            elif call.exception() is not None:
                error = self.error_of(call.exception())
            on_done(error)

        call.add_done_callback(done)
        cancel: Callable[[], object] = call.cancel
        return cancel

    def stream(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        version: int = -1,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> Iterator[Part]:
        """Send one request over a stream of its own and yield its responses, the last one final.

        Raises
        ------
        TritonError
            The stream itself failed; what a response says of an error is a `Part`.
        """
        wanted = {"triton_enable_empty_final_response": True, **(parameters or {})}
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        requests.put(self.encode(name, inputs, version=version, parameters=wanted))
        call = self._stream(iter(requests.get, None), timeout=self._timeout_s)
        try:
            for data in call:
                found = self._messages.ModelStreamInferResponse.FromString(data)
                response = found.infer_response
                final = bool(response.parameters["triton_final_response"].bool_param)
                # A request that is refused gets one message, without a flag (GS1).
                final = final or bool(found.error_message and not response.model_name)
                yield Part(self._outputs(response), found.error_message, final)
                if final:
                    break
        except self._grpc.RpcError as error:
            raise self.error_of(error) from None
        finally:
            requests.put(None)
            call.cancel()

    def open_stream(
        self,
        hear: Callable[[TritonError | None, bool, bool], object],
        ended: Callable[[TritonError], object],
    ) -> LiveStream:
        """Open a stream for any number of requests, one after the other.

        ``hear(error, outputs, final)`` is called for each response on a thread of the stream:
        whether it has outputs, and whether it is the last one of its request. Requests must ask
        for the empty final response. ``ended(error)`` is called once, when the stream is over.
        """
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = self._stream(iter(requests.get, None))

        def read() -> None:
            try:
                for data in call:
                    found = self._messages.ModelStreamInferResponse.FromString(data)
                    response = found.infer_response
                    final = response.parameters["triton_final_response"].bool_param
                    error = InternalError(found.error_message) if found.error_message else None
                    # A request that is refused gets one message, without a flag (GS1).
                    refused = error is not None and not response.model_name
                    hear(error, bool(response.outputs), bool(final or refused))
                end: TritonError = UnavailableError("the server ended the stream")
            except self._grpc.RpcError as raised:
                end = self.error_of(raised)
            ended(end)

        thread = threading.Thread(target=read, name="nbtriton-perf-stream", daemon=True)
        thread.start()
        return LiveStream(requests, call, thread)

    def config(self, name: str, version: int = -1) -> ModelConfig:
        """Return a model's completed configuration."""
        request = self._messages.ModelConfigRequest(name=name, version=_version(version))
        response = self._call("ModelConfig", request)
        found = ModelConfig()
        found.MergeFromString(response.config.SerializeToString())
        return found

    def statistics(self, name: str = "", version: int = -1) -> dict[str, Any]:
        """Return the statistics in the form of the HTTP endpoint's JSON."""
        from google.protobuf import json_format

        request = self._messages.ModelStatisticsRequest(name=name, version=_version(version))
        found: dict[str, Any] = json_format.MessageToDict(
            self._call("ModelStatistics", request),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        return found

    def describe(self) -> str:
        """Return the server's name and version."""
        told = self._call("ServerMetadata", self._messages.ServerMetadataRequest())
        return f"{told.name} {told.version}"

    def error_of(self, error: Any) -> TritonError:
        """Return what a failed call means."""
        code = error.code().name
        text = error.details() or code
        if code == "UNAVAILABLE" and "connect" in text:
            text = f"the server at {self.url} does not answer: {text}"
        return _BY_CODE.get(code, InternalError)(text)

    def _call(self, method: str, request: Any) -> Any:
        response = getattr(self._messages, f"{method}Response")
        call = self._channel.unary_unary(
            _SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        try:
            return call(request, timeout=self._timeout_s)
        except self._grpc.RpcError as error:
            raise self.error_of(error) from None

    def _outputs(self, response: Any) -> dict[str, Any]:
        return {
            output.name: tensor_of(output.datatype, list(output.shape), raw)
            for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
        }


def _version(version: int) -> str:
    return "" if version == -1 else str(version)
