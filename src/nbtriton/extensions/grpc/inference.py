"""ModelInfer and ModelStreamInfer (GS1 to GS9).

Most requests differ only in their ids and tensors: the parsed form of all other bytes is cached as a template.
"""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic_ns
from typing import Any, NamedTuple

from nbtriton.backends.base import Response
from nbtriton.backends.unread import UnreadResponses
from nbtriton.common.errors import CancelledError, InternalError, TritonError, UnsupportedError
from nbtriton.extensions.grpc import requests, responses
from nbtriton.extensions.grpc.calls import StreamCall, UnaryCall
from nbtriton.extensions.grpc.requests import Contents
from nbtriton.model.config._proto import messages
from nbtriton.runtime.engine import BARE_FINAL, InferenceRequest, JoinBatch, ModelSignature
from nbtriton.serving.frontends.buffers import LONGEST, TemplateCache
from nbtriton.serving.frontends.kserve.call import (
    InferCall,
    InferTemplate,
    Responder,
    submit_together,
)
from nbtriton.serving.frontends.kserve.shared_memory import READ_AT_ONCE, Leasing, LongReadError
from nbtriton.serving.frontends.kserve.wire import read_version
from nbtriton.serving.frontends.service import Forwards, Service

_Read = tuple[ModelSignature, int, InferCall]

_log = logging.getLogger("nbtriton.serving.frontends")

_ENDS_AT_ERRORS = ("triton_grpc_error", "true")
_CANCELLED = "the request was cancelled by the caller"
_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"  # Y5


_RAW_TAG = 0x3A
# Where the tensors of a message with a template begin at the latest, behind a long id.
_FARTHEST = 2 * LONGEST
# Most tensors of a long message that is read on the loop.
_FEW = 64
# Fields before the tensors: model_name, model_version, id, parameters, inputs and outputs.
_BEFORE_RAW = frozenset({0x0A, 0x12, requests.ID_TAG, 0x22, 0x2A, 0x32})


class _ProtoTemplate(NamedTuple):
    model: str
    version: int
    tensors: InferTemplate


class ProtoTemplates:
    """Templates by the bytes of requests; used by one thread."""

    def __init__(self) -> None:
        self._cache = TemplateCache[_ProtoTemplate]()

    def read(self, data: bytes) -> tuple[str, int, InferCall] | None:
        """Return model, version and call of a request with a template; None without one."""
        found = _split(data)
        if found is None:
            return None
        key, id_at, id_end, position = found
        template = self._cache.find(key)
        if template is None or len(data) - position != template.tensors.size:
            return None
        model, version, tensors = template
        for head, offset in tensors.heads:
            if not data.startswith(head, position + offset):
                return None
        try:
            request_id = data[id_at:id_end].decode() if id_end else ""
        except UnicodeDecodeError:
            return None
        return model, version, tensors.call(data, position, request_id)

    def remember(self, data: bytes, request: Any, version: int, call: InferCall) -> None:
        """Store the template of a request, if other requests can use it."""
        found = _split(data)
        inputs, raw = request.inputs, request.raw_input_contents
        if (
            found is None
            or len(raw) != len(inputs)
            or any(tensor.HasField("contents") for tensor in inputs)
        ):
            return
        heads = [bytes((_RAW_TAG,)) + requests.varint(len(content)) for content in raw]
        tensors = [
            (tensor.name, tensor.datatype, tuple(tensor.shape), head, len(content))
            for tensor, head, content in zip(inputs, heads, raw, strict=True)
        ]
        template = InferTemplate.of(call, tensors)
        if template is not None:
            self._cache.remember(found[0], _ProtoTemplate(request.model_name, version, template))


def is_plain(data: bytes) -> bool:
    """Return whether a message is short but for a few tensors, which need not be looked at to read it."""
    found = _split(data)
    if found is None or b"BYTES" in found[0]:
        return False
    position, end = found[-1], len(data)
    try:
        for _ in range(_FEW):
            if position >= end:
                return True
            if data[position] != _RAW_TAG:
                return False
            length, position = requests.read_varint(data, position + 1)
            position += length
    except (IndexError, InternalError):
        pass
    return False


def _split(data: bytes) -> tuple[bytes, int, int, int] | None:
    """Find the request id and the start of the tensors.

    Returns
    -------
    key, id_at, id_end, raw_at
        The key is everything before the tensors without the id; `id_end` is 0 without an id.
        None for a message that protobuf has to read, or that is long even without its tensors.
    """
    position = field_at = id_at = id_end = id_field = 0
    end = min(len(data), _FARTHEST)
    try:
        while position < end:
            tag = data[position]
            if tag == _RAW_TAG:
                break
            if tag not in _BEFORE_RAW:
                return None
            field_at = position
            length = data[position + 1]
            position += 2
            if length > 0x7F:
                length, position = requests.read_varint(data, position - 1)
            if tag == requests.ID_TAG:
                if id_end:  # a second one counts, not the first
                    return None
                id_field, id_at, id_end = field_at, position, position + length
            position += length
    except (IndexError, InternalError):
        return None
    if position > end:
        return None
    if id_end:
        return data[:id_field] + data[id_end:position], id_at, id_end, position
    return data[:position], 0, 0, position


