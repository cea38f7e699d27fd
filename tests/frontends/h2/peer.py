"""A client of `Http2Connection` in memory: frames in, what became of them out; every whole request is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from nbtriton.extensions.grpc.http2.connection import Http2Connection
from nbtriton.extensions.grpc.http2.frames import ErrorCode
from nbtriton.extensions.grpc.http2.hpack import Decoder, Encoder, Field
from nbtriton.extensions.grpc.http2.streams import (
    ConnectionTerminated,
    Event,
    Http2Limits,
    Http2Stream,
)
from tests.frontends.http2_raw import (
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    frame,
    number,
    split,
)

__all__ = [
    "BODY", "CONNECTION", "EMPTY", "OK", "PONG", "REQUEST", "STREAM", "Case", "Outcome", "Peer", "block", "case",
    "check", "ended_request", "request",
]  # fmt: skip

REQUEST: tuple[Field, ...] = (
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/b"), (b":authority", b"x"),
    (b"te", b"trailers"), (b"content-type", b"application/grpc"),
)  # fmt: skip
RESPONSE: tuple[Field, ...] = ((b":status", b"200"), (b"content-type", b"application/grpc"))
TRAILERS: tuple[Field, ...] = ((b"grpc-status", b"0"),)
BODY = b"\0\0\0\0\x04test"
PING_PAYLOAD = b"h2-tests"


def block(changes: dict[bytes, bytes | None] | None = None, more: Sequence[Field] = ()) -> bytes:
    """Return a request's header block, some fields changed or, with None, left out."""
    found = {**dict(REQUEST), **(changes or {})}
    kept = ((name, value) for name, value in found.items() if value is not None)
    return Encoder().encode((*kept, *more))


EMPTY = b""


def request(stream: int = 1, flags: int = END_STREAM, content: bytes | None = None) -> bytes:
    """Return the HEADERS of a request, by default of one without content."""
    return frame(HEADERS, END_HEADERS | flags, stream, block() if content is None else content)


def ended_request(event: Event) -> Http2Stream | None:
    """Return the stream whose request ends with an event, if any."""
    if isinstance(event, tuple):
        stream, _, _, end_stream = event
        return stream if end_stream else None
    return None


@dataclass
class Peer:
    """A connection and what it sent."""

    limits: Http2Limits = field(default_factory=Http2Limits)
    preface: bytes = PREFACE + frame(SETTINGS)
    answers: bool = True

    def __post_init__(self) -> None:
        self.connection = Http2Connection(self.limits, 0.0, frozenset({RESPONSE[1], TRAILERS[0]}))
        self.frames: list[Frame] = []
        self.fields: dict[int, list[Field]] = {}
        self.events: list[Event] = []
        self._decoder = Decoder()
        self.send(self.preface)

    def send(self, data: bytes, now: float = 0.0) -> None:
        """Send bytes; requests that end are answered."""
        found = self.connection.receive_data(data, now)
        while self.connection.has_more:
            found += self.connection.receive_data(b"", now)
        self.events += found
        for event in found if self.answers else ():
            stream = ended_request(event)
            if stream is not None:
                self.connection.send_response(stream, RESPONSE, (BODY,), TRAILERS)
        self.read()

    def read(self) -> None:
        sent = self.connection.data_to_send()
        frames, rest = split(sent if isinstance(sent, bytes) else b"".join(sent))
        assert not rest
        self.frames += frames
        for one in frames:
            if one.kind == HEADERS:
                fields = self._decoder.decode(one.content, 1 << 20) or []
                self.fields[one.stream] = self.fields.get(one.stream, []) + fields

    def of(self, kind: int, stream: int | None = None) -> list[Frame]:
        return [f for f in self.frames if f.kind == kind and stream in (None, f.stream)]

    def data(self, stream: int) -> bytes:
        return b"".join(one.content for one in self.of(0, stream))

    @property
    def goaway(self) -> ErrorCode | None:
        """The error of a connection that has ended."""
        found = self.of(GOAWAY)
        return ErrorCode(int.from_bytes(found[-1].content[4:8], "big")) if found else None

    def reset(self, stream: int) -> ErrorCode | None:
        found = self.of(RST_STREAM, stream)
        return ErrorCode(int.from_bytes(found[0].content, "big")) if found else None


@dataclass(frozen=True)
class Outcome:
    """What is expected: a connection error, a stream error, or neither and an answer."""

    code: ErrorCode | None = None
    ends_connection: bool = False
    answered: tuple[int, ...] = ()


def CONNECTION(code: ErrorCode) -> Outcome:
    return Outcome(code, ends_connection=True)


def STREAM(code: ErrorCode) -> Outcome:
    return Outcome(code)


def OK(*streams: int) -> Outcome:
    return Outcome(answered=streams or (1,))


PONG = Outcome()
Case = tuple[bytes, Outcome]


def case(name: str, outcome: Outcome, *frames: bytes) -> object:
    """Return a case of a table: its section and name, what is expected, what is sent."""
    return pytest.param(b"".join(frames), outcome, id=name.replace(" ", "-"))


def check(data: bytes, outcome: Outcome) -> None:
    """Send a case whole and byte by byte: the same must happen, and other streams must not notice."""
    ways = [[data]]
    if len(data) <= 3000:
        ways.append([data[at : at + 1] for at in range(len(data))])
    for pieces in ways:
        peer = Peer()
        for piece in pieces:
            peer.send(piece)
        if outcome.ends_connection:
            assert peer.goaway is outcome.code
            assert isinstance(peer.events[-1], ConnectionTerminated)
            sent = len(peer.frames)
            peer.send(frame(PING, 0, 0, PING_PAYLOAD))
            assert len(peer.frames) == sent, "something was read after the error"
            continue
        assert peer.goaway is None
        if outcome.code is not None:
            assert outcome.code in {peer.reset(one.stream) for one in peer.of(RST_STREAM)}
        for stream in outcome.answered:
            assert dict(peer.fields[stream])[b"grpc-status"] == b"0"
            assert peer.data(stream) == BODY
            assert peer.reset(stream) is None
        # The connection lives: a ping and another request are answered.
        peer.send(frame(PING, 0, 0, PING_PAYLOAD) + frame(WINDOW_UPDATE, 0, 0, number(1000)))
        assert peer.of(PING)[-1].content == PING_PAYLOAD
        peer.send(request(101))
        assert peer.data(101) == BODY
