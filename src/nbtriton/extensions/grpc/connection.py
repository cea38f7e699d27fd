"""One gRPC client on an event loop: `Http2Connection` between asyncio's transport and the calls.

Requests of one read are dispatched together, and frames of one turn are written together: 25 us of processor time
a call. gRPC's own core passes on three events and four operations a call one by one: 62 us.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

from nbtriton.common.errors import UnavailableError
from nbtriton.extensions.grpc.http2.connection import Http2Connection
from nbtriton.extensions.grpc.http2.frames import ErrorCode
from nbtriton.extensions.grpc.http2.hpack import HeaderBlock
from nbtriton.extensions.grpc.http2.streams import (
    Event,
    Http2Limits,
    Http2Stream,
    PingReceived,
    ShutdownAcknowledged,
    StreamReset,
)
from nbtriton.extensions.grpc.messages import (
    INDEXED,
    UNIMPLEMENTED,
    RequestHeaders,
    StatusError,
    read_headers,
    status_trailers,
)
from nbtriton.serving.frontends.listener import Listener, listen
from nbtriton.serving.frontends.loop import TURN_S, LoopThread
from nbtriton.serving.frontends.service import Service, Tls

_log = logging.getLogger("nbtriton.serving.frontends")

# Limit of asyncio's write buffer, in bytes.
_UNSENT = 1 << 20
# Limit of bytes that are discarded after GOAWAY with an error.
_MAX_DISCARDED = 16 << 20
# Time for a client to read the first GOAWAY, and for it to disconnect after the last one.
_WARNING_S, _LINGER_S = 0.5, 0.25
# Time for a client to read a GOAWAY with an error.
_GOAWAY_S = 2.0


class GrpcConnection(asyncio.Protocol):
    """One client.

    Parameters
    ----------
    listener : GrpcListener
    """

    __slots__ = (
        "_discarded", "_is_active", "_is_closed", "_is_draining", "_is_flushing", "_is_late", "_is_leaving",
        "_keepalive", "_loop", "_transport", "_unsent", "http2", "listener",
    )  # fmt: skip

    def __init__(self, listener: GrpcListener) -> None:
        self.listener = listener
        self._loop = listener.thread.loop
        now = self._loop.time()
        self.http2 = Http2Connection(listener.http2_limits, now, INDEXED)
        self._keepalive = Keepalive(listener.options, now)
        self._transport: Any = None
        self._discarded = 0  # bytes after GOAWAY with an error
        self._is_active = False  # has sent a request
        self._is_late = False  # received bytes are unread, and reading from the transport is paused
        self._is_flushing = False
        self._is_leaving = False  # the first GOAWAY is sent
        self._is_draining = False  # the second GOAWAY is sent: no new call is answered
        self._is_closed = False  # nothing more is read or sent
        self._unsent: list[tuple[Http2Stream, Callable[[], object]]] = []  # see `call_when_sent`

    # -- asyncio ---------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(_UNSENT)
        self.listener.add(self)
        self.schedule_flush()
        if not self.listener.admit(self):
            self._terminate(ErrorCode.ENHANCE_YOUR_CALM, "the server has too many connections")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._is_closed = True
        self.listener.remove(self)
        self._cancel_calls()
        self._check_unsent()
        self.listener.request_finished()

    def pause_writing(self) -> None:
        self.http2.writer.is_paused = True

    def resume_writing(self) -> None:
        self.http2.resume_sending()
        self._check_unsent()
        self.schedule_flush()

    def data_received(self, data: bytes) -> None:
        if self._is_closed:  # open for a while, so that the client can read GOAWAY
            self._discarded += len(data)
            if self._discarded > _MAX_DISCARDED:
                self.abort()
            return
        now = self._keepalive.received_at = self._loop.time()
        self._handle(self.http2.receive_data(data, now))
        if self._unsent:
            self._check_unsent()
        if self.http2.has_more or self._is_late:
            self._receive_rest()
        elif self.http2.writer.out or self._is_draining:
            self.schedule_flush()

    def _receive_rest(self) -> None:
        """Read for at most one turn of the loop; defer the rest."""
        http2 = self.http2
        turn_end = monotonic() + TURN_S
        is_late = False
        while http2.has_more and not self._is_closed:
            if monotonic() > turn_end:
                is_late = True
                self.listener.thread.defer(self._receive_rest)
                break
            self._handle(http2.receive_data(b"", self._keepalive.received_at))
        if http2.writer.out or self._is_draining:
            self.schedule_flush()
        if is_late != self._is_late and not self._transport.is_closing():
            self._is_late = is_late
            if is_late:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # -- receiving -------------------------------------------------------------------------------

    def _handle(self, received: list[Event]) -> None:
        for event in received:
            if type(event) is tuple:
                stream, headers, data, end_stream = event
                if headers is not None:
                    self._begin_call(stream, headers, end_stream)
                elif stream.owner is not None:
                    stream.owner.receive_data(data, end_stream)
            elif type(event) is StreamReset:
                if event.stream.owner is not None:
                    event.stream.owner.cancel()
            elif type(event) is PingReceived:
                now, has_calls = self._keepalive.received_at, bool(self.http2.streams)
                if self._keepalive.record_ping(now, has_calls):
                    self._terminate(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
                    return
            elif type(event) is ShutdownAcknowledged:
                self._drain()
            else:
                self._close_after_error()

    def _begin_call(self, stream: Http2Stream, block: HeaderBlock, end_stream: bool) -> None:
        if not self._is_active:
            self._is_active = True
            self.listener.mark_active(self)
        if block.parsed is None:
            block.parsed = self.listener.resolve(block)
        headers, handler = block.parsed
        if isinstance(handler, StatusError):
            trailers = status_trailers(handler.code, handler.text, has_begun=False)
            self.http2.send_headers(stream, trailers, end_stream=True)
            self.record_response()
            return
        call = stream.owner = handler(self, stream, headers)
        if end_stream:
            call.half_close()

    def _cancel_calls(self) -> None:
        for stream in self.http2.close_streams():
            if stream.owner is not None:
                stream.owner.cancel()

    # -- sending ---------------------------------------------------------------------------------

    def record_response(self) -> None:
        """Note that part of a response is sent: the client is not idle."""
        self._keepalive.has_responded = True
        if not self._is_flushing:
            self.schedule_flush()

    def call_when_sent(self, stream: Http2Stream, on_sent: Callable[[], object]) -> None:
        """Call a function once nothing of a stream waits for the client to read."""
        if stream.queued:
            self._unsent.append((stream, on_sent))
        else:
            on_sent()

    def _check_unsent(self) -> None:
        found, self._unsent = self._unsent, []
        for stream, on_sent in found:
            if stream.queued and not self._is_closed:
                self._unsent.append((stream, on_sent))
            else:
                on_sent()

    def schedule_flush(self) -> None:
        """Write the collected frames at the end of the loop's turn."""
        if not self._is_flushing:
            self._is_flushing = True
            self.listener.schedule_flush(self)

    def flush(self) -> None:
        """Write the collected frames."""
        self._is_flushing = False
        if not self._is_closed:
            self._write()
            if self._is_draining and not self.http2.streams:
                self._disconnect_later(self.listener.limits.idle_s)

    def _write(self) -> None:
        data = self.http2.data_to_send()
        if not data or self._transport.is_closing():
            return
        if type(data) is bytes:
            self._transport.write(data)
        else:
            self._transport.writelines(data)

    # -- closing ---------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """True while there are calls, and after GOAWAY until the client has disconnected."""
        return self._is_leaving or bool(self.http2.streams)

    def idle_since(self) -> float | None:
        """Return the time of the last read on the loop's clock; None if busy."""
        return None if self.busy else self._keepalive.received_at

    def evict(self) -> None:
        """Close the connection to make room for another client."""
        if self.http2.is_greeted:
            self._terminate(ErrorCode.NO_ERROR, "the server has too many connections")
        else:
            self.abort()

    def announce_close(self) -> None:
        """Send the first GOAWAY; calls that begin before the client knows it are answered."""
        if self.listener.closing:
            for stream in list(self.http2.streams.values()):
                if stream.owner is not None:
                    stream.owner.announce_close()
        if self._is_leaving:
            return
        self._is_leaving = True
        if not self.http2.is_greeted:
            self.abort()
            return
        self.http2.begin_shutdown()
        self.schedule_flush()
        self._loop.call_later(_WARNING_S, self._drain)

    def _drain(self) -> None:
        """Send the second GOAWAY; later calls are not answered."""
        if self._is_leaving and not self._is_draining and not self._is_closed:
            self._is_draining = True
            self.http2.finish_shutdown()
            self.schedule_flush()

    def _terminate(self, code: ErrorCode, text: str) -> None:
        if not self._is_closed:
            self.http2.terminate(code, text)
            self._close_after_error()

    def _close_after_error(self) -> None:
        self._cancel_calls()
        self._disconnect_later(_GOAWAY_S)

    def _disconnect_later(self, patience_s: float) -> None:
        """Close the connection after a time in which the client may read and disconnect."""
        self._is_closed = True
        self._write()
        if self._transport.can_write_eof():  # not under TLS
            self._transport.write_eof()
        self._loop.call_later(_LINGER_S, self._disconnect, self._loop.time() + patience_s)

    def _disconnect(self, at_last: float) -> None:
        if self._transport.get_write_buffer_size() and self._loop.time() < at_last:
            self._loop.call_later(_LINGER_S, self._disconnect, at_last)
        else:
            self._transport.abort()

    def abort(self) -> None:
        """End the connection at once."""
        self._is_closed = True
        self._transport.abort()

    def check_timeouts(self, now: float) -> None:
        """Enforce time limits: send a ping or GOAWAY, or end the connection."""
        if not self.http2.is_greeted:
            if now - self._keepalive.created_at > self.listener.limits.head_s:
                self.abort()
            return
        due = self._keepalive.due(now, bool(self.http2.streams))
        if due == "ping":
            self.http2.send_ping()
            self.schedule_flush()
        elif due == "leave":
            self.announce_close()
        elif due == "end":
            self.abort()

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 if it is closed."""
        found = self._transport.get_extra_info("socket")
        return -1 if found is None else int(found.fileno())


# Constructor of a call: `UnaryCall` or `StreamCall` with its first argument.
Handler = Callable[[GrpcConnection, Http2Stream, RequestHeaders], Any]


class GrpcListener(Listener[GrpcConnection]):
    """A port that answers gRPC calls.

    Parameters
    ----------
    handlers : mapping of bytes to handler
        By full method name, such as ``b"/grpc.health.v1.Health/Check"``.
    after_messages : callable
        Called on the loop after all messages that arrived together are dispatched; must not raise.
    service : Service
    thread : LoopThread
        Its event loop; several listeners may share one.
    host, port
        Where to listen; 0 for any free port.
    options : sequence of (name, value)
        gRPC's channel arguments, such as ``("grpc.keepalive_time_ms", 7200000)``.
    tls : Tls, optional
        Enables TLS.

    Raises
    ------
    UnavailableError
        The port is in use, or the address is not this machine's.
    """

    def __init__(
        self,
        handlers: Mapping[bytes, Handler],
        after_messages: Callable[[], object],
        service: Service,
        thread: LoopThread,
        host: str,
        port: int,
        *,
        options: Sequence[tuple[str, int | str]] = (),
        tls: Tls | None = None,
    ) -> None:
        self.options = ChannelArguments.parse(options)
        limits = service.limits
        # gRPC's limit of a call's header fields; a call beyond fails with RESOURCE_EXHAUSTED.
        fields = max(limits.header_bytes * 5 // 4, 16 << 10)
        self.http2_limits = Http2Limits(limits.calls, fields)
        self._handlers = handlers
        self._after_messages = after_messages
        self._to_flush: list[GrpcConnection] = []
        context = None if tls is None else tls.context("h2")
        try:
            sock = listen(host, port)
        except UnavailableError:
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise UnavailableError(
                f"failed to listen for gRPC on {address}", hint="is it in use?"
            ) from None
        super().__init__(sock, service, thread, context)

    def make_connection(self) -> GrpcConnection:
        return GrpcConnection(self)

    def dispatch(self) -> None:
        self._after_messages()

    def resolve(self, block: HeaderBlock) -> tuple[RequestHeaders, Handler | StatusError]:
        """Return a request's parsed headers and the handler of its method, or the error."""
        headers = read_headers(block.fields, self.options.level)
        handler = self._handlers.get(headers.path) or StatusError(UNIMPLEMENTED, "")
        return headers, headers.fault or handler

    def schedule_flush(self, connection: GrpcConnection) -> None:
        """Schedule a connection's write at the end of the loop's turn."""
        if not self._to_flush:
            self.thread.loop.call_soon(self._flush)
        self._to_flush.append(connection)

    def _flush(self) -> None:
        to_flush, self._to_flush = self._to_flush, []
        for connection in to_flush:
            try:
                connection.flush()
            except Exception:  # such as a MemoryError: the others would wait for ever
                _log.exception("a connection could not be written to")
                connection.abort()


