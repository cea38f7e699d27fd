"""Events: a connection's reports of the bytes received."""

from __future__ import annotations

from dataclasses import dataclass

from nbtriton.serving.frontends.http2.frames import ErrorCode
from nbtriton.serving.frontends.http2.headers import HeaderBlock
from nbtriton.serving.frontends.http2.streams import Http2Stream

# A frame of a request: its stream, its headers if the stream begins, a part of its content without padding, and
# whether the request ends. A tuple, as every request makes two, and an object costs five times as much.
RequestFrame = tuple[Http2Stream, HeaderBlock | None, bytes, bool]


@dataclass(frozen=True, slots=True)
class TrailersReceived:
    """Trailers, which end a request."""

    stream: Http2Stream
    headers: HeaderBlock


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The peer reset a stream, or a stream error reset it."""

    stream: Http2Stream
    code: int


@dataclass(frozen=True, slots=True)
class PingReceived:
    """A PING; it is already acknowledged."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class ShutdownAcknowledged:
    """The peer has acknowledged `Http2Connection.begin_shutdown`."""


@dataclass(frozen=True, slots=True)
class ConnectionTerminated:
    """A connection error: nothing more is read, and GOAWAY is ready to be sent."""

    code: ErrorCode
    text: str


Event = (
    RequestFrame
    | TrailersReceived
    | StreamReset
    | PingReceived
    | ShutdownAcknowledged
    | ConnectionTerminated
)
