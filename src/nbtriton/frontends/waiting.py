"""The way back: how what a model answers to one request becomes its HTTP answer."""

from __future__ import annotations

import gzip
import logging
import zlib
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING

from nbtriton.engine.request import BARE_FINAL
from nbtriton.errors import TritonError
from nbtriton.frontends.answer import encode_infer
from nbtriton.frontends.exchange import (
    JSON,
    TEXT,
    Exchange,
    Reply,
    error_body,
    error_reply,
    unforeseen,
)
from nbtriton.frontends.generate import encode_generate
from nbtriton.frontends.tracing import watched

if TYPE_CHECKING:
    from nbtriton.backends.base import Response
    from nbtriton.engine import InferenceFuture, Interface, Server
    from nbtriton.engine.tracing import Trace
    from nbtriton.frontends.codec import Call
    from nbtriton.frontends.service import Service

__all__ = ["Events", "Single", "Waiting", "Whole"]

_log = logging.getLogger("nbtriton.frontends")

_BINARY = b"application/octet-stream"
_EVENTS = b"text/event-stream; charset=utf-8"
_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)


class Waiting(ABC):
    """A request for inference that has been read, until it is answered.

    Parameters
    ----------
    exchange : Exchange
    interface : Interface
        Of the model that it is for.
    version : int
        Of the model, -1 for any.
    call : Call
        What the engine is asked for.
    """

    __slots__ = ("call", "exchange", "interface", "trace", "version")

    def __init__(self, exchange: Exchange, interface: Interface, version: int, call: Call) -> None:
        self.exchange = exchange
        self.interface = interface
        self.version = version
        self.call = call
        self.trace: Trace | None = None

    def watch(self, trace: Trace | None) -> None:
        """Tell a trace what happens, if the request is to be traced."""
        if trace is not None:
            trace.received("HTTP_RECV_START", "HTTP_RECV_END")
            self.trace = trace
            self.call.options = {**self.call.options, "trace": trace}

    def send(self, server: Server) -> None:
        """Give the request to the engine, or answer that it is refused."""
        try:
            try:
                future = self._submit(server)
            except BaseException:
                self.call.release()
                if self.trace is not None:
                    self.trace.sample.let_go()
                raise
        except TritonError as error:
            self.exchange.respond(error_reply(error))
            return
        self.exchange.on_gone = future.cancel
        if self.exchange.is_gone():
            future.cancel()

    @abstractmethod
    def _submit(self, server: Server) -> InferenceFuture: ...


class Whole(Waiting):
    """One answer with tensors, for ``…/infer``.

    Parameters
    ----------
    service : Service
        Knows the labels of classes.
    encoding : str
        How the client wants the body: ``identity``, ``gzip`` or ``deflate``.
    """

    __slots__ = ("_encoding", "_service")

    def __init__(
        self,
        exchange: Exchange,
        interface: Interface,
        version: int,
        call: Call,
        service: Service,
        encoding: str,
    ) -> None:
        super().__init__(exchange, interface, version, call)
        self._service = service
        self._encoding = encoding

    def _submit(self, server: Server) -> InferenceFuture:
        call = self.call
        future = server.submit(
            self.interface.name, call.arrays, version=self.version, **call.options
        )
        answer = self._answered
        future.add_done_callback(
            answer if self.trace is None else watched(answer, self.trace, "HTTP")
        )
        return future

    def _answered(self, future: InferenceFuture) -> None:
        """Write the answer, on the thread that made it: the model may reuse its memory after."""
        try:
            reply = self._reply(future)
        except TritonError as error:
            reply = error_reply(error, TEXT)
        except Exception as error:
            _log.exception("a response of %s could not be written", self.interface.name)
            reply = unforeseen(error)
        self.exchange.respond(reply)
        self.call.release()

    def _reply(self, future: InferenceFuture) -> Reply:
        result = future.result()
        answer = encode_infer(
            self.call,
            {name: result.raw(name) for name in result},
            result.parameters,
            model_name=result.model_name,
            model_version=result.model_version,
            batches=self.interface.max_batch_size > 0,
            labels=partial(self._service.labels, result.model_name, result.model_version),
        )
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

    def __init__(self, exchange: Exchange, interface: Interface, version: int, call: Call) -> None:
        super().__init__(exchange, interface, version, call)
        self._count = 0
        self._status = 200
        self._body = b""

    def _submit(self, server: Server) -> InferenceFuture:
        call = self.call
        return server.submit(
            self.interface.name, call.arrays, version=self.version, on_response=self._take,
            **call.options,
        )  # fmt: skip

    def _take(self, response: Response, final: bool) -> None:
        """One more response, on the thread that sent it."""
        self._tell("INFER_RESPONSE_COMPLETE")
        body, failed = self._written(response)
        if body or final:
            self._tell("HTTP_SEND_START")
        if body:
            self._count += 1
            self._send(body, failed=failed)
        if final:
            self._finish()
        if body or final:
            self._tell("HTTP_SEND_END")
        if final and self.trace is not None:
            self.trace.sample.let_go()

    def _tell(self, activity: str) -> None:
        if self.trace is not None:
            self.trace.answered(activity)

    def _send(self, body: bytes, *, failed: bool) -> None:
        if self._count == 1:
            self._status = 400 if failed else 200
            self._body = body

    def _finish(self) -> None:
        exchange = self.exchange
        exchange.begin(self._status, JSON)
        exchange.chunk(self._body if self._count == 1 else error_body(_NOT_ONE))
        exchange.end()

    def _written(self, response: Response) -> tuple[bytes, bool]:
        """Return the text of a response, empty for a bare final one; and whether it is an error."""
        if response is BARE_FINAL:
            return b"", False
        if response.error is not None:
            return error_body(response.error.message), True
        try:
            text = encode_generate(
                response.outputs,
                response.parameters,
                request_id=self.call.request_id,
                model_name=self.interface.name,
                model_version=self.interface.version,
            )
        except TritonError as error:
            return error_body(error.message), True
        except Exception as error:
            _log.exception("a response of %s could not be written", self.interface.name)
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
