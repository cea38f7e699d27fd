"""What a connection reports of the bytes that it received. Tuples: the cheapest of immutable classes."""

from __future__ import annotations

from typing import NamedTuple

from nbtriton.frontends.http2.errors import ErrorCode
from nbtriton.frontends.http2.headers import HeaderBlock
from nbtriton.frontends.http2.streams import Http2Stream

__all__ = [
    "ConnectionTerminated", "DataReceived", "Event", "PingReceived", "RequestReceived",
    "ShutdownAcknowledged", "StreamReset", "TrailersReceived",
]  # fmt: skip


class RequestReceived(NamedTuple):
    """A stream begins."""

    stream: Http2Stream
    headers: HeaderBlock
    end_stream: bool


class DataReceived(NamedTuple):
    """A part of a request's content, without padding."""

    stream: Http2Stream
    data: bytes
    end_stream: bool


class TrailersReceived(NamedTuple):
    """Fields that end a request."""

    stream: Http2Stream
    headers: HeaderBlock


class StreamReset(NamedTuple):
    """The peer gave a stream up, or broke the protocol on it."""

    stream: Http2Stream
    code: int


class PingReceived(NamedTuple):
    """A PING, which is answered already."""

    payload: bytes


class ShutdownAcknowledged(NamedTuple):
    """The peer has read `Http2Connection.begin_shutdown`'s warning."""


class ConnectionTerminated(NamedTuple):
    """The peer broke the protocol, and nothing more is read from it; GOAWAY is to be sent."""

    code: ErrorCode
    text: str


Event = (
    RequestReceived
    | DataReceived
    | TrailersReceived
    | StreamReset
    | PingReceived
    | ShutdownAcknowledged
    | ConnectionTerminated
)
