"""Calls over gRPC: messages come in, answers go back from any thread; unary and in both directions.

Everything but what is said to be for any thread happens on the loop, where nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import logging
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol

from nbtriton.errors import InternalError, TritonError
from nbtriton.frontends.grpc.headers import (
    INTERNAL,
    OK,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    Opening,
    StatusError,
    code_of,
    unpacked,
)

if TYPE_CHECKING:
    from nbtriton.frontends.grpc.connection import Connection

__all__ = ["Call", "Handler", "Rpc", "Stream", "StreamHandler", "StreamRpc", "UnaryHandler"]

_log = logging.getLogger("nbtriton.frontends")

# What stands before each message.
_PREFIX = 5
# A client may send a message in tiny pieces: those are put together until they are as long as this.
_TINY, _PIECE = 512, 16 << 10
# A packed message that is longer is not unpacked on the loop.
_SHORT = 64 << 10
# Requests of one stream that are in progress; then it is not read from.
_MOST_IN_FLIGHT = 4096


class Stream(Protocol):
    """The other side of a bidirectional call: told of events on the loop."""

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

    def call(self, connection: Connection, number: int, opening: Opening) -> Call:
        return Rpc(connection, number, opening, self)


@dataclass(frozen=True, slots=True)
class StreamHandler:
    """``open(rpc)`` returns who takes the messages."""

    open: Callable[[StreamRpc], Stream]

    def call(self, connection: Connection, number: int, opening: Opening) -> Call:
        return StreamRpc(connection, number, opening, self)


Handler = UnaryHandler | StreamHandler


class Call:
    """One call.

    Parameters
    ----------
    connection : Connection
    number : int
        Of its stream in HTTP/2.
    opening : Opening
        What it said first.

    Attributes
    ----------
    metadata : sequence of (name, value)
        As the client sent it.
    on_gone : callable
        Called on the loop if the client cancels, leaves or runs out of time.
    is_gone : bool
        Whether one of that has happened.
    over : bool
        Whether the last thing has been sent, or nothing can be any more.
    half_closed : bool
        Whether the client has sent all that it will.
    held, works : bool
        Whether messages are left unread for now, and whether that is because of `work`.
    window : int
        Bytes that the client takes of this call.
    unread : int
        Bytes that the client has sent, and not yet been given back.
    queue : deque of bytes-like
        What waits for the client's windows; as many bytes as `queued`.
    ending : bytes, optional
        The fields that end the call, once they are known.
    since_ns : int
        When it began; 0 where nothing is traced.
    """

    __slots__ = (
        "_flag", "_lacking", "_pieces", "_raw", "connection", "deadline", "ending", "half_closed", "has_begun", "held", "is_gone",
        "metadata", "number", "on_gone", "opening", "over", "queue", "queued", "since_ns", "unread", "window", "works",
    )  # fmt: skip

    def __init__(self, connection: Connection, number: int, opening: Opening) -> None:
        self.connection = connection
        self.number = number
        self.opening = opening
        self.metadata: Sequence[tuple[str, Any]] = opening.metadata
        self.on_gone: Callable[[], object] | None = None
        self.deadline: asyncio.TimerHandle | None = None
        self.since_ns = monotonic_ns() if connection.port.tracing.on else 0
        self.is_gone = self.over = self.half_closed = self.held = self.has_begun = self.works = (
            False
        )
        self.window = connection.first_window
        self.unread = 0
        self.queue: deque[bytes | memoryview] | None = None
        self.queued = 0
        self.ending: bytes | None = None
        # What is not to be looked at yet: less than a prefix, or what came while this was held.
        self._raw: list[bytes] | None = None
        # A message that is not there completely, and how many bytes of it are lacking.
        self._pieces: list[bytes] | None = None
        self._lacking = self._flag = 0

    # -- reading ---------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take what has come, and read the messages that it completes."""
        at = 0
        if self._raw is not None:
            _add(self._raw, data)
            if self.held:
                return
            data = b"".join(self._raw)
            self._raw = None
        elif self._pieces is not None:
            at = self._lacking
            self._lacking -= len(data)
            _add(self._pieces, data[:at])
            if self._lacking > 0:
                return
            message = b"".join(self._pieces)
            self._pieces = None
            self._whole(message, self._flag)
        end = len(data)
        most = self.connection.port.most_received
        while end - at >= _PREFIX and not (self.held or self.over):
            size = int.from_bytes(data[at + 1 : at + _PREFIX], "big")
            if size > most:
                text = f"SERVER: Received message larger than max ({size} vs. {most})"
                self.connection.refuse(self, RESOURCE_EXHAUSTED, text)
                return
            flag = data[at]
            at += _PREFIX
            if end - at < size:
                self._pieces = [data[at:]]
                self._lacking, self._flag = size - (end - at), flag
                return
            self._whole(data[at : at + size], flag)
            at += size
        if at < end or self.held:
            self._raw = [data[at:]]

    def _whole(self, message: bytes, flag: int) -> None:
        if not flag:
            self.take(message)
            return
        most = self.connection.port.most_unpacked
        try:
            message = unpacked(message, self.opening.encoding, min(_SHORT, most))
        except StatusError as fault:
            if fault.code == RESOURCE_EXHAUSTED and most > _SHORT:  # others are not to wait for it
                self.work(partial(self._unpack, message, most))
            else:
                self.connection.refuse(self, fault.code, fault.text)
        else:
            self.take(message)

    def work(self, task: Callable[[], Callable[[], object]]) -> None:
        """Do something long on a worker; nothing more is read of the call before it is done.

        What the task returns is called on the loop then, whatever has become of the call.
        """
        self.held = self.works = True
        thread = self.connection.port.thread
        thread.run_on_worker(lambda: thread.post(self._worked, task()))

    def _worked(self, then: Callable[[], object]) -> None:
        self.held = self.works = False
        then()
        self._go_on()

    def _unpack(self, message: bytes, most: int) -> Callable[[], object]:
        try:
            found = unpacked(message, self.opening.encoding, most)
        except StatusError as fault:
            return partial(self.connection.refuse, self, fault.code, fault.text)
        except Exception as error:
            _log.exception("a message could not be unpacked")
            text = f"{type(error).__name__}: {error}"
            return partial(self.connection.refuse, self, INTERNAL, text)
        return partial(self._take, found)

    def _take(self, message: bytes) -> None:
        if not self.over:
            self.take(message)

    def _go_on(self) -> None:
        """Read what came while this was held."""
        if self.held or self.over:
            return
        self.feed(b"")
        if self.half_closed:
            self.ended()
        else:
            self.connection.give_back(self)

    def take(self, message: bytes) -> None:
        """Take a whole message."""
        raise NotImplementedError

    def ended(self) -> None:
        """No more messages will come."""
        raise NotImplementedError

    def wind_up(self) -> None:
        """End now if nothing is to be answered: the port closes."""

    def gone(self) -> None:
        """Nobody waits for answers any more."""
        self.is_gone = True
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is None:
            return
        try:
            on_gone()
        except Exception:
            _log.exception("a call that was given up could not be cancelled")


