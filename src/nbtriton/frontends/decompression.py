"""Decompression of bodies and messages, piece by piece and never beyond a limit."""

from __future__ import annotations

import zlib

__all__ = ["DecompressionError", "Decompressor", "OversizeError"]

# Unpacked at a time: zlib releases the GIL meanwhile, and its result is copied afterwards.
_PIECE = 256 << 10


class DecompressionError(Exception):
    """These bytes cannot be unpacked, or not to their end."""


class OversizeError(DecompressionError):
    """The unpacked bytes are more than the limit."""


class Decompressor:
    """One body or message.

    Parameters
    ----------
    data : bytes-like
        Compressed, whole.
    window_bits : int
        As for `zlib.decompressobj`: the format.
    most : int
        Bytes that it may unpack to.
    """

    def __init__(self, data: bytes | memoryview, window_bits: int, most: int) -> None:
        self._engine = zlib.decompressobj(window_bits)
        self._rest: bytes | memoryview = data
        self._most = most
        self._unpacked = bytearray()

    def step(self, size: int = _PIECE) -> bool:
        """Unpack at most `size` bytes more; True once all are unpacked.

        Raises
        ------
        DecompressionError
        """
        engine = self._engine
        try:
            piece = engine.decompress(self._rest, min(size, self._most + 1 - len(self._unpacked)))
        except zlib.error as error:
            raise DecompressionError(str(error)) from None
        self._rest = engine.unconsumed_tail
        self._unpacked += piece
        if len(self._unpacked) > self._most:
            raise OversizeError(f"larger than the limit of {self._most} bytes")
        if engine.eof:
            return True
        if not (piece or self._rest):
            raise DecompressionError("the end is missing")
        return False

    def all(self) -> memoryview:
        """Unpack everything, and return it."""
        while not self.step():
            pass
        return self.result()

    def result(self) -> memoryview:
        """Return the unpacked bytes, read-only."""
        return memoryview(self._unpacked).toreadonly()