# Minimum interval of pings by a client without calls.
_IDLE_PINGS_S = 7200.0
# Spread of the maximum age, so that connections that began together do not end together.
_JITTER = 0.1
_LONGEST = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ChannelArguments:
    """gRPC's channel arguments that apply to a server; times in milliseconds.

    Parameters
    ----------
    level : int
        Compression level of responses: 0 none, 3 best.
    """

    keepalive_time_ms: int = 7_200_000
    keepalive_timeout_ms: int = 20_000
    keepalive_permit_without_calls: int = 0
    max_pings_without_data: int = 2
    min_ping_interval_without_data_ms: int = 300_000
    max_ping_strikes: int = 2
    level: int = 0
    max_connection_age_ms: int = _LONGEST
    max_connection_age_grace_ms: int = _LONGEST
    max_connection_idle_ms: int = _LONGEST

    @classmethod
    def parse(cls, arguments: Sequence[tuple[str, int | str]]) -> ChannelArguments:
        """Read arguments such as ``("grpc.keepalive_time_ms", 7200000)``; ignore unknown ones."""
        named = {
            name.removeprefix("grpc.").removeprefix("http2."): value for name, value in arguments
        }
        named["level"] = named.pop("default_compression_level", 0)
        known = cls.__dataclass_fields__
        return cls(**{name: int(value) for name, value in named.items() if name in known})


