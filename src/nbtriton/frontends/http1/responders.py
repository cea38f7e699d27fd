"""The way back: how what a model answers to one request becomes its HTTP answer."""

from __future__ import annotations

import gzip
import logging
import zlib
from functools import partial
from typing import TYPE_CHECKING

from nbtriton.engine.core.request import BARE_FINAL
from nbtriton.errors import TritonError
from nbtriton.frontends.http1.cycle import RequestResponseCycle
from nbtriton.frontends.http1.response import (
    JSON,
    TEXT,
    HttpResponse,
    error_body,
    error_response,
    unexpected_error,
)
from nbtriton.frontends.kserve.generate import encode_generate
from nbtriton.frontends.kserve.json_responses import Answer, encode_infer
from nbtriton.frontends.kserve.responder import Responder

if TYPE_CHECKING:
    from nbtriton.backends.base import Response
    from nbtriton.engine import InferenceRequest, ModelSignature
    from nbtriton.frontends.kserve.call import InferCall
    from nbtriton.frontends.service import Service

__all__ = ["GenerateResponder", "HttpResponder", "InferResponder", "SseResponder"]

_log = logging.getLogger("nbtriton.frontends")

_BINARY = b"application/octet-stream"
_EVENTS = b"text/event-stream; charset=utf-8"
_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)


class HttpResponder(Responder):
    """A request over HTTP that has been read, until it is answered.

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
        """The engine has accepted the request, or refused it."""
        if isinstance(request, TritonError):
            self.give_up(error_response(request))
            return
        cycle = self.cycle
        cycle.on_gone = request.cancel
        if cycle.is_gone():
            request.cancel()

    def give_up(self, answer: HttpResponse) -> None:
        """Answer a request that the engine will not."""
        self.close()
        self.cycle.respond(answer)


class InferResponder(HttpResponder):
    """One answer with tensors, for ``…/infer``.

    Parameters
    ----------
    service : Service
        Knows the labels of classes.
    encoding : str
        How the client wants the body: ``identity``, ``gzip`` or ``deflate``.
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
            self.cycle.respond(self._response)
            self.record("HTTP_SEND_END")
            self.close()

    def _written(self, request: InferenceRequest, response: Response) -> HttpResponse:
        if response.error is not None:
            return error_response(response.error, TEXT if response.error.accepted else JSON)
        runtime = request.runtime
        assert runtime is not None
        try:
            answer = encode_infer(
                self.call,
                response.outputs,
                response.parameters,
                model_name=runtime.name,
                model_version=runtime.version,
                batches=self.signature.max_batch_size > 0,
                labels=partial(self._service.labels, runtime.name, runtime.version),
            )
        except TritonError as error:
            return error_response(error, TEXT)
        except Exception as error:
            _log.exception("a response of %s could not be written", runtime.name)
            return unexpected_error(error)
        return self._packed(answer)

    def _packed(self, answer: Answer) -> HttpResponse:
        parts = answer.parts
        length = answer.header_length
        headers = ((b"Inference-Header-Content-Length", b"%d" % length),) if length else ()
        kind = _BINARY if length else JSON
        if self._encoding == "identity":
            return HttpResponse(200, kind, parts, headers)
        body = b"".join(parts)
        # Level 6 is what zlib and Triton take by default.
        deflate = self._encoding == "deflate"
        packed = zlib.compress(body) if deflate else gzip.compress(body, 6, mtime=0)
        headers = (*headers, (b"Content-Encoding", self._encoding.encode()))
        return HttpResponse(200, kind, (packed,), headers)


class GenerateResponder(HttpResponder):
    """All responses in one body, which must be one, for ``…/generate`` (KS52, KS53)."""

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
            self.give_up(error_response(response.error))
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
        """Return the text of a response, empty for a bare final one; and whether it is an error."""
        if response is BARE_FINAL:
            return b"", False
        if response.error is not None:
            return error_body(response.error.message), True
        runtime = request.runtime
        assert runtime is not None
        try:
            text = encode_generate(
                response.outputs,
                response.parameters,
                request_id=self.call.request_id,
                model_name=runtime.name,
                model_version=runtime.version,
            )
        except TritonError as error:
            return error_body(error.message), True
        except Exception as error:
            _log.exception("a response of %s could not be written", runtime.name)
            return error_body(f"{type(error).__name__}: {error}"), True
        return text, False


class SseResponder(GenerateResponder):
    """Each response as an event of its own, as soon as it is there, for ``…/generate_stream``."""

    __slots__ = ()

    def _send(self, body: bytes, *, failed: bool) -> None:
        if self._count == 1:
            self.cycle.begin(400 if failed else 200, _EVENTS)
        self.cycle.chunk(b"data: %s\n\n" % body)

    def _finish(self) -> None:
        if not self._count:
            self.cycle.begin(200, _EVENTS)
        self.cycle.end()