class GrpcInference:
    """Reader of inference requests, which submits them to the engine; used by one thread.

    Parameters
    ----------
    service : Service
    join_batch : callable, optional
        As for `RequestDispatcher.submit_many`.
    forwards : callable, optional
        Which header fields become request parameters.
    """

    def __init__(
        self,
        service: Service,
        join_batch: JoinBatch | None = None,
        forwards: Forwards | None = None,
    ) -> None:
        self.service = service
        self._forwards = forwards
        self._join_batch = join_batch
        self._templates = ProtoTemplates()
        self._short = partial(service.shared_memory.lease, at_once=READ_AT_ONCE)
        self._ready: list[_Waiting] = []

    def infer(self, data: bytes, rpc: UnaryCall) -> None:
        """Read the request of a unary call; `submit` passes it to the engine."""
        times = (rpc.since_ns, self.now_ns())
        self.receive(data, rpc, partial(self._put_unary, rpc, times), unary=True)

    def _put_unary(
        self, rpc: UnaryCall, times: tuple[int, int], found: _Read | TritonError
    ) -> None:
        if isinstance(found, TritonError):
            rpc.fail(found)
        else:
            self.put(_Unary(self, found, rpc), times, rpc.metadata)

    def receive(
        self,
        data: bytes,
        rpc: UnaryCall | StreamCall,
        then: Callable[[_Read | TritonError], object],
        *,
        unary: bool = False,
    ) -> None:
        """Read a request, a long one on a worker; `then` is called on the loop with it, or with the error."""
        found: _Read | TritonError
        try:
            found = self.read(data, rpc.metadata, unary=unary)
        except TritonError as error:
            found = error
        except LongReadError:
            rpc.run_on_worker(partial(self._read_long, data, rpc.metadata, then, unary))
            return
        then(found)

    def now_ns(self) -> int:
        """Return the time if tracing is on, else 0."""
        return monotonic_ns() if self.service.trace.on else 0

    def read(
        self, data: bytes, metadata: Sequence[tuple[str, Any]], *, unary: bool = False
    ) -> _Read:
        """Read a request; raises TritonError with Triton's text, or LongReadError."""
        cached = self._templates.read(data)
        if cached is not None:
            name, version, call = cached
            signature = self._signature(name, version, unary)
            self._forward(metadata, call)
            return signature, version, call
        if len(data) > requests.LONG and not is_plain(data):
            raise LongReadError
        parsed = requests.parse_at_once(messages.ModelInferRequest, data)
        request, found = self._read_new(parsed, self._short, unary)
        self._templates.remember(data, request, found[1], found[2])
        self._forward(metadata, found[2])
        return found

    def _read_long(
        self,
        data: bytes,
        metadata: Sequence[tuple[str, Any]],
        then: Callable[[_Read | TritonError], object],
        unary: bool,
    ) -> Callable[[], None]:
        """Read a long request on a worker; return the function to call on the loop."""
        found: _Read | TritonError
        try:
            parsed = requests.parse(messages.ModelInferRequest, data)
            _, found = self._read_new(parsed, self.service.shared_memory.lease, unary)
            self._forward(metadata, found[2])
        except TritonError as error:
            found = error
        except Exception as error:
            _log.exception("a request could not be read")
            found = InternalError(f"{type(error).__name__}: {error}")

        def put() -> None:
            then(found)
            self.submit()

        return put

    def _read_new(
        self, parsed: tuple[Any, Sequence[Contents]], leasing: Leasing, unary: bool
    ) -> tuple[Any, _Read]:
        request, contents = parsed
        version = read_version(request.model_version)
        signature = self._signature(request.model_name, version, unary)
        call = requests.read_request(request, signature, leasing, contents)
        return request, (signature, version, call)

    def _forward(self, metadata: Sequence[tuple[str, Any]], call: InferCall) -> None:
        forwards = self._forwards
        if forwards is not None:
            call.add_parameters(
                {
                    name: text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")
                    for name, text in metadata
                    if forwards(name.encode())
                }
            )

    def _signature(self, name: str, version: int, unary: bool) -> ModelSignature:
        signature = self.service.server.engine.inspection.signature(name, version)
        if unary and signature.decoupled:  # before other checks, as in Triton
            raise UnsupportedError(_DECOUPLED)
        return signature

    def put(
        self, waiting: _Waiting, read_ns: tuple[int, int], metadata: Sequence[tuple[str, Any]]
    ) -> None:
        """Add a request to the next `submit`; `read_ns` has the start of the wait for it, and its arrival."""
        tracing = self.service.trace
        if tracing.on:
            found = dict(metadata)
            parent = tracing.parent(found.get("traceparent"), found.get("tracestate"))
            trace = tracing.sample(waiting.signature.name, parent)
            waiting.start_trace(trace, "GRPC_WAITREAD_START", "GRPC_WAITREAD_END", read_ns)
        self._ready.append(waiting)

    def submit(self) -> None:
        """Submit the requests that arrived together to the engine."""
        found, self._ready = self._ready, []
        ready = []
        for waiting in found:
            if waiting.is_cancelled():  # cancelled since it was read
                waiting.refused(CancelledError(_CANCELLED))
            else:
                ready.append(waiting)
        if ready:
            submit_together(self.service.server, ready, self._join_batch)


