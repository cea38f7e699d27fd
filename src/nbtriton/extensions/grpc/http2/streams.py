"""Streams of one connection: states, windows, queues (RFC 9113 sections 5.1, 5.2 and 6.9), events, and a peer's limits.

Theory of operation
-------------------
A connection carries many calls. Each is a stream, and its number is odd and higher than any before it. A
stream has five states and six inputs, and `TRANSITIONS` holds every rule: a new rule is a cell of the table,
not an ``if`` in `connection.py`. Three things to know about it:

- HEADERS leave an open stream open. They are its trailers, and their END_STREAM flag is the next input.
- RST_STREAM and WINDOW_UPDATE are allowed on a closed stream: they crossed our last frame on the wire.
- "Half-closed (local)" never lasts. A response that ends before its request has made the rest of the request
  useless, so `Http2Connection.send_headers` resets the stream at once, with NO_ERROR (section 8.1).

A violation is a stream error where both sides still agree on which streams exist: RST_STREAM, and the other
calls go on. It is a connection error where they do not, such as DATA on a stream that was never opened.

*Idle or closed?* Only live streams are kept, or a long connection would fill the memory. A stream that is not
kept is idle above the highest number seen and closed below it, with two exceptions that `ClosedStreams`
remembers. The peer may go on sending on a stream that we have reset, until it reads our RST_STREAM: those frames
are ignored. And numbers that the client skipped were never used, though they are below the highest. Both lists
are bounded. When an entry is dropped, a late frame is answered with an error that the peer could have been
spared: that is the cost of the bound.

*Flow control.* Only DATA counts, padding included, and each byte counts twice: for its stream and for the
connection. The two windows that we grant are updated by different rules:

- The connection's as data arrives. If it waited for the calls to read, one slow call would stop all of them.
- A stream's when the call has read its data (`Http2Connection.acknowledge`), so that a call that does not read
  holds at most one window in memory. Its client then stalls, which is the purpose.

Both are updated at half, not at each frame: an update is a frame of 13 bytes that the peer has to read.

The windows that the peer grants bound what we send. A stream's may become negative, because SETTINGS may shrink
the windows of all streams (section 6.9.2). What does not fit waits in `Http2Stream.queue` with the trailers
behind it; the stream stays open until they are sent. `FrameWriter.blocked` has the streams that wait for the
connection's window, in order. A stream that waits for its own window is not there: its WINDOW_UPDATE finds it.

What does not work, and why
---------------------------
- Raising from `receive_data`. The frames before the wrong one belong to other calls, and their events would be
  lost. So a violation is the last event.
- Using the table for each DATA frame. Nearly all arrive on open streams, which is tested first.
- Priorities. PRIORITY is checked and then ignored: clients do not agree on its meaning, and RFC 9113 drops it.
- Limiting only how many streams are open. A client that opens and resets streams never has many, but makes the
  server work for each (CVE-2023-44487). Resets, SETTINGS and frames that ask for nothing are limited by rate
  (`TokenBucket`); each response earns one more reset, so no honest client meets the limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from nbtriton.extensions.grpc.http2.frames import ErrorCode, Http2ConnectionError, Http2StreamError
from nbtriton.extensions.grpc.http2.hpack import Field, HeaderBlock


class StreamState(IntEnum):
    """State of a stream on the server's side; no reserved states, as the server does not push."""

    IDLE = 0
    OPEN = 1
    HALF_CLOSED_LOCAL = 2
    HALF_CLOSED_REMOTE = 3
    CLOSED = 4


class StreamInput(IntEnum):
    """Inputs of a stream's state machine."""

    RECEIVE_HEADERS = 0
    RECEIVE_DATA = 1
    RECEIVE_END_STREAM = 2
    RECEIVE_RST_STREAM = 3
    RECEIVE_WINDOW_UPDATE = 4
    SEND_END_STREAM = 5


