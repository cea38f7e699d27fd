"""Calls over gRPC: messages in, responses out from any thread; unary and in both directions.

Everything but what is said to be for any thread happens on the loop, where nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import logging
from _thread import get_ident
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns
from typing import Any, Final, Protocol

from nbtriton.errors import InternalError, TritonError
from nbtriton.frontends.grpc.headers import (
    OK_TRAILERS,
    RequestHeaders,
    status_trailers,
)
from nbtriton.frontends.grpc.messages import PREFIX, MessageReader, compress, decompress
from nbtriton.frontends.grpc.status import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    OK,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    StatusError,
    code_of,
)
from nbtriton.frontends.http2.connection import Http2Connection
from nbtriton.frontends.http2.errors import ErrorCode
from nbtriton.frontends.http2.streams import Http2Stream, StreamState
from nbtriton.frontends.listener import Listener

__all__ = ["Call", "CallConnection", "CallListener", "Handler", "StreamCall", "UnaryCall"]

_log = logging.getLogger("nbtriton.frontends")

_PREFIX_SIZE: Final = PREFIX.size
_unpack_prefix: Final = PREFIX.unpack_from
_pack_prefix: Final = PREFIX.pack
# A compressed message that is longer is not decompressed on the loop.
_SHORT = 64 << 10
# Requests of one stream that are in progress; then it is not read from.
_MAX_IN_FLIGHT = 4096


class CallConnection(Protocol):
    """The connection of a call, as far as the call needs it."""

    @property
    def http2(self) -> Http2Connection: ...

    @property
    def listener(self) -> Listener[Any]: ...

    def schedule_flush(self) -> None:
        """Write soon what was sent, with all that is sent in the same moment."""
        ...

    def record_response(self) -> None:
        """Note that a part of a response is sent: the client is not idle."""
        ...


class CallListener(Protocol):
    """The receiver of what happens on a bidirectional call, on the loop."""

    def on_message(self, data: bytes) -> None:
        """One more message."""
        ...

    def on_half_close(self) -> None:
        """No more messages will come."""
        ...

    def on_cancel(self) -> None:
        """Responses are not wanted any more."""
        ...


_Request = tuple[CallConnection, Http2Stream, RequestHeaders]


class Call:
    """One call.

    Parameters
    ----------
    method : callable
        What answers it: see `UnaryCall` and `StreamCall`.
    connection : CallConnection
    stream : Http2Stream
    headers : RequestHeaders

    Attributes
    ----------
    metadata : sequence of (name, value)
        As the client sent it.
    on_cancel : callable
        Called on the loop if the client cancels, disconnects or runs out of time.
    is_cancelled : bool
        Whether one of that has happened.
    is_finished : bool
        Whether nothing more is to be sent.
    is_held : bool
        Whether messages are left unread for now.
    since_ns : int
        When it began; 0 where nothing is traced.
    """

    __slots__ = (
        "_deadline", "_has_begun", "_headers", "_in_flight", "_method", "_reader", "connection", "is_cancelled", "is_finished",
        "is_held", "is_working", "metadata", "on_cancel", "since_ns", "stream",
    )  # fmt: skip

    def __init__(
        self,
        method: Callable[..., Any],
        connection: CallConnection,
        stream: Http2Stream,
        headers: RequestHeaders,
    ) -> None:
        self._method = method
        self._in_flight = 0  # messages
        self.connection = connection
        self.stream = stream
        self.metadata: Sequence[tuple[str, Any]] = headers.metadata
        self.on_cancel: Callable[[], object] | None = None
        self.is_cancelled = self.is_finished = self.is_held = self.is_working = False
        self.since_ns = monotonic_ns() if connection.listener.tracing.on else 0
        self._headers = headers
        self._has_begun = False
        self._reader: MessageReader | None = None
        self._deadline: asyncio.TimerHandle | None = None
        if headers.timeout_s is not None:
            loop = connection.listener.thread.loop
            self._deadline = loop.call_later(headers.timeout_s, self._expire)

    # -- receiving -------------------------------------------------------------------------------

    def receive_data(self, data: bytes, end_stream: bool) -> None:
        """Read a part of the request, and the messages that it completes."""
        max_size = self.connection.listener.limits.body_bytes
        is_whole = False  # one message, in one frame: the usual case
        if self._reader is None and len(data) >= _PREFIX_SIZE and not self.is_held:
            flag, size = _unpack_prefix(data)
            is_whole = size == len(data) - _PREFIX_SIZE and size <= max_size
        if is_whole:
            if flag:
                self._receive_compressed(data[_PREFIX_SIZE:])
            else:
                self._handle_message(data[_PREFIX_SIZE:])
        else:
            if self._reader is None:
                self._reader = MessageReader(max_size)
            self._reader.feed(data)
            self._read_messages()
        if end_stream:
            self.half_close()
        elif not self.is_held:
            self.connection.http2.acknowledge(self.stream)

    def _read_messages(self) -> None:
        reader = self._reader
        try:
            while reader is not None and not (self.is_held or self.is_finished):
                found = reader.next_message()
                if found is None:
                    return
                flag, message = found
                if flag:
                    self._receive_compressed(message)
                else:
                    self._handle_message(message)
        except StatusError as error:
            self.abort(error.code, error.text)

    def _receive_compressed(self, message: bytes) -> None:
        limits = self.connection.listener.limits
        most = min(limits.body_bytes, limits.decompressed_bytes)
        try:
            message = decompress(message, self._headers.encoding, min(_SHORT, most))
        except StatusError as error:
            if error.code == RESOURCE_EXHAUSTED and most > _SHORT:  # others are not to wait for it
                self.run_on_worker(partial(self._decompress, message, most))
            else:
                self.abort(error.code, error.text)
        else:
            self._handle_message(message)

    def _decompress(self, message: bytes, most: int) -> Callable[[], object]:
        try:
            found = decompress(message, self._headers.encoding, most)
        except StatusError as error:
            return partial(self.abort, error.code, error.text)
        except Exception as error:
            _log.exception("a message could not be decompressed")
            return partial(self.abort, INTERNAL, f"{type(error).__name__}: {error}")
        return partial(self._handle_decompressed, found)

    def _handle_decompressed(self, message: bytes) -> None:
        if not self.is_finished:
            self._handle_message(message)

    def run_on_worker(self, task: Callable[[], Callable[[], object]]) -> None:
        """Do something long on a worker; nothing more is read of the call before it is done.

        What the task returns is called on the loop then, also if the call has ended.
        """
        self.is_held = self.is_working = True
        thread = self.connection.listener.thread
        thread.run_on_worker(lambda: thread.post(self._finish_work, task()))

    def _finish_work(self, then: Callable[[], object]) -> None:
        self.is_held = self.is_working = False
        then()
        self._resume()

    def _resume(self) -> None:
        """Read what came while this was held."""
        if self.is_held or self.is_finished:
            return
        self._read_messages()
        if self.stream.state is not StreamState.OPEN:
            self.half_close()
        elif not self.is_held:
            self.connection.http2.acknowledge(self.stream)
            self.connection.schedule_flush()

    def _handle_message(self, message: bytes) -> None:
        raise NotImplementedError

    def half_close(self) -> None:
        """Read the end of the request."""
        raise NotImplementedError

    # -- sending ---------------------------------------------------------------------------------

    def _send_message(self, message: bytes) -> None:
        http2, stream = self.connection.http2, self.stream
        encoding = self._headers.response_encoding
        if not self._has_begun:
            self._has_begun = True
            http2.send_headers(stream, self._headers.response)
        http2.send_data(stream, *_frame(message, encoding))
        self.connection.record_response()

    def _finish(self, code: int, text: str) -> None:
        """End the call once all its messages are sent; harmless when repeated."""
        if not self.is_finished:
            trailers = OK_TRAILERS
            if code or text or not self._has_begun:
                trailers = status_trailers(code, text, has_begun=self._has_begun)
            self.connection.http2.send_headers(self.stream, trailers, end_stream=True)
            self.connection.record_response()
            self._release()

    def abort(self, code: int, text: str) -> None:
        """End the call now; what it waits for is cancelled."""
        if not self.is_finished:
            self.connection.http2.discard(self.stream)
            on_cancel = self.on_cancel
            self._finish(code, text)
            self.on_cancel = on_cancel
            self.cancel()

    def _expire(self) -> None:
        self.abort(DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _release(self) -> None:
        """Nothing more is sent or read: drop what refers to the call."""
        self.is_finished = True
        self.stream.owner = self.on_cancel = None
        if self._deadline is not None:
            self._deadline.cancel()

    def cancel(self) -> None:
        """The client does not wait any more."""
        on_cancel = self.on_cancel
        self.is_cancelled = True
        self._release()
        if on_cancel is None:
            return
        try:
            on_cancel()
        except Exception:
            _log.exception("a call that was given up could not be cancelled")

    def announce_close(self) -> None:
        """End now if nothing is to be answered: the server closes."""


def _frame(message: bytes, encoding: bytes) -> tuple[bytes, bytes]:
    """Return a message's prefix and the message."""
    flag = 0
    if encoding:
        flag, message = compress(message, encoding)
    return _pack_prefix(flag, len(message)), message


