"""One HTTP client: requests read, kept in order, and answered.

Nothing here knows what a request means. Everything but `run` is called on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any

import httptools

from nbtriton.frontends.http1.body import LONG, LongBody, joined, padding_of
from nbtriton.frontends.http1.cycle import (
    JSON,
    Data,
    HttpResponse,
    RequestHead,
    RequestResponseCycle,
    error_body,
)
from nbtriton.frontends.http1.heads import head_of
from nbtriton.frontends.loop import TURN_S

if TYPE_CHECKING:
    from nbtriton.frontends.http1.endpoint import HttpEndpoint

__all__ = ["HttpConnection"]

_log = logging.getLogger("nbtriton.frontends")

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_STATUS_LINES[405] = b"HTTP/1.1 405 Not Allowed\r\n"  # as evhtp has it
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Up to this size an answer is joined and sent by one call; longer ones are sent part by part.
_JOINED = 64 << 10
# Requests of one client that wait behind the one in progress; then it is not read from.
_PIPELINED = 16
# Parsed at a time, where it may hold many requests: 200 short ones cost 2 ms.
_SLICE = 4 << 10
# How long what a refused client still sends is thrown away, so that it can read the refusal.
_LINGER_S = 2.0


class _HttpCycle(RequestResponseCycle):
    """A request of one connection."""

    __slots__ = ("connection", "keep_alive", "over")

    def __init__(
        self, connection: HttpConnection, head: RequestHead, data: Data, start: int
    ) -> None:
        super().__init__(head, data, start)
        self.connection = connection
        self.keep_alive = head.keep_alive
        self.over = False  # answered, or nobody waits any more

    def respond(self, response: HttpResponse) -> None:
        self.connection.run(self.connection.answer, self, response)

    def begin(self, status: int, content_type: bytes) -> None:
        self.connection.run(self.connection.begin, self, status, content_type)

    def chunk(self, data: bytes) -> None:
        self.connection.run(self.connection.chunk, self, data)

    def end(self) -> None:
        self.connection.run(self.connection.end, self)

    def is_gone(self) -> bool:
        return self.over

    def work(self, task: Callable[[], None]) -> None:
        self.connection.endpoint.thread.run_on_worker(task)


class HttpConnection(asyncio.BufferedProtocol):
    """One client.

    Parameters
    ----------
    endpoint : HttpEndpoint
    """

    __slots__ = (
        "_asks", "_began", "_body", "_body_size", "_current", "_deaf", "_ended", "_fields", "_first_ns", "_framing", "_full", "_head_pieces",
        "_head_size", "_headers", "_in_head", "_in_request", "_linger_until", "_long", "_moved", "_newest", "_parser", "_pending",
        "_refusal", "_rest", "_sent", "_stopped", "_transport", "_unsent", "_upgrades", "_url", "endpoint",
    )  # fmt: skip

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self.endpoint = endpoint
        self._parser: Any = _parser_for(self)
        self._transport: Any = None
        self._current: _HttpCycle | None = None
        self._pending: deque[_HttpCycle] = deque()
        self._full = False  # enough requests wait here
        self._rest = b""  # what was read and is parsed later
        self._stopped = False  # nothing is read meanwhile
        self._ended = False  # the client has said all that it will
        self._asks = False  # it has asked for something
        self._deaf = False  # what comes is thrown away
        self._long: LongBody | None = None
        self._newest: _HttpCycle | None = None
        self._refusal = b""
        self._linger_until = 0.0
        self._in_head = self._in_request = False
        self._upgrades = False  # the head asks for another protocol
        self._began = 0.0
        self._moved = endpoint.thread.loop.time()
        self._first_ns = 0  # when the first bytes came of a request, if traces are taken
        self._sent = endpoint.thread.loop.time()  # when the client last read something
        self._unsent = 0
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._fields: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_size = 0
        self._head_size = 0  # names and values that were read, in front of the body and behind it
        self._framing = 0  # what came since the last piece of a body in chunks
        self._head_pieces = 0  # whole pieces of the same head

    @property
    def busy(self) -> bool:
        """True while a request is to be answered."""
        return self._current is not None

    def idle_since(self) -> float | None:
        """Say when something was done last; None if busy."""
        return None if self.busy else self._moved

    def evict(self) -> None:
        """End for the sake of another client."""
        self._deaf = True
        self._transport.abort()

    # -- what asyncio tells ----------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        endpoint = self.endpoint
        endpoint.add(self)
        if not endpoint.admit(self):
            self._refuse(503, "the server has too many connections")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.endpoint.remove(self)
        cycles = [*self._pending]
        if self._current is not None:
            cycles.append(self._current)
        self._current = None
        self._pending.clear()
        for cycle in cycles:
            cycle.over = True
            if cycle.on_gone is not None:
                cycle.on_gone()
        self.endpoint.request_finished()
        self._parser = None  # it refers to this connection

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self.endpoint.buffer if self._long is None else self._long.rest()

    def buffer_updated(self, nbytes: int) -> None:
        if self._long is None:
            self._read(self.endpoint.buffer[:nbytes])
        else:
            self._received(nbytes)

    def eof_received(self) -> bool:
        """Tell asyncio whether to leave the connection open: who has said all may still listen."""
        self._ended = True
        return self.busy and self._transport.can_write_eof()

    def _received(self, nbytes: int) -> None:
        """Note that so many bytes of a long body have come."""
        long = self._long
        assert long is not None
        self._moved = self.endpoint.thread.loop.time()
        if long.received(nbytes):
            self._long = None
            head = self._head()
            # The one that read the head still waits for this body.
            self._parser = _parser_for(self)
            self._in_request = False
            self._arrived(_HttpCycle(self, head, long.data(), long.padding))

    def _read(self, data: memoryview) -> None:
        """Read what has arrived for as long as a turn of the loop may take; keep the rest."""
        if self._deaf:
            return
        self._moved = self.endpoint.thread.loop.time()
        head = b""
        if not self._in_request:
            self._first_ns = monotonic_ns() if self.endpoint.tracing.on else 0
            head = head_of(data)
            known = self.endpoint.heads.find(head, len(data))
            if known is not None:
                start = len(head) - known.padding
                self._arrived(_HttpCycle(self, known.head, bytes(data[start:]), known.padding))
                return
        self._newest = None
        at, end = 0, len(data)
        until = monotonic() + TURN_S
        while at < end and not self._deaf:
            if self._long is not None:
                piece = self._long.rest()[: end - at]
                piece[:] = data[at : at + len(piece)]
                at += len(piece)
                self._received(len(piece))
            else:
                at += self._parse(data[at : at + self._next_size()])
            if at < end and (self._full or monotonic() > until):
                self._put_off(bytes(data[at:]))
                return
        if head and not self._in_request:
            self.endpoint.heads.learn(head, self._newest, end)

    def _next_size(self) -> int:
        """Return how much may be parsed at once: all of a body, and little of what may be many requests."""
        if not self._in_request or self._in_head or b"transfer-encoding" in self._headers:
            return _SLICE
        return max(_SLICE, int(self._headers.get(b"content-length", b"0")) - self._body_size)

    def _put_off(self, rest: bytes) -> None:
        """Parse the rest in a later turn: others come first."""
        self._rest = rest
        self._pace()
        if not self._full:
            self.endpoint.thread.defer(self._go_on)

    def _go_on(self) -> None:
        """Parse what was put off."""
        rest, self._rest = self._rest, b""
        if rest and self._parser is not None:
            self._read(memoryview(rest))
        self._pace()

    def _pace(self) -> None:
        """Read from the client only while nothing is put off."""
        stop = self._full or bool(self._rest)
        if stop != self._stopped and not self._transport.is_closing():
            self._stopped = stop
            if stop:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _parse(self, data: memoryview) -> int:
        """Parse something, nothing of which is kept; returns how much of it."""
        was_in_head, body_size = self._in_head, self._body_size
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade()
            return int(upgrade.args[0])
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, _TooMuchError):
                self._refuse(cause.status, cause.message)
            else:
                _log.exception("a callback of the HTTP parser failed")
                self._refuse(400, "Bad Request")
        except httptools.HttpParserError:
            self._refuse(400, "Bad Request")
        else:
            limit = self.endpoint.limits.header_bytes
            if self._in_head and was_in_head:
                self._head_pieces += len(data)
                if self._head_pieces > limit:
                    self._refuse(431, "the header of the request is too large")
            elif self._in_request and not self._in_head:
                self._framing = self._framing + len(data) if self._body_size == body_size else 0
                if self._framing > limit:
                    self._refuse(431, "too much between the chunks of the request")
                else:
                    self._expect_body()
        return len(data)

    def _ignore_upgrade(self) -> None:
        """Read the request as if it did not ask for another protocol (RFC 9110, 7.8).

        The parser takes what follows such a head for that protocol, also where it is a body.
        """
        self._upgrades = False
        method = self._parser.get_method()
        version = self._parser.get_http_version().encode()
        self._parser = _parser_for(self)
        if method == b"CONNECT":  # which is answered; there is no telling what comes behind it
            self._deaf = True
            return
        fields = self._fields or list(self._headers.items())
        lines = [b"%s %s HTTP/%s" % (method, self._url, version)]
        lines += [b"%s: %s" % field for field in fields if field[0].lower() != b"upgrade"]
        self._parse(memoryview(b"\r\n".join((*lines, b"\r\n"))))

    def _expect_body(self) -> None:
        """Let the rest of a long body be received in place."""
        size = int(self._headers.get(b"content-length", b"0"))
        if size - self._body_size >= LONG and b"transfer-encoding" not in self._headers:
            self._long = LongBody(size, self._body, padding_of(self._headers))

    def pause_writing(self) -> None:
        """Streams look at the buffer themselves; everything else is one answer at a time."""

    # -- what the parser tells -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._reset()
        self._in_head = self._in_request = True
        self._began = self._moved

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        if not self._in_head:  # a trailer: nobody asks for one
            self._check_head()
            return
        self._headers.setdefault(name.lower(), value)  # the first counts, as in Triton
        if self.endpoint.keep_fields:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._check_head()
        self._upgrades = self._parser.should_upgrade()
        if self._upgrades:
            return
        length = self._headers.get(b"content-length")
        limit = self.endpoint.limits.body_bytes
        if length is not None and int(length) > limit:
            raise _TooMuchError(413, f"the request is larger than the limit of {limit} bytes")
        if (
            self._current is None
            and self._headers.get(b"expect", b"").lower() == b"100-continue"
            and self._parser.get_http_version() != "1.0"
        ):
            self._transport.write(_CONTINUE)

    def _check_head(self) -> None:
        if len(self._url) + self._head_size > self.endpoint.limits.header_bytes:
            raise _TooMuchError(431, "the header of the request is too large")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._body_size += len(body)
        limit = self.endpoint.limits.body_bytes
        if self._body_size > limit:
            raise _TooMuchError(413, f"the request is larger than the limit of {limit} bytes")

    def on_message_complete(self) -> None:
        if self._deaf or (self._upgrades and self._parser.get_method() != b"CONNECT"):
            return
        self._in_request = False
        body, padding = joined(self._body, padding_of(self._headers))
        cycle = _HttpCycle(self, self._head(), body, padding)
        self._newest = cycle
        self._arrived(cycle)
        # Whoever sent both a length and chunks may mean the next request by what follows, or not.
        self._deaf = self._deaf or self._is_ambiguous()

    def _is_ambiguous(self) -> bool:
        return b"transfer-encoding" in self._headers and b"content-length" in self._headers

    def _head(self) -> RequestHead:
        parser = self._parser
        return RequestHead(
            parser.get_method().decode("ascii"),
            _path(self._url),
            self._headers,
            self._fields,
            keep_alive=(
                parser.should_keep_alive() and not self._upgrades and not self._is_ambiguous()
            ),
            old=parser.get_http_version() == "1.0",
        )

    def _arrived(self, cycle: _HttpCycle) -> None:
        if not self._asks:
            self._asks = True
            self.endpoint.mark_active(self)
        if self._first_ns:
            cycle.received_ns = (self._first_ns, monotonic_ns())
        if self._current is None:
            self._current = cycle
            self.endpoint.take(cycle)
        else:
            self._pending.append(cycle)
            if len(self._pending) >= _PIPELINED and not self._full:
                self._full = True
                self._pace()

    # -- answering, on the loop ------------------------------------------------------------------

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call one of the methods below on the loop, now if this is its thread."""
        thread = self.endpoint.thread
        if get_ident() == thread.ident:
            function(*arguments)
        else:
            thread.post(function, *arguments)

    def answer(self, cycle: _HttpCycle, response: HttpResponse) -> None:
        """Send a whole answer."""
        if cycle is not self._current:
            return
        size = sum(map(len, response.parts))
        head = _answer_head(
            response.status,
            response.content_type,
            size,
            tuple(response.headers),
            _connection_field(cycle),
        )
        if cycle.head.method == "HEAD":
            self._transport.write(head)
        elif size <= _JOINED:
            self._transport.write(b"".join((head, *response.parts)))
        else:
            self._transport.write(head)
            for part in response.parts:
                self._transport.write(part)
        self._finish(cycle)

    def begin(self, cycle: _HttpCycle, status: int, content_type: bytes) -> None:
        """Start an answer of unknown length."""
        if cycle is not self._current:
            return
        if cycle.head.old:  # its end is the end of the connection
            cycle.keep_alive = False
        framing = b"" if cycle.head.old else b"Transfer-Encoding: chunked\r\n"
        self._transport.write(
            b"%sContent-Type: %s\r\n%s%s\r\n"
            % (_STATUS_LINES[status], content_type, framing, _connection_field(cycle))
        )

    def chunk(self, cycle: _HttpCycle, data: bytes) -> None:
        """Send the next part."""
        if cycle is not self._current or not data:
            return
        self._transport.write(data if cycle.head.old else b"%x\r\n%s\r\n" % (len(data), data))
        if self._transport.get_write_buffer_size() > self.endpoint.limits.unread_bytes:
            self.abort()

    def end(self, cycle: _HttpCycle) -> None:
        """Finish an answer of unknown length."""
        if cycle is not self._current:
            return
        if not cycle.head.old:
            self._transport.write(b"0\r\n\r\n")
        self._finish(cycle)

    def _finish(self, cycle: _HttpCycle) -> None:
        cycle.over = True
        cycle.on_gone = None
        self._current = None
        self._moved = self.endpoint.thread.loop.time()
        if not cycle.keep_alive or (self._ended and not self._pending):
            self._pending.clear()
            self._deaf = True
            self._transport.close()
        elif self._pending:
            self._current = self._pending.popleft()
            self.endpoint.take(self._current)
            self._resume()
        elif self._deaf:
            self._linger()
        self.endpoint.request_finished()

    # -- ending ----------------------------------------------------------------------------------

    def announce_close(self) -> None:
        """Nothing is said: HTTP/1.1 answers what is there, and hangs up."""

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 if that is closed."""
        found = self._transport.get_extra_info("socket")
        return -1 if found is None else int(found.fileno())

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def _refuse(self, status: int, message: str) -> None:
        """Answer what is no proper request, after those before it, and end the connection."""
        body = error_body(message)
        self._refusal = (
            b"%sContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
            % (_STATUS_LINES[status], JSON, len(body), body)
        )  # fmt: skip
        self._deaf = True
        self._long = None
        self._in_head = self._in_request = False
        if self._current is None:
            self._linger()

    def _linger(self) -> None:
        """Send what is left to say, and let the client read it: closing at once might destroy it."""
        self._deaf = True
        self._rest = b""
        self._transport.write(self._refusal)
        if self._transport.can_write_eof():  # not under TLS
            self._transport.write_eof()
        self._linger_until = self.endpoint.thread.loop.time() + _LINGER_S
        self._resume()

    def _resume(self) -> None:
        if self._full and len(self._pending) <= _PIPELINED // 2:
            self._full = False
            self._go_on()

    def check_timeouts(self, now: float) -> None:
        """End what has stalled: only this connection pays for it."""
        limits = self.endpoint.limits
        waiting = self._transport.get_write_buffer_size()
        if waiting < self._unsent or not waiting:
            self._sent = now
        self._unsent = waiting
        if (self._linger_until and now > self._linger_until) or now - self._sent > limits.idle_s:
            self.abort()
        elif self._in_head and now - self._began > limits.head_s:
            self._refuse(408, "the header of the request did not come in time")
        elif self._in_request and not self._stopped and now - self._moved > limits.idle_s:
            self._refuse(408, "the request did not come in time")


def _parser_for(connection: HttpConnection) -> Any:
    parser = httptools.HttpRequestParser(connection)
    # A length beside chunks does not count (RFC 9112, 6.3), as in Triton.
    parser.set_dangerous_leniencies(lenient_chunked_length=True)
    return parser


class _TooMuchError(Exception):
    """A client sends more than it may."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@lru_cache(maxsize=256)
def _answer_head(
    status: int,
    content_type: bytes,
    size: int,
    headers: tuple[tuple[bytes, bytes], ...],
    connection: bytes,
) -> bytes:
    lines = [
        _STATUS_LINES[status],
        b"Content-Type: %s\r\nContent-Length: %d\r\n" % (content_type, size),
        *(b"%s: %s\r\n" % field for field in headers),
        connection,
        b"\r\n",
    ]
    return b"".join(lines)


def _connection_field(cycle: _HttpCycle) -> bytes:
    if not cycle.keep_alive:
        return b"Connection: close\r\n"
    return b"Connection: keep-alive\r\n" if cycle.head.old else b""


def _path(url: bytes) -> str:
    if url[:1] != b"/":  # the form for proxies
        with contextlib.suppress(httptools.HttpParserInvalidURLError):
            url = httptools.parse_url(url).path or b"/"
    return url.partition(b"?")[0].decode("utf-8", "surrogateescape")