class Violation(NamedTuple):
    """Error of an input that a state does not allow, and whether it is a connection error."""

    code: ErrorCode
    ends_connection: bool


_IDLE, _OPEN, _LOCAL, _REMOTE, _CLOSED = StreamState
_unused: Final = Violation(ErrorCode.PROTOCOL_ERROR, ends_connection=True)
_reset: Final = Violation(ErrorCode.STREAM_CLOSED, ends_connection=False)
_ended: Final = Violation(ErrorCode.STREAM_CLOSED, ends_connection=True)

# The next state by input and, in this order, the state: idle, open, half-closed (local), half-closed (remote),
# closed. WINDOW_UPDATE and RST_STREAM may arrive after the end of a stream.
TRANSITIONS: Final[Mapping[StreamInput, tuple[StreamState | Violation, ...]]] = {
    StreamInput.RECEIVE_HEADERS: (_OPEN, _OPEN, _LOCAL, _reset, _ended),
    StreamInput.RECEIVE_DATA: (_unused, _OPEN, _LOCAL, _reset, _reset),
    StreamInput.RECEIVE_END_STREAM: (_unused, _REMOTE, _CLOSED, _reset, _reset),
    StreamInput.RECEIVE_RST_STREAM: (_unused, _CLOSED, _CLOSED, _CLOSED, _CLOSED),
    StreamInput.RECEIVE_WINDOW_UPDATE: (_unused, _OPEN, _LOCAL, _REMOTE, _CLOSED),
    StreamInput.SEND_END_STREAM: (_unused, _LOCAL, _ended, _CLOSED, _ended),
}


def allowed(result: StreamState | Violation, stream_id: int) -> StreamState:
    """Return the next state of a stream; raises the error of a violation."""
    if isinstance(result, Violation):
        if result.ends_connection:
            text = f"a frame on stream {stream_id}, which is idle or closed"
            raise Http2ConnectionError(text, result.code)
        raise Http2StreamError(stream_id, result.code)
    return result


@dataclass(slots=True, eq=False)
class Http2Stream:
    """One stream of a connection.

    Parameters
    ----------
    stream_id : int
    state : StreamState
    window : int
        Flow-control window of the peer: bytes that may be sent.
    expected : int, optional
        Bytes of the announced content-length that have not arrived.

    Attributes
    ----------
    owner : object
        For the user of the connection.
    received : int
        Bytes that the peer has sent since its window was last updated.
    queue : deque of bytes-like, optional
        Data that waits for the peer's windows; `queued` is its size.
    trailers : tuple of fields, optional
        Trailers that follow the queue.
    """

    stream_id: int
    state: StreamState
    window: int
    expected: int | None = None
    owner: Any = None
    received: int = 0
    queue: deque[bytes | memoryview] | None = None
    queued: int = 0
    trailers: tuple[Field, ...] | None = None


