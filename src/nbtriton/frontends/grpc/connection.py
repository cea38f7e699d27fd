"""One client over gRPC: frames read and calls kept apart, from the first byte to the last.

What one read brings is handed over together. The fields of a call are read once: a client that calls
again sends the same bytes, which mean the same until the table that they refer to changes.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING, Any

from nbtriton.frontends.grpc.headers import (
    DEADLINE_EXCEEDED,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    Opening,
    StatusError,
    read_opening,
    status_fields,
)
from nbtriton.frontends.grpc.outlet import FIRST_WINDOW, Outlet
from nbtriton.frontends.http2 import frames as http2
from nbtriton.frontends.http2.frames import FRAME, FaultError, frame, number_frame
from nbtriton.frontends.http2.hpack import Decoder, HpackError
from nbtriton.frontends.loop import TURN_S
from nbtriton.frontends.token_bucket import TokenBucket

if TYPE_CHECKING:
    from nbtriton.frontends.grpc.calls import Call, Handler
    from nbtriton.frontends.grpc.transport import Transport

__all__ = ["Connection"]

# What a client may send before it is given more room: gRPC's own for a call, more for them all.
_WINDOW, _ALL_WINDOWS = 4 << 20, 16 << 20
_LONGEST_FRAME = 4 << 20
# A DATA frame that is longer is read as it comes.
_LONG = 16 << 10
# Read between two looks at the clock: some 20 short calls.
_SLICE = 4 << 10
# Openings that are remembered, and pieces that one may come in.
_MOST_KNOWN, _MOST_PIECES = 256, 64
# How often a client may change its settings: gRPC's do some times a second while they measure how much
# is on its way. A change may move every call.
_MOST_SETTINGS, _SETTINGS_PER_S = 100, 10
# How long a client may take to see that the last calls are near, and then to hang up.
_WARNING_S, _LINGER_S = 0.5, 0.25
# And how long one to read why nothing more is read from it.
_LAST_WORD_S = 2.0
_GOODBYE = b"goodbye!"
_GOAWAY = Struct(">II")

_TOO_LARGE = Opening(
    fault=StatusError(RESOURCE_EXHAUSTED, "received metadata size exceeds hard limit")
)


class Connection(Outlet):
    """One client.

    Parameters
    ----------
    port : Transport
    """

    __slots__ = (
        "_block", "_block_of", "_decoder", "_greeted", "_known", "_leaving", "_long_call",
        "_long_last", "_long_left", "_longest_head", "_most_calls", "_most_fields", "_newest", "_parting",
        "_rest", "_settings_left", "_stopped", "_unread",
    )  # fmt: skip

    def __init__(self, port: Transport) -> None:
        super().__init__(port)
        self._leaving = False  # the client has been told that this ends
        self._parting = False  # and which call is the last
        self._newest = 0  # the highest stream that was opened
        self._greeted = False
        self._rest = b""  # less than a frame, or what a later turn reads
        self._stopped = False  # nothing is read from the client until that is done
        self._most_calls = port.limits.calls
        self._settings_left = TokenBucket(_MOST_SETTINGS, _SETTINGS_PER_S, self._pulse.born)
        self._decoder = Decoder()
        self._known: dict[bytes, tuple[Opening, Handler | None]] = {}
        # What the fields of a call may count, as gRPC has it; twice that is not even read, while a call
        # that is refused is told why.
        self._most_fields = max(port.limits.header_bytes * 5 // 4, 16 << 10)
        self._longest_head = 2 * self._most_fields
        self._block: list[bytes] = []  # of fields that are continued
        self._block_of: tuple[int, int] | None = None
        self._unread = 0  # bytes for which no room has been given back
        # A long frame of DATA that is read as it comes: what is left of it, and whether it is the last.
        self._long_call = self._long_left = 0
        self._long_last = False

    @property
    def busy(self) -> bool:
        """True while there are calls, and until a client that is told to leave has gone."""
        return self._leaving or bool(self._calls)

    def idle_since(self) -> float | None:
        """Say when something was read last; None if busy."""
        return None if self.busy else self._pulse.heard_at

    def evict(self) -> None:
        """End for the sake of another client."""
        if self._greeted:
            self._give_up(http2.NO_ERROR, "the server has too many connections")
        else:
            self.abort()

    # -- what asyncio tells ----------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.port.add(self)
        self._say(_greeting(self._most_calls, self._most_fields))
        if not self.port.admit(self):
            self._give_up(http2.ENHANCE_YOUR_CALM, "the server has too many connections")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._deaf = True
        self.port.remove(self)
        self._lose_calls()
        self.port.request_finished()

    def data_received(self, data: bytes) -> None:
        if self._deaf:  # so that the client can read why; not for ever
            self._unread += len(data)
            if self._unread > _ALL_WINDOWS:
                self.abort()
            return
        self._pulse.heard(self.port.thread.loop.time())
        if self._rest:
            data = self._rest + data
            self._rest = b""
        self._take(data)

    def _take(self, data: bytes) -> None:
        """Read for as long as a turn of the loop may take; the rest waits until others were heard."""
        try:
            at, late = self._read(data)
        except FaultError as fault:
            self._give_up(fault.code, fault.text)
        except HpackError as error:
            self._give_up(http2.COMPRESSION_ERROR, f"Failed parsing HTTP/2 ({error})")
        else:
            self._rest = data[at:]
            if late:
                self.port.thread.defer(self._take_rest)
            if late != self._stopped and not self._transport.is_closing():
                self._stopped = late
                if late:
                    self._transport.pause_reading()
                else:
                    self._transport.resume_reading()

    def _take_rest(self) -> None:
        rest, self._rest = self._rest, b""
        if not self._deaf:
            self._take(rest)

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, data: bytes) -> tuple[int, bool]:
        """Read whole frames; returns where the rest begins, and whether there may be more of them."""
        at = 0
        end = len(data)
        # To ask the clock takes 0.1 us: not for each frame.
        look, until = _SLICE, (monotonic() + TURN_S if end > _SLICE else 0.0)
        if not self._greeted:
            if not http2.PREFACE.startswith(data[: len(http2.PREFACE)]):
                raise FaultError(http2.PROTOCOL_ERROR, "no HTTP/2")
            if end < len(http2.PREFACE) + FRAME.size:
                return 0, False
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
                    return start - FRAME.size, False
                self._long_call, self._long_left = stream, size
                self._long_last = bool(flags & http2.END_STREAM)
                return self._read_long(data, start), False
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
            if look < at < end:
                look = at + _SLICE
                if monotonic() > until:
                    return at, True
        return at, False

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
            if not self._newest:
                self.port.mark_active(self)
            self._newest = stream
            if len(self._calls) < self._most_calls:
                self._open(stream, *known, last)
            else:
                self._say(number_frame(http2.RST_STREAM, stream, http2.REFUSED_STREAM))
                self._count_reset()

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

    def _expire(self, call: Call) -> None:
        self.refuse(call, DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _control(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        if kind == http2.WINDOW_UPDATE:
            self._wider(stream, content)
        elif kind == http2.PING:
            self._ping(flags, content)
        elif kind == http2.SETTINGS:
            if not flags & http2.ACK:
                if not self._settings_left.take(self.port.thread.loop.time()):
                    raise FaultError(http2.ENHANCE_YOUR_CALM, "too many settings")
                self._settings(content)
        elif kind == http2.RST_STREAM:
            call = self._calls.get(stream)
            if call is not None:
                call.half_closed = True
                self._forget(call)
                call.gone()
                self._count_reset()
        elif kind == http2.PUSH_PROMISE:
            raise FaultError(http2.PROTOCOL_ERROR, "a client promises nothing")

    def _count_reset(self) -> None:
        """Send a client away that begins calls only to give them up (CVE-2023-44487)."""
        if not self._resets_left.take(self.port.thread.loop.time()):
            raise FaultError(http2.ENHANCE_YOUR_CALM, "too many calls are given up")

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

    # -- ending ----------------------------------------------------------------------------------

    def _emptied(self) -> None:
        if self._parting:
            self._part()

    def announce_close(self) -> None:
        """Tell the client to call no more; what it has called until it knows is answered."""
        if self.port.closing:
            for call in list(self._calls.values()):
                call.wind_up()
        if self._leaving:
            return
        self._leaving = True
        if not self._greeted:
            self.abort()
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

    def _part(self, patience_s: float | None = None) -> None:
        """Let the client read what it has been sent, and hang up."""
        self._deaf = True
        self.flush()
        if self._transport.can_write_eof():  # not under TLS
            self._transport.write_eof()
        loop = self.port.thread.loop
        patience_s = self.port.limits.idle_s if patience_s is None else patience_s
        loop.call_later(_LINGER_S, self._hang_up, loop.time() + patience_s)

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
        self._part(_LAST_WORD_S)

    def _goaway(self, last: int, code: int, text: str) -> None:
        self._say(frame(http2.GOAWAY, 0, 0, _GOAWAY.pack(last, code) + text.encode()))

    def check_timeouts(self, now: float) -> None:
        """Do what is due by now: a ping, a farewell, an end."""
        if not self._greeted:
            if now - self._pulse.born > self.port.limits.head_s:
                self.abort()
            return
        due = self._pulse.due(now, bool(self._calls))
        if due == "ping":
            self._say(frame(http2.PING, 0, 0, bytes(len(_GOODBYE))))
        elif due == "leave":
            self.announce_close()
        elif due == "end":
            self.abort()


@lru_cache(maxsize=16)
def _greeting(most_calls: int, most_fields: int) -> bytes:
    """Return what every client is told first."""
    settings = {
        http2.MAX_CONCURRENT_STREAMS: most_calls,
        http2.INITIAL_WINDOW_SIZE: _WINDOW,
        http2.MAX_FRAME_SIZE: _LONGEST_FRAME,
        http2.MAX_HEADER_LIST_SIZE: most_fields,
    }
    wider = number_frame(http2.WINDOW_UPDATE, 0, _ALL_WINDOWS - FIRST_WINDOW)
    return http2.settings_frame(settings) + wider
