"""One HTTP/1.1 connection: its requests in order, and their responses.

Everything but `run` is called on the loop.
"""

from __future__ import annotations

import asyncio
from _thread import get_ident
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any

from nbtriton.serving.frontends.http1.reader import (
    ConnectionState,
    Event,
    HeadTemplates,
    RefusedError,
    RequestReader,
    State,
)
from nbtriton.serving.frontends.http1.response import (
    JSON,
    Data,
    HttpResponse,
    RequestHead,
    chunked_head,
    error_body,
    response_head,
)
from nbtriton.serving.frontends.listener import Endpoint, Listener, listen
from nbtriton.serving.frontends.loop import TURN_S, LoopThread
from nbtriton.serving.frontends.service import Service, Tls
from nbtriton.serving.frontends.tracing import NOT_SEEN

if TYPE_CHECKING:
    from nbtriton.runtime.engine import JoinBatch

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Up to this size a response is joined and sent by one call; longer responses are sent part by part.
_JOINED = 64 << 10
# Limit of pipelined requests behind the one in progress; beyond, nothing more is read.
_PIPELINED = 16
# Time in which the input of a refused client is discarded, so that the client can read the refusal.
_LINGER_S = 2.0


class RequestResponseCycle:
    """A complete request and its response; may be answered from any thread.

    Call either `respond` once, or `begin`, `chunk` any number of times, and `end`.

    Parameters
    ----------
    connection : HttpConnection
    head : RequestHead
    data : bytes-like
        Padding and the body.
    start : int
        Offset of the body in `data`, which aligns the tensors in it.

    Attributes
    ----------
    finished : bool
        Whether it is answered, or the client has disconnected.
    keep_alive : bool
        Whether the connection stays open after the response.
    on_disconnect : callable
        Called if the client disconnects before the response.
    ends_with_client : bool
        Whether a half-closed client counts as disconnected; otherwise it may still read.
    received_ns : tuple of int
        Arrival of the first and the last byte; zeros without tracing.
    """

    __slots__ = (
        "_connection", "data", "ends_with_client", "finished", "head", "keep_alive", "on_disconnect", "received_ns",
        "start",
    )  # fmt: skip

    def __init__(
        self, connection: HttpConnection, head: RequestHead, data: Data = b"", start: int = 0
    ) -> None:
        self._connection = connection
        self.head = head
        self.data = data
        self.start = start
        self.keep_alive = head.keep_alive
        self.finished = False
        self.ends_with_client = False
        self.on_disconnect: Callable[[], object] | None = None
        self.received_ns = NOT_SEEN

    @property
    def body(self) -> Data:
        """Body of the request."""
        return memoryview(self.data)[self.start :] if self.start else self.data

    def respond(self, response: HttpResponse) -> None:
        """Send a whole response."""
        self._connection.run(self._connection.respond, self, response)

    def begin(self, status: int, content_type: bytes) -> None:
        """Start a response of unknown length."""
        self._connection.run(self._connection.begin, self, status, content_type)

    def chunk(self, data: bytes) -> None:
        """Send the next part of the response's body."""
        self._connection.run(self._connection.chunk, self, data)

    def end(self) -> None:
        """Finish a response of unknown length."""
        self._connection.run(self._connection.end, self)

    def work(self, task: Callable[[], None], *, loads: bool = False) -> None:
        """Run a long task on a worker, off the loop; see `LoopThread.run_on_worker`."""
        self._connection.listener.thread.run_on_worker(task, loads=loads)


