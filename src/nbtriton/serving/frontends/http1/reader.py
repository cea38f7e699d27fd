"""Parser of the requests of one HTTP/1.1 connection, without I/O."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, NamedTuple

import httptools

from nbtriton.serving.frontends.buffers import LONG, TemplateCache, buffers
from nbtriton.serving.frontends.http1.response import Data, RequestHead
from nbtriton.serving.frontends.service import Limits

_log = logging.getLogger("nbtriton.serving.frontends")

# Bytes parsed at once where they may hold many requests: 200 short requests cost 2 ms.
_SLICE = 4 << 10
# Largest head with a template, in bytes.
_LONGEST_HEAD = 2048
_END_OF_HEAD = b"\r\n\r\n"
# Header fields with which the bytes after the head are not just the body.
_FRAMING = (b"transfer-encoding", b"expect", b"upgrade")
# Alignment of the tensors after the JSON: they are read in place, which is fastest if aligned.
_ALIGNMENT = 16


class RefusedError(Exception):
    """A request that is answered with an error and ends its connection."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class _EndError(Exception):
    """Input follows the last request of the connection."""


class _HeadTemplate(NamedTuple):
    head: RequestHead
    size: int  # of head and body
    padding: int  # bytes before the body that are kept with it


HeadTemplates = TemplateCache[_HeadTemplate]