class Keepalive:
    """Pings and activity of one connection; times in seconds of the loop's clock.

    Parameters
    ----------
    options : ChannelArguments
    now : float

    Attributes
    ----------
    created_at, received_at : float
        When the connection began, and when bytes were last read; `received_at` is set by the owner.
    has_responded : bool
        Whether a response was sent, which permits the client's earlier pings; set by the owner.
    """

    __slots__ = (
        "_active", "_age_s", "_leaves_at", "_options", "_pinged", "_pings", "_strikes", "_waits_since",
        "created_at", "has_responded", "received_at",
    )  # fmt: skip

    def __init__(self, options: ChannelArguments, now: float) -> None:
        self.created_at = self.received_at = self._active = now
        self._options = options
        spread = random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311
        self._age_s = options.max_connection_age_ms / 1000 * spread
        self._leaves_at = math.inf
        self.has_responded = False
        self._strikes = 0
        self._pinged = -math.inf  # last ping of the client
        self._pings = 0  # pings sent since the last data
        self._waits_since: float | None = None  # time of a ping without an answer

    def _apply_response(self) -> None:
        if self.has_responded:
            self.has_responded = False
            self._strikes = self._pings = 0
            self._pinged = -math.inf

    def record_ping(self, now: float, has_calls: bool) -> bool:
        """Note a ping of the client; True if the client pings too often."""
        self._apply_response()
        options = self._options
        without = has_calls or options.keepalive_permit_without_calls
        pause_s = options.min_ping_interval_without_data_ms / 1000 if without else _IDLE_PINGS_S
        self._strikes += now < self._pinged + pause_s
        self._pinged = now
        return 0 < options.max_ping_strikes < self._strikes

    def due(self, now: float, has_calls: bool) -> Literal["", "ping", "leave", "end"]:
        """Return the action that is due now."""
        self._apply_response()
        options = self._options
        if has_calls:
            self._active = now
        if self._waits_since is not None and self.received_at >= self._waits_since:
            self._waits_since = None
        if self._waits_since is not None:
            if now - self._waits_since >= options.keepalive_timeout_ms / 1000:
                return "end"
        elif now - self.received_at >= options.keepalive_time_ms / 1000 and (
            has_calls or options.keepalive_permit_without_calls
        ):
            limit = options.max_pings_without_data
            if not limit or self._pings < limit:
                self._pings += 1
                self._waits_since = now
                return "ping"
        if now >= self._leaves_at + options.max_connection_age_grace_ms / 1000:
            return "end"
        idle = now - self._active >= options.max_connection_idle_ms / 1000
        if self._leaves_at == math.inf and (idle or now - self.created_at >= self._age_s):
            self._leaves_at = now
            return "leave"
        return ""