class HttpConnection(asyncio.BufferedProtocol):
    """One connection.

    Parameters
    ----------
    listener : Listener
    new_reader : callable
        ``new_reader(state, on_request, on_expect_continue)``.
    buffer : memoryview
        Receive buffer, shared by all connections.
    on_request : callable
        Called with each request once the earlier ones are answered.
    """

    __slots__ = (
        "_active", "_buffer", "_current", "_eof", "_first_ns", "_full", "_linger_until", "_moved", "_on_request",
        "_paused", "_pending", "_reader", "_refusal", "_rest", "_sent", "_state", "_transport", "_unsent", "listener",
    )  # fmt: skip

    def __init__(
        self,
        listener: Listener[HttpConnection],
        new_reader: Callable[..., RequestReader],
        buffer: memoryview,
        on_request: Callable[[RequestResponseCycle], None],
    ) -> None:
        self.listener = listener
        self._buffer = buffer
        self._on_request = on_request
        self._transport: Any = None
        self._state = ConnectionState()
        self._reader = new_reader(self._state, self._request_read, self._expect_continue)
        self._current: RequestResponseCycle | None = None
        self._pending: deque[RequestResponseCycle] = deque()
        self._full = False  # the limit of pipelined requests is reached
        self._rest = b""  # received, to be read in a later turn
        self._paused = False  # reading from the transport is paused
        self._eof = False  # the client has sent everything
        self._active = False  # the client has sent a request
        self._refusal = b""
        self._linger_until = 0.0
        self._first_ns = 0  # arrival of a request's first bytes, if tracing is on
        self._moved = self._sent = listener.thread.loop.time()  # last bytes from and to the client
        self._unsent = 0

    @property
    def busy(self) -> bool:
        """True while a request is unanswered."""
        return self._current is not None

    def idle_since(self) -> float | None:
        """Return the time of the last activity on the loop's clock; None if busy."""
        return None if self.busy else self._moved

    # -- callbacks of asyncio --------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.listener.add(self)
        if not self.listener.admit(self):
            self._refuse(503, "the server has too many connections")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.listener.remove(self)
        cycles = [*self._pending]
        if self._current is not None:
            cycles.append(self._current)
        self._current = None
        self._pending.clear()
        for cycle in cycles:
            cycle.finished = True
            if cycle.on_disconnect is not None:
                cycle.on_disconnect()
        self.listener.request_finished()
        self._state.process(Event.CLOSE)
        self._reader.close()  # it refers to this connection

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        place = self._reader.place
        return self._buffer if place is None else place

    def buffer_updated(self, nbytes: int) -> None:
        if self._reader.place is None:
            self._read(self._buffer[:nbytes])
        else:
            self._moved = self.listener.thread.loop.time()
            self._reader.received(nbytes)

    def eof_received(self) -> bool:
        """Return whether the connection stays open: a half-closed client may still read."""
        self._eof = True
        current = self._current
        if current is not None and current.ends_with_client:
            return False
        return self.busy and self._transport.can_write_eof()

    def pause_writing(self) -> None:
        """Do nothing: streams check the buffer themselves, and other responses come one at a time."""

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, data: memoryview) -> None:
        """Read input for at most one turn of the loop; defer the rest."""
        state, reader = self._state, self._reader
        if not state.reads:
            return
        self._moved = self.listener.thread.loop.time()
        unknown = b""
        if state.now is State.IDLE:
            self._first_ns = monotonic_ns() if self.listener.tracing.on else 0
            head = reader.read_template(data)
            if head is None:
                return
            unknown = head
        offset, end = 0, len(data)
        turn_end = monotonic() + TURN_S
        while offset < end and state.reads:
            try:
                offset += reader.feed(data[offset:], self._moved)
            except RefusedError as refused:
                self._refuse(refused.status, refused.message)
                return
            if offset < end and (self._full or monotonic() > turn_end):
                self._defer(bytes(data[offset:]))
                return
        reader.remember(unknown, end)

    def _request_read(self, head: RequestHead, data: Data, start: int) -> None:
        cycle = RequestResponseCycle(self, head, data, start)
        if not self._active:
            self._active = True
            self.listener.mark_active(self)
        if self._first_ns:
            cycle.received_ns = (self._first_ns, monotonic_ns())
        if self._current is None:
            self._current = cycle
            self._on_request(cycle)
        else:
            self._pending.append(cycle)
            if len(self._pending) >= _PIPELINED and not self._full:
                self._full = True
                self._pace()

    def _expect_continue(self) -> None:
        if self._current is None:
            self._transport.write(_CONTINUE)

    def _defer(self, rest: bytes) -> None:
        """Read the rest in a later turn, after other connections."""
        self._rest = rest
        self._pace()
        if not self._full:
            self.listener.thread.defer(self._read_rest)

    def _read_rest(self) -> None:
        rest, self._rest = self._rest, b""
        if rest:
            self._read(memoryview(rest))
        self._pace()

    def _pace(self) -> None:
        """Pause or resume the transport: receive only while nothing is deferred."""
        pause = self._full or bool(self._rest)
        if pause != self._paused and not self._transport.is_closing():
            self._paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._reader.began = self._moved = self.listener.thread.loop.time()
                self._transport.resume_reading()

    # -- responding, on the loop -----------------------------------------------------------------

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call one of the methods below on the loop; at once on the loop's thread."""
        thread = self.listener.thread
        if get_ident() == thread.ident:
            function(*arguments)
        else:
            thread.post(function, *arguments)

    def respond(self, cycle: RequestResponseCycle, response: HttpResponse) -> None:
        """Send a whole response."""
        if cycle is not self._current:
            return
        size = sum(map(len, response.parts))
        head = response_head(
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

    def begin(self, cycle: RequestResponseCycle, status: int, content_type: bytes) -> None:
        """Start a response of unknown length."""
        if cycle is not self._current:
            return
        chunked = not cycle.head.old
        cycle.keep_alive = cycle.keep_alive and chunked
        self._transport.write(
            chunked_head(status, content_type, _connection_field(cycle), chunked=chunked)
        )

    def chunk(self, cycle: RequestResponseCycle, data: bytes) -> None:
        """Send the next part of its body."""
        if cycle is not self._current or not data:
            return
        self._transport.write(data if cycle.head.old else b"%x\r\n%s\r\n" % (len(data), data))
        if self._transport.get_write_buffer_size() > self.listener.limits.unread_bytes:
            self.abort()

    def end(self, cycle: RequestResponseCycle) -> None:
        """Finish a response of unknown length."""
        if cycle is not self._current:
            return
        if not cycle.head.old:
            self._transport.write(b"0\r\n\r\n")
        self._finish(cycle)

    def _finish(self, cycle: RequestResponseCycle) -> None:
        cycle.finished = True
        cycle.on_disconnect = None
        self._current = None
        self._moved = self.listener.thread.loop.time()
        if not cycle.keep_alive or (self._eof and not self._pending):
            self._pending.clear()
            self._state.process(Event.CLOSE)
            self._transport.close()
        elif self._pending:
            self._current = self._pending.popleft()
            self._on_request(self._current)
            self._resume()
        elif self._state.now is State.MUST_CLOSE:
            self._linger()
        self.listener.request_finished()

    # -- ending ----------------------------------------------------------------------------------

    def announce_close(self) -> None:
        """Do nothing: HTTP/1.1 has no message for it."""

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 if it is closed."""
        found = self._transport.get_extra_info("socket")
        return -1 if found is None else int(found.fileno())

    def evict(self) -> None:
        """Close the connection to make room for another client."""
        self._state.process(Event.CLOSE)
        self.abort()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def _refuse(self, status: int, message: str) -> None:
        """Answer a malformed request with an error, after the requests before it; close the connection."""
        body = error_body(message)
        self._refusal = response_head(status, JSON, len(body), (), b"close") + body
        self._state.process(Event.LAST_REQUEST)
        self._reader.close()
        if self._current is None:
            self._linger()

    def _linger(self) -> None:
        """Send the refusal and let the client read it: closing at once might discard it."""
        self._state.process(Event.LAST_RESPONSE)
        self._rest = b""
        self._transport.write(self._refusal)
        if self._transport.can_write_eof():  # not under TLS
            self._transport.write_eof()
        self._linger_until = self.listener.thread.loop.time() + _LINGER_S
        self._resume()

    def _resume(self) -> None:
        if self._full and len(self._pending) <= _PIPELINED // 2:
            self._full = False
            self._read_rest()

    def check_timeouts(self, now: float) -> None:
        """End a connection that has stalled."""
        limits, state = self.listener.limits, self._state
        waiting = self._transport.get_write_buffer_size()
        if waiting < self._unsent or not waiting:
            self._sent = now
        self._unsent = waiting
        lingered = state.now is State.LINGERING and now > self._linger_until
        if lingered or now - self._sent > limits.idle_s:
            self.abort()
        elif self._paused:  # what has come waits for the answers before it
            pass
        elif state.now is State.HEAD and now - self._reader.began > limits.head_s:
            self._refuse(408, "the header of the request did not come in time")
        elif state.in_request and now - self._moved > limits.idle_s:
            self._refuse(408, "the request did not come in time")


def _connection_field(cycle: RequestResponseCycle) -> bytes:
    if not cycle.keep_alive:
        return b"close"
    return b"keep-alive" if cycle.head.old else b""


# Size of the receive buffer in bytes, as in asyncio.
_READ_SIZE = 256 << 10


class HttpListener(Listener[HttpConnection]):
    """A listener of HTTP/1.1.

    Parameters
    ----------
    handle : callable
        ``handle(cycles)`` answers requests that arrived together, each now or later; it must not
        raise.
    service : Service
    thread : LoopThread
        Its event loop; several endpoints may share one.
    host : str
    port : int
        0 for any free port.
    keep_fields : bool
        Whether cycles keep the header fields as sent.
    tls : Tls, optional
        Enables TLS.

    Raises
    ------
    UnavailableError
        The port is in use, or the address is not this machine's.
    """

    def __init__(
        self,
        handle: Callable[[Sequence[RequestResponseCycle]], None],
        service: Service,
        thread: LoopThread,
        host: str,
        port: int,
        *,
        keep_fields: bool = False,
        tls: Tls | None = None,
    ) -> None:
        self._handle = handle
        # Shared by all connections: its bytes are parsed before more are received.
        self._buffer = memoryview(bytearray(_READ_SIZE))
        self._new_reader = partial(RequestReader, service.limits, HeadTemplates(), keep_fields)
        self._ready: list[RequestResponseCycle] = []
        context = None if tls is None else tls.context("http/1.1")
        super().__init__(listen(host, port), service, thread, context)

    def make_connection(self) -> HttpConnection:
        return HttpConnection(self, self._new_reader, self._buffer, self._request_ready)

    def _request_ready(self, cycle: RequestResponseCycle) -> None:
        self._ready.append(cycle)
        self.schedule_dispatch()

    def dispatch(self) -> None:
        ready, self._ready = self._ready, []
        self._handle(ready)


class HttpEndpoint(Endpoint):
    """An endpoint for HTTP/1.1.

    Parameters
    ----------
    service : Service
        The server, and what clients may do with it.
    options : object
        Of `options_type`.
    join_batch : callable
        As for `RequestDispatcher.submit_many`.
    """

    @abstractmethod
    def __init__(
        self, service: Service, options: Any, join_batch: JoinBatch | None = None
    ) -> None: ...

    @classmethod
    def open(
        cls, service: Service, thread: LoopThread, host: str, port: int, options: Any
    ) -> HttpListener:
        """Open the port; `options` is of `options_type`."""
        handle = cls(service, options, thread.join_batch).handle
        return HttpListener(handle, service, thread, host, port, tls=service.http_tls)

    @abstractmethod
    def handle(self, cycles: Sequence[RequestResponseCycle]) -> None:
        """Answer requests that arrived together, each now or later; never raises."""
