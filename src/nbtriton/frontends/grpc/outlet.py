"""What is said to one client over gRPC: answers within its windows, and all of a moment in one write."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any

from nbtriton.frontends.grpc.headers import (
    ACCEPT,
    CONTENT_TYPE,
    MESSAGE,
    OK,
    OK_STATUS,
    STATUS_200,
    packed,
    status_fields,
)
from nbtriton.frontends.grpc.keepalive import Pulse
from nbtriton.frontends.http2 import frames as http2
from nbtriton.frontends.http2.frames import FRAME, FaultError, frame, number_frame
from nbtriton.frontends.http2.hpack import indexed, literal, remembered
from nbtriton.frontends.token_bucket import TokenBucket

if TYPE_CHECKING:
    from nbtriton.frontends.grpc.calls import Call
    from nbtriton.frontends.grpc.transport import Transport

__all__ = ["FIRST_WINDOW", "Outlet"]

FIRST_WINDOW = 65_535
_FIRST_FRAME, _FIRST_TABLE = 16_384, 4096
# Longer messages are not copied to stand behind what is said before them.
_JOINED = 64 << 10
# What asyncio holds of what a client does not read, and how often that client is answered meanwhile.
_UNSENT = 1 << 20
_MOST_REPLIES = 10_000

# Calls that a client may give up a second in the long run, besides one for each that is answered.
_RESETS_PER_S = 100

# The fields before the first message and those of a good end. The first time the client's table
# remembers what they hold, from then on they are numbers there: 62 is what was remembered last.
_BEGIN = (
    STATUS_200 + remembered(*CONTENT_TYPE) + remembered(*ACCEPT),
    STATUS_200 + indexed(63) + indexed(62),
    STATUS_200 + indexed(64) + indexed(63),
    STATUS_200 + literal(*CONTENT_TYPE) + literal(*ACCEPT),
)
_END = (literal(*OK_STATUS), remembered(*OK_STATUS), indexed(62), literal(*OK_STATUS))
# How much of that the client remembers: nothing yet, the beginning, everything, or nothing ever.
_NOTHING, _BEGINNING, _EVERYTHING, _NEVER = range(4)
_NO_TABLE = b"\x20"
# A whole answer once all fields are numbers: what stands before the message, and behind it.
_BEFORE = Struct(">IBI3sIBIBI")
_BEHIND = Struct(">IBI1s")
_BEGIN_HEAD = len(_BEGIN[_EVERYTHING]) << 8 | http2.HEADERS
_END_HEAD = len(_END[_EVERYTHING]) << 8 | http2.HEADERS
_LAST = http2.END_HEADERS | http2.END_STREAM
_DATA_BEFORE = Struct(">IBIBI")


class Outlet(asyncio.Protocol):
    """The writing side of one connection; the reading side inherits from it.

    Parameters
    ----------
    port : Transport

    Attributes
    ----------
    first_window : int
        Bytes that the client takes of a call that begins.
    """

    __slots__ = (
        "_blocked", "_calls", "_deaf", "_frame_most", "_large", "_memory", "_out", "_paused", "_prefix",
        "_pulse", "_replies", "_resets_left", "_transport", "_window", "first_window", "port",
    )  # fmt: skip

    def __init__(self, port: Transport) -> None:
        self.port = port
        self._transport: Any = None
        self._pulse = Pulse(port.options, port.thread.loop.time())
        self._calls: dict[int, Call] = {}  # by their streams
        # How many calls the client may still give up.
        self._resets_left = TokenBucket(port.limits.calls, _RESETS_PER_S, self._pulse.born)
        self._deaf = False  # what comes is thrown away, and nothing is said
        self._out: list[bytes | memoryview] = []
        self._large = False
        self._paused = False
        self._replies = 0
        self._window = self.first_window = FIRST_WINDOW
        self._frame_most = _FIRST_FRAME
        self._memory = _NOTHING
        self._prefix = b""
        self._blocked: dict[Call, None] = {}

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(_UNSENT)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._replies = 0
        self._go_on()

    def _say(self, data: bytes) -> None:
        if self._deaf:
            return
        if not self._out:
            self.port.spoken(self)
        self._out.append(data)

    def _reply(self, data: bytes) -> None:
        """Say what any frame of a client asks for; not for ever to one that does not read."""
        if self._paused:
            self._replies += 1
            if self._replies > _MOST_REPLIES:
                self.abort()
                return
        self._say(data)

    def flush(self) -> None:
        """Write what has been said."""
        out, self._out = self._out, []
        if not out or self._transport.is_closing():
            return
        if self._large:
            self._large = False
            self._transport.writelines(out)
        else:
            self._transport.write(b"".join(out))

    def answer(self, call: Call, message: bytes) -> None:
        """Send the only message of a call, and end it well."""
        if call.over or call.ending is not None:
            return
        size = len(message) + MESSAGE.size
        if (
            self._memory != _EVERYTHING
            or size > self._window
            or size > call.window
            or size > self._frame_most
            or size > _JOINED
            or self._paused
            or call.opening.packing
        ):
            self.message(call, message)
            self.finish(call, OK, "")
            return
        self._window -= size
        stream = call.number
        self._say(
            _BEFORE.pack(
                _BEGIN_HEAD, http2.END_HEADERS, stream, _BEGIN[_EVERYTHING],
                size << 8, 0, stream, 0, len(message),
            )
        )  # fmt: skip
        self._out.append(message)
        self._out.append(_BEHIND.pack(_END_HEAD, _LAST, stream, _END[_EVERYTHING]))
        self._pulse.spoke()
        self._resets_left.earned += 1
        call.on_gone = None  # it refers to the call
        self._forget(call)

    def message(self, call: Call, message: bytes) -> None:
        """Send one more message of a call, as soon as the client takes it."""
        packing = call.opening.packing
        if not call.has_begun:
            call.has_begun = True
            self._say(self._headers_frame(call.number, self._begin(packing), 0))
        flag, message = packed(message, packing)
        size = len(message)
        total = size + MESSAGE.size
        if (
            call.queue is None
            and total <= self._window
            and total <= call.window
            and total <= self._frame_most
            and total <= _JOINED
            and not self._paused
        ):
            self._window -= total
            call.window -= total
            self._pulse.spoke()
            self._say(_DATA_BEFORE.pack(total << 8, 0, call.number, flag, size))
            self._out.append(message)
            return
        if call.queue is None:
            call.queue = deque()
        prefix = MESSAGE.pack(flag, size)
        if total <= _JOINED:
            call.queue.append(prefix + message)
        else:
            call.queue += (prefix, memoryview(message))
        call.queued += total
        self._pump(call)

    def finish(self, call: Call, code: int, text: str) -> None:
        """End a call once all its messages are sent; harmless when repeated."""
        if call.over or call.ending is not None:
            return
        call.ending = (
            b"" if code == OK and not text and call.has_begun else status_fields(code, text)
        )
        if call.queue is None:
            self._end(call)

    def refuse(self, call: Call, code: int, text: str) -> None:
        """End a call now, whatever it is doing; nobody is told."""
        if call.over:
            return
        on_gone = call.on_gone
        call.ending = status_fields(code, text)
        self._end(call)
        call.on_gone = on_gone
        call.gone()

    def abandon(self, call: Call, code: int = http2.CANCEL) -> None:
        """End a call without a word."""
        self._say(number_frame(http2.RST_STREAM, call.number, code))
        call.half_closed = True
        self._forget(call)
        call.gone()

    def _pump(self, call: Call) -> None:
        """Send as much of a call as its client takes."""
        queue = call.queue
        while queue:
            data = queue[0]
            room = min(len(data), self._window, call.window, self._frame_most)
            if room <= 0 or self._paused:
                self._blocked[call] = None
                return
            if room < len(data):
                queue[0] = memoryview(data)[room:]
                data = memoryview(data)[:room]
            else:
                queue.popleft()
            self._window -= room
            call.window -= room
            call.queued -= room
            self._say(FRAME.pack(room << 8 | http2.DATA, 0, call.number))
            self._out.append(data)
            self._large = self._large or room > _JOINED
        self._pulse.spoke()
        call.queue = None
        self._blocked.pop(call, None)
        if call.ending is not None:
            self._end(call)

    def _go_on(self) -> None:
        for call in list(self._blocked):
            if self._window <= 0 or self._paused:
                return
            self._pump(call)

    def _end(self, call: Call) -> None:
        """Send the fields that end a call."""
        self._end_fields(
            call.number,
            call.ending or b"",
            has_begun=call.has_begun,
            reset=not call.half_closed,
        )
        self._resets_left.earned += 1
        call.on_gone = None  # it refers to the call
        self._forget(call)

    def _end_fields(self, stream: int, fields: bytes, *, has_begun: bool, reset: bool) -> None:
        if not fields:
            fields = _END[self._memory]
            if self._memory == _BEGINNING:
                self._memory = _EVERYTHING
        elif not has_begun:
            fields = STATUS_200 + literal(*CONTENT_TYPE) + fields
        self._pulse.spoke()
        self._say(self._headers_frame(stream, fields, http2.END_STREAM))
        if reset:
            self._say(number_frame(http2.RST_STREAM, stream, http2.NO_ERROR))

    def _begin(self, packing: bytes) -> bytes:
        """Return the fields before the first message."""
        if packing:
            names = literal(*CONTENT_TYPE) + literal(b"grpc-encoding", packing) + literal(*ACCEPT)
            return STATUS_200 + names
        fields = _BEGIN[self._memory]
        if self._memory == _NOTHING:
            self._memory = _BEGINNING
        return fields

    def _headers_frame(self, stream: int, fields: bytes, flags: int) -> bytes:
        if self._prefix:
            fields, self._prefix = self._prefix + fields, b""
        return frame(http2.HEADERS, http2.END_HEADERS | flags, stream, fields)

    # -- what the client says of its windows ------------------------------------------------------

    def _settings(self, content: bytes) -> None:
        settings = http2.read_settings(content)
        window = settings.get(http2.INITIAL_WINDOW_SIZE, self.first_window)
        wider = window - self.first_window
        self.first_window = window
        for call in self._calls.values():
            call.window += wider
        self._frame_most = settings.get(http2.MAX_FRAME_SIZE, self._frame_most)
        if settings.get(http2.HEADER_TABLE_SIZE, _FIRST_TABLE) < _FIRST_TABLE:
            # It may be too small for what is to be remembered.
            self._memory, self._prefix = _NEVER, _NO_TABLE
        self._reply(frame(http2.SETTINGS, http2.ACK, 0))
        if wider > 0:
            self._go_on()

    def _wider(self, stream: int, content: bytes) -> None:
        if len(content) != 4:
            raise FaultError(http2.FRAME_SIZE_ERROR, f"a window of {len(content)} bytes")
        wider = int.from_bytes(content, "big") & http2.LARGEST_WINDOW
        if not stream:
            self._window += wider
            if not wider:
                raise FaultError(http2.PROTOCOL_ERROR, "a window that is no wider")
            if self._window > http2.LARGEST_WINDOW:
                raise FaultError(http2.FLOW_CONTROL_ERROR, "a window that is too wide")
            self._go_on()
            return
        call = self._calls.get(stream)
        if call is None:
            return
        call.window += wider
        if not wider:
            self.abandon(call, http2.PROTOCOL_ERROR)
        elif call.window > http2.LARGEST_WINDOW:
            self.abandon(call, http2.FLOW_CONTROL_ERROR)
        elif call in self._blocked:
            self._pump(call)

    # -- ending ----------------------------------------------------------------------------------

    def _forget(self, call: Call) -> None:
        """Nothing more is said of a call."""
        call.over = True
        self._calls.pop(call.number, None)
        if call.queue is not None:
            call.queue = None
            self._blocked.pop(call, None)
        if call.deadline is not None:
            call.deadline.cancel()
        if not self._calls:
            self._emptied()

    def _lose_calls(self) -> None:
        calls = list(self._calls.values())
        self._calls.clear()
        self._blocked.clear()
        for call in calls:
            call.over = True
            if call.deadline is not None:
                call.deadline.cancel()
            call.gone()

    @abstractmethod
    def _emptied(self) -> None:
        """The last call is over."""

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 if that is closed."""
        found = self._transport.get_extra_info("socket")
        return -1 if found is None else int(found.fileno())

    def abort(self) -> None:
        """End the connection at once."""
        self._deaf = True
        self._transport.abort()
