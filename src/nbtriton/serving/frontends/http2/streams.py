"""Streams and their states (RFC 9113 section 5.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

from nbtriton.serving.frontends.http2.frames import (
    ErrorCode,
    Http2ConnectionError,
    Http2StreamError,
)
from nbtriton.serving.frontends.http2.hpack import Field

__all__ = [
    "TRANSITIONS",
    "ClosedStreams",
    "Http2Stream",
    "StreamInput",
    "StreamState",
    "Violation",
    "allowed",
]


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
    SEND_RST_STREAM = 6


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
    StreamInput.SEND_RST_STREAM: (_unused, _CLOSED, _CLOSED, _CLOSED, _CLOSED),
}


def allowed(result: StreamState | Violation, stream_id: int) -> StreamState:
    """Return the next state of a stream; raises the error of a violation."""
    if isinstance(result, Violation):
        if result.ends_connection:
            text = f"a frame on stream {stream_id}, which is idle or closed"
            raise Http2ConnectionError(text, result.code)
        raise Http2StreamError(stream_id, result.code)
    return result


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

    __slots__ = (
        "expected", "owner", "queue", "queued", "received", "state", "stream_id", "trailers", "window",
    )  # fmt: skip

    def __init__(
        self, stream_id: int, state: StreamState, window: int, expected: int | None = None
    ) -> None:
        self.stream_id = stream_id
        self.state = state
        self.window = window
        self.expected = expected
        self.owner: Any = None
        self.received = 0
        self.queue: deque[bytes | memoryview] | None = None
        self.queued = 0
        self.trailers: tuple[Field, ...] | None = None


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