class UnaryCall(Call):
    """One unary call.

    Parameters
    ----------
    method : callable
        ``method(message, call)`` must lead to one `reply` or `fail`, on any thread.
    connection, stream, headers
        As for `Call`.
    """

    __slots__ = ()

    def _handle_message(self, message: bytes) -> None:
        if self._in_flight:  # one is enough
            return
        self._in_flight = 1
        self.connection.listener.schedule_dispatch()
        try:
            self._method(message, self)
        except Exception as error:
            _log.exception("a call failed")
            self.fail(InternalError(f"{type(error).__name__}: {error}"))

    def half_close(self) -> None:
        if not (self._in_flight or self.is_held or self.is_finished):
            self._finish(INTERNAL, "the call carries no message, or one too large")

    def reply(self, message: bytes) -> None:
        """Answer; from any thread, nothing happens if it was answered before."""
        thread = self.connection.listener.thread
        if get_ident() == thread.ident:
            self._reply(message)
        else:
            thread.post(self._reply, message)

    def _reply(self, message: bytes) -> None:
        if not self.is_finished:
            headers, connection = self._headers, self.connection
            encoding = headers.response_encoding
            data = (
                _frame(message, encoding) if encoding else (_pack_prefix(0, len(message)), message)
            )
            connection.http2.send_response(self.stream, headers.response, data, OK_TRAILERS)
            connection.record_response()
            self._release()

    def fail(self, error: TritonError) -> None:
        """Answer with an error; from any thread."""
        thread = self.connection.listener.thread
        if get_ident() == thread.ident:
            self._finish(code_of(error), error.message)
        else:
            thread.post(self._finish, code_of(error), error.message)


