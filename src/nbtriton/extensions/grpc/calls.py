"""gRPC calls, unary and bidirectional: messages in, responses out.

Methods run on the loop, and need no lock, unless their docstring allows any thread.
"""

from __future__ import annotations

import asyncio
import logging
from _thread import get_ident
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns
from typing import Any, Final, Protocol

from nbtriton.common.errors import InternalError, TritonError
from nbtriton.extensions.grpc import messages
from nbtriton.extensions.grpc.connection import GrpcConnection
from nbtriton.extensions.grpc.http2.frames import ErrorCode
from nbtriton.extensions.grpc.http2.streams import Http2Stream, StreamState

# The further arguments of `Call`.
_Request = tuple[GrpcConnection, Http2Stream, messages.RequestHeaders]

_log = logging.getLogger("nbtriton.serving.frontends")

_PREFIX_SIZE: Final = messages.PREFIX.size
_unpack_prefix: Final = messages.PREFIX.unpack_from
_pack_prefix: Final = messages.PREFIX.pack
# Largest message that is decompressed on the loop: one turn may read 40 of them, each a thousand
# times larger unpacked.
_SHORT = 16 << 10
# Requests in progress at which a stream is no longer read.
_MAX_IN_FLIGHT = 4096


class CallListener(Protocol):
    """Receiver of the events of a bidirectional call, on the loop."""

    def on_message(self, data: bytes) -> None:
        """Handle a message."""

    def on_half_close(self) -> None:
        """Handle the end of the client's messages."""

    def on_cancel(self) -> None:
        """Handle the client's cancellation."""


