"""Frames to one peer, within its windows, its frame size and its HPACK table."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from struct import Struct
from typing import Final

from nbtriton.extensions.grpc.http2 import frames
from nbtriton.extensions.grpc.http2.frames import FRAME, ErrorCode, Http2ConnectionError
from nbtriton.extensions.grpc.http2.hpack import Encoder, Field
from nbtriton.extensions.grpc.http2.streams import Http2Stream

_pack_frame: Final = FRAME.pack
# Initial values of the peer's settings (RFC 9113 section 6.5.2).
FIRST_WINDOW, FIRST_FRAME_SIZE = 65_535, 16_384
# Longer data is written on its own: joining it with other frames would copy it.
_JOINED = 64 << 10
# Bytes of a header block that count as one reply.
_REPLY_SIZE = 64
_LAST_HEADERS = frames.END_HEADERS | frames.END_STREAM


class _Response:
    """Headers and trailers of a response without stream and data, packed in two steps instead of six."""

    __slots__ = (
        "before",
        "behind",
        "head",
        "head_word",
        "headers",
        "tail",
        "tail_word",
        "trailers",
    )

    def __init__(
        self, headers: tuple[Field, ...], head: bytes, trailers: tuple[Field, ...], tail: bytes
    ) -> None:
        self.headers, self.head, self.trailers, self.tail = headers, head, trailers, tail
        self.head_word = len(head) << 8 | frames.HEADERS
        self.tail_word = len(tail) << 8 | frames.HEADERS
        self.before = Struct(f">IBI{len(head)}sIBI").pack
        self.behind = Struct(f">IBI{len(tail)}s").pack


class FrameWriter:
    """Frames to be sent, and data that waits for room.

    Parameters
    ----------
    indexed : container of fields
        Fields that get an entry of the peer's HPACK table.
    max_unread_replies : int
        Acknowledgements and header blocks for a peer that does not read; a long block counts for several.

    Attributes
    ----------
    window : int
        Flow-control window of the connection in bytes.
    frame_size : int
        The peer's SETTINGS_MAX_FRAME_SIZE.
    blocked : dict of Http2Stream to None
        Streams whose data waits for the connection's window or the transport, in order of arrival;
        not those that wait for their own window.
    is_paused : bool
        Whether data is queued because the transport's buffers are full.
    unread_replies : int
        Replies since data was first queued.
    out : list of bytes-like
        Bytes to send.
    """

    __slots__ = (
        "_encoder", "_is_large", "_max_replies", "_response", "blocked", "frame_size", "is_paused", "out",
        "unread_replies", "window",
    )  # fmt: skip

    def __init__(self, indexed: Container[Field], max_unread_replies: int) -> None:
        self._encoder = Encoder(indexed)
        self.window, self.frame_size = FIRST_WINDOW, FIRST_FRAME_SIZE
        self.blocked: dict[Http2Stream, None] = {}
        self.is_paused = self._is_large = False
        self._max_replies = max_unread_replies
        self.unread_replies = 0
        self._response: _Response | None = None  # the last one, while the table does not change
        self.out: list[bytes | memoryview] = []

    def data_to_send(self) -> bytes | list[bytes | memoryview]:
        """Return the bytes to send; in pieces if joining them would copy long data."""
        out, self.out = self.out, []
        if self._is_large:
            self._is_large = False
            return out
        return b"".join(out)

    def write(self, data: bytes) -> None:
        """Send a whole frame that is not subject to flow control."""
        self.out.append(data)

    def reply(self, data: bytes) -> None:
        """Send an acknowledgement; their number is limited while the peer does not read."""
        self.unread_replies += self.is_paused
        self.check_unread()
        self.out.append(data)

    def check_unread(self) -> None:
        """Refuse a peer that causes replies and does not read them; raises Http2ConnectionError."""
        if self.unread_replies > self._max_replies:
            text = "replies are not read"
            raise Http2ConnectionError(text, ErrorCode.ENHANCE_YOUR_CALM)

    def resume(self) -> None:
        """End `is_paused`: the transport's buffers have room."""
        self.is_paused = False
        self.unread_replies = 0

    def set_max_table_size(self, size: int) -> None:
        """Apply the peer's SETTINGS_HEADER_TABLE_SIZE."""
        self._encoder.set_max_table_size(size)
        self._response = None

    def write_headers(self, stream_id: int, fields: tuple[Field, ...], *, end_stream: bool) -> None:
        """Send a header block; a long one continues in CONTINUATION frames."""
        block, max_size = self._encoder.encode(fields), self.frame_size
        if self.is_paused:
            self.unread_replies += 1 + len(block) // _REPLY_SIZE
        self._response = None
        kind, flags = frames.HEADERS, frames.END_STREAM if end_stream else 0
        while len(block) > max_size:
            self.out += (_pack_frame(max_size << 8 | kind, flags, stream_id), block[:max_size])
            kind, flags, block = frames.CONTINUATION, 0, block[max_size:]
        head = _pack_frame(len(block) << 8 | kind, flags | frames.END_HEADERS, stream_id)
        self.out += (head, block)

    def write_data(self, stream: Http2Stream, pieces: tuple[bytes, ...]) -> None:
        """Send data as soon as the windows have room."""
        size = sum(map(len, pieces))
        if (
            stream.queue is None
            and size <= self.window
            and size <= stream.window
            and size <= self.frame_size
            and not self.is_paused
        ):
            self.window -= size
            stream.window -= size
            self.out.append(_pack_frame(size << 8 | frames.DATA, 0, stream.stream_id))
            self.out += pieces
            self._is_large = self._is_large or size > _JOINED
            return
        if stream.queue is None:
            stream.queue = deque()
        stream.queue += filter(None, pieces) if size > _JOINED else (b"".join(pieces),)
        stream.queued += size
        self.write_queue(stream)

    def write_queue(self, stream: Http2Stream) -> bool:
        """Send as much of a stream's queue as the windows allow; True if it is empty then."""
        queue = stream.queue
        while queue:
            data = queue[0]
            room = min(len(data), self.window, stream.window, self.frame_size)
            if room <= 0 or self.is_paused:
                if stream.window > 0:
                    self.blocked[stream] = None
                else:
                    self.blocked.pop(stream, None)
                return False
            if room < len(data):
                queue[0] = memoryview(data)[room:]
                data = memoryview(data)[:room]
            else:
                queue.popleft()
            self.window -= room
            stream.window -= room
            self.out += (_pack_frame(room << 8 | frames.DATA, 0, stream.stream_id), data)
            self._is_large = self._is_large or room > _JOINED
            stream.queued -= room
        self.discard(stream)
        return True

    def discard(self, stream: Http2Stream) -> None:
        """Drop a stream's queue."""
        stream.queue = None
        stream.queued = 0
        self.blocked.pop(stream, None)

    def write_response(
        self,
        stream: Http2Stream,
        headers: tuple[Field, ...],
        data: tuple[bytes, ...],
        trailers: tuple[Field, ...],
    ) -> bool:
        """Send a whole response if its blocks are cached and the windows have room; else return False."""
        response = self._response
        if response is None or response.headers is not headers or response.trailers is not trailers:
            head, tail = self._encoder.cached(headers), self._encoder.cached(trailers)
            if not head or not tail:
                return False
            response = self._response = _Response(headers, head, trailers, tail)
        size = 0
        for piece in data:  # one or two
            size += len(piece)
        if (
            size > self.window
            or size > stream.window
            or size > self.frame_size
            or size > _JOINED
            or self.is_paused
            or stream.queue is not None
        ):
            return False
        self.window -= size
        stream_id = stream.stream_id
        self.out.append(
            response.before(response.head_word, frames.END_HEADERS, stream_id, response.head, size << 8, 0, stream_id)
        )  # fmt: skip
        self.out += data
        self.out.append(
            response.behind(response.tail_word, _LAST_HEADERS, stream_id, response.tail)
        )
        return True
