"""Length-prefixed messages of gRPC: read from pieces of any size, compressed and decompressed."""

from __future__ import annotations

import zlib
from struct import Struct

from nbtriton.frontends.decompression import DecompressionError, Decompressor, OversizeError
from nbtriton.frontends.grpc.status import INTERNAL, RESOURCE_EXHAUSTED, StatusError

__all__ = ["PREFIX", "WINDOW_BITS", "MessageReader", "compress", "decompress"]

# Before each message: whether it is compressed, and its length.
PREFIX = Struct(">BI")
# How messages may be compressed, and zlib's number for it; the better ones later.
WINDOW_BITS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
# A client may send a message in tiny pieces: those are put together until they are as long as this.
_TINY, _PIECE = 512, 16 << 10


class MessageReader:
    """The messages of one call.

    Parameters
    ----------
    max_size : int
        Bytes of a message as it is sent.
    """

    __slots__ = ("_at", "_flag", "_lacking", "_max_size", "_pieces", "_rest")

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._rest: list[bytes] = []  # what has not been read, from `_at` on
        self._at = 0
        self._pieces: list[bytes] | None = None  # of the message that is being read
        self._flag = self._lacking = 0

    def feed(self, data: bytes) -> None:
        """Read bytes in any pieces."""
        if self._lacking:
            assert self._pieces is not None
            piece = data[: self._lacking]
            self._lacking -= len(piece)
            _append(self._pieces, piece)
            data = data[len(piece) :]
        if data:
            _append(self._rest, data)

    def next_message(self) -> tuple[int, bytes] | None:
        """Return the next whole message with its flag; None if none is complete.

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
        """Read a prefix; False if it has not come whole."""
        if len(self._rest) > 1:
            self._rest, self._at = [b"".join(self._rest)[self._at :]], 0
        data = self._rest[0] if self._rest else b""
        start = self._at + PREFIX.size
        if len(data) < start:
            return False
        self._flag, size = PREFIX.unpack_from(data, self._at)
        if size > self._max_size:
            text = f"SERVER: Received message larger than max ({size} vs. {self._max_size})"
            raise StatusError(RESOURCE_EXHAUSTED, text)
        self._at = start + size
        piece = data[start : self._at]
        self._pieces, self._lacking = [piece], size - len(piece)
        if self._at >= len(data):
            self._rest, self._at = [], 0
        return True


def _append(pieces: list[bytes], data: bytes) -> None:
    if pieces and len(data) < _TINY and len(pieces[-1]) < _PIECE:
        pieces[-1] += data
    else:
        pieces.append(data)


def decompress(message: bytes, encoding: bytes, max_size: int) -> bytes:
    """Return a message that came compressed; raises StatusError if it is longer than `max_size`."""
    if not encoding:
        raise StatusError(INTERNAL, "Compression bit set but no encoding configured")
    try:
        return bytes(Decompressor(message, WINDOW_BITS[encoding], max_size).all())
    except OversizeError:
        raise StatusError(RESOURCE_EXHAUSTED, "Decompressed message larger than max") from None
    except DecompressionError:
        raise StatusError(INTERNAL, "Decompression failed due to zlib error") from None


def compress(message: bytes, encoding: bytes) -> tuple[int, bytes]:
    """Return a message's flag and bytes: compressed where that is asked for and shorter."""
    if encoding:
        writer = zlib.compressobj(wbits=WINDOW_BITS[encoding])
        data = writer.compress(message) + writer.flush()
        if len(data) < len(message):
            return 1, data
    return 0, message
