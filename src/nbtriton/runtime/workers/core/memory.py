"""Shared memory for tensors: one side of a connection writes, the other reads.

Each direction has an `Outgoing` heap at its sender and an `Incoming` one at its receiver. Segments have no
name (a memory file, or a file that is unlinked at once) and are passed by descriptor: none outlives the two
processes. Blocks are reused; the heap grows by segments and releases unused ones.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import threading
import weakref
from bisect import insort
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from nbtriton.runtime.workers import protocol
from nbtriton.runtime.workers.core.channel import Channel, ChannelClosed

# Segment, offset and size of a block.
Place = tuple[int, int, int]

# Tensors up to this total of bytes follow their message: two copies by the system are then cheaper than the
# bookkeeping of a block.
INLINE_BYTES: Final = 1 << 15
_PAGE: Final = mmap.PAGESIZE
# A cache line, and the alignment for SIMD instructions.
_ALIGNMENT: Final = 64
_FIRST_BYTES: Final = 1 << 20
_LARGEST_GROWTH: Final = 1 << 26
# An empty segment is dropped after this number of allocations elsewhere.
_UNUSED_FOR: Final = 64
_SEGMENT_WAIT_S: Final = 60.0

_Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"


class _Segment:
    """Mapped memory, with its free parts."""

    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        self.memory = mmap.mmap(fd, size)
        self.free: list[tuple[int, int]] = [(0, size)]  # offset and size, in order
        self.used_at = 0

    @property
    def empty(self) -> bool:
        return self.free == [(0, self.size)]

    def allocate(self, size: int) -> int:
        """Return the offset of a block of this size; -1 without room."""
        for index, (offset, room) in enumerate(self.free):
            if room >= size:
                if room == size:
                    del self.free[index]
                else:
                    self.free[index] = (offset + size, room - size)
                return offset
        return -1

    def release(self, offset: int, size: int) -> None:
        """Free a block, and join it with free neighbours."""
        insort(self.free, (offset, size))
        index = self.free.index((offset, size))
        if index + 1 < len(self.free) and offset + size == self.free[index + 1][0]:
            size += self.free.pop(index + 1)[1]
            self.free[index] = (offset, size)
        if index and sum(self.free[index - 1]) == offset:
            before, room = self.free[index - 1]
            self.free[index - 1 : index + 1] = [(before, room + size)]


class Outgoing:
    """The writer's side of a heap.

    Parameters
    ----------
    announce : callable
        ``announce(number, fd, size)`` announces a new segment to the reader; the descriptor is closed
        afterwards.
    drop : callable
        ``drop(number)`` announces that a segment is unused.
    shared : bool
        False if the reader is on another machine, maybe: all tensors follow their messages.
    """

    def __init__(
        self,
        announce: Callable[[int, int, int], object],
        drop: Callable[[int], object],
        *,
        shared: bool = True,
    ) -> None:
        self.inline_bytes = INLINE_BYTES if shared else sys.maxsize
        self._announce = announce
        self._drop = drop
        self._segments: dict[int, _Segment] = {}
        self._next = 0
        self._allocations = 0
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments.values())

    def allocate(self, size: int) -> tuple[Place, memoryview]:
        """Return the place of a block, and the block, aligned to a cache line.

        Raises
        ------
        MemoryError
            The system has no more memory.
        """
        rounded = -(-size // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            self._allocations += 1
            number, offset = self._find_room(rounded)
            if offset < 0:
                number = self._grow(rounded)
                offset = self._segments[number].allocate(rounded)
            segment = self._segments[number]
            segment.used_at = self._allocations
            if self._allocations % _UNUSED_FOR == 0:
                self._trim()
        place = (number, offset, rounded)
        return place, memoryview(segment.memory)[offset : offset + size]

    def release(self, places: list[Place]) -> None:
        """Free blocks that the reader has released."""
        with self._lock:
            for number, offset, size in places:
                self._segments[number].release(offset, size)

    def _find_room(self, size: int) -> tuple[int, int]:
        for number, segment in self._segments.items():
            offset = segment.allocate(size)
            if offset >= 0:
                return number, offset
        return -1, -1

    def _grow(self, size: int) -> int:
        segment_size = max(size, _FIRST_BYTES, min(self.size, _LARGEST_GROWTH))
        segment_size = -(-segment_size // _PAGE) * _PAGE
        fd = _make_file(segment_size)
        try:
            segment = _Segment(fd, segment_size)
            number, self._next = self._next, self._next + 1
            self._announce(number, fd, segment_size)
        except OSError as error:
            raise MemoryError(f"no shared memory of {segment_size} bytes: {error}") from error
        finally:
            os.close(fd)
        self._segments[number] = segment
        return number

    def _trim(self) -> None:
        """Release segments that were long unused; the first one stays."""
        for number, segment in list(self._segments.items())[1:]:
            if segment.empty and self._allocations - segment.used_at >= _UNUSED_FOR:
                del self._segments[number]
                self._drop(number)


class Incoming:
    """The reader's side of a heap.

    A block is read as an array. After its last view is deleted the block counts as released, which the next
    message tells the writer.
    """

    def __init__(self) -> None:
        self._segments: dict[int, mmap.mmap] = {}
        self._changed = threading.Condition()
        self._views: dict[Place, weakref.ref[_Bytes]] = {}
        # Appended to where a last reference is dropped, also by the garbage collector.
        self._released: list[Place] = []

    def add(self, number: int, fd: int, size: int) -> None:
        """Map a new segment; closes the descriptor."""
        try:
            memory = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        with self._changed:
            self._segments[number] = memory
            self._changed.notify_all()

    def drop(self, number: int) -> None:
        """Remove a segment whose blocks are all released."""
        with self._changed:
            self._segments.pop(number, None)

    def view(self, place: Place) -> _Bytes:
        """Return a block as bytes. Its memory is not reused while views of it exist."""
        number, offset, size = place
        memory = self._segments.get(number)
        if memory is None:  # its announcement is on the other channel
            with self._changed:
                known = self._changed.wait_for(lambda: number in self._segments, _SEGMENT_WAIT_S)
                if not known:
                    raise MemoryError(f"segment {number} of shared memory was never announced")
                memory = self._segments[number]
        # Over a memoryview: numpy's views refer to the first array in a chain of arrays.
        block: _Bytes = np.ndarray((size,), np.uint8, memoryview(memory)[offset : offset + size])
        self._views[place] = weakref.ref(block, partial(self._return, place))
        return block

    def pop_released(self) -> list[Place]:
        """Return the blocks released since the last call."""
        popped: list[Place] = []  # a new one: what is appended until it is sent would be told twice
        with suppress(IndexError):  # other threads append and pop at any time
            while self._released:
                popped.append(self._released.pop())
        return popped

    def _return(self, place: Place, _: object) -> None:
        self._views.pop(place, None)
        self._released.append(place)


class ConnectionEnd:
    """One end of the connection between the engine's process and a worker: the channel of calls, and the memory.

    Parameters
    ----------
    calls : socket.socket

    Attributes
    ----------
    heap : Outgoing
        For the tensors that this end sends.
    """

    def __init__(self, calls: socket.socket) -> None:
        shared = calls.family == socket.AF_UNIX  # the other end is on this machine for sure
        self._channel = Channel(calls, descriptors=shared)
        self.heap = Outgoing(self._announce, self._drop, shared=shared)
        self._incoming = Incoming()

    def _open(self, place: Place | None, behind: memoryview) -> Any:
        """Return the memory of a message's tensors, owned by the reader."""
        return bytearray(behind) if place is None else self._incoming.view(place)

    def _handle_memory(self, message: tuple[Any, ...]) -> bool:
        """Handle a message about memory; return False for any other."""
        kind = message[0]
        if kind == protocol.SEGMENT:
            self._incoming.add(message[1], self._channel.pop_descriptor(), message[2])
        elif kind == protocol.DROP:
            self._incoming.drop(message[1])
        elif kind == protocol.RELEASED:
            self.heap.release(message[1])
        else:
            return False
        return True

    def _send_released(self) -> None:
        """Tell the other end which of its blocks are free again."""
        released = self._incoming.pop_released()
        if released:
            self._channel.send((protocol.RELEASED, released))

    def _announce(self, number: int, fd: int, size: int) -> None:
        self._channel.send((protocol.SEGMENT, number, size), fds=(fd,))

    def _drop(self, number: int) -> None:
        with suppress(ChannelClosed):
            self._channel.send((protocol.DROP, number))


def _make_file(size: int) -> int:
    """Return the descriptor of memory without a name."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("nbtriton", os.MFD_CLOEXEC)
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd
