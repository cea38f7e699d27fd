"""Inference over HTTP: infer, generate and generate_stream (protocol.md §3, §6)."""

from __future__ import annotations

import gzip
import logging
import re
import zlib
from functools import partial
from typing import TYPE_CHECKING

from nbtriton.engine import InferenceFuture, Interface
from nbtriton.engine.request import BARE_FINAL
from nbtriton.errors import (
    InternalError,
    InvalidArgumentError,
    TritonError,
    UnsupportedError,
)
from nbtriton.frontends.answer import Answer, encode_infer
from nbtriton.frontends.codec import Call, decode_infer
from nbtriton.frontends.exchange import JSON, TEXT, Exchange, Reply, error_body, error_reply
from nbtriton.frontends.generate import decode_generate, encode_generate
from nbtriton.frontends.plan import Plans

if TYPE_CHECKING:
    from nbtriton.backends.base import Response
    from nbtriton.frontends.service import Service

__all__ = ["Inference", "read_version"]

_log = logging.getLogger("nbtriton.frontends")

# JSON of this size takes about a millisecond to read; longer ones are not read on the loop.
_LONG_JSON = 64 << 10
_EVENTS = b"text/event-stream; charset=utf-8"
_DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"
_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)
_HEADER_LENGTH = b"inference-header-content-length"
_ATOI = re.compile(rb"\s*([+-]?\d{1,18})")
_INT64_MAX = (1 << 63) - 1
_GZIP_OR_ZLIB = {b"gzip": 31, b"deflate": zlib.MAX_WBITS}


def read_version(text: str) -> int:
    """Return the version of a path, -1 for none (P-9).

    Raises
    ------
    InvalidArgumentError
        It is beyond 64 bits.
    """
    if not text:
        return -1
    if len(text.lstrip("0")) > 19 or int(text) > _INT64_MAX:
        raise InvalidArgumentError(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    return int(text)


class Inference:
    """Answers requests for inference.

    Parameters
    ----------
    service : Service
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._server = service.server
        self._plans = Plans()

    # -- infer -----------------------------------------------------------------------------------

    def infer(self, exchange: Exchange, name: str, version: str) -> None:
        """Answer a POST to ``…/infer``."""
        try:
            number = read_version(version)
            interface = self._server.interface(name, number)
            if interface.decoupled:
                raise UnsupportedError(_DECOUPLED)
            encoding = exchange.headers.get(b"content-encoding", b"")
            if encoding in (b"", b"identity"):
                length = self._header_length(exchange, len(exchange.body))
            elif encoding in _GZIP_OR_ZLIB:
                length = -1
            else:
                reply = error_reply(UnsupportedError("Unsupported compression type"), TEXT)
                reply.headers = ((b"Accept-Encoding", b"gzip, deflate"),)
                exchange.respond(reply)
                return
        except TritonError as error:
            exchange.respond(error_reply(error, TEXT))
            return
        run = partial(self._infer, exchange, interface, number, length)
        if length < 0 or length > _LONG_JSON:
            exchange.work(run)
        else:
            run()

    def _header_length(self, exchange: Exchange, size: int) -> int:
        text = exchange.headers.get(_HEADER_LENGTH)
        if text is None:
            return size
        found = _ATOI.match(text)
        length = int(found[1]) if found else 0  # as C's atoi
        if not 0 <= length <= size:
            raise InvalidArgumentError(
                f"inference header size should be in range (0, {size}), got: {text.decode('latin-1')}"
            )
        return length

    def _infer(self, exchange: Exchange, interface: Interface, version: int, length: int) -> None:
        body = exchange.body
        try:
            if length < 0:
                try:
                    body = self._decompressed(exchange)
                    length = self._header_length(exchange, len(body))
                except TritonError as error:
                    exchange.respond(error_reply(error, TEXT))
                    return
            call = decode_infer(body, length, interface, self._service.shared_memory, self._plans)
            self._forward_headers(exchange, call)
            if call.options.get("correlation_id") == "":
                del call.options["correlation_id"]
            try:
                future = self._server.submit(
                    interface.name, call.arrays, version=version, **call.options
                )
            except BaseException:
                call.release()
                raise
        except TritonError as error:
            exchange.respond(error_reply(error))
            return
        exchange.on_gone = future.cancel
        future.add_done_callback(partial(self._answered, exchange, call, interface))
        if exchange.is_gone():
            future.cancel()

    def _decompressed(self, exchange: Exchange) -> bytes:
        """Return the decompressed body; an undecodable one is empty, as in Triton."""
        window = _GZIP_OR_ZLIB[exchange.headers[b"content-encoding"]]
        limit = self._service.limits.body_bytes
        engine = zlib.decompressobj(window)
        try:
            body = engine.decompress(exchange.body, limit + 1)
        except zlib.error:
            return b""
        if len(body) > limit:
            raise InvalidArgumentError(
                f"the decompressed request is larger than the limit of {limit} bytes"
            )
        return body if engine.eof else b""

    def _forward_headers(self, exchange: Exchange, call: Call) -> None:
        pattern = self._service.header_forward
        if pattern is None:
            return
        parameters = call.options.setdefault("parameters", {})
        for raw_name, raw_value in exchange.fields:
            name = raw_name.decode("utf-8", "surrogateescape")
            if pattern.search(name):
                parameters[name] = raw_value.decode("utf-8", "surrogateescape")

    def _answered(
        self, exchange: Exchange, call: Call, interface: Interface, future: InferenceFuture
    ) -> None:
        """Write the answer, on the thread that made it: the model may reuse its memory after."""
        try:
            exchange.respond(self._reply(exchange, call, interface, future))
        except Exception as error:
            _log.exception("the response of a request to %s could not be written", interface.name)
            exchange.respond(error_reply(InternalError(f"{type(error).__name__}: {error}"), TEXT))
        finally:
            call.release()

    def _reply(
        self, exchange: Exchange, call: Call, interface: Interface, future: InferenceFuture
    ) -> Reply:
        error = future.exception()
        if error is not None:
            return error_reply(error, TEXT)
        result = future.result()
        try:
            answer = encode_infer(
                call,
                {name: result.raw(name) for name in result},
                result.parameters,
                model_name=result.model_name,
                model_version=result.model_version,
                batches=interface.max_batch_size > 0,
                labels=partial(self._service.labels, result.model_name, result.model_version),
            )
        except TritonError as raised:
            return error_reply(raised, TEXT)
        return _reply_of(answer, exchange.headers.get(b"accept-encoding"))

    # -- generate --------------------------------------------------------------------------------

    def generate(self, exchange: Exchange, name: str, version: str) -> None:
        """Answer a POST to ``…/generate``."""
        self._generate(exchange, name, version, _Single(exchange))

    def generate_stream(self, exchange: Exchange, name: str, version: str) -> None:
        """Answer a POST to ``…/generate_stream``."""
        self._generate(exchange, name, version, _Events(exchange))

    def _generate(self, exchange: Exchange, name: str, version: str, sink: _Single) -> None:
        try:
            number = read_version(version)
            interface = self._server.interface(name, number)
            if exchange.headers.get(b"content-encoding", b"identity") not in (b"", b"identity"):
                raise InvalidArgumentError(
                    "Unsupported content-encoding, only 'identity' is supported."
                )
            call = decode_generate(exchange.body, interface)
            sink.request_id = call.request_id
            sink.model = (interface.name, interface.version)
            future = self._server.submit(
                interface.name, call.arrays, version=number, on_response=sink.take, **call.options
            )
        except TritonError as error:
            exchange.respond(error_reply(error))
            return
        exchange.on_gone = future.cancel
        if exchange.is_gone():
            future.cancel()


class _Single:
    """Where the responses of one generate request go: all of them in one body (P-52, P-53)."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.request_id = ""
        self.model = ("", -1)
        self.count = 0
        self._status = 200
        self._body = b""

    def take(self, response: Response, final: bool) -> None:
        """One more response, on the thread that sent it."""
        body, failed = self._written(response)
        if body:
            self.count += 1
            self.send(body, failed=failed)
        if final:
            self.finish()

    def send(self, body: bytes, *, failed: bool) -> None:
        if self.count == 1:
            self._status = 400 if failed else 200
            self._body = body

    def finish(self) -> None:
        exchange = self.exchange
        exchange.begin(self._status, JSON)
        exchange.chunk(self._body if self.count == 1 else error_body(_NOT_ONE))
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
                request_id=self.request_id,
                model_name=self.model[0],
                model_version=self.model[1],
            )
        except TritonError as error:
            return error_body(error.message), True
        except Exception as error:
            _log.exception("a response of %s could not be written", self.model[0])
            return error_body(f"{type(error).__name__}: {error}"), True
        return text, False


