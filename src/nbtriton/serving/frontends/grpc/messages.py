"""gRPC's length-prefixed messages: reading from pieces, compression and decompression."""

from __future__ import annotations

import zlib
from struct import Struct

from nbtriton.common.errors import TritonError
from nbtriton.serving.frontends.buffers import DecompressionError, Decompressor, OversizeError

__all__ = [
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
    "OK",
    "PREFIX",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "UNKNOWN",
    "WINDOW_BITS",
    "MessageReader",
    "StatusError",
    "code_of",
    "compress",
    "decompress",
]

# Prefix of a message: compressed flag, length.
PREFIX = Struct(">BI")
# Encodings and their window bits for zlib, the better ones later.
WINDOW_BITS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
# Tiny pieces of a message are joined up to this size.
_TINY, _PIECE = 512, 16 << 10


class MessageReader:
    """Reader of the messages of one call.

    Parameters
    ----------
    max_size : int
        Limit of a message as sent, in bytes.
    """

    __slots__ = ("_flag", "_lacking", "_max_size", "_offset", "_pieces", "_rest")

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._rest: list[bytes] = []  # unread bytes, from `_offset` on
        self._offset = 0
        self._pieces: list[bytes] | None = None  # of the message being read
        self._flag = self._lacking = 0

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        if self._lacking:
            assert self._pieces is not None
            piece = data[: self._lacking]
            self._lacking -= len(piece)
            _append(self._pieces, piece)
            data = data[len(piece) :]
        if data:
            _append(self._rest, data)

    def next_message(self) -> tuple[int, bytes] | None:
        """Return the next message with its compressed flag; None if incomplete.

        Raises
        ------
        StatusError
            A message is too large.
        """
        if self._pieces is None and not self._begin():
            return None
        if self._lacking:
            return None
        message = b"".join(self._pieces or ())
        self._pieces = None
        return self._flag, message

    def _begin(self) -> bool:
        """Read a prefix; False if it is incomplete."""
        if len(self._rest) > 1:
            self._rest, self._offset = [b"".join(self._rest)[self._offset :]], 0
        data = self._rest[0] if self._rest else b""
        start = self._offset + PREFIX.size
        if len(data) < start:
            return False
        self._flag, size = PREFIX.unpack_from(data, self._offset)
        if size > self._max_size:
            text = f"SERVER: Received message larger than max ({size} vs. {self._max_size})"
            raise StatusError(RESOURCE_EXHAUSTED, text)
        self._offset = start + size
        piece = data[start : self._offset]
        self._pieces, self._lacking = [piece], size - len(piece)
        if self._offset >= len(data):
            self._rest, self._offset = [], 0
        return True


def _append(pieces: list[bytes], data: bytes) -> None:
    if pieces and len(data) < _TINY and len(pieces[-1]) < _PIECE:
        pieces[-1] += data
    else:
        pieces.append(data)


def decompress(message: bytes, encoding: bytes, max_size: int) -> bytes:
    """Decompress a message; raises StatusError if the result is longer than `max_size`."""
    if not encoding:
        raise StatusError(INTERNAL, "Compression bit set but no encoding configured")
    try:
        return bytes(Decompressor(message, WINDOW_BITS[encoding], max_size).all())
    except OversizeError:
        raise StatusError(RESOURCE_EXHAUSTED, "Decompressed message larger than max") from None
    except DecompressionError:
        raise StatusError(INTERNAL, "Decompression failed due to zlib error") from None


def compress(message: bytes, encoding: bytes) -> tuple[int, bytes]:
    """Return a message's compressed flag and bytes; compressed if an encoding is given and it is shorter."""
    if encoding:
        writer = zlib.compressobj(wbits=WINDOW_BITS[encoding])
        data = writer.compress(message) + writer.flush()
        if len(data) < len(message):
            return 1, data
    return 0, message


OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, ALREADY_EXISTS = range(7)
RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 8, 12, 13, 14
_CODES = {
    "INVALID_ARG": INVALID_ARGUMENT,
    "NOT_FOUND": NOT_FOUND,
    "INTERNAL": INTERNAL,
    "UNSUPPORTED": UNIMPLEMENTED,
    "UNAVAILABLE": UNAVAILABLE,
    "ALREADY_EXISTS": ALREADY_EXISTS,
    "CANCELLED": CANCELLED,
    "UNKNOWN": UNKNOWN,
}


class StatusError(Exception):
    """End of a call with a gRPC status.

    Parameters
    ----------
    code : int
    text : str
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def code_of(error: TritonError) -> int:
    """Return the gRPC status code of an error."""
    return _CODES[error.status]