class _Waiting(Responder):
    """A gRPC request from the end of its reading to its last response.

    Parameters
    ----------
    inference : GrpcInference
    found : tuple
        Signature, version and call, as for `Responder`.
    """

    __slots__ = ("_is_over", "_request", "_service")

    call: InferCall

    def __init__(self, inference: GrpcInference, found: _Read) -> None:
        super().__init__(*found)
        self._service = inference.service
        self._request: InferenceRequest | None = None
        self._is_over = False

    def submitted(self, request: InferenceRequest | TritonError) -> None:
        if isinstance(request, TritonError):
            self.refused(request)
            return
        self._request = request
        if self._is_over:  # answered in the meantime
            self._request = None
        elif self.is_cancelled():
            self.cancel()

    def close(self) -> None:
        super().close()
        self._is_over = True
        # Break the reference cycle, so that tensors do not wait for the garbage collector.
        self._request = None

    def cancel(self) -> None:
        """Cancel the request: its client no longer waits."""
        request = self._request
        if request is not None:
            request.cancel()

    def encoded(
        self, outputs: Mapping[str, Any], parameters: Mapping[str, Any], version: int
    ) -> bytes:
        """Return a serialized response; raises TritonError if it cannot be sent."""
        signature = self.signature
        return self.written(
            responses.encode_response, self.call, outputs, parameters, signature.name, version,
            signature.max_batch_size > 0, self._service.labels,
        )  # fmt: skip

    @abstractmethod
    def is_cancelled(self) -> bool:
        """True if the client no longer waits."""

    @abstractmethod
    def refused(self, error: TritonError) -> None:
        """Answer a request that the engine refused."""


class _Unary(_Waiting):
    """One ModelInfer call."""

    __slots__ = ("_answer", "_rpc")

    def __init__(self, inference: GrpcInference, found: _Read, rpc: UnaryCall) -> None:
        super().__init__(inference, found)
        self._rpc = rpc
        self._answer: bytes | TritonError | None = None
        rpc.on_cancel = self.cancel

    def is_cancelled(self) -> bool:
        return self._rpc.is_cancelled

    def cancel(self) -> None:
        super().cancel()
        # The call ends at once, though the model may still run.
        self._rpc.fail(CancelledError(_CANCELLED))

    def refused(self, error: TritonError) -> None:
        self.close()
        self._rpc.fail(error)

    def handle_response(self, request: InferenceRequest, response: Response, final: bool) -> None:
        if final:
            self.record("INFER_RESPONSE_COMPLETE", "GRPC_SEND_START")
        if self._answer is None or response is not BARE_FINAL:
            self._answer = self._encode(request, response)
        if not final:
            return
        # Before the response: a client that has the response may unregister the memory.
        self.call.release()
        if isinstance(self._answer, bytes):
            self._rpc.reply(self._answer)
        else:
            self._rpc.fail(self._answer)
        self.record("GRPC_SEND_END")
        self.close()

    def _encode(self, request: InferenceRequest, response: Response) -> bytes | TritonError:
        if response.error is not None:
            return response.error
        assert request.runtime is not None
        try:
            return self.encoded(response.outputs, response.parameters, request.runtime.version)
        except TritonError as error:
            return error