class _Events(_Single):
    """Each response as an event of its own, as soon as it is there."""

    def send(self, body: bytes, *, failed: bool) -> None:
        if self.count == 1:
            self.exchange.begin(400 if failed else 200, _EVENTS)
        self.exchange.chunk(b"data: %s\n\n" % body)

    def finish(self) -> None:
        if not self.count:
            self.exchange.begin(200, _EVENTS)
        self.exchange.end()


def _reply_of(answer: Answer, accepted: bytes | None) -> Reply:
    headers: list[tuple[bytes, bytes]] = []
    if answer.header_length:
        headers.append((b"Inference-Header-Content-Length", b"%d" % answer.header_length))
    parts = answer.parts
    if accepted:
        encoding = best_encoding(accepted.decode("latin-1"))
        if encoding != "identity":
            body = b"".join(parts)
            # Level 6 is what zlib and Triton take by default.
            parts = [
                zlib.compress(body) if encoding == "deflate" else gzip.compress(body, 6, mtime=0)
            ]
            headers.append((b"Content-Encoding", encoding.encode()))
    kind = b"application/octet-stream" if answer.header_length else JSON
    return Reply(200, kind, parts, headers)


def best_encoding(accepted: str) -> str:
    """Return ``identity``, ``deflate`` or ``gzip``: the one that the client likes most."""
    best, weight = "identity", 0.0
    for item in accepted.split(","):
        name, _, quality = item.lstrip(" ").partition(";q=")
        found = re.match(r"\s*[+-]?(\d+\.?\d*|\.\d+)", quality or "1")
        if found is None:
            continue
        if name in ("identity", "deflate", "gzip") and float(found[0]) > weight:
            best, weight = name, float(found[0])
    return best