# A frame of a request: its stream, its headers if the stream begins, a part of its content without padding, and
# whether the request ends. Trailers, which end it, are a frame without headers and content. A tuple, as every request makes two, and an object costs five times as much.
RequestFrame = tuple[Http2Stream, HeaderBlock | None, bytes, bool]


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The peer reset a stream, or a stream error reset it."""

    stream: Http2Stream
    code: int


@dataclass(frozen=True, slots=True)
class PingReceived:
    """A PING; it is already acknowledged."""


@dataclass(frozen=True, slots=True)
class ShutdownAcknowledged:
    """The peer has acknowledged `Http2Connection.begin_shutdown`."""


@dataclass(frozen=True, slots=True)
class ConnectionTerminated:
    """A connection error: nothing more is read, and GOAWAY is ready to be sent."""

    code: ErrorCode
    text: str


Event = RequestFrame | StreamReset | PingReceived | ShutdownAcknowledged | ConnectionTerminated


# Limits of streams reset here whose peer may not know it, and of gaps between identifiers.
_MAX_IGNORED, _MAX_GAPS = 1000, 256


class ClosedStreams:
    """Identifiers of closed streams; the oldest are dropped."""

    __slots__ = ("_gaps", "_ignored")

    def __init__(self) -> None:
        self._ignored: dict[int, None] = {}  # the oldest first
        self._gaps: list[range] = []

    def ignore(self, stream_id: int) -> None:
        """Ignore further frames on a stream: its peer may not know yet that it is closed."""
        self._ignored[stream_id] = None
        if len(self._ignored) > _MAX_IGNORED:
            del self._ignored[next(iter(self._ignored))]

    def is_ignored(self, stream_id: int) -> bool:
        return stream_id in self._ignored

    def skip(self, first: int, end: int) -> None:
        """Note identifiers that the client has skipped and can no longer use (section 5.1.1)."""
        self._gaps.append(range(first, end, 2))
        del self._gaps[:-_MAX_GAPS]

    def was_skipped(self, stream_id: int) -> bool:
        return any(stream_id in gap for gap in self._gaps)


class TokenBucket:
    """At most `size` tokens at once and `per_s` a second in the long run; full at first.

    Parameters
    ----------
    excess : str
        Text of the error of a peer that takes more.
    size : int
    per_s : float
    now : float
        Seconds, of any clock.

    Attributes
    ----------
    earned : int
        Tokens added by the owner of the bucket since the last `acquire`.
    """

    __slots__ = ("_excess", "_full_s", "_most_s", "_step_s", "earned")

    def __init__(self, excess: str, size: int, per_s: float, now: float) -> None:
        self._excess = excess
        self._step_s = 1 / per_s
        # A thousandth of a token more, as sums of steps are rounded.
        self._most_s = (size + 0.001) / per_s
        # When it is full again: one number for how many are left and since when, as each frame asks.
        self._full_s = now
        self.earned = 0

    def acquire(self, now: float) -> None:
        """Take a token; raises Http2ConnectionError if none is left."""
        full_s = self._full_s - self.earned * self._step_s
        full_s = (full_s if full_s > now else now) + self._step_s  # noqa: FURB136 - max() is a fifth of this
        if full_s - now > self._most_s:
            raise Http2ConnectionError(self._excess, ErrorCode.ENHANCE_YOUR_CALM)
        self._full_s = full_s
        self.earned = 0


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Resources that one peer may use.

    Parameters
    ----------
    max_concurrent_streams : int
        Concurrent streams, and how many streams the peer may reset at once.
    max_header_list_size : int
        As HPACK counts. Beyond twice that, a block is not read at all.
    max_frame_size : int
        Of DATA frames.
    stream_window, connection_window : int
        Bytes that the peer may send before WINDOW_UPDATE.
    resets_per_s : float
        Mean rate of streams that the peer may reset, in addition to one for each response (CVE-2023-44487).
    settings_at_once, settings_per_s : float
        Burst and mean rate of SETTINGS: each may affect every stream.
    idle_frames_at_once, idle_frames_per_s : int, float
        Burst and mean rate of idle frames, in addition to four for each call and message: small
        WINDOW_UPDATE, PRIORITY, acknowledgements, empty DATA and unknown frames.
    max_unread_replies : int
        Acknowledgements and header blocks for a peer that does not read; a long block counts for several.
    turn_bytes : int
        Bytes after which `receive_data` returns, so that other clients get a turn: some 20 short requests.
    """

    max_concurrent_streams: int = 1000
    max_header_list_size: int = 16 << 10
    max_frame_size: int = 4 << 20
    stream_window: int = 4 << 20
    connection_window: int = 16 << 20
    resets_per_s: float = 100
    settings_at_once: int = 100
    settings_per_s: float = 10
    idle_frames_at_once: int = 10_000
    idle_frames_per_s: float = 1000
    max_unread_replies: int = 10_000
    turn_bytes: int = 4 << 10
