"""One HTTP/2 connection without I/O, the server's side (RFC 9113).

`receive_data` reads bytes and returns events; the methods named ``send_…`` collect bytes for `data_to_send`.
The connection acknowledges SETTINGS and PING, updates its own flow-control window, and queues data beyond the
peer's windows. It answers a stream error with RST_STREAM and a connection error with GOAWAY.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from struct import Struct
from typing import ClassVar, Final

from nbtriton.extensions.grpc.http2 import frames
from nbtriton.extensions.grpc.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME,
    HEADERS,
    PADDED,
    ErrorCode,
    Http2ConnectionError,
    Http2StreamError,
    frame,
    number_frame,
)
from nbtriton.extensions.grpc.http2.hpack import Field, HeaderBlock, HeaderBlockReader
from nbtriton.extensions.grpc.http2.streams import (
    TRANSITIONS,
    ClosedStreams,
    ConnectionTerminated,
    Event,
    Http2Limits,
    Http2Stream,
    PingReceived,
    ShutdownAcknowledged,
    StreamInput,
    StreamReset,
    StreamState,
    TokenBucket,
    allowed,
)
from nbtriton.extensions.grpc.http2.writer import FIRST_FRAME_SIZE, FIRST_WINDOW, FrameWriter

_IDLE, _OPEN, _, _HALF_CLOSED_REMOTE, _CLOSED = StreamState
_ON_DATA: Final = TRANSITIONS[StreamInput.RECEIVE_DATA]
_ON_END_STREAM: Final = TRANSITIONS[StreamInput.RECEIVE_END_STREAM]
_ON_SEND_END: Final = TRANSITIONS[StreamInput.SEND_END_STREAM]
_HEAD: Final = FRAME.size
_unpack_frame: Final = FRAME.unpack_from

# A longer DATA frame is read piece by piece as it arrives.
_LONG_FRAME = 16 << 10
# HEADERS with only END_HEADERS of these flags has a whole header block as its payload, and nothing else.
_UNUSUAL_HEADERS = END_HEADERS | PADDED | frames.PRIORITY_FLAG
_SHUTDOWN_PING = b"goodbye!"
# Idle frames that a call or a message allows: updates of two windows, and the same number again to spare.
_EARNED: Final = 4
_SMALL_UPDATE: Final = 1024
_TWO_NUMBERS = Struct(">II")
_PAYLOAD_SIZES: Mapping[int, int] = {frames.RST_STREAM: 4, frames.PING: 8, frames.WINDOW_UPDATE: 4}
# Whether a frame type requires a stream, or forbids one; other types allow both.
_HAS_STREAM: Mapping[int, bool] = {
    frames.PRIORITY: True, frames.RST_STREAM: True, frames.SETTINGS: False, frames.PING: False, frames.GOAWAY: False,
}  # fmt: skip


class Http2Connection:
    """The server's side of one connection.

    Parameters
    ----------
    limits : Http2Limits
    now : float
        Seconds, of any clock.
    indexed : container of fields
        Response fields that get an entry of the peer's HPACK table.

    Attributes
    ----------
    writer : FrameWriter
    streams : dict of int to Http2Stream
        Streams that are neither idle nor closed.
    highest_stream_id : int
        The highest identifier of a stream opened by the peer.
    is_greeted : bool
        Whether the client's connection preface has arrived.
    is_terminated : bool
        Whether GOAWAY with an error was sent; then nothing more is read.
    has_more : bool
        Whether whole frames may be left; then call `receive_data` again, with ``b""``.
    """

    __slots__ = (
        "_cached_blocks", "_closed", "_events", "_goaway_id", "_header_blocks", "_idle_frames", "_long_flags", "_long_id",
        "_long_left", "_max_control_size", "_now", "_offset", "_peer_window", "_received", "_resets", "_rest", "_settings",
        "has_more", "highest_stream_id", "is_greeted", "is_terminated", "limits", "streams",
        "writer",
    )  # fmt: skip

    def __init__(self, limits: Http2Limits, now: float, indexed: Container[Field] = ()) -> None:
        self.limits = limits
        self.streams: dict[int, Http2Stream] = {}
        self.highest_stream_id = 0
        self.is_greeted = self.is_terminated = self.has_more = False
        self._now = now
        self._events: list[Event] = []
        self.writer = FrameWriter(indexed, limits.max_unread_replies)
        # Of a peer that opens streams only to reset them (CVE-2023-44487).
        self._resets = TokenBucket(
            "too many calls are given up", limits.max_concurrent_streams, limits.resets_per_s, now
        )
        # Of one that floods the connection with frames that need no answer.
        self._idle_frames = TokenBucket(
            "too many idle frames", limits.idle_frames_at_once, limits.idle_frames_per_s, now
        )
        self._settings = TokenBucket(
            "too many settings", limits.settings_at_once, limits.settings_per_s, now
        )
        self._rest, self._offset = b"", 0  # unread bytes and where they begin
        self._max_control_size = max(FIRST_FRAME_SIZE, 2 * limits.max_header_list_size)
        self._header_blocks = HeaderBlockReader(limits.max_header_list_size, self._max_control_size)
        self._cached_blocks = self._header_blocks.cached
        # A long DATA frame that is being read: its stream, missing bytes, flags.
        self._long_id = self._long_left = self._long_flags = 0
        self._received = 0  # bytes since the connection's window was last updated
        self._closed = ClosedStreams()
        self._goaway_id: int | None = None  # the last stream that will be answered
        self._peer_window = FIRST_WINDOW
        settings = (
            (frames.MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams),
            (frames.INITIAL_WINDOW_SIZE, limits.stream_window),
            (frames.MAX_FRAME_SIZE, limits.max_frame_size),
            (frames.MAX_HEADER_LIST_SIZE, limits.max_header_list_size),
        )
        more = limits.connection_window - FIRST_WINDOW
        self.writer.write(frames.settings_frame(settings))
        self.writer.write(number_frame(frames.WINDOW_UPDATE, 0, more))

    # -- receiving -------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now: float) -> list[Event]:
        """Read bytes and return the events.

        A violation does not raise: it is answered with RST_STREAM or GOAWAY and reported by `StreamReset` or,
        as the last event, `ConnectionTerminated`.
        """
        found = self._events = []
        self.has_more = False
        if self.is_terminated:
            return found
        self._now = now
        offset = self._offset
        if self._rest:
            data, offset = (self._rest[offset:] + data, 0) if data else (self._rest, offset)
        try:
            if self.writer.unread_replies:
                self.writer.check_unread()
            offset = self._read(data, offset)
            self._rest, self._offset = (data, offset) if offset < len(data) else (b"", 0)
        except Http2ConnectionError as error:
            self.terminate(error.code, error.text)
            found.append(ConnectionTerminated(error.code, error.text))
        return found

    def _read(self, data: bytes, offset: int) -> int:
        """Read whole frames; return where the rest begins."""
        end = len(data)
        if not self.is_greeted:
            if not frames.PREFACE.startswith(data[: len(frames.PREFACE)]):
                raise Http2ConnectionError("no HTTP/2")
            if end < len(frames.PREFACE) + _HEAD:
                return 0
            offset = len(frames.PREFACE)
            if data[offset + 3] != frames.SETTINGS:
                raise Http2ConnectionError("the first frame is not SETTINGS")
            self.is_greeted = True
        turn = offset + self.limits.turn_bytes
        while end - offset >= _HEAD or (self._long_left and offset < end):
            try:
                if self._long_left:
                    piece = data[offset : offset + self._long_left]
                    offset += len(piece)
                    self._long_left -= len(piece)
                    flags = 0 if self._long_left else self._long_flags
                    self._receive_data(self._long_id, flags, piece, len(piece))
                    continue
                word, flags, stream_id = _unpack_frame(data, offset)
                kind, size = word & 0xFF, word >> 8
                stream_id &= frames.MAX_STREAM_ID  # without the reserved bit
                start = offset + _HEAD
                if size > FIRST_FRAME_SIZE and size > (
                    self.limits.max_frame_size if kind == DATA else self._max_control_size
                ):
                    text = f"a frame of {size} bytes"
                    raise Http2ConnectionError(text, ErrorCode.FRAME_SIZE_ERROR)
                if start + size > end:
                    if (
                        kind != DATA
                        or size <= _LONG_FRAME
                        or flags & PADDED
                        or self._header_blocks.continued
                    ):
                        return offset
                    offset = start
                    self._long_id, self._long_left, self._long_flags = stream_id, size, flags
                    continue
                offset = start + size
                payload = data[start:offset]
                if self._header_blocks.continued is not None or kind == CONTINUATION:
                    found = self._header_blocks.append(kind, flags, stream_id, payload)
                    if found is not None:
                        self._receive_block(stream_id, *found)
                elif kind == DATA:
                    if flags & PADDED:
                        payload = frames.strip_padding(PADDED, payload)
                    self._receive_data(stream_id, flags, payload, size)
                elif kind == HEADERS:
                    if flags & _UNUSUAL_HEADERS == END_HEADERS:
                        self._receive_block(stream_id, flags, payload)
                    else:
                        self._receive_headers(flags, stream_id, payload)
                elif kind <= frames.WINDOW_UPDATE:
                    self._receive_control(kind, flags, stream_id, payload)
                else:  # an extension: ignored (section 5.5)
                    self._idle_frames.acquire(self._now)
            except Http2StreamError as error:
                self._fail_stream(error)
            if turn <= offset < end:
                self.has_more = True
                return offset
        return offset

    def _fail_stream(self, error: Http2StreamError) -> None:
        stream = self.streams.get(error.stream_id)
        if stream is None:
            self._send_reset(error.stream_id, error.code)
        else:
            self.reset(stream, error.code)
            self._events.append(StreamReset(stream, error.code))
        self._resets.acquire(self._now)

    def _check_absent(self, stream_id: int, received: StreamInput) -> None:
        """Check a frame on an idle or closed stream; return if it may be ignored."""
        if not self._closed.is_ignored(stream_id):
            state = _CLOSED if self._was_used(stream_id) else _IDLE
            allowed(TRANSITIONS[received][state], stream_id)

    def _was_used(self, stream_id: int) -> bool:
        return (
            stream_id <= self.highest_stream_id
            and stream_id & 1 == 1
            and not self._closed.was_skipped(stream_id)
        )

    def _receive_data(self, stream_id: int, flags: int, data: bytes, size: int) -> None:
        """Read DATA; `size` includes the padding, which counts for flow control."""
        self._received += size
        if self._received > self.limits.connection_window // 2:
            self.writer.write(number_frame(frames.WINDOW_UPDATE, 0, self._received))
            self._received = 0
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_absent(stream_id, StreamInput.RECEIVE_DATA)
            return
        is_open = stream.state is _OPEN  # the usual case, without using the table
        if not is_open:
            allowed(_ON_DATA[stream.state], stream_id)
        if stream.expected is not None:
            stream.expected -= len(data)
            if stream.expected < 0 or (flags & END_STREAM and stream.expected):
                raise Http2StreamError(stream_id)
        if not flags & END_STREAM:
            if not size:
                self._idle_frames.acquire(self._now)
            stream.received += size
            if stream.received > self.limits.stream_window:
                raise Http2StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
            self._events.append((stream, None, data, False))
            return
        if is_open:
            stream.state = _HALF_CLOSED_REMOTE
        else:
            self._end_request(stream)
        self._events.append((stream, None, data, True))

    def _end_request(self, stream: Http2Stream) -> None:
        state = _ON_END_STREAM[stream.state]
        if state is _HALF_CLOSED_REMOTE:
            stream.state = state
        else:
            self._move(stream, allowed(state, stream.stream_id))

    def _receive_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        depends_on = None
        if flags & (PADDED | frames.PRIORITY_FLAG):
            if flags & frames.PRIORITY_FLAG:
                depends_on = frames.read_dependency(payload[flags & PADDED != 0 :])
            payload = frames.strip_padding(flags, payload)
        if flags & END_HEADERS:
            self._receive_block(stream_id, flags, payload)
            if depends_on == stream_id:
                raise Http2StreamError(stream_id)
        else:
            self._header_blocks.begin(stream_id, flags, payload)

    def _receive_block(self, stream_id: int, flags: int, block: bytes) -> None:
        headers = self._cached_blocks.get(block)
        if headers is None:
            headers = self._header_blocks.decode(block)
        highest = self.highest_stream_id
        if stream_id <= highest:
            self._receive_trailers(stream_id, flags, headers)
            return
        if not stream_id & 1:
            raise Http2ConnectionError(f"stream {stream_id} is not a client's")
        if stream_id - highest > 2:
            self._closed.skip(highest + 2 if highest else 1, stream_id)
        self.highest_stream_id = stream_id
        self._idle_frames.earned += _EARNED
        if self._goaway_id is not None:
            self._closed.ignore(stream_id)
            return
        state = _HALF_CLOSED_REMOTE if flags & END_STREAM else _OPEN
        expected = headers.content_length
        stream = Http2Stream(stream_id, state, self._peer_window, expected)
        self.streams[stream_id] = stream
        if len(self.streams) > self.limits.max_concurrent_streams:
            raise Http2StreamError(stream_id, ErrorCode.REFUSED_STREAM)
        if not headers.is_request or (expected and flags & END_STREAM):
            raise Http2StreamError(stream_id)
        self._events.append((stream, headers, b"", state is _HALF_CLOSED_REMOTE))

    def _receive_trailers(self, stream_id: int, flags: int, headers: HeaderBlock) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            if not self._closed.is_ignored(stream_id) and not self._was_used(stream_id):
                raise Http2ConnectionError(f"stream {stream_id} does not begin in order")
            self._check_absent(stream_id, StreamInput.RECEIVE_HEADERS)
            return
        allowed(TRANSITIONS[StreamInput.RECEIVE_HEADERS][stream.state], stream_id)
        if not flags & END_STREAM or not headers.are_trailers or stream.expected:
            raise Http2StreamError(stream_id)
        self._end_request(stream)
        self._events.append((stream, None, b"", True))

    def _receive_control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if _HAS_STREAM.get(kind, bool(stream_id)) != bool(stream_id):
            raise Http2ConnectionError(f"a frame of type {kind} on stream {stream_id}")
        if len(payload) != _PAYLOAD_SIZES.get(kind, len(payload)):
            raise Http2ConnectionError(
                f"a frame of type {kind} with {len(payload)} bytes", ErrorCode.FRAME_SIZE_ERROR
            )
        self._CONTROL[kind](self, flags, stream_id, payload)

    def _receive_priority(self, _: int, stream_id: int, payload: bytes) -> None:
        """Check the form of PRIORITY, which is otherwise ignored (RFC 9113 section 5.3.2)."""
        self._idle_frames.acquire(self._now)
        if len(payload) != 5:
            code = ErrorCode.FRAME_SIZE_ERROR
        elif frames.read_dependency(payload) == stream_id:
            code = ErrorCode.PROTOCOL_ERROR
        else:
            return
        if stream_id in self.streams:
            raise Http2StreamError(stream_id, code)
        raise Http2ConnectionError(f"a malformed priority of stream {stream_id}", code)

    def _receive_rst_stream(self, _: int, stream_id: int, payload: bytes) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_absent(stream_id, StreamInput.RECEIVE_RST_STREAM)
            return
        self._move(stream, _CLOSED)
        self._events.append(StreamReset(stream, int.from_bytes(payload, "big")))
        self._resets.acquire(self._now)

    def _receive_settings(self, flags: int, _: int, payload: bytes) -> None:
        if flags & frames.ACK:
            if payload:
                raise Http2ConnectionError(
                    "an acknowledgement of settings with settings", ErrorCode.FRAME_SIZE_ERROR
                )
            self._idle_frames.acquire(self._now)
            return
        self._settings.acquire(self._now)
        for name, value in frames.read_settings(payload):
            if name == frames.INITIAL_WINDOW_SIZE:
                self._set_peer_window(value)
            elif name == frames.MAX_FRAME_SIZE:
                self.writer.frame_size = value
            elif name == frames.HEADER_TABLE_SIZE:
                self.writer.set_max_table_size(value)
        self.writer.reply(frame(frames.SETTINGS, frames.ACK, 0))
        for stream in list(self.streams.values()):
            if stream.queue is not None:
                self._send_queue(stream)

    def _set_peer_window(self, size: int) -> None:
        """Change the windows of all streams; a window may become negative (section 6.9.2)."""
        more = size - self._peer_window
        self._peer_window = size
        for stream in self.streams.values():
            stream.window += more
            if stream.window > frames.MAX_WINDOW:
                raise Http2ConnectionError("HTTP2 settings error", ErrorCode.FLOW_CONTROL_ERROR)

    def _receive_push_promise(self, _: int, __: int, ___: bytes) -> None:
        raise Http2ConnectionError("a client must not send PUSH_PROMISE")

    def _receive_ping(self, flags: int, _: int, payload: bytes) -> None:
        if not flags & frames.ACK:
            self.writer.reply(frame(frames.PING, frames.ACK, 0, payload))
            self._events.append(PingReceived())
            return
        self._idle_frames.acquire(self._now)
        if payload == _SHUTDOWN_PING:
            self._events.append(ShutdownAcknowledged())

    def _receive_goaway(self, _: int, __: int, payload: bytes) -> None:
        """Check GOAWAY; a client that sends it still waits for its responses."""
        if len(payload) < _TWO_NUMBERS.size:
            raise Http2ConnectionError(
                f"a frame of type {frames.GOAWAY} with {len(payload)} bytes",
                ErrorCode.FRAME_SIZE_ERROR,
            )

    def _receive_window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        more = int.from_bytes(payload, "big") & frames.MAX_WINDOW
        if more < _SMALL_UPDATE:  # many larger updates would exceed the largest window
            self._idle_frames.acquire(self._now)
        if not stream_id:
            if not more:
                raise Http2ConnectionError("a window update of 0")
            self.writer.window += more
            if self.writer.window > frames.MAX_WINDOW:
                raise Http2ConnectionError(
                    "a window that is too large", ErrorCode.FLOW_CONTROL_ERROR
                )
            self._send_blocked()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_absent(stream_id, StreamInput.RECEIVE_WINDOW_UPDATE)
            return
        stream.window += more
        if not more:
            raise Http2StreamError(stream_id)
        if stream.window > frames.MAX_WINDOW:
            raise Http2StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        if stream.queue is not None:
            self._send_queue(stream)

    def acknowledge(self, stream: Http2Stream) -> None:
        """Update a stream's window once half of it is used; its data has been read."""
        if stream.received > self.limits.stream_window // 2 and stream.state is _OPEN:
            self.writer.write(number_frame(frames.WINDOW_UPDATE, stream.stream_id, stream.received))
            stream.received = 0

    _CONTROL: ClassVar[Mapping[int, Callable[[Http2Connection, int, int, bytes], None]]] = {
        frames.PRIORITY: _receive_priority,
        frames.RST_STREAM: _receive_rst_stream,
        frames.SETTINGS: _receive_settings,
        frames.PUSH_PROMISE: _receive_push_promise,
        frames.PING: _receive_ping,
        frames.GOAWAY: _receive_goaway,
        frames.WINDOW_UPDATE: _receive_window_update,
    }

    # -- streams ---------------------------------------------------------------------------------

    def _move(self, stream: Http2Stream, state: StreamState) -> None:
        stream.state = state
        if state is _CLOSED:
            del self.streams[stream.stream_id]
            if stream.queue is not None:
                self.discard(stream)

    def _send_reset(self, stream_id: int, code: ErrorCode) -> None:
        self._closed.ignore(stream_id)
        self.writer.write(number_frame(frames.RST_STREAM, stream_id, code))

    def reset(self, stream: Http2Stream, code: ErrorCode) -> None:
        """Reset a stream; no effect on a closed one."""
        if stream.state is not _CLOSED:
            self._move(stream, _CLOSED)
            self._send_reset(stream.stream_id, code)

    def close_streams(self) -> list[Http2Stream]:
        """Drop and return all streams without sending anything: the connection has ended."""
        streams = list(self.streams.values())
        for stream in streams:
            self._move(stream, _CLOSED)
        return streams

    # -- sending ---------------------------------------------------------------------------------

    def send_headers(
        self, stream: Http2Stream, fields: tuple[Field, ...], *, end_stream: bool = False
    ) -> None:
        """Send the fields that begin a response or, with `end_stream`, its trailers after its data.

        No effect on a closed stream. A response that ends before its request resets the stream with NO_ERROR:
        the rest of the request is not needed (section 8.1).
        """
        if stream.state is _CLOSED:
            return
        if stream.queue is not None:
            stream.trailers = fields
            return
        self.writer.write_headers(stream.stream_id, fields, end_stream=end_stream)
        if end_stream:
            self._resets.earned += 1
            state = allowed(_ON_SEND_END[stream.state], stream.stream_id)
            if state is _CLOSED:
                self._move(stream, state)
            else:
                self.reset(stream, ErrorCode.NO_ERROR)

    def send_data(self, stream: Http2Stream, *pieces: bytes) -> None:
        """Send data as soon as the peer's windows have room; no effect on a closed stream."""
        if stream.state is not _CLOSED:
            self._idle_frames.earned += _EARNED
            self.writer.write_data(stream, pieces)

    def send_response(
        self,
        stream: Http2Stream,
        headers: tuple[Field, ...],
        data: tuple[bytes, ...],
        trailers: tuple[Field, ...],
    ) -> None:
        """Send a whole response, in one step if possible: `send_headers`, `send_data`, `send_headers`."""
        if stream.state is _HALF_CLOSED_REMOTE and self.writer.write_response(
            stream, headers, data, trailers
        ):
            self._resets.earned += 1
            self._idle_frames.earned += _EARNED
            stream.state = _CLOSED
            del self.streams[stream.stream_id]
        else:
            self.send_headers(stream, headers)
            self.send_data(stream, *data)
            self.send_headers(stream, trailers, end_stream=True)

    def _send_queue(self, stream: Http2Stream) -> None:
        """Send as much of a stream's queue as the windows allow, and then its trailers."""
        if self.writer.write_queue(stream) and stream.trailers is not None:
            self.send_headers(stream, stream.trailers, end_stream=True)

    def _send_blocked(self) -> None:
        writer = self.writer
        for stream in list(writer.blocked):
            if writer.window <= 0 or writer.is_paused:
                return
            self._send_queue(stream)

    def discard(self, stream: Http2Stream) -> None:
        """Drop a stream's queue and its trailers."""
        self.writer.discard(stream)
        stream.trailers = None

    def resume_sending(self) -> None:
        """Send the queued data."""
        self.writer.resume()
        self._send_blocked()

    def send_ping(self) -> None:
        """Send PING, for the peer to acknowledge."""
        self.writer.write(frame(frames.PING, 0, 0, bytes(8)))

    def begin_shutdown(self) -> None:
        """Send the first GOAWAY of a graceful shutdown, and a PING for the peer to acknowledge (section 6.8)."""
        self._send_goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR, "")
        self.writer.write(frame(frames.PING, 0, 0, _SHUTDOWN_PING))

    def finish_shutdown(self) -> None:
        """Send the second GOAWAY; ignore streams that begin from now on."""
        self._goaway_id = self.highest_stream_id
        self._send_goaway(self._goaway_id, ErrorCode.NO_ERROR, "")

    def terminate(self, code: ErrorCode, text: str) -> None:
        """Send GOAWAY with an error; nothing more is read."""
        if not self.is_terminated:
            self.is_terminated = True
            last = self.highest_stream_id if self._goaway_id is None else self._goaway_id
            self._send_goaway(last, code, text)

    def _send_goaway(self, last: int, code: ErrorCode, text: str) -> None:
        payload = _TWO_NUMBERS.pack(last, code) + text.encode()
        self.writer.write(frame(frames.GOAWAY, 0, 0, payload))

    def data_to_send(self) -> bytes | list[bytes | memoryview]:
        """Return the bytes to send; in pieces if joining them would copy long data."""
        return self.writer.data_to_send()
