"""Events: what a connection reports of the bytes that it received."""

from __future__ import annotations

from dataclasses import dataclass

from nbtriton.frontends.http2.errors import ErrorCode
from nbtriton.frontends.http2.headers import HeaderBlock
from nbtriton.frontends.http2.streams import Http2Stream

__all__ = [
    "ConnectionTerminated", "Event", "PingReceived", "RequestFrame",
    "ShutdownAcknowledged", "StreamReset", "TrailersReceived",
]  # fmt: skip


# A frame of a request: its stream, its headers if the stream begins, a part of its content without padding, and
# whether the request ends. A plain tuple, as every request makes two of them and an object of a class costs
# five times as much.
RequestFrame = tuple[Http2Stream, HeaderBlock | None, bytes, bool]


@dataclass(frozen=True, slots=True)
class TrailersReceived:
    """Fields that end a request."""

    stream: Http2Stream
    headers: HeaderBlock


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The peer gave a stream up, or broke the protocol on it."""

    stream: Http2Stream
    code: int


@dataclass(frozen=True, slots=True)
class PingReceived:
    """A PING, which is answered already."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class ShutdownAcknowledged:
    """The peer has read `Http2Connection.begin_shutdown`'s warning."""


@dataclass(frozen=True, slots=True)
class ConnectionTerminated:
    """The peer broke the protocol, and nothing more is read from it; GOAWAY is to be sent."""

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
