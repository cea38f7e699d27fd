"""Responders: a model's responses to one request, as an HTTP response."""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from nbtriton.common.errors import InternalError, TritonError
from nbtriton.runtime.engine import BARE_FINAL
from nbtriton.serving.frontends.http1.response import (
    JSON,
    TEXT,
    HttpResponse,
    RequestResponseCycle,
    error_body,
    error_response,
)
from nbtriton.serving.frontends.kserve.call import Responder
from nbtriton.serving.frontends.kserve.generate import encode_generate
from nbtriton.serving.frontends.kserve.json_codec import Answer, encode_infer

if TYPE_CHECKING:
    from nbtriton.backends.base import Response
    from nbtriton.runtime.engine import InferenceRequest, ModelSignature
    from nbtriton.serving.frontends.kserve.call import InferCall
    from nbtriton.serving.frontends.service import Service

__all__ = ["GenerateResponder", "HttpResponder", "InferResponder", "SseResponder"]

T = TypeVar("T")

_log = logging.getLogger("nbtriton.serving.frontends")

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
        """Handle the accepted request, or the error that refuses it."""
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
        try:
            return encoder(
                self.call,
                response.outputs,
                response.parameters,
                runtime.name,
                runtime.version,
                *more,
            )
        except TritonError:
            raise
        except Exception as error:
            _log.exception("a response of %s could not be written", runtime.name)
            raise InternalError(f"{type(error).__name__}: {error}") from error


class InferResponder(HttpResponder):
    """One response with tensors, for ``…/infer``.

    Parameters
    ----------
    service : Service
        Source of the class labels.
    encoding : str
        Content coding of the body: ``identity``, ``gzip`` or ``deflate``.
    """

    __slots__ = ("_encoding", "_response", "_service")

    def __init__(
        self,
        cycle: RequestResponseCycle,
        signature: ModelSignature,
        version: int,
        call: InferCall,
        service: Service,
        encoding: str,
    ) -> None:
        super().__init__(cycle, signature, version, call)
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
            answer = self.encode(encode_infer, request, response, batches, labels)
        except TritonError as error:
            return error_response(error, TEXT)
        return self._packed(answer)

    def _packed(self, answer: Answer) -> HttpResponse:
        parts = answer.parts
        length = answer.header_length
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

    def __init__(
        self, cycle: RequestResponseCycle, signature: ModelSignature, version: int, call: InferCall
    ) -> None:
        super().__init__(cycle, signature, version, call)
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
