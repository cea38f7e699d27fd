"""Shared memory of clients, mapped for models that only read it.

A client may truncate its memory while a model reads it, which Python cannot survive: the kernel raises SIGBUS. The
handler in guard.c puts zeros in place of the missing pages, and the request fails. It is built with the compiled
core; without it tensors in shared memory are copied for every model.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from pathlib import Path
from typing import Any

import numpy as np

LIBRARY = Path(__file__).with_name("guard.so")


@functools.cache
def guard(library: Path = LIBRARY) -> Any:
    """Return the functions of guard.c; None where they were not built."""
    try:
        functions = ctypes.CDLL(str(library))
    except OSError:
        return None
    functions.guard_add.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
    return functions


class GuardedMapping(mmap.mmap):
    """Memory of an open file, which may be truncated; the last view of it unmaps it."""

    _functions: Any = None
    _slot = -1

    @classmethod
    def of(cls, descriptor: int, offset: int, size: int) -> GuardedMapping | None:
        """Map a part of a file; None where that is not safe or not possible."""
        functions = guard()
        if functions is None or functions.guard_install():
            return None
        try:
            mapped = cls(descriptor, size, offset=offset)
        except (OSError, ValueError):  # no address space, or truncated already
            return None
        start = np.frombuffer(mapped, np.uint8).ctypes.data
        slot = functions.guard_add(start, size + -size % mmap.PAGESIZE)
        if slot < 0:
            return None
        mapped._functions, mapped._slot = functions, slot
        return mapped

    @property
    def broken(self) -> bool:
        """Whether something was read that the file no longer had."""
        return bool(self._functions.guard_broken(self._slot))

    def __del__(self) -> None:
        # Before the memory is unmapped: other memory may get its addresses.
        if self._slot >= 0:
            self._functions.guard_remove(self._slot)
