"""Client over gRPC, with the package ``grpcio`` (extra ``grpc``)."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from nbtriton.common.errors import (
    AlreadyExistsError,
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    RequestTimeoutError,
    TritonError,
    UnavailableError,
    UnsupportedError,
)
from nbtriton.common.packages import needed
from nbtriton.model.config import ModelConfig
from nbtriton.model.config._proto import messages
from nbtriton.model.tensors import datatype_of, shape_of
from nbtriton.serving.clients import base

_BY_CODE: dict[str, type[TritonError]] = {
    "INVALID_ARGUMENT": InvalidArgumentError,
    "NOT_FOUND": NotFoundError,
    "ALREADY_EXISTS": AlreadyExistsError,
    "UNIMPLEMENTED": UnsupportedError,
    "UNAVAILABLE": UnavailableError,
    "CANCELLED": CancelledError,
    "DEADLINE_EXCEEDED": RequestTimeoutError,
}
_SERVICE = "/inference.GRPCInferenceService/"
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_WITH_FINAL: base.Parameters = {"triton_enable_empty_final_response": True}


class GrpcClient(base.Client[bytes]):
    """A client over gRPC.

    Parameters
    ----------
    url : str
        ``host:port``.
    timeout_s : float
        Timeout of one call in seconds.
    decodes_streams : bool
        Whether responses of `submit_streaming` have their tensors.

    Raises
    ------
    UnsupportedError
        The package ``grpcio`` is not installed.
    """

    protocol = "grpc"

    def __init__(
        self, url: str, timeout_s: float = base.TIMEOUT_S, *, decodes_streams: bool = False
    ) -> None:
        super().__init__(url, timeout_s)
        self._streamed = _outputs if decodes_streams else _undecoded
        with needed("a client over gRPC"):
            import grpc
        self._grpc: Any = grpc
        self._channel = grpc.insecure_channel(url, options=_OPTIONS)
        self._infer = self._channel.unary_unary(_SERVICE + "ModelInfer")
        self._open_stream = self._channel.stream_stream(_SERVICE + "ModelStreamInfer")
        self._lock = threading.Lock()
        self._streams: list[_Stream] = []
        # Idle streams: two requests on one stream would wait for each other's responses.
        self._idle_streams: list[_Stream] = []

    def close(self) -> None:
        """Close the connection and join the threads of its streams."""
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.close()
        self._channel.close()

    def encode(
        self, name: str, inputs: Mapping[str, Any], version: int = -1, outputs: base.Outputs = ()
    ) -> bytes:
        """Return a request as it is sent."""
        request = messages.ModelInferRequest(model_name=name, model_version=_version(version))
        for tensor, value in inputs.items():
            if isinstance(value, base.SharedTensor):
                added = request.inputs.add(name=tensor, datatype=value.datatype, shape=value.shape)
                _set_parameters(added, value.parameters)
                continue
            request.inputs.add(name=tensor, datatype=datatype_of(value), shape=shape_of(value))
            request.raw_input_contents.append(base.tensor_bytes(value))
        for output in outputs:
            named = request.outputs.add(name=output)
            if isinstance(outputs, Mapping):
                _set_parameters(named, outputs[output].parameters)
        data: bytes = request.SerializeToString()
        return data

    def with_parameters(
        self, request: bytes, parameters: base.Parameters, request_id: str = ""
    ) -> bytes:
        """Return an encoded request with further parameters, appended for protobuf to merge."""
        if not parameters and not request_id:
            return request
        added = messages.ModelInferRequest(id=request_id)
        _set_parameters(added, parameters)
        encoded: bytes = added.SerializeToString()
        return request + encoded

    def send(self, request: bytes) -> bytes:
        """Send an encoded request and return its response."""
        with self._errors():
            data: bytes = self._infer(request, timeout=self.timeout_s)
        return data

    def decode(self, response: bytes) -> base.InferResponse:
        """Read a response."""
        message = messages.ModelInferResponse.FromString(response)
        return base.InferResponse(_outputs(message), int(message.model_version or -1))

    def submit(self, request: bytes) -> base.PendingRequest:
        """Send an encoded request and return at once."""
        call = self._infer.future(request, timeout=self.timeout_s)
        pending = base.PendingRequest()
        pending.abort = call.cancel

        def done(call: Any) -> None:
            if call.cancelled():
                pending.cancel()
            else:
                error = call.exception()
                if error is None:
                    pending.finish(None, call.result())
                else:
                    pending.finish(self._error_of(error))

        call.add_done_callback(done)
        return pending

    def submit_streaming(
        self, request: bytes, on_response: base.ResponseListener
    ) -> base.PendingRequest:
        """Send an encoded request over a stream with no other request in flight."""
        stream = self._idle_stream()
        listener = partial(on_response)  # of this request alone
        pending = base.PendingRequest()
        pending.abort = partial(stream.cancel, listener)
        stream.send(self.with_parameters(request, _WITH_FINAL), listener)
        return pending

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        """Return whether a model answers requests now; False also without an answer."""
        request = messages.ModelReadyRequest(name=name, version=_version(version))
        try:
            return bool(self._call("ModelReady", request).ready)
        except TritonError:
            return False

    def config(self, name: str, version: int = -1) -> ModelConfig:
        """Return a model's completed configuration, without fields unknown to this release."""
        request = messages.ModelConfigRequest(name=name, version=_version(version))
        config = ModelConfig()
        config.MergeFromString(self._call("ModelConfig", request).config.SerializeToString())
        return config

    def statistics(self, name: str = "", version: int = -1) -> dict[str, Any]:
        """Return the statistics of one model or of all, in the form of the HTTP endpoint's JSON."""
        from google.protobuf import json_format

        request = messages.ModelStatisticsRequest(name=name, version=_version(version))
        statistics: dict[str, Any] = json_format.MessageToDict(
            self._call("ModelStatistics", request),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        return statistics

    def register_memory(self, region: str, key: str, byte_size: int) -> None:
        """Register POSIX shared memory with the server, which is on this machine."""
        request = messages.SystemSharedMemoryRegisterRequest(
            name=region, key=key, offset=0, byte_size=byte_size
        )
        self._call("SystemSharedMemoryRegister", request)

    def unregister_memory(self, region: str) -> None:
        """Unregister a region."""
        request = messages.SystemSharedMemoryUnregisterRequest(name=region)
        self._call("SystemSharedMemoryUnregister", request)

    def describe(self) -> str:
        """Return the server's name and version."""
        metadata = self._call("ServerMetadata", messages.ServerMetadataRequest())
        return f"{metadata.name} {metadata.version}"

    def _call(self, method: str, request: Any) -> Any:
        response = getattr(messages, f"{method}Response")
        call = self._channel.unary_unary(
            _SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        with self._errors():
            return call(request, timeout=self.timeout_s)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the errors of failed calls as TritonError."""
        try:
            yield
        except self._grpc.RpcError as error:
            raise self._error_of(error) from None

    def _idle_stream(self) -> _Stream:
        with self._lock:
            while self._idle_streams:
                stream = self._idle_streams.pop()
                if stream.is_open:
                    return stream
            stream = _Stream(self._open_stream, self._read_stream, self._release)
            self._streams = [*(one for one in self._streams if one.thread.is_alive()), stream]
            return stream

    def _release(self, stream: _Stream) -> None:
        with self._lock:
            self._idle_streams.append(stream)

    def _read_stream(
        self, call: Any, on_response: Callable[[base.StreamResponse], object]
    ) -> TritonError:
        """Deliver the responses of a stream until it ends; return the reason of its end."""
        try:
            for data in call:
                on_response(self._stream_response(data, self._streamed))
        except self._grpc.RpcError as error:
            return self._error_of(error)
        except BaseException as error:  # ends the request in flight
            return InternalError(f"{type(error).__name__}: {error}")
        return UnavailableError("the server ended the stream")

    def _stream_response(
        self, data: bytes, outputs: Callable[[Any], Mapping[str, Any]]
    ) -> base.StreamResponse:
        message = messages.ModelStreamInferResponse.FromString(data)
        response = message.infer_response
        error = InternalError(message.error_message) if message.error_message else None
        # A refused request gets one message, without a final flag (GS1).
        refused = error is not None and not response.model_name
        final = response.parameters["triton_final_response"].bool_param or refused
        return base.StreamResponse(outputs(response), error, bool(final))

    def _error_of(self, error: Any) -> TritonError:
        """Return the error of a failed call."""
        code = error.code().name
        text = error.details() or code
        if code == "UNAVAILABLE" and "connect" in text:
            text = f"the server at {self.url} does not answer: {text}"
        return _BY_CODE.get(code, InternalError)(text)


class _Stream:
    """A stream with one request in flight at a time; `on_idle` is called when the request has ended."""

    def __init__(
        self,
        open_stream: Callable[[Iterator[bytes]], Any],
        read: Callable[[Any, Callable[[base.StreamResponse], object]], TritonError],
        on_idle: Callable[[_Stream], object],
    ) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = open_stream(iter(self._requests.get, None))
        self._read = read
        self._on_idle = on_idle
        self._lock = threading.Lock()
        self._listener: base.ResponseListener | None = None
        self._error: TritonError | None = None  # reason of the stream's end
        self.thread = threading.Thread(target=self._run, name="nbtriton-client-stream", daemon=True)
        self.thread.start()

    @property
    def is_open(self) -> bool:
        return self._error is None

    def send(self, request: bytes, on_response: base.ResponseListener) -> None:
        with self._lock:
            self._listener = on_response
        self._requests.put(request)
        if self._error is not None:  # the stream ended before the listener was set
            self._fail(self._error)

    def cancel(self, listener: base.ResponseListener) -> None:
        """End the stream, unless the listener's request is answered: the stream may have another one."""
        with self._lock:
            if self._listener is listener:
                self._error = CancelledError("the request was cancelled by the caller")
                self._call.cancel()

    def close(self) -> None:
        """End the stream and join its thread."""
        self._requests.put(None)
        self._call.cancel()
        if self.thread is not threading.current_thread():
            self.thread.join()

    def _run(self) -> None:
        self._error = self._read(self._call, self._deliver)
        self._requests.put(None)  # for grpc's thread that takes them
        self._call.cancel()  # after an error of a listener there may be more to come
        self._fail(self._error)

    def _deliver(self, response: base.StreamResponse) -> None:
        with self._lock:
            listener = self._listener
            if response.final:
                self._listener = None
        if listener is not None:
            if response.final:
                self._on_idle(self)
            listener(response, response.final)

    def _fail(self, error: TritonError) -> None:
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener(base.StreamResponse({}, error, final=True), True)


def _set_parameters(message: Any, parameters: base.Parameters) -> None:
    for key, value in parameters.items():
        kind = {bool: "bool", int: "int64", float: "double", str: "string"}[type(value)]
        # Sequence ids have 64 bits without a sign: as Triton's C++ client sends them.
        wraps = isinstance(value, int) and value >= 1 << 63
        setattr(
            message.parameters[key], f"{kind}_param", int(value) - (1 << 64) if wraps else value
        )


def _version(version: int) -> str:
    return "" if version == -1 else str(version)


def _outputs(response: Any) -> dict[str, Any]:
    return {
        output.name: base.tensor_of(output.datatype, list(output.shape), raw)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def _undecoded(response: Any) -> dict[str, Any]:
    """Return the outputs by name, not decoded."""
    return {output.name: None for output in response.outputs}
