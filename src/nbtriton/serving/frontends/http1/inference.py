"""Inference over HTTP: infer, generate and generate_stream (KS20 to KS39, KS50 to KS53)."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from nbtriton.common.errors import InvalidArgumentError, TritonError, UnsupportedError
from nbtriton.runtime.engine import BARE_FINAL
from nbtriton.serving.frontends.buffers import DecompressionError, Decompressor, OversizeError
from nbtriton.serving.frontends.http1.connection import RequestResponseCycle
from nbtriton.serving.frontends.http1.response import (
    JSON,
    TEXT,
    Data,
    HttpResponse,
    RequestHead,
    error_body,
    error_response,
    unexpected_error,
)
from nbtriton.serving.frontends.kserve.call import Responder, submit_together
from nbtriton.serving.frontends.kserve.json_codec import (
    JsonTemplates,
    decode_generate,
    decode_infer,
    encode_generate,
    encode_infer,
)
from nbtriton.serving.frontends.kserve.shared_memory import READ_AT_ONCE, LongReadError
from nbtriton.serving.frontends.kserve.wire import BrokenStringError, read_version

if TYPE_CHECKING:
    from nbtriton.backends.base import Response
    from nbtriton.runtime.engine import InferenceRequest, JoinBatch, ModelSignature
    from nbtriton.serving.frontends.kserve.call import InferCall
    from nbtriton.serving.frontends.kserve.shared_memory import Leasing
    from nbtriton.serving.frontends.service import Forwards, Service

    # The arguments of `HttpResponder`.
    _Request = tuple[RequestResponseCycle, ModelSignature, int, InferCall]

T = TypeVar("T")


_BINARY = b"application/octet-stream"
_EVENTS = b"text/event-stream; charset=utf-8"
_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)


class HttpResponder(Responder):
    """An HTTP request from the end of its reading to its response.

    Parameters
    ----------
    cycle : RequestResponseCycle
    signature, version, call
        As for `Responder`.
    """

    __slots__ = ("cycle",)

    def __init__(
        self, cycle: RequestResponseCycle, signature: ModelSignature, version: int, call: InferCall
    ) -> None:
        super().__init__(signature, version, call)
        self.cycle = cycle

    def submitted(self, request: InferenceRequest | TritonError) -> None:
        if isinstance(request, TritonError):
            self.refuse(error_response(request))
            return
        cycle = self.cycle
        cycle.on_disconnect = request.cancel
        if cycle.finished:
            request.cancel()

    def refuse(self, response: HttpResponse) -> None:
        """Answer a request that the engine refused."""
        self.close()
        self.cycle.respond(response)

    def encode(
        self, encoder: Callable[..., T], request: InferenceRequest, response: Response, *more: Any
    ) -> T:
        """Return the bytes of a response; raises TritonError if it cannot be written."""
        runtime = request.runtime
        assert runtime is not None
        outputs, parameters = response.outputs, response.parameters
        return self.written(
            encoder, self.call, outputs, parameters, runtime.name, runtime.version, *more
        )


class InferResponder(HttpResponder):
    """One response with tensors, for ``…/infer``.

    Parameters
    ----------
    service : Service
        Source of the class labels.
    encoding : str
        Content coding of the body: ``identity``, ``gzip`` or ``deflate``.
    *request
        As for `HttpResponder`.
    """

    __slots__ = ("_encoding", "_response", "_service")

    def __init__(self, service: Service, encoding: str, *request: *_Request) -> None:
        super().__init__(*request)
        self._service = service
        self._encoding = encoding
        self._response: HttpResponse | None = None

    def handle_response(self, request: InferenceRequest, response: Response, final: bool) -> None:
        if final:
            self.record("INFER_RESPONSE_COMPLETE", "HTTP_SEND_START")
        if self._response is None or response is not BARE_FINAL:
            self._response = self._written(request, response)
        if final:
            # Before the response: a client that has the response may unregister the memory.
            self.call.release()
            self.cycle.respond(self._response)
            self.record("HTTP_SEND_END")
            self.end_trace()

    def _written(self, request: InferenceRequest, response: Response) -> HttpResponse:
        if response.error is not None:
            return error_response(response.error, TEXT if response.error.accepted else JSON)
        batches = self.signature.max_batch_size > 0
        labels = self._service.labels
        try:
            parts, length = self.encode(encode_infer, request, response, batches, labels)
        except TritonError as error:
            return error_response(error, TEXT)
        headers = ((b"Inference-Header-Content-Length", b"%d" % length),) if length else ()
        kind = _BINARY if length else JSON
        if self._encoding == "identity":
            return HttpResponse(200, kind, parts, headers)
        body = b"".join(parts)
        # Level 6, the default of zlib and Triton.
        deflate = self._encoding == "deflate"
        packed = zlib.compress(body) if deflate else gzip.compress(body, 6, mtime=0)
        headers = (*headers, (b"Content-Encoding", self._encoding.encode()))
        return HttpResponse(200, kind, (packed,), headers)


class GenerateResponder(HttpResponder):
    """One response as one body, for ``…/generate`` (KS52, KS53)."""

    __slots__ = ("_body", "_count", "_status")

    def __init__(self, *request: *_Request) -> None:
        super().__init__(*request)
        self._count = 0
        self._status = 200
        self._body = b""

    def handle_response(self, request: InferenceRequest, response: Response, final: bool) -> None:
        if response.error is not None and not response.error.accepted:
            self.refuse(error_response(response.error))
            return
        self.record("INFER_RESPONSE_COMPLETE")
        body, failed = self._written(request, response)
        if body or final:
            self.record("HTTP_SEND_START")
        if body:
            self._count += 1
            self._send(body, failed=failed)
        if final:
            self._finish()
        if body or final:
            self.record("HTTP_SEND_END")
        if final:
            self.close()

    def _send(self, body: bytes, *, failed: bool) -> None:
        if self._count == 1:
            self._status = 400 if failed else 200
            self._body = body

    def _finish(self) -> None:
        cycle = self.cycle
        cycle.begin(self._status, JSON)
        cycle.chunk(self._body if self._count == 1 else error_body(_NOT_ONE))
        cycle.end()

    def _written(self, request: InferenceRequest, response: Response) -> tuple[bytes, bool]:
        """Return the text of a response, empty for an empty final response, and whether it is an error."""
        if response is BARE_FINAL:
            return b"", False
        if response.error is not None:
            return error_body(response.error.message), True
        try:
            return self.encode(encode_generate, request, response), False
        except TritonError as error:
            return error_body(error.message), True


class SseResponder(GenerateResponder):
    """Each response as a server-sent event, for ``…/generate_stream``."""

    __slots__ = ()

    def _send(self, body: bytes, *, failed: bool) -> None:
        if self._count == 1:
            self.cycle.begin(400 if failed else 200, _EVENTS)
        self.cycle.chunk(b"data: %s\n\n" % body)

    def _finish(self) -> None:
        if not self._count:
            self.cycle.begin(200, _EVENTS)
        self.cycle.end()


# Handler of the requests with one head: answers a request, or returns its responder for the engine.
RouteHandler = Callable[[RequestResponseCycle], HttpResponder | None]

# JSON of this size takes about a millisecond to read; longer texts are read on a worker.
LONG_JSON = 64 << 10
_DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"
_HEADER_LENGTH = b"inference-header-content-length"
_ATOI = re.compile(rb"\s*([+-]?\d{1,18})")
_PLAIN = b"identity"
_COMPRESSED = (b"gzip", b"deflate")
# As in Triton, the body's first bytes tell gzip from zlib, not the header field.
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32


class Inference:
    """Reader of inference requests, which submits them to the engine.

    Parameters
    ----------
    service : Service
    join_batch : callable, optional
        As for `RequestDispatcher.submit_many`.
    """

    def __init__(self, service: Service, join_batch: JoinBatch | None = None) -> None:
        self.service = service
        self._join_batch = join_batch
        self.server = service.server
        self.templates = JsonTemplates()
        self.short = partial(service.shared_memory.lease, at_once=READ_AT_ONCE)

    def infer(self, head: RequestHead, name: str, version: str) -> RouteHandler:
        """Return the handler of a POST to ``…/infer``."""
        return _Infer(self, head, name, version).read

    def generate(
        self, kind: type[GenerateResponder], head: RequestHead, name: str, version: str
    ) -> RouteHandler:
        """Return the handler of a POST to ``…/generate`` or ``…/generate_stream``."""
        return partial(self._generate, kind, _encoding(head), name, version)

    def submit(self, ready: Sequence[HttpResponder]) -> None:
        """Submit requests that are ready together."""
        tracing = self.service.trace
        if tracing.on:
            for responder in ready:
                headers = responder.cycle.head.headers
                parent = tracing.parent(headers.get(b"traceparent"), headers.get(b"tracestate"))
                trace = tracing.sample(responder.signature.name, parent)
                times = responder.cycle.received_ns
                responder.start_trace(trace, "HTTP_RECV_START", "HTTP_RECV_END", times)
        submit_together(self.server, ready, self._join_batch)

    def _generate(
        self,
        kind: type[GenerateResponder],
        encoding: bytes,
        name: str,
        version: str,
        cycle: RequestResponseCycle,
    ) -> HttpResponder | None:
        try:
            number = read_version(version)
            signature = self.server.engine.inspection.signature(name, number)
            if encoding != _PLAIN:
                raise InvalidArgumentError(
                    "Unsupported content-encoding, only 'identity' is supported."
                )
            if len(cycle.body) <= LONG_JSON:
                return kind(cycle, signature, number, decode_generate(cycle.body, signature))
        except TritonError as error:
            cycle.respond(error_response(error))
            return None
        read = partial(decode_generate, cycle.body, signature)
        self.work(cycle, lambda: kind(cycle, signature, number, read()), JSON)
        return None

    def work(
        self,
        cycle: RequestResponseCycle,
        read: Callable[[], HttpResponder | None],
        content_type: bytes,
    ) -> None:
        """Read a long request on a worker, and submit it; an error has this content type."""

        def task() -> None:
            try:
                responder = read()
            except TritonError as error:
                cycle.respond(error_response(error, content_type))
            except Exception as error:
                cycle.respond(unexpected_error(error, cycle.head.path))
            else:
                if responder is not None:
                    self.submit((responder,))

        cycle.work(task)


class _Infer:
    """Handler of infer requests with one head."""

    def __init__(self, inference: Inference, head: RequestHead, name: str, version: str) -> None:
        self._inference = inference
        # Not the head, which refers to this handler: a reference cycle would need the garbage collector.
        self._fields = head.fields
        self._name = name
        self._version = version
        self._given = _encoding(head)
        self._wanted = best_encoding(head.headers.get(b"accept-encoding", b"").decode("latin-1"))
        self._length: int | None = None
        self._length_text = head.headers.get(_HEADER_LENGTH, b"")
        if _HEADER_LENGTH in head.headers:
            found = _ATOI.match(self._length_text)
            self._length = int(found[1]) if found else 0  # as C's atoi

    def read(self, cycle: RequestResponseCycle) -> HttpResponder | None:
        """Read a request; None if it is answered, or is being read on a worker."""
        try:
            number = read_version(self._version)
            signature = self._inference.server.engine.inspection.signature(self._name, number)
            if signature.decoupled:
                raise UnsupportedError(_DECOUPLED)
            if self._given == _PLAIN:
                data, start = cycle.data, cycle.start
                length = self._header_length(len(data) - start)
                if length <= LONG_JSON:
                    short = self._inference.short
                    try:
                        return self._decode(cycle, signature, number, data, start, length, short)
                    except LongReadError:
                        pass
            elif self._given not in _COMPRESSED:
                response = error_response(UnsupportedError("Unsupported compression type"), TEXT)
                response.headers = ((b"Accept-Encoding", b"gzip, deflate"),)
                cycle.respond(response)
                return None
        except TritonError as error:
            cycle.respond(error_response(error, TEXT))
            return None
        read = partial(self._read_long, cycle, signature, number)
        self._inference.work(cycle, read, TEXT)
        return None

    def _header_length(self, size: int) -> int:
        length = size if self._length is None else self._length
        if not 0 <= length <= size:
            text = self._length_text.decode("latin-1")
            raise InvalidArgumentError(
                f"inference header size should be in range (0, {size}), got: {text}"
            )
        return length

    def _read_long(
        self, cycle: RequestResponseCycle, signature: ModelSignature, version: int
    ) -> HttpResponder | None:
        data, start = cycle.data, cycle.start
        if self._given != _PLAIN:
            data, start = self._decompressed(cycle), 0
        length = self._header_length(len(data) - start)
        leasing = self._inference.service.shared_memory.lease
        return self._decode(cycle, signature, version, data, start, length, leasing)

    def _decode(
        self,
        cycle: RequestResponseCycle,
        signature: ModelSignature,
        version: int,
        data: Data,
        start: int,
        length: int,
        leasing: Leasing,
    ) -> HttpResponder | None:
        inference = self._inference
        service = inference.service
        try:
            call = decode_infer(data, length, signature, leasing, inference.templates, start)
        except TritonError as error:
            kind = TEXT if isinstance(error, BrokenStringError) else JSON
            cycle.respond(error_response(error, kind))
            return None
        if service.forwards is not None:
            call.add_parameters(_forwarded(service.forwards, self._fields))
        return InferResponder(service, self._wanted, cycle, signature, version, call)

    def _decompressed(self, cycle: RequestResponseCycle) -> memoryview:
        if not cycle.body:
            raise InvalidArgumentError("nothing to be decompressed")
        limits = self._inference.service.limits
        limit = min(limits.body_bytes, limits.decompressed_bytes)
        try:
            return Decompressor(cycle.body, _GZIP_OR_ZLIB, limit).all()
        except OversizeError as error:
            raise InvalidArgumentError(
                f"the decompressed request is {error}", hint="--max-decompressed-size allows more"
            ) from None
        except DecompressionError as error:
            raise InvalidArgumentError(f"the compressed request cannot be read: {error}") from None


def _forwarded(forwards: Forwards, fields: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the header fields that become request parameters."""
    return {
        name.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape")
        for name, value in fields
        if forwards(name)
    }


def _encoding(head: RequestHead) -> bytes:
    return head.headers.get(b"content-encoding", _PLAIN)


def best_encoding(accepted: str) -> str:
    """Return the client's preferred coding: ``identity``, ``deflate`` or ``gzip``."""
    best, weight = "identity", 0.0
    for item in accepted.split(","):
        name, _, quality = item.lstrip(" ").partition(";q=")
        found = re.match(r"\s*[+-]?(\d+\.?\d*|\.\d+)", quality or "1")
        if found is None:
            continue
        if name in ("identity", "deflate", "gzip") and float(found[0]) > weight:
            best, weight = name, float(found[0])
    return best