class Call:
    """One call.

    Parameters
    ----------
    method : callable
        Its implementation: see `UnaryCall` and `StreamCall`.
    connection : GrpcConnection
    stream : Http2Stream
    headers : RequestHeaders

    Attributes
    ----------
    metadata : sequence of (name, value)
        As the client sent it.
    on_cancel : callable
        Called on the loop if the client cancels or disconnects, or at the deadline.
    is_cancelled : bool
        Whether the call ended in one of these ways.
    is_finished : bool
        Whether the response is complete.
    is_held : bool
        Whether reading of messages is paused.
    since_ns : int
        Start of the call; 0 without tracing.
    """

    __slots__ = (
        "_deadline", "_has_begun", "_headers", "_in_flight", "_method", "_reader", "connection", "is_cancelled", "is_finished",
        "is_held", "is_working", "metadata", "on_cancel", "since_ns", "stream",
    )  # fmt: skip

    def __init__(
        self,
        method: Callable[..., Any],
        connection: GrpcConnection,
        stream: Http2Stream,
        headers: messages.RequestHeaders,
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
        self._reader: messages.MessageReader | None = None
        self._deadline: asyncio.TimerHandle | None = None
        if headers.timeout_s is not None:
            loop = connection.listener.thread.loop
            self._deadline = loop.call_later(headers.timeout_s, self._expire)

    # -- receiving -------------------------------------------------------------------------------

    def receive_data(self, data: bytes, end_stream: bool) -> None:
        """Read part of the request, and handle the messages that it completes."""
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
                self._reader = messages.MessageReader(max_size)
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
        except messages.StatusError as error:
            self.abort(error.code, error.text)

    def _receive_compressed(self, message: bytes) -> None:
        limits = self.connection.listener.limits
        limit = min(limits.body_bytes, limits.decompressed_bytes)
        try:
            message = messages.decompress(message, self._headers.encoding, min(_SHORT, limit))
        except messages.StatusError as error:
            if (
                error.code == messages.RESOURCE_EXHAUSTED and limit > _SHORT
            ):  # too long for the loop
                self.run_on_worker(partial(self._decompress, message, limit))
            else:
                self.abort(error.code, error.text)
        else:
            self._handle_message(message)

    def _decompress(self, message: bytes, limit: int) -> Callable[[], object]:
        try:
            found = messages.decompress(message, self._headers.encoding, limit)
        except messages.StatusError as error:
            return partial(self.abort, error.code, error.text)
        except Exception as error:
            _log.exception("a message could not be decompressed")
            return partial(self.abort, messages.INTERNAL, f"{type(error).__name__}: {error}")
        return partial(self._handle_decompressed, found)

    def _handle_decompressed(self, message: bytes) -> None:
        if not self.is_finished:
            self._handle_message(message)

    def run_on_worker(self, task: Callable[[], Callable[[], object]]) -> None:
        """Run a long task on a worker; until it ends, the call is not read.

        The function that the task returns is called on the loop, even if the call has ended.
        """
        self.is_held = self.is_working = True
        thread = self.connection.listener.thread
        thread.run_on_worker(lambda: thread.post(self._finish_work, task()))

    def _finish_work(self, then: Callable[[], object]) -> None:
        self.is_held = self.is_working = False
        then()
        self._resume()

    def _resume(self) -> None:
        """Read the messages that arrived while reading was paused."""
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
        """End the call after its messages; harmless when repeated."""
        if not self.is_finished:
            trailers = messages.OK_TRAILERS
            if code or text or not self._has_begun:
                trailers = messages.status_trailers(code, text, has_begun=self._has_begun)
            self.connection.http2.send_headers(self.stream, trailers, end_stream=True)
            self.connection.record_response()
            self._release()

    def abort(self, code: int, text: str) -> None:
        """End the call at once, and cancel its requests."""
        if not self.is_finished:
            self.connection.http2.discard(self.stream)
            on_cancel = self.on_cancel
            self._finish(code, text)
            self.on_cancel = on_cancel
            self.cancel()

    def _expire(self) -> None:
        self.abort(messages.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _release(self) -> None:
        """Drop the references to a call that has ended."""
        self.is_finished = True
        self.stream.owner = self.on_cancel = None
        if self._deadline is not None:
            self._deadline.cancel()

    def cancel(self) -> None:
        """Cancel the call: its client no longer waits."""
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
        """End the call if no request is in flight: the server is closing."""


def _frame(message: bytes, encoding: bytes) -> tuple[bytes, bytes]:
    """Return a message with its prefix."""
    flag = 0
    if encoding:
        flag, message = messages.compress(message, encoding)
    return _pack_prefix(flag, len(message)), message


class UnaryCall(Call):
    """One unary call.

    Parameters
    ----------
    method : callable
        ``method(message, call)`` must cause one `reply` or `fail`, on any thread.
    connection, stream, headers
        As for `Call`.
    """

    __slots__ = ()

    def _handle_message(self, message: bytes) -> None:
        if self._in_flight:  # a unary call has one message
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
            self._finish(messages.INTERNAL, "the call carries no message, or one too large")

    def reply(self, message: bytes) -> None:
        """Send the response; from any thread, no effect after the first."""
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
            connection.http2.send_response(
                self.stream, headers.response, data, messages.OK_TRAILERS
            )
            connection.record_response()
            self._release()

    def fail(self, error: TritonError) -> None:
        """End the call with an error; from any thread."""
        thread = self.connection.listener.thread
        if get_ident() == thread.ident:
            self._finish(messages.code_of(error), error.message)
        else:
            thread.post(self._finish, messages.code_of(error), error.message)


class StreamCall(Call):
    """One bidirectional call; `send`, `message_done` and `finish` may be called from any thread.

    They take effect later on the loop, in the order of the calls.

    Parameters
    ----------
    method : callable
        ``method(call)`` returns the receiver of the messages; None for a call that it has ended.
    connection, stream, headers
        As for `Call`.
    """

    __slots__ = ("_listener",)

    def __init__(
        self, method: Callable[[StreamCall], CallListener | None], *request: *_Request
    ) -> None:
        super().__init__(method, *request)
        self._listener = method(self)
        if self._listener is not None:
            self.on_cancel = self._listener.on_cancel

    def _handle_message(self, message: bytes) -> None:
        if self._listener is None:
            return
        self._in_flight += 1
        self.is_held = self._in_flight >= _MAX_IN_FLIGHT
        self.connection.listener.schedule_dispatch()
        try:
            self._listener.on_message(message)
        except Exception as error:
            _log.exception("a message of a stream failed")
            self._finish(messages.INTERNAL, f"{type(error).__name__}: {error}")

    def half_close(self) -> None:
        if not (self._listener is None or self.is_held or self.is_finished):
            self._listener.on_half_close()

    def _post(self, function: Callable[..., object], *arguments: Any) -> None:
        self.connection.listener.thread.post(function, *arguments)

    def message_done(self) -> None:
        """Note that a message is completely answered, so that another may be read."""
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
            self._finish(messages.UNAVAILABLE, "Server exiting")

    def send(self, message: bytes, on_sent: Callable[[], object] | None = None) -> None:
        """Send a message in order; dropped if the call is cancelled.

        `on_sent` is called on the loop once neither it nor a later one waits for the client to read.
        """
        if not self.is_cancelled:
            self._post(self._send, message, on_sent)

    def _send(self, message: bytes, on_sent: Callable[[], object] | None) -> None:
        queued = self.stream.queued
        if self.is_finished:
            pass
        # The limit is for clients that do not read; a single message of any size may exceed it.
        elif queued and queued + len(message) > self.connection.listener.limits.unread_bytes:
            self.connection.http2.reset(self.stream, ErrorCode.CANCEL)
            self.connection.schedule_flush()
            self.cancel()
        else:
            self._send_message(message)
        if on_sent is not None:
            self.connection.call_when_sent(self.stream, on_sent)

    def fail(self, error: TritonError) -> None:
        """End the call with an error."""
        self.finish(messages.code_of(error), error.message)

    def finish(self, code: int = messages.OK, text: str = "") -> None:
        """End the call after its messages; harmless when repeated."""
        self._post(self._finish, code, text)
