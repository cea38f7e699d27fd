"""Buffer pool for long bodies.

malloc returns a large block to the system when it is freed, and every page of the next block is a page
fault: 900 us of the 1350 us that a request and response of 602 kB took.
"""

from __future__ import annotations

import sysconfig
import threading
import zlib
from collections.abc import Sequence
from sys import getrefcount
from typing import Any, Generic, TypeVar

import numpy as np

# Smallest body in bytes that uses the pool.
LONG = 64 << 10
# Room for two tensors of 16 MB as input and output; memory beyond is freed as usual.
_KEPT = 64 << 20
# Without a GIL a reference count does not prove that no thread holds a reference.
_COUNTS = not sysconfig.get_config_var("Py_GIL_DISABLED")


class Buffers:
    """Pool of buffers; a buffer is free as soon as nothing refers to it.

    Parameters
    ----------
    max_bytes : int
        Size of the pool, including buffers in use.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._arrays: list[np.ndarray[Any, Any]] = []  # oldest first
        self._lock = threading.Lock()

    def acquire(self, size: int) -> memoryview:
        """Return writable memory of `size` bytes with undefined content."""
        with self._lock:
            found = _smallest_free(self._arrays, size) if _COUNTS else None
            if found is None:
                found = np.empty(size, np.uint8)
                self._arrays.append(found)
                while sum(array.nbytes for array in self._arrays) > self._max_bytes:
                    del self._arrays[0]
            return found.data[:size]


def _smallest_free(arrays: Sequence[np.ndarray[Any, Any]], size: int) -> Any:
    best = None
    for array in arrays:
        if (
            getrefcount(array) == _FREE
            and size <= array.nbytes
            and (best is None or array.nbytes < best.nbytes)
        ):
            best = array
    return best


def _references(arrays: Sequence[np.ndarray[Any, Any]]) -> int:
    for array in arrays:
        return getrefcount(array)
    return 0


# The reference count of an array that only the list and the loop hold, in this interpreter.
_FREE = _references([np.empty(0)])

buffers = Buffers(_KEPT)


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


# Longer texts are rare and would displace many others.
LONGEST = 4096
_MOST = 256

T = TypeVar("T")


class TemplateCache(Generic[T]):
    """Templates by the bytes of a text without ids and tensors; each operation is atomic."""

    __slots__ = ("_templates", "find")

    def __init__(self) -> None:
        self._templates: dict[bytes, T] = {}
        # The bound method itself, as it is called once or twice a request.
        self.find = self._templates.get

    def remember(self, text: bytes, template: T) -> None:
        """Store the template of a text unless the text is long; a full cache is cleared first."""
        if len(text) > LONGEST:
            return
        if len(self._templates) >= _MOST:
            self._templates.clear()
        self._templates[text] = template
