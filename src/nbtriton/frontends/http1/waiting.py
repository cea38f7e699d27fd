"""The way back: how what a model answers to one request becomes its HTTP answer."""

from __future__ import annotations

import gzip
import logging
import zlib
from functools import partial
from typing import TYPE_CHECKING

from nbtriton.engine.core.request import BARE_FINAL
from nbtriton.errors import TritonError
from nbtriton.frontends.http1.exchange import (
    JSON,
    TEXT,
    Exchange,
    Reply,
    error_body,
    error_reply,
    unforeseen,
)
from nbtriton.frontends.kserve.generate import encode_generate
from nbtriton.frontends.kserve.json_responses import Answer, encode_infer
from nbtriton.frontends.kserve.pending import Pending

if TYPE_CHECKING:
    from nbtriton.backends.base import Response
    from nbtriton.engine import InferenceRequest, ModelSignature
    from nbtriton.frontends.kserve.json_codec import Call
    from nbtriton.frontends.service import Service

__all__ = ["Events", "Single", "Waiting", "Whole"]

_log = logging.getLogger("nbtriton.frontends")

_BINARY = b"application/octet-stream"
_EVENTS = b"text/event-stream; charset=utf-8"
_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)


class Waiting(Pending):
    """A request over HTTP that has been read, until it is answered.

    Parameters
    ----------
    exchange : Exchange
    signature, version, call
        As for `Pending`.
    """

    __slots__ = ("exchange",)

    def __init__(
        self, exchange: Exchange, signature: ModelSignature, version: int, call: Call
    ) -> None:
        super().__init__(signature, version, call)
        self.exchange = exchange

    def submitted(self, request: InferenceRequest | TritonError) -> None:
        """The engine has accepted the request, or refused it."""
        if isinstance(request, TritonError):
            self.give_up(error_reply(request))
            return
        exchange = self.exchange
        exchange.on_gone = request.cancel
        if exchange.is_gone():
            request.cancel()

    def give_up(self, reply: Reply) -> None:
        """Answer a request that the engine will not."""
        self.end()
        self.exchange.respond(reply)


class Whole(Waiting):
    """One answer with tensors, for ``…/infer``.

    Parameters
    ----------
    service : Service
        Knows the labels of classes.
    encoding : str
        How the client wants the body: ``identity``, ``gzip`` or ``deflate``.
    """

    __slots__ = ("_encoding", "_reply", "_service")

    def __init__(
        self,
        exchange: Exchange,
        signature: ModelSignature,
        version: int,
        call: Call,
        service: Service,
        encoding: str,
    ) -> None:
        super().__init__(exchange, signature, version, call)
        self._service = service
        self._encoding = encoding
        self._reply: Reply | None = None

    def take(self, request: InferenceRequest, response: Response, final: bool) -> None:
        if final:
            self.tell("INFER_RESPONSE_COMPLETE", "HTTP_SEND_START")
        if self._reply is None or response is not BARE_FINAL:
            self._reply = self._written(request, response)
        if final:
            self.exchange.respond(self._reply)
            self.tell("HTTP_SEND_END")
            self.end()

    def _written(self, request: InferenceRequest, response: Response) -> Reply:
        if response.error is not None:
            return error_reply(response.error, TEXT if response.error.accepted else JSON)
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
            return error_reply(error, TEXT)
        except Exception as error:
            _log.exception("a response of %s could not be written", runtime.name)
            return unforeseen(error)
        return self._packed(answer)

    def _packed(self, answer: Answer) -> Reply:
        parts = answer.parts
        length = answer.header_length
        headers = ((b"Inference-Header-Content-Length", b"%d" % length),) if length else ()
        kind = _BINARY if length else JSON
        if self._encoding == "identity":
            return Reply(200, kind, parts, headers)
        body = b"".join(parts)
        # Level 6 is what zlib and Triton take by default.
        deflate = self._encoding == "deflate"
        packed = zlib.compress(body) if deflate else gzip.compress(body, 6, mtime=0)
        headers = (*headers, (b"Content-Encoding", self._encoding.encode()))
        return Reply(200, kind, (packed,), headers)


class Single(Waiting):
    """All responses in one body, which must be one, for ``…/generate`` (P-52, P-53)."""

    __slots__ = ("_body", "_count", "_status")

    def __init__(
        self, exchange: Exchange, signature: ModelSignature, version: int, call: Call
    ) -> None:
        super().__init__(exchange, signature, version, call)
        self._count = 0
        self._status = 200
        self._body = b""

    def take(self, request: InferenceRequest, response: Response, final: bool) -> None:
        if response.error is not None and not response.error.accepted:
            self.give_up(error_reply(response.error))
            return
        self.tell("INFER_RESPONSE_COMPLETE")
        body, failed = self._written(request, response)
        if body or final:
            self.tell("HTTP_SEND_START")
        if body:
            self._count += 1
            self._send(body, failed=failed)
        if final:
            self._finish()
        if body or final:
            self.tell("HTTP_SEND_END")
        if final:
            self.end()

    def _send(self, body: bytes, *, failed: bool) -> None:
        if self._count == 1:
            self._status = 400 if failed else 200
            self._body = body

    def _finish(self) -> None:
        exchange = self.exchange
        exchange.begin(self._status, JSON)
        exchange.chunk(self._body if self._count == 1 else error_body(_NOT_ONE))
        exchange.end()

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


class Events(Single):
    """Each response as an event of its own, as soon as it is there, for ``…/generate_stream``."""

    __slots__ = ()

    def _send(self, body: bytes, *, failed: bool) -> None:
        if self._count == 1:
            self.exchange.begin(400 if failed else 200, _EVENTS)
        self.exchange.chunk(b"data: %s\n\n" % body)

    def _finish(self) -> None:
        if not self._count:
            self.exchange.begin(200, _EVENTS)
        self.exchange.end()
