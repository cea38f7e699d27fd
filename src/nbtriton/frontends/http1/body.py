"""The body of a request while it arrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nbtriton.frontends.http1.buffers import buffers

__all__ = ["LONG", "LongBody", "joined", "padding_of"]

# From this size on what is still to come of a body is received in place.
LONG = 64 << 10
# Tensors behind the JSON are read in place, which is fastest if they begin at such an address.
_ALIGNMENT = 16
_HEADER_LENGTH = b"inference-header-content-length"


def padding_of(headers: Mapping[bytes, bytes]) -> int:
    """Return how many bytes before a body make the tensors behind its JSON begin well aligned."""
    length = headers.get(_HEADER_LENGTH, b"")
    return -int(length) % _ALIGNMENT if length.isdigit() and len(length) < 19 else 0


def joined(chunks: Sequence[bytes], padding: int) -> tuple[bytes, int]:
    """Return the body in one piece behind some padding, and how much of that there is."""
    if not chunks or (len(chunks) == 1 and not padding):
        return b"".join(chunks), 0
    return b"".join((bytes(padding), *chunks)), padding


class LongBody:
    """A body that is received where it stays.

    Parameters
    ----------
    size : int
        Of the whole body, in bytes.
    begun : sequence of bytes
        What of it is there already.
    padding : int
        How many bytes come before it.
    """

    __slots__ = ("_filled", "_whole", "padding")

    def __init__(self, size: int, begun: Sequence[bytes], padding: int) -> None:
        self.padding = padding
        # Not touched before something is received: to claim a size costs nobody any memory.
        self._whole = buffers.take(padding + size)
        self._filled = padding
        for chunk in begun:
            self._whole[self._filled : self._filled + len(chunk)] = chunk
            self._filled += len(chunk)

    def rest(self) -> memoryview:
        """Return where the next bytes belong."""
        return self._whole[self._filled :]

    def received(self, size: int) -> bool:
        """Note that so many bytes have come; True once that is all."""
        self._filled += size
        return self._filled == len(self._whole)

    def data(self) -> memoryview:
        """Return padding and body, which are the request's own: a model may write to its tensors."""
        return self._whole
