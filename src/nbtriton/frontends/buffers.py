"""Memory for long bodies, used again and again.

What malloc gets for a large block it gives back to the system when that is freed, and every page of
the next one is a fault: of the 1350 us that 602 kB there and back took, 900 us went there.
"""

from __future__ import annotations

import sysconfig
import threading
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import numpy as np

__all__ = ["LONG", "Buffers", "buffers"]

# From this size on bytes are received and copied into such memory.
LONG = 64 << 10
# Two tensors of 16 MB on their way in and out; what is beyond is given back as ever.
_KEPT = 64 << 20
# Without a GIL the count of references is no proof that nobody holds one.
_COUNTS = not sysconfig.get_config_var("Py_GIL_DISABLED")


class Buffers:
    """Buffers that are free again as soon as nobody refers to them: nobody has to return one.

    Parameters
    ----------
    kept : int
        Bytes that are kept, whether in use or not.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._arrays: list[np.ndarray[Any, Any]] = []  # oldest first
        self._lock = threading.Lock()

    def acquire(self, size: int) -> memoryview:
        """Return writable memory of a size in bytes; what stands in it is undefined."""
        with self._lock:
            found = _smallest_free(self._arrays, size) if _COUNTS else None
            if found is None:
                found = np.empty(size, np.uint8)
                self._arrays.append(found)
                while sum(array.nbytes for array in self._arrays) > self._kept:
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


# How often an array is referred to that is only in the list and looked at, in this interpreter.
_FREE = _references([np.empty(0)])

buffers = Buffers(_KEPT)
