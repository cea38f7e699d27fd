"""A gRPC client that writes frames and reads frames, so that a test decides what is on the wire."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from nbtriton.extensions.grpc.http2.hpack import Decoder, Encoder

__all__ = [
    "ACK",
    "CONTINUATION",
    "DATA",
    "END_HEADERS",
    "END_STREAM",
    "GOAWAY",
    "HEADERS",
    "INFER",
    "PADDED",
    "PING",
    "PREFACE",
    "PRIORITIZED",
    "PRIORITY",
    "RST_STREAM",
    "SETTINGS",
    "STREAM",
    "WINDOW_UPDATE",
    "Answer",
    "Client",
    "Frame",
    "fields",
    "frame",
    "number",
    "prefixed",
    "setting",
    "split",
]  # fmt: skip

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
(DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE,
 CONTINUATION) = range(10)  # fmt: skip
END_STREAM = ACK = 1
END_HEADERS, PADDED, PRIORITIZED = 4, 8, 0x20
INFER = b"/inference.GRPCInferenceService/ModelInfer"
STREAM = b"/inference.GRPCInferenceService/ModelStreamInfer"
WAIT_S = 60.0
_OPENING = {
    b":method": b"POST", b":scheme": b"http", b":path": INFER, b":authority": b"localhost",
    b"te": b"trailers", b"content-type": b"application/grpc",
}  # fmt: skip


def frame(kind: int, flags: int = 0, stream: int = 0, content: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(content) << 8 | kind, flags, stream) + content


def number(value: int) -> bytes:
    return struct.pack(">I", value)


def setting(name: int, value: int) -> bytes:
    return frame(SETTINGS, 0, 0, struct.pack(">HI", name, value))


def prefixed(message: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(message)) + message


def fields(changes: dict[bytes, bytes | None] | None = None, more: Sequence[tuple[bytes, bytes]] = ()) -> bytes:  # fmt: skip
    """Return the fields of a call, some of them changed or, with None, left out."""
    found = {**_OPENING, **(changes or {})}
    pairs = [(name, value) for name, value in found.items() if value is not None]
    return Encoder().encode((*pairs, *more))


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    content: bytes


def split(data: bytes) -> tuple[list[Frame], bytes]:
    """Return the whole frames at the front of what was read, and the rest."""
    frames = []
    while len(data) >= 9 and len(data) >= (end := 9 + int.from_bytes(data[:3], "big")):
        frames.append(Frame(*struct.unpack(">BBI", data[3:9]), data[9:end]))
        data = data[end:]
    return frames, data


@dataclass
class Answer:
    """The frames of one call that a client has read."""

    fields: list[tuple[bytes, bytes]] = field(default_factory=list)
    data: bytes = b""
    sizes: list[int] = field(default_factory=list)
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> tuple[int, str]:
        found = dict(self.fields)
        return int(found[b"grpc-status"]), found.get(b"grpc-message", b"").decode()

    @property
    def messages(self) -> list[tuple[int, bytes]]:
        """Flag and bytes of each."""
        found, data = [], self.data
        while data:
            flag, size = struct.unpack(">BI", data[:5])
            found.append((flag, data[5 : 5 + size]))
            data = data[5 + size :]
        return found


class Client:
    """One connection."""

    def __init__(
        self, port: int, *first: bytes, preface: bytes = PREFACE + frame(SETTINGS)
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.frames: list[Frame] = []
        self.answers: dict[int, Answer] = {}
        self.blocks: list[bytes] = []
        self.is_closed = False
        self._decoder = Decoder()
        self._buffer = b""
        self.send(preface, *first)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def until(self, enough: Callable[[], object]) -> None:
        """Read until something is so; a connection that ends before fails the test."""
        while not enough():
            assert not self.is_closed, ("the connection is closed", self.frames)
            self._read()

    def to_the_end(self) -> None:
        """Read until the server closes the connection."""
        while not self.is_closed:
            self._read()

    def answer(self, stream: int = 1) -> Answer:
        """Wait until a call ends."""
        answer = self.answers.setdefault(stream, Answer())
        self.until(lambda: answer.ended or answer.reset is not None)
        return answer

    def of(self, kind: int) -> list[Frame]:
        return [one for one in self.frames if one.kind == kind]

    def _read(self) -> None:
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionError:
            data = b""
        self.is_closed = not data
        self._buffer += data
        frames, self._buffer = split(self._buffer)
        for one in frames:
            self.frames.append(one)
            answer = self.answers.setdefault(one.stream, Answer())
            if one.kind == HEADERS:
                assert one.flags & END_HEADERS
                self.blocks.append(one.content)
                answer.fields += self._decoder.decode(one.content, 1 << 20) or []
                answer.ended = bool(one.flags & END_STREAM)
            elif one.kind == DATA:
                answer.data += one.content
                answer.sizes.append(len(one.content))
            elif one.kind == RST_STREAM:
                answer.reset = int.from_bytes(one.content, "big")
