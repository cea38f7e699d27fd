"""gRPC calls over grpcio's completion queue: bytes in, bytes out.

grpcio's own Python servers hand every call to a thread of a pool, or to asyncio; with 32 calls in
flight that costs 2.4 times what the queue itself costs (5,000 calls a second instead of 2,100 with
``grpc.aio`` and 2,900 with ``grpc.server``, 2 cores, one run). So one thread takes the events here,
and any thread answers. It is the one module that knows ``grpc._cython.cygrpc``, which both of those
servers are made of; nothing here knows what a message means.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc  # type: ignore[import-untyped]
from grpc._cython import cygrpc  # type: ignore[import-untyped]

from nbtriton.engine.answering import after_answers
from nbtriton.errors import InternalError, TritonError, UnavailableError

__all__ = ["Rpc", "Stream", "StreamHandler", "StreamRpc", "Transport", "UnaryHandler"]

_log = logging.getLogger("nbtriton.frontends")

_CODES = {
    "INVALID_ARG": grpc.StatusCode.INVALID_ARGUMENT,
    "NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "INTERNAL": grpc.StatusCode.INTERNAL,
    "UNSUPPORTED": grpc.StatusCode.UNIMPLEMENTED,
    "UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "ALREADY_EXISTS": grpc.StatusCode.ALREADY_EXISTS,
    "CANCELLED": grpc.StatusCode.CANCELLED,
    "UNKNOWN": grpc.StatusCode.UNKNOWN,
}
_NO_FLAGS = 0
# Operations that carry nothing of their call, nor bring anything back that is looked at: one of each
# serves all calls.
_HEADERS = cygrpc.SendInitialMetadataOperation(None, _NO_FLAGS)
_OK = cygrpc.SendStatusFromServerOperation(None, cygrpc.StatusCode.ok, b"", _NO_FLAGS)
_CLOSE = cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS)
# Not to be written before the next message is there too.
_MORE_FOLLOW: int = cygrpc.WriteFlag.buffer_hint
# Calls that are matched in C while the thread is busy; a close refuses those that are not.
_WAITING_CALLS = 256
# A call that is answered sooner is not asked whether its client has left: one event less of four.
_PATIENCE_S = 0.02
# Messages that are read before the first of them is answered.
_MOST_TOGETHER = 64
# A client refuses trailers of more than 8 KiB; percent-encoding may triple a byte.
_LONGEST_DETAILS = 2500
# Requests of one stream that are in progress; then it is not read from.
_MOST_IN_FLIGHT = 4096


class Stream(Protocol):
    """The other side of a bidirectional call: told of events on the transport's thread."""

    def message(self, data: bytes) -> None:
        """Take one more message."""
        ...

    def half_closed(self) -> None:
        """No more messages will come."""
        ...

    def cancelled(self) -> None:
        """Nobody waits for answers any more."""
        ...


@dataclass(frozen=True, slots=True)
class UnaryHandler:
    """``answer(message, rpc)`` must lead to one `Rpc.reply` or `Rpc.fail`, on any thread."""

    answer: Callable[[bytes, Rpc], None]


@dataclass(frozen=True, slots=True)
class StreamHandler:
    """``open(rpc)`` returns who takes the messages."""

    open: Callable[[StreamRpc], Stream]


