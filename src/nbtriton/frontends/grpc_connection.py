"""One client over gRPC: frames read, calls kept apart, answers written within the client's windows.

What one read brings is handed over together, and what is said meanwhile goes out in one write. The
fields of a call are read once: a client that calls again sends the same bytes, which mean the same
until the table that they refer to changes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any

from nbtriton.frontends import http2
from nbtriton.frontends.grpc_pulse import Pulse
from nbtriton.frontends.grpc_wire import (
    ACCEPT,
    CONTENT_TYPE,
    DEADLINE_EXCEEDED,
    MESSAGE,
    OK,
    OK_STATUS,
    RESOURCE_EXHAUSTED,
    STATUS_200,
    UNIMPLEMENTED,
    Opening,
    StatusError,
    packed,
    read_opening,
    status_fields,
)
from nbtriton.frontends.hpack import Decoder, HpackError, indexed, literal, remembered
from nbtriton.frontends.http2 import FRAME, FaultError, frame, number_frame

if TYPE_CHECKING:
    from nbtriton.frontends.grpc_calls import Call, Handler
    from nbtriton.frontends.grpc_transport import Transport

__all__ = ["Connection"]

# What a client may send before it is given more room: gRPC's own for a call, more for them all.
_WINDOW, _ALL_WINDOWS = 4 << 20, 16 << 20
_LONGEST_FRAME = 4 << 20
# A DATA frame that is longer is read as it comes.
_LONG = 16 << 10
_FIRST_WINDOW, _FIRST_FRAME, _FIRST_TABLE = 65_535, 16_384, 4096
# Openings that are remembered, and pieces that one may come in.
_MOST_KNOWN, _MOST_PIECES = 256, 64
# Longer messages are not copied to stand behind what is said before them.
_JOINED = 64 << 10
# What asyncio holds of what a client does not read, and how often that client is answered meanwhile.
_UNSENT = 1 << 20
_MOST_REPLIES = 10_000
# How long a client may take to see that the last calls are near, and then to hang up.
_WARNING_S, _LINGER_S = 0.5, 0.25
_GOODBYE = b"goodbye!"
_GOAWAY = Struct(">II")

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

_TOO_LARGE = Opening(
    fault=StatusError(RESOURCE_EXHAUSTED, "received metadata size exceeds hard limit")
)


class Connection(asyncio.Protocol):
    """One client.

    Parameters
    ----------
    port : Transport
    """

    __slots__ = (
        "_block", "_block_of", "_blocked", "_calls", "_deaf", "_decoder", "_frame_most", "_greeted",
        "_known", "_large", "_leaving", "_long_call", "_long_last", "_long_left", "_longest_head",
        "_memory", "_most_fields", "_newest", "_out", "_parting", "_paused", "_prefix", "_pulse",
        "_replies", "_rest", "_transport", "_unread", "_window", "first_window", "port",
    )  # fmt: skip

    def __init__(self, port: Transport) -> None:
        self.port = port
        self._transport: Any = None
        self._pulse = Pulse(port.options, port.thread.loop.time())
        self._calls: dict[int, Call] = {}
        self._newest = 0  # the highest stream that was opened
        self._deaf = False  # what comes is thrown away
        self._leaving = False  # the client has been told that this ends
        self._parting = False  # and which call is the last
        # -- reading
        self._greeted = False
        self._rest = b""  # less than a frame
        self._decoder = Decoder()
        self._known: dict[bytes, tuple[Opening, Handler | None]] = {}
        # What the fields of a call may count, as gRPC has it; twice that is not even read, while a call
        # that is refused is told why.
        self._most_fields = max(port.limits.header_bytes * 5 // 4, 16 << 10)
        self._longest_head = 2 * self._most_fields
        self._block: list[bytes] = []  # of fields that are continued
        self._block_of: tuple[int, int] | None = None
        self._unread = 0
        # A long frame of DATA that is read as it comes: what is left of it, and whether it is the last.
        self._long_call = self._long_left = 0
        self._long_last = False
        # -- writing
        self._out: list[bytes | memoryview] = []
        self._large = False
        self._paused = False
        self._replies = 0
        self._window = self.first_window = _FIRST_WINDOW
        self._frame_most = _FIRST_FRAME
        self._memory = _NOTHING
        self._prefix = b""
        self._blocked: dict[Call, None] = {}

    @property
    def busy(self) -> bool:
        """True while there are calls, and until a client that is told to leave has gone."""
        return self._leaving or bool(self._calls)

    # -- what asyncio tells ----------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(_UNSENT)
        self.port.opened(self)
        self._say(
            http2.settings_frame(
                {
                    http2.INITIAL_WINDOW_SIZE: _WINDOW,
                    http2.MAX_FRAME_SIZE: _LONGEST_FRAME,
                    http2.MAX_HEADER_LIST_SIZE: self._most_fields,
                }
            )
            + number_frame(http2.WINDOW_UPDATE, 0, _ALL_WINDOWS - _FIRST_WINDOW)
        )
        if len(self.port.connections) > self.port.limits.connections:
            self._give_up(http2.ENHANCE_YOUR_CALM, "the server has too many connections")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._deaf = True
        self.port.lost(self)
        self._lose_calls()
        self.port.answered()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._replies = 0
        self._go_on()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._pulse.heard(self.port.thread.loop.time())
        if self._rest:
            data = self._rest + data
            self._rest = b""
        try:
            at = self._read(data)
        except FaultError as fault:
            self._give_up(fault.code, fault.text)
        except HpackError as error:
            self._give_up(http2.COMPRESSION_ERROR, f"Failed parsing HTTP/2 ({error})")
        else:
            self._rest = data[at:]

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, data: bytes) -> int:
        """Read whole frames; returns where the rest begins."""
        at = 0
        end = len(data)
        if not self._greeted:
            if not http2.PREFACE.startswith(data[: len(http2.PREFACE)]):
                raise FaultError(http2.PROTOCOL_ERROR, "no HTTP/2")
            if end < len(http2.PREFACE) + FRAME.size:
                return 0
            at = len(http2.PREFACE)
            if data[at + 3] != http2.SETTINGS:
                raise FaultError(http2.PROTOCOL_ERROR, "the first frame is no settings")
            self._greeted = True
        elif self._long_left:
            at = self._read_long(data, 0)
        unpack = FRAME.unpack_from
        while end - at >= FRAME.size and not self._deaf:
            word, flags, stream = unpack(data, at)
            size, kind = word >> 8, word & 0xFF
            stream &= http2.LARGEST_WINDOW  # the bit above is reserved
            start = at + FRAME.size
            at = start + size
            if at > end:
                longest = _LONGEST_FRAME if kind == http2.DATA else self._longest_head
                if size > longest:
                    raise FaultError(http2.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
                if kind != http2.DATA or size < _LONG or flags & http2.PADDED or self._block_of:
                    return start - FRAME.size
                self._long_call, self._long_left = stream, size
                self._long_last = bool(flags & http2.END_STREAM)
                return self._read_long(data, start)
            content = data[start:at]
            if self._block_of is not None or kind == http2.CONTINUATION:
                self._continued(kind, flags, stream, content)
            elif kind == http2.DATA:
                if flags & http2.PADDED:
                    content = http2.content_of(http2.PADDED, content)
                self._data(stream, content, size, bool(flags & http2.END_STREAM))
            elif kind == http2.HEADERS:
                self._headers(stream, flags, content)
            else:
                self._control(kind, flags, stream, content)
        return at

    def _read_long(self, data: bytes, at: int) -> int:
        piece = data[at : at + self._long_left]
        self._long_left -= len(piece)
        last = self._long_last and not self._long_left
        self._data(self._long_call, piece, len(piece), last)
        return at + len(piece)

    def _data(self, stream: int, content: bytes, size: int, last: bool) -> None:
        """Take what is for a call; `size` is with its padding."""
        self._unread += size
        if self._unread > _ALL_WINDOWS // 2:  # what has come is in the calls' hands
            self._say(number_frame(http2.WINDOW_UPDATE, 0, self._unread))
            self._unread = 0
        call = self._calls.get(stream)
        if call is None or call.half_closed:
            return
        call.half_closed = last
        call.feed(content)
        if call.over:
            return
        if last:
            call.ended()
        else:
            call.unread += size
            if call.unread > _WINDOW:
                self.abandon(call, http2.FLOW_CONTROL_ERROR)
            elif call.unread > _WINDOW // 2:
                self.give_back(call)

    def give_back(self, call: Call) -> None:
        """Let a call's client send more, unless there is more than enough."""
        if call.unread and not call.held:
            self._say(number_frame(http2.WINDOW_UPDATE, call.number, call.unread))
            call.unread = 0

    def _headers(self, stream: int, flags: int, content: bytes) -> None:
        if flags & (http2.PADDED | http2.PRIORITIZED):
            content = http2.content_of(flags, content)
        if flags & http2.END_HEADERS:
            self._fields(stream, content, bool(flags & http2.END_STREAM))
        else:
            self._block_of = (stream, flags)
            self._block = [content]

    def _continued(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        if self._block_of is None or kind != http2.CONTINUATION or stream != self._block_of[0]:
            text = f"Failed parsing HTTP/2 (Expected CONTINUATION frame, got frame type {kind:02x})"
            raise FaultError(http2.PROTOCOL_ERROR, text)
        self._block.append(content)
        if len(self._block) > _MOST_PIECES or sum(map(len, self._block)) > self._longest_head:
            raise FaultError(http2.ENHANCE_YOUR_CALM, "received metadata size exceeds hard limit")
        if flags & http2.END_HEADERS:
            last = bool(self._block_of[1] & http2.END_STREAM)
            block, self._block, self._block_of = b"".join(self._block), [], None
            self._fields(stream, block, last)

    def _fields(self, stream: int, block: bytes, last: bool) -> None:
        known = self._known.get(block)
        if known is None:
            known = self._learn(block)
        if stream <= self._newest:  # what follows the messages says nothing but that
            call = self._calls.get(stream)
            if call is not None and last and not call.half_closed:
                call.half_closed = True
                call.ended()
        elif stream & 1 and not self._parting:
            self._newest = stream
            self._open(stream, *known, last)

    def _learn(self, block: bytes) -> tuple[Opening, Handler | None]:
        changes = self._decoder.changes
        fields = self._decoder.decode(block, self._most_fields)
        opening = _TOO_LARGE if fields is None else read_opening(fields, self.port.options.level)
        known = (opening, self.port.handlers.get(opening.path))
        if self._decoder.changes != changes or len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        if self._decoder.changes == changes:
            self._known[block] = known
        return known

    def _open(self, stream: int, opening: Opening, handler: Handler | None, last: bool) -> None:
        if not opening.is_grpc:
            self._say(number_frame(http2.RST_STREAM, stream, http2.INTERNAL_ERROR))
            return
        if handler is None or opening.fault is not None:
            fault = opening.fault or StatusError(UNIMPLEMENTED, "")
            fields = status_fields(fault.code, fault.text)
            self._end_fields(stream, fields, has_begun=False, reset=not last)
            return
        call = self._calls[stream] = handler.call(self, stream, opening)
        if opening.timeout_s is not None:
            call.deadline = self.port.thread.loop.call_later(opening.timeout_s, self._expire, call)
        if last:
            call.half_closed = True
            call.ended()

    def _control(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        if kind == http2.WINDOW_UPDATE:
            self._wider(stream, content)
        elif kind == http2.PING:
            self._ping(flags, content)
        elif kind == http2.SETTINGS:
            if not flags & http2.ACK:
                self._settings(content)
        elif kind == http2.RST_STREAM:
            call = self._calls.get(stream)
            if call is not None:
                call.half_closed = True
                self._forget(call)
                call.gone()
        elif kind == http2.PUSH_PROMISE:
            raise FaultError(http2.PROTOCOL_ERROR, "a client promises nothing")

    def _ping(self, flags: int, content: bytes) -> None:
        if len(content) != len(_GOODBYE):
            raise FaultError(http2.FRAME_SIZE_ERROR, f"a ping of {len(content)} bytes")
        if flags & http2.ACK:
            if content == _GOODBYE:
                self._last_call()
            return
        if self._pulse.pinged(self.port.thread.loop.time(), bool(self._calls)):
            raise FaultError(http2.ENHANCE_YOUR_CALM, "too_many_pings")
        self._reply(frame(http2.PING, http2.ACK, 0, content))

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

    # -- writing ---------------------------------------------------------------------------------

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
                self.cut_off()
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

    def _expire(self, call: Call) -> None:
        self.refuse(call, DEADLINE_EXCEEDED, "Deadline Exceeded")

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
        if self._parting and not self._calls:
            self._part()

    def _lose_calls(self) -> None:
        calls = list(self._calls.values())
        self._calls.clear()
        self._blocked.clear()
        for call in calls:
            call.over = True
            if call.deadline is not None:
                call.deadline.cancel()
            call.gone()

    def leave(self) -> None:
        """Tell the client to call no more; what it has called until it knows is answered."""
        if self._leaving:
            return
        self._leaving = True
        if not self._greeted:
            self.cut_off()
            return
        self._goaway(http2.LARGEST_WINDOW, http2.NO_ERROR, "")
        self._say(frame(http2.PING, 0, 0, _GOODBYE))
        self.port.thread.loop.call_later(_WARNING_S, self._last_call)

    def _last_call(self) -> None:
        """Calls that come from now on are not answered."""
        if self._parting or self._deaf or not self._leaving:
            return
        self._parting = True
        self._goaway(self._newest, http2.NO_ERROR, "")
        if not self._calls:
            self._part()

    def _part(self) -> None:
        """Let the client read what it has been sent, and hang up."""
        self._deaf = True
        self.flush()
        self._transport.write_eof()
        loop = self.port.thread.loop
        loop.call_later(_LINGER_S, self._hang_up, loop.time() + self.port.limits.idle_s)

    def _hang_up(self, at_last: float) -> None:
        loop = self.port.thread.loop
        if self._transport.get_write_buffer_size() and loop.time() < at_last:
            loop.call_later(_LINGER_S, self._hang_up, at_last)
        else:
            self._transport.abort()

    def _give_up(self, code: int, text: str) -> None:
        """End the connection: nothing can be understood any more."""
        if self._deaf:
            return
        self._goaway(self._newest, code, text)
        self._lose_calls()
        self._part()

    def _goaway(self, last: int, code: int, text: str) -> None:
        self._say(frame(http2.GOAWAY, 0, 0, _GOAWAY.pack(last, code) + text.encode()))

    def cut_off(self) -> None:
        """End the connection at once."""
        self._deaf = True
        self._transport.abort()

    def look_at_the_clock(self, now: float) -> None:
        """Do what is due by now: a ping, a farewell, an end."""
        if not self._greeted:
            if now - self._pulse.born > self.port.limits.head_s:
                self.cut_off()
            return
        due = self._pulse.due(now, bool(self._calls))
        if due == "ping":
            self._say(frame(http2.PING, 0, 0, bytes(len(_GOODBYE))))
        elif due == "leave":
            self.leave()
        elif due == "end":
            self.cut_off()