class RequestReader:
    """Request parser of one connection.

    Parameters
    ----------
    limits : Limits
    templates : HeadTemplates
        Shared by all connections of an endpoint.
    keep_fields : bool
        Whether heads keep the header fields as sent.
    state : ConnectionState
    on_request : callable
        ``on_request(head, data, start)``, called with each request; the body begins at `start` of `data`.
    on_expect_continue : callable
        Called for a request whose client waits for ``100 Continue``.

    Attributes
    ----------
    began : float
        Arrival of the first bytes of the request being read, as `now` of `feed`.
    place : memoryview, optional
        Buffer that receives the rest of a long body; None outside of one.
    """

    __slots__ = (
        "_body", "_body_size", "_fields", "_framing", "_head_pieces", "_head_size", "_headers", "_keep_fields",
        "_last", "_limits", "_long", "_now", "_on_expect_continue", "_on_request", "_parser", "_state", "_templates",
        "_upgrades", "_url", "began", "place",
    )  # fmt: skip

    def __init__(
        self,
        limits: Limits,
        templates: HeadTemplates,
        keep_fields: bool,
        state: ConnectionState,
        on_request: Callable[[RequestHead, Data, int], None],
        on_expect_continue: Callable[[], None],
    ) -> None:
        self._limits = limits
        self._templates = templates
        self._keep_fields = keep_fields
        self._state = state
        self._on_request = on_request
        self._on_expect_continue = on_expect_continue
        self._parser = self._new_parser()
        self._long: memoryview | None = None  # a long body with its padding, received in place
        self.place: memoryview | None = None
        # Head of the last request since `read_template`, and the size of its body.
        self._last: tuple[RequestHead, int] | None = None
        self._upgrades = False  # the head has an Upgrade field
        self.began = self._now = 0.0
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._fields: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_size = 0
        self._head_size = 0  # bytes of header and trailer fields
        self._framing = 0  # bytes since the last piece of a body in chunks
        self._head_pieces = 0  # whole pieces of the same head

    def close(self) -> None:
        """Stop reading, and drop references to the connection."""
        self.place = None
        self._parser = self._on_request = self._on_expect_continue = None  # type: ignore[assignment]

    # -- bytes in --------------------------------------------------------------------------------

    def read_template(self, data: memoryview) -> bytes | None:
        """Read a whole request whose head has a template.

        Returns
        -------
        bytes or None
            None if the request was read; else the head at the beginning of the data for `remember`, empty
            if the head is long or incomplete.
        """
        text = bytes(data[:_LONGEST_HEAD])
        end = text.find(_END_OF_HEAD) + len(_END_OF_HEAD)
        text = text[:end] if end >= len(_END_OF_HEAD) else b""
        found = self._templates.find(text)
        if found is not None and found.size == len(data):
            self._on_request(found.head, bytes(data[end - found.padding :]), found.padding)
            return None
        self._last = None
        return text

    def remember(self, text: bytes, size: int) -> None:
        """Cache a head returned by `read_template`, if the `size` bytes were one request with it."""
        if not text or self._last is None or self._state.now is not State.IDLE:
            return
        head, body_size = self._last
        if (
            len(text) + body_size == size
            and head.keep_alive
            and not head.old
            and head.headers.keys().isdisjoint(_FRAMING)
            and (not body_size or b"content-length" in head.headers)
        ):
            self._templates.remember(text, _HeadTemplate(head, size, _padding_of(head.headers)))

    def feed(self, data: memoryview, now: float) -> int:
        """Parse the beginning of the data; return the number of bytes parsed.

        Raises
        ------
        RefusedError
        """
        self._now = now
        if self.place is None:
            return self._parse(data[: self._next_size()])
        piece = self.place[: len(data)]
        piece[:] = data[: len(piece)]
        self.received(len(piece))
        return len(piece)

    def received(self, size: int) -> None:
        """Note that `size` bytes of a long body have been written to `place`."""
        assert self.place is not None
        self.place = self.place[size:]
        if self.place:
            return
        long, self._long, self.place = self._long, None, None
        assert long is not None
        head, padding = self._head(), len(long) - self._body_size
        # The old parser still waits for this body.
        self._parser = self._new_parser()
        self._state.process(Event.REQUEST_COMPLETE)
        # Writable: the memory belongs to the request, and a model may write to its tensors.
        self._on_request(head, long, padding)

    def _next_size(self) -> int:
        """Return the bytes to parse at once: a whole body, but few bytes that may hold many requests."""
        if self._state.now is not State.BODY or b"transfer-encoding" in self._headers:
            return _SLICE
        return max(_SLICE, self._length() - self._body_size)

    def _length(self) -> int:
        return int(self._headers.get(b"content-length", b"0"))

    def _parse(self, data: memoryview) -> int:
        """Parse bytes without keeping a reference; return the number of bytes parsed."""
        state, before, body_size = self._state, self._state.now, self._body_size
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade()
            return int(upgrade.args[0])
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, RefusedError):
                raise cause from None
            if isinstance(cause, _EndError):
                return len(data)
            _log.exception("a callback of the HTTP parser failed")
            raise RefusedError(400, "Bad Request") from None
        except httptools.HttpParserError:
            raise RefusedError(400, "Bad Request") from None
        if before is state.now is State.HEAD:
            self._head_pieces += len(data)
            if self._head_pieces > self._limits.header_bytes:
                raise _long_head()
        elif state.now is State.BODY:
            self._framing = self._framing + len(data) if self._body_size == body_size else 0
            if self._framing > self._limits.header_bytes:
                raise RefusedError(431, "too much between the chunks of the request")
            self._expect_body()
        return len(data)

    def _ignore_upgrade(self) -> None:
        """Read the request as if it had no Upgrade field (RFC 9110, 7.8).

        The parser takes all bytes after such a head for the other protocol, a body included.
        """
        self._upgrades = False
        method = self._parser.get_method()
        version = self._parser.get_http_version().encode()
        self._parser = self._new_parser()
        if method == b"CONNECT":  # answered; the bytes after the head have no known end
            self._state.process(Event.LAST_REQUEST)
            return
        fields = self._fields or list(self._headers.items())
        lines = [b"%s %s HTTP/%s" % (method, self._url, version)]
        lines += [b"%s: %s" % field for field in fields if field[0].lower() != b"upgrade"]
        self._parse(memoryview(b"\r\n".join((*lines, b"\r\n"))))

    def _expect_body(self) -> None:
        """Let the rest of a long body be received in place."""
        size = self._length()
        if size - self._body_size < LONG or b"transfer-encoding" in self._headers:
            return
        filled = _padding_of(self._headers)
        # The memory is not touched before bytes arrive: a claimed length costs no memory.
        self._long = long = buffers.acquire(filled + size)
        for piece in self._body:
            long[filled : filled + len(piece)] = piece
            filled += len(piece)
        self.place = long[filled:]
        self._body_size = size

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # Transfer-Encoding overrides Content-Length (RFC 9112, 6.3), as in Triton.
        parser.set_dangerous_leniencies(lenient_chunked_length=True)
        return parser

    # -- callbacks of the parser -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        if not self._state.reads:
            raise _EndError
        if self._state.now is State.IDLE:  # else an upgrade is ignored
            self._state.process(Event.REQUEST_STARTED)
        self._reset()
        self.began = self._now

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        if self._state.now is not State.HEAD:  # a trailer: nothing uses one
            self._check_head()
            return
        key = name.lower()
        # The parser would wait for the end of the connection (RFC 9112, 6.1 and 6.3).
        if key == b"transfer-encoding" and (
            value.strip().lower() != b"chunked" or key in self._headers
        ):
            raise RefusedError(400, "the only transfer coding is chunked")
        self._headers.setdefault(key, value)  # the first counts, as in Triton
        if self._keep_fields:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        self._check_head()
        self._upgrades = self._parser.should_upgrade()
        if self._upgrades and self._parser.get_method() != b"CONNECT":
            return
        self._state.process(Event.HEAD_COMPLETE)
        if self._upgrades:
            return
        if self._length() > self._limits.body_bytes:
            raise self._long_body()
        if (
            self._headers.get(b"expect", b"").lower() == b"100-continue"
            and self._parser.get_http_version() != "1.0"
        ):
            self._on_expect_continue()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._body_size += len(body)
        if self._body_size > self._limits.body_bytes:
            raise self._long_body()

    def on_message_complete(self) -> None:
        if not self._state.in_request or (
            self._upgrades and self._parser.get_method() != b"CONNECT"
        ):
            return
        head = self._head()
        padding = _padding_of(self._headers) if self._body else 0
        # One buffer after the padding; one chunk without padding is such a buffer already.
        body = b"".join((bytes(padding), *self._body)) if padding else b"".join(self._body)
        self._last = (head, self._body_size)
        self._state.process(Event.REQUEST_COMPLETE)
        self._on_request(head, body, padding)
        # After both Content-Length and chunks, the bytes after the request are ambiguous.
        if self._is_ambiguous():
            self._state.process(Event.LAST_REQUEST)

    # -- results ---------------------------------------------------------------------------------

    def _check_head(self) -> None:
        if len(self._url) + self._head_size > self._limits.header_bytes:
            raise _long_head()

    def _long_body(self) -> RefusedError:
        limit = self._limits.body_bytes
        return RefusedError(413, f"the request is larger than the limit of {limit} bytes")

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