class InferStream:
    """One ModelStreamInfer call: any number of requests, each answered when it is done."""

    def __init__(self, inference: GrpcInference, rpc: StreamCall) -> None:
        self._inference = inference
        self._rpc = rpc
        self._lock = threading.Lock()
        # Arrival of the last request, or the start of the call.
        self._since_ns = inference.now_ns()
        self._running: set[_Streamed] = set()
        self._ended = False
        # Whether the client wants an error of a model to end the call with its status.
        self.ends_at_errors = any(field == _ENDS_AT_ERRORS for field in rpc.metadata)

    def on_message(self, data: bytes) -> None:
        """Read one request; `GrpcInference.submit` passes it to the engine."""
        since_ns, self._since_ns = self._since_ns, self._inference.now_ns()
        times = (since_ns, self._since_ns)
        self._inference.receive(data, self._rpc, partial(self._put, data, times))

    def _put(self, data: bytes, times: tuple[int, int], found: _Read | TritonError) -> None:
        rpc = self._rpc
        if isinstance(found, TritonError):
            rpc.send(responses.encode_stream_error(found.message, requests.read_request_id(data)))
            rpc.message_done()
            return
        request = _Streamed(self._inference, found, self, rpc)
        with self._lock:
            self._running.add(request)
        self._inference.put(request, times, rpc.metadata)

    def on_half_close(self) -> None:
        """End the call after the last response: no more requests will arrive."""
        with self._lock:
            self._ended = True
            over = not self._running
        if over:
            self._rpc.finish()

    def on_cancel(self) -> None:
        """Cancel the requests in progress (GS8)."""
        with self._lock:
            running = list(self._running)
        for request in running:
            request.cancel()

    def failed(self, error: TritonError) -> None:
        """End the call with the error of a response; cancel the other requests."""
        self._rpc.fail(error)
        self.on_cancel()

    def end_request(self, request: _Streamed) -> None:
        """Note that a request is answered completely; harmless when repeated."""
        with self._lock:
            if request not in self._running:
                return
            self._running.discard(request)
            over = self._ended and not self._running
        self._rpc.message_done()
        if over:
            self._rpc.finish()


class _Streamed(_Waiting):
    """One request of a stream."""

    __slots__ = ("_only", "_rpc", "_stream", "_unread")

    def __init__(
        self, inference: GrpcInference, found: _Read, stream: InferStream, rpc: StreamCall
    ) -> None:
        super().__init__(inference, found)
        self._stream = stream
        self._rpc = rpc
        self._only: bytes | None = None
        self._unread: UnreadResponses | None = None
        if self.signature.decoupled:
            limit = inference.service.server.engine.inspection.max_unread_responses
            self._unread = UnreadResponses(partial(limit, self.signature.name, self.version))

    def is_cancelled(self) -> bool:
        return self._rpc.is_cancelled

    def cancel(self) -> None:
        super().cancel()
        if self._unread is not None:
            self._unread.end()
        self._stream.end_request(self)

    def close(self) -> None:
        super().close()
        if self._unread is not None:
            self._unread.end()

    def refused(self, error: TritonError) -> None:
        self.close()
        self._rpc.send(responses.encode_stream_error(error.message, self.call.request_id))
        self._stream.end_request(self)

    def handle_response(self, request: InferenceRequest, response: Response, final: bool) -> None:
        data: bytes | None
        if self.signature.decoupled:
            data = self._encode_decoupled(request, response, final=final)
        else:  # GS3: responses and errors after the first response are dropped
            if self._only is None:
                self._only = self._encode(request, response, final=True)
            if not final:
                return
            data = self._only
        if final:
            self.call.release()
        if data is not None:
            self.record("INFER_RESPONSE_COMPLETE", "GRPC_SEND_START")
            unread, on_sent = self._unread, None
            if unread is not None:
                unread.sent(final=final)  # holds the model while its client is behind
                on_sent = unread.read if unread.is_limited else None
            self._rpc.send(data, on_sent)
            self.record("GRPC_SEND_END")
        if final:
            self.close()
            self._stream.end_request(self)

    def _encode_decoupled(
        self, request: InferenceRequest, response: Response, *, final: bool
    ) -> bytes | None:
        """Return the message of a decoupled model's response; None for no message (GS2 to GS6)."""
        if response is not BARE_FINAL:
            return self._encode(request, response, final=final)
        if not self.call.empty_final:
            return None
        return responses.encode_stream_response(self.encoded({}, {}, self.version), final=True)

    def _encode(self, request: InferenceRequest, response: Response, *, final: bool) -> bytes:
        error = response.error
        if error is None:
            assert request.runtime is not None
            try:
                data = self.encoded(response.outputs, response.parameters, request.runtime.version)
                return responses.encode_stream_response(data, final=final)
            except TritonError as raised:
                error = raised
        if not error.accepted:
            return responses.encode_stream_error(error.message, self.call.request_id)
        if self._stream.ends_at_errors:
            self._stream.failed(error)
        return responses.encode_stream_error(
            error.message,
            self.call.request_id,
            model=self.signature.name,
            version=self.version,
            final=final,
        )