class Rpc:
    """One unary call.

    Attributes
    ----------
    metadata : sequence of (name, value)
        As the client sent it.
    on_gone : callable
        Called on the transport's thread if the client cancels, leaves or runs out of time.
    """

    __slots__ = (
        "_call",
        "_handler",
        "_open",
        "_transport",
        "is_gone",
        "metadata",
        "on_gone",
        "since",
    )

    def __init__(self, transport: Transport, event: Any, handler: UnaryHandler) -> None:
        self._transport = transport
        self._handler = handler
        self._call = event.call
        self._open = [None]
        self.metadata: Sequence[tuple[str, Any]] = event.invocation_metadata
        self.on_gone: Callable[[], object] | None = None
        self.is_gone = False
        self.since = 0.0

    def start(self) -> None:
        self._transport.rpcs.add(self)
        self._call.start_server_batch((cygrpc.ReceiveMessageOperation(_NO_FLAGS),), self._received)

    def _received(self, event: Any) -> None:
        message = event.batch_operations[0].message()
        self.since = time.monotonic()
        self._transport.unwatched[self] = None
        if message is None:
            self._finish(grpc.StatusCode.INTERNAL, "the call carries no message, or one too large")
            return
        self._transport.arrived.append((self._answer, message))

    def _answer(self, message: bytes) -> None:
        try:
            self._handler.answer(message, self)
        except Exception as error:
            _log.exception("a call failed")
            self.fail(InternalError(f"{type(error).__name__}: {error}"))

    def watch(self) -> None:
        """Ask to be told when the client leaves."""
        self._call.start_server_batch(
            (cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS),), self._closed
        )

    def _closed(self, event: Any) -> None:
        if event.batch_operations[0].cancelled():
            self.gone()

    def gone(self) -> None:
        """The client does not wait any more."""
        self.is_gone = True
        on_gone = self.on_gone
        if on_gone is not None and self._open:
            on_gone()

    def reply(self, message: bytes) -> None:
        """Answer; from any thread, nothing happens if it was answered before."""
        if not self._claim():
            return
        self._send(_HEADERS, cygrpc.SendMessageOperation(message, _NO_FLAGS), _OK)

    def fail(self, error: TritonError) -> None:
        """Answer with an error; from any thread."""
        self._finish(_CODES[error.status], error.message)

    def _finish(self, code: grpc.StatusCode, text: str) -> None:
        if not self._claim():
            return
        self._send(
            _HEADERS,
            cygrpc.SendStatusFromServerOperation(None, code.value[0], _details(text), _NO_FLAGS),
        )

    def _claim(self) -> bool:
        try:
            self._open.pop()
        except IndexError:
            return False
        return True

    def _send(self, *operations: Any) -> None:
        self._transport.post(self._call, self._start, operations)

    def _start(self, operations: tuple[Any, ...]) -> None:
        # Whoever takes the call out of the dict is the one to ask for its end.
        if self._transport.unwatched.pop(self, self) is None:
            operations = (*operations, _CLOSE)
        self._call.start_server_batch(operations, self._finished)

    def _finished(self, _: Any) -> None:
        self.on_gone = None
        self._transport.forget(self)