def _add(pieces: list[bytes], data: bytes) -> None:
    if len(data) < _TINY and len(pieces[-1]) < _PIECE:
        pieces[-1] += data
    else:
        pieces.append(data)


class Rpc(Call):
    """One unary call."""

    __slots__ = ("_handler", "_is_read")

    def __init__(
        self, connection: Connection, number: int, opening: Opening, handler: UnaryHandler
    ) -> None:
        super().__init__(connection, number, opening)
        self._handler = handler
        self._is_read = False

    def take(self, message: bytes) -> None:
        if self._is_read:  # one is enough
            return
        self._is_read = True
        self.connection.port.schedule_dispatch()
        try:
            self._handler.answer(message, self)
        except Exception as error:
            _log.exception("a call failed")
            self.fail(InternalError(f"{type(error).__name__}: {error}"))

    def ended(self) -> None:
        if not self._is_read and not self.held:
            text = "the call carries no message, or one too large"
            self.connection.finish(self, INTERNAL, text)

    def reply(self, message: bytes) -> None:
        """Answer; from any thread, nothing happens if it was answered before."""
        self._run(self.connection.answer, self, message)

    def fail(self, error: TritonError) -> None:
        """Answer with an error; from any thread."""
        self._run(self.connection.finish, self, code_of(error), error.message)

    def _run(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function on the loop, now if this is its thread."""
        thread = self.connection.port.thread
        if get_ident() == thread.ident:
            function(*arguments)
        else:
            thread.post(function, *arguments)


class StreamRpc(Call):
    """One bidirectional call; `send`, `done` and `finish` may be called from any thread.

    What they are told is done in that order, on the loop, also if it is the loop that tells.
    """

    __slots__ = ("_in_flight", "_stream")

    def __init__(
        self, connection: Connection, number: int, opening: Opening, handler: StreamHandler
    ) -> None:
        super().__init__(connection, number, opening)
        self._in_flight = 0
        self._stream = handler.open(self)
        self.on_gone = self._stream.cancelled

    def take(self, message: bytes) -> None:
        self._in_flight += 1
        self.held = self._in_flight >= _MOST_IN_FLIGHT
        self.connection.port.schedule_dispatch()
        try:
            self._stream.message(message)
        except Exception as error:
            _log.exception("a message of a stream failed")
            self.connection.finish(self, INTERNAL, f"{type(error).__name__}: {error}")

    def ended(self) -> None:
        if not self.held:
            self._stream.half_closed()

    def _post(self, function: Callable[..., object], *arguments: Any) -> None:
        self.connection.port.thread.post(function, *arguments)

    def done(self) -> None:
        """One message is answered completely: there is room for another."""
        self._post(self._done)

    def _done(self) -> None:
        self._in_flight -= 1
        if self.held and not self.works:
            self.held = False
            self._go_on()
        if self.connection.port.closing:
            self.wind_up()

    def wind_up(self) -> None:
        if not self._in_flight:
            self.connection.finish(self, UNAVAILABLE, "Server exiting")

    def send(self, message: bytes) -> None:
        """Send a message after those before it; dropped if nobody waits for it."""
        if not self.is_gone:
            self._post(self._send, message)

    def _send(self, message: bytes) -> None:
        if self.over or self.ending is not None:
            return
        most = self.connection.port.limits.unread_bytes
        # A client that asks and never listens. One message, however large, is not too much.
        if self.queued and self.queued + len(message) > most:
            self.connection.abandon(self)
        else:
            self.connection.message(self, message)

    def fail(self, error: TritonError) -> None:
        """End the call with an error."""
        self.finish(code_of(error), error.message)

    def finish(self, code: int = OK, text: str = "") -> None:
        """End the call once everything is sent; harmless when repeated."""
        self._post(self.connection.finish, self, code, text)
