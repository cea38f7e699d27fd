"""Buffer pool for long bodies.

malloc returns a large block to the system when it is freed, and every page of the next block is a page
fault: 900 us of the 1350 us that a request and response of 602 kB took.
"""

from __future__ import annotations

import sysconfig
import threading
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import numpy as np

__all__ = ["LONG", "Buffers", "buffers"]

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
        Size of the pool, buffers in use included.
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


# References to an array that only the list and the loop hold, in this interpreter.
_FREE = _references([np.empty(0)])

buffers = Buffers(_KEPT)