class StreamRpc:
    """One bidirectional call; `send`, `done` and `finish` may be called from any thread."""

    __slots__ = (
        "_call", "_finishing", "_in_flight", "_lock", "_outgoing", "_reading", "_sending",
        "_started", "_stream", "_transport", "_unread", "is_gone", "metadata",
    )  # fmt: skip

    def __init__(self, transport: Transport, event: Any, handler: StreamHandler) -> None:
        self._transport = transport
        self._call = event.call
        self.metadata: Sequence[tuple[str, Any]] = event.invocation_metadata
        self.is_gone = False
        self._lock = threading.Lock()
        self._outgoing: deque[bytes] = deque()
        self._unread = 0
        self._in_flight = 0
        self._sending = False
        self._started = False
        self._reading = False
        self._finishing: tuple[grpc.StatusCode, str] | None = None
        self._stream = handler.open(self)

    def start(self) -> None:
        self._transport.rpcs.add(self)
        self._call.start_server_batch(
            (cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS),), self._closed
        )
        self._read()

    def _closed(self, event: Any) -> None:
        if event.batch_operations[0].cancelled():
            self.gone()

    def gone(self) -> None:
        """The client does not wait any more."""
        self.is_gone = True
        with self._lock:
            self._outgoing.clear()
        self._stream.cancelled()
        self.finish(grpc.StatusCode.CANCELLED, "")

    def _read(self) -> None:
        self._reading = True
        self._call.start_server_batch((cygrpc.ReceiveMessageOperation(_NO_FLAGS),), self._received)

    def _received(self, event: Any) -> None:
        message = event.batch_operations[0].message()
        arrived = self._transport.arrived
        if message is None:  # nothing is to be read any more, however much room there is
            arrived.append((self._half_closed, b""))
            return
        arrived.append((self._answer, message))
        with self._lock:
            self._in_flight += 1
            go_on = self._reading = self._in_flight < _MOST_IN_FLIGHT
        if go_on:
            self._read()

    def _half_closed(self, _: bytes) -> None:
        if not self.is_gone:
            self._stream.half_closed()

    def _answer(self, message: bytes) -> None:
        try:
            self._stream.message(message)
        except Exception as error:
            _log.exception("a message of a stream failed")
            self.done()
            self.finish(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")

    def done(self) -> None:
        """One message is answered completely: there is room for another."""
        with self._lock:
            self._in_flight -= 1
            full = self._in_flight == _MOST_IN_FLIGHT - 1 and not self._reading
            resume = full and not self.is_gone and self._finishing is None
            self._reading = self._reading or resume
        if resume:
            self._transport.post(self._call, self._read)

    def send(self, message: bytes) -> None:
        """Send a message after those before it; dropped if nobody waits for it."""
        with self._lock:
            if self.is_gone or self._finishing is not None:
                return
            # A client that asks and never listens. One message, however large, is not too much.
            too_much = self._unread > 0 and (
                self._unread + len(message) > self._transport.unread_bytes
            )
            self._outgoing.append(message)
            self._unread += len(message)
            start = not self._sending
            self._sending = True
        if start:
            self._transport.post(self._call, self._send_next)
        if too_much:
            self._call.cancel()

    def fail(self, error: TritonError) -> None:
        """End the call with an error."""
        self.finish(_CODES[error.status], error.message)

    def finish(self, code: grpc.StatusCode = grpc.StatusCode.OK, text: str = "") -> None:
        """End the call once everything is sent; harmless when repeated."""
        with self._lock:
            if self._finishing is not None:
                return
            self._finishing = (code, text)
            start = not self._sending
            self._sending = True
        if start:
            self._transport.post(self._call, self._send_next)

    def _send_next(self, event: Any = None) -> None:
        with self._lock:
            if event is not None:
                self._unread -= event
            message = self._outgoing.popleft() if self._outgoing else None
            # Not the first one: what it shares its operations with would wait for ever.
            flags = _MORE_FOLLOW if self._outgoing and self._started else _NO_FLAGS
            finishing = self._finishing
            if message is None and finishing is None:
                self._sending = False
                return
        operations: list[Any] = []
        if not self._started:
            self._started = True
            operations.append(_HEADERS)
        if message is not None:
            operations.append(cygrpc.SendMessageOperation(message, flags))
            size = len(message)
            self._call.start_server_batch(operations, lambda _: self._send_next(size))
            return
        assert finishing is not None
        code, text = finishing
        operations.append(
            cygrpc.SendStatusFromServerOperation(None, code.value[0], _details(text), _NO_FLAGS)
        )
        self._call.start_server_batch(operations, self._finished)

    def _finished(self, _: Any) -> None:
        self._transport.forget(self)


class Transport:
    """A port that answers gRPC calls.

    Parameters
    ----------
    host, port
        Where to listen; 0 takes any port that is free.
    handlers : mapping of bytes to handler
        By full method name, such as ``b"/grpc.health.v1.Health/Check"``.
    options : sequence of (name, value)
        gRPC's channel arguments.
    unread_bytes : int
        Messages of a stream that its client does not read; beyond this it is cut off.
    after_messages : callable, optional
        Called on the transport's thread when all messages that came together have been handed out;
        must not raise.

    Raises
    ------
    UnavailableError
        The port is taken, or the address is none of this machine's.
    """

    def __init__(
        self,
        host: str,
        port: int,
        handlers: Mapping[bytes, UnaryHandler | StreamHandler],
        *,
        options: Sequence[tuple[str, int | str]] = (),
        unread_bytes: int = 64 << 20,
        after_messages: Callable[[], object] = lambda: None,
    ) -> None:
        self.unread_bytes = unread_bytes
        self.rpcs: set[Rpc | StreamRpc] = set()
        # Calls whose end nobody has asked for yet, oldest first.
        self.unwatched: dict[Rpc, None] = {}
        # Messages that are read and not yet looked at, and who is to.
        self.arrived: list[tuple[Callable[[bytes], None], bytes]] = []
        self._posted: deque[tuple[Any, Callable[..., None], tuple[Any, ...]]] = deque()
        self._awake = False
        self._waking = threading.Lock()
        self._ended = False
        self._ident = 0
        self._handlers = handlers
        self._after_messages = after_messages
        self._queue = cygrpc.CompletionQueue()
        arguments = (("grpc.so_reuseport", 0), *options)
        self._server = cygrpc.Server(
            [(name.encode(), _bytes(value)) for name, value in arguments], False
        )
        self._server.register_completion_queue(self._queue)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port: int = self._server.add_http2_port(address.encode())
        except RuntimeError:
            self.port = 0
        self._closing = threading.Lock()
        self._stopping = False
        self._down = False
        self._idle = threading.Event()
        self._server.start()
        if not self.port:
            self._server.shutdown(self._queue, self._shut_down)
            self._queue.shutdown()
            while self._queue.poll().completion_type != cygrpc.CompletionType.queue_shutdown:
                pass
            self._server.destroy()
            raise UnavailableError(f"failed to listen for gRPC on {address}", hint="is it in use?")
        for _ in range(_WAITING_CALLS):
            self._request()
        self._thread = threading.Thread(target=self._run, name="nbtriton-grpc", daemon=True)
        self._thread.start()

    def close(self, *, drain_s: float = 0.0) -> None:
        """Stop: take no more calls, wait so long for those that run, then cancel them."""
        with self._closing:
            if self._stopping:
                return
            self._stopping = True
            self._server.shutdown(self._queue, self._shut_down)
            if drain_s > 0:
                self._idle.wait(drain_s)
            self._server.cancel_all_calls()
            for rpc in list(self.rpcs):
                rpc.gone()
            self._thread.join()
            self._server.destroy()

    def post(self, call: Any, function: Callable[..., None], *arguments: Any) -> None:
        """Run a function on the transport's thread, here and now if this is it.

        Two threads that both call into C hand the interpreter's lock to and fro at every call: that
        all answers of a batch are sent by this one thread costs 90 us a call instead of 120. It is
        told after the whole batch: answers that go to one stream are then written together.
        """
        if get_ident() == self._ident:
            function(*arguments)
            return
        self._posted.append((call, function, arguments))
        if not self._awake:
            after_answers(self._wake)

    def _wake(self) -> None:
        with self._waking:
            if self._awake or self._ended:
                return
            if len(self._posted) == 1:  # sooner done here than said there
                self._work_off(None)
                return
            try:
                call = self._posted[0][0]
            except IndexError:  # done already, on the way to something else
                return
            self._awake = True
            # A batch of no operations is an event of its own.
            call.start_server_batch((), self._work_off)

    def _work_off(self, _: Any) -> None:
        self._awake = False  # first: what is posted from now on wakes anew
        while self._posted:
            try:
                _, function, arguments = self._posted.popleft()
            except IndexError:  # two threads may be here
                return
            try:
                function(*arguments)
            except Exception:
                _log.exception("an answer of the gRPC endpoint could not be sent")

    def forget(self, rpc: Rpc | StreamRpc) -> None:
        """A call is over."""
        self.rpcs.discard(rpc)

    def _request(self) -> None:
        self._server.request_call(self._queue, self._queue, self._called)

    def _called(self, event: Any) -> None:
        if not event.success:
            return
        if not self._stopping:
            # Closed in this very moment by another thread: no further call is wanted.
            with contextlib.suppress(cygrpc.UsageError, ValueError):
                self._request()
        handler = self._handlers.get(event.call_details.method)
        if isinstance(handler, UnaryHandler):
            Rpc(self, event, handler).start()
        elif handler is not None:
            StreamRpc(self, event, handler).start()
        else:
            event.call.start_server_batch(
                (
                    _HEADERS,
                    _CLOSE,
                    cygrpc.SendStatusFromServerOperation(
                        None, cygrpc.StatusCode.unimplemented, b"", _NO_FLAGS
                    ),
                ),
                _nothing,
            )

    def _shut_down(self, _: Any) -> None:
        self._down = True

    def _run(self) -> None:
        self._ident = get_ident()
        poll = self._queue.poll
        unwatched = self.unwatched
        monotonic = time.monotonic
        look_at = 0.0
        while not (self._down and not self.rpcs):
            if self.arrived:
                # All that is there is read first: what arrived together can be one batch.
                deadline: float | None = 0.0
            else:
                deadline = time.time() + _PATIENCE_S if unwatched or self._stopping else None
            event = poll(deadline)
            tag = event.tag
            if tag is not None:
                try:
                    tag(event)
                except Exception:
                    _log.exception("an event of the gRPC endpoint could not be handled")
            if self.arrived:
                if tag is None or len(self.arrived) >= _MOST_TOGETHER:
                    self._answer_arrived()
            elif tag is None and self._stopping and not self.rpcs:
                self._idle.set()  # and nothing came for a while that could have become a call
            # The next poll must not find a reference to a call that is over.
            event = tag = None
            if unwatched and monotonic() >= look_at:
                look_at = monotonic() + _PATIENCE_S / 4
                self._watch_oldest()
        self._idle.set()
        with self._waking:
            self._ended = True
        self._queue.shutdown()
        while poll().completion_type != cygrpc.CompletionType.queue_shutdown:
            pass

    def _answer_arrived(self) -> None:
        arrived, self.arrived = self.arrived, []
        for answer, message in arrived:
            answer(message)
        self._after_messages()

    def _watch_oldest(self) -> None:
        due = time.monotonic() - _PATIENCE_S
        while True:
            try:
                rpc = next(iter(self.unwatched), None)
            except RuntimeError:  # answered in this very moment
                return
            if rpc is None or rpc.since > due:
                return
            if self.unwatched.pop(rpc, rpc) is None:
                rpc.watch()


def _nothing(_: Any) -> None:
    """Take an event that tells nothing."""


def _details(text: str) -> bytes:
    return text.encode("utf-8", "replace")[:_LONGEST_DETAILS].decode("utf-8", "ignore").encode()


def _bytes(value: int | str) -> int | bytes:
    return value.encode() if isinstance(value, str) else value