def _long_head() -> RefusedError:
    return RefusedError(431, "the header of the request is too large")


def _padding_of(headers: Mapping[bytes, bytes]) -> int:
    """Return the padding before a body that aligns the tensors after its JSON, in bytes."""
    length = headers.get(b"inference-header-content-length", b"")
    return -int(length) % _ALIGNMENT if length.isdigit() and len(length) < 19 else 0


def _path(url: bytes) -> str:
    if url[:1] != b"/":  # absolute-form (RFC 9112, 3.2.2)
        with contextlib.suppress(httptools.HttpParserInvalidURLError):
            url = httptools.parse_url(url).path or b"/"
    return url.partition(b"?")[0].decode("utf-8", "surrogateescape")


class State(Enum):
    """State of a connection."""

    IDLE = auto()  # between two requests
    HEAD = auto()  # inside the request line or header fields
    BODY = auto()  # inside the body
    MUST_CLOSE = auto()  # input is discarded; earlier requests are still answered
    LINGERING = auto()  # everything is sent; the client has time to read it
    CLOSED = auto()


class Event(Enum):
    """Event in the life of a connection."""

    REQUEST_STARTED = auto()
    HEAD_COMPLETE = auto()
    REQUEST_COMPLETE = auto()
    LAST_REQUEST = auto()  # refused, or followed by bytes that cannot be read
    LAST_RESPONSE = auto()
    CLOSE = auto()


_READING = {Event.LAST_REQUEST: State.MUST_CLOSE, Event.CLOSE: State.CLOSED}
TRANSITIONS: dict[State, dict[Event, State]] = {
    State.IDLE: {**_READING, Event.REQUEST_STARTED: State.HEAD},
    State.HEAD: {**_READING, Event.HEAD_COMPLETE: State.BODY},
    State.BODY: {**_READING, Event.REQUEST_COMPLETE: State.IDLE},
    State.MUST_CLOSE: {**_READING, Event.LAST_RESPONSE: State.LINGERING},
    State.LINGERING: {Event.CLOSE: State.CLOSED},
    State.CLOSED: {Event.CLOSE: State.CLOSED},
}


class ConnectionState:
    """The state of one connection.

    Attributes
    ----------
    now : State
    in_request : bool
        Whether part of a request has been read.
    reads : bool
        Whether input is read, not discarded.
    """

    __slots__ = ("in_request", "now", "reads")

    def __init__(self) -> None:
        self._enter(State.IDLE)

    def process(self, event: Event) -> None:
        """Change the state.

        Raises
        ------
        ValueError
            The event cannot happen in this state, which stays.
        """
        found = TRANSITIONS[self.now].get(event)
        if found is None:
            raise ValueError(f"{event.name} cannot happen in state {self.now.name}")
        self._enter(found)

    def _enter(self, state: State) -> None:
        self.now = state
        # Attributes, not properties: both are read for every piece of input.
        self.in_request = state is State.HEAD or state is State.BODY
        self.reads = self.in_request or state is State.IDLE
