"""Decompression of bodies and messages, piece by piece and within a limit."""

from __future__ import annotations

import zlib

__all__ = ["DecompressionError", "Decompressor", "OversizeError"]

# Bytes of one step: zlib releases the GIL during a step, and the result is copied after it.
_PIECE = 256 << 10


class DecompressionError(Exception):
    """The bytes are malformed or incomplete."""


class OversizeError(DecompressionError):
    """The decompressed bytes exceed the limit."""


class Decompressor:
    """Decompressor of one body or message.

    Parameters
    ----------
    data : bytes-like
        All compressed bytes.
    window_bits : int
        The format, as for `zlib.decompressobj`.
    max_size : int
        Limit of the decompressed bytes.
    """

    def __init__(self, data: bytes | memoryview, window_bits: int, max_size: int) -> None:
        self._engine = zlib.decompressobj(window_bits)
        self._rest: bytes | memoryview = data
        self._max_size = max_size
        self._unpacked = bytearray()

    def step(self, size: int = _PIECE) -> bool:
        """Decompress at most `size` more bytes; True at the end.

        Raises
        ------
        DecompressionError
        """
        engine = self._engine
        try:
            piece = engine.decompress(
                self._rest, min(size, self._max_size + 1 - len(self._unpacked))
            )
        except zlib.error as error:
            raise DecompressionError(str(error)) from None
        self._rest = engine.unconsumed_tail
        self._unpacked += piece
        if len(self._unpacked) > self._max_size:
            raise OversizeError(f"larger than the limit of {self._max_size} bytes")
        if engine.eof:
            return True
        if not (piece or self._rest):
            raise DecompressionError("the end is missing")
        return False

    def all(self) -> memoryview:
        """Decompress everything and return it."""
        while not self.step():
            pass
        return self.result()

    def result(self) -> memoryview:
        """Return the decompressed bytes, read-only."""
        return memoryview(self._unpacked).toreadonly()