class StreamCall(Call):
    """One bidirectional call; `send`, `message_done` and `finish` may be called from any thread.

    What they do is done in that order, on the loop, also if it is the loop that calls.

    Parameters
    ----------
    method : callable
        ``method(call)`` returns the receiver of the messages.
    connection, stream, headers
        As for `Call`.
    """

    __slots__ = ("_listener",)

    def __init__(self, method: Callable[[StreamCall], CallListener], *request: *_Request) -> None:
        super().__init__(method, *request)
        self._listener = method(self)
        self.on_cancel = self._listener.on_cancel

    def _handle_message(self, message: bytes) -> None:
        self._in_flight += 1
        self.is_held = self._in_flight >= _MAX_IN_FLIGHT
        self.connection.listener.schedule_dispatch()
        try:
            self._listener.on_message(message)
        except Exception as error:
            _log.exception("a message of a stream failed")
            self._finish(INTERNAL, f"{type(error).__name__}: {error}")

    def half_close(self) -> None:
        if not (self.is_held or self.is_finished):
            self._listener.on_half_close()

    def _post(self, function: Callable[..., object], *arguments: Any) -> None:
        self.connection.listener.thread.post(function, *arguments)

    def message_done(self) -> None:
        """One message is answered completely: another one may be read."""
        self._post(self._message_done)

    def _message_done(self) -> None:
        self._in_flight -= 1
        if self.is_held and not self.is_working:
            self.is_held = False
            self._resume()
        if self.connection.listener.closing:
            self.announce_close()

    def announce_close(self) -> None:
        if not self._in_flight:
            self._finish(UNAVAILABLE, "Server exiting")

    def send(self, message: bytes) -> None:
        """Send a message after those before it; dropped if the call is cancelled."""
        if not self.is_cancelled:
            self._post(self._send, message)

    def _send(self, message: bytes) -> None:
        if self.is_finished:
            return
        queued = self.stream.queued
        # A client that asks and never reads. One message, however large, is not too much.
        if queued and queued + len(message) > self.connection.listener.limits.unread_bytes:
            self.connection.http2.reset(self.stream, ErrorCode.CANCEL)
            self.connection.schedule_flush()
            self.cancel()
        else:
            self._send_message(message)

    def fail(self, error: TritonError) -> None:
        """End the call with an error."""
        self.finish(code_of(error), error.message)

    def finish(self, code: int = OK, text: str = "") -> None:
        """End the call once everything is sent; harmless when repeated."""
        self._post(self._finish, code, text)


# What begins a call: `UnaryCall` or `StreamCall` with its first argument.
Handler = Callable[[CallConnection, Http2Stream, RequestHeaders], Call]
