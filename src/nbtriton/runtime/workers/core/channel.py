"""Framed control messages over one end of a socket pair.

A message is a tuple of plain values (marshal's version 2, which all versions of Python read) followed by
bytes. Multiprocessing's connections read a message in two system calls and pickle it; here it is one call,
and descriptors can be passed.
"""

from __future__ import annotations

import array
import marshal
import select
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic_ns
from typing import Any, Final

from nbtriton.runtime.workers.protocol import plain

# Lengths of the message and of the bytes after it.
_PREFIX: Final = struct.Struct("<II")
_MARSHAL_VERSION: Final = 2
# Room for most messages; grows with the largest one.
_BUFFER_BYTES: Final = 1 << 16
_MOST_DESCRIPTORS: Final = 16
# Longest time of polling: waking a thread that sleeps on an idle core takes 30 to 50 us, too.
_SPIN_NS: Final = 50_000
# Polling only follows a message within this time.
_SOON_NS: Final = 3 * _SPIN_NS
# The most messages without polling after polls in vain; their number doubles up to this: on a busy machine the
# other process may need this very core.
_MOST_PAUSE: Final = 1024

_dumps = marshal.dumps
_loads = marshal.loads


class ChannelClosed(Exception):  # noqa: N818 - an event, as `EOFError` is
    """The process at the other end has ended, or this end was closed."""


class Channel:
    """One end of a connection: any thread may send, one at a time receives.

    Parameters
    ----------
    sock : socket.socket
    descriptors : bool
        Whether messages may pass descriptors.

    Attributes
    ----------
    sent : int
        Number of sent messages.
    sent_bytes, received_bytes : int
    """

    def __init__(self, sock: socket.socket, *, descriptors: bool = False) -> None:
        self._socket = sock
        self._descriptors: list[int] | None = [] if descriptors else None
        self._sending = threading.Lock()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        # Bytes that were read and not returned yet.
        self._start = 0
        self._end = 0
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        self._waits_since_ns = 0
        self._waited_ns = _SOON_NS
        self._pause = 1
        self._paused_for = 0
        self.sent = 0
        self.sent_bytes = 0
        self.received_bytes = 0

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is something to read; return False after the timeout."""
        return bool(self._poll.poll(min(timeout_s * 1000, 1 << 30)))

    @property
    def has_more(self) -> bool:
        """Whether a part of the next message has been read already."""
        return self._end > self._start

    def send(
        self, message: tuple[Any, ...], behind: bytes | bytearray = b"", fds: Sequence[int] = ()
    ) -> None:
        """Send a message of plain values; see `nbtriton.runtime.workers.protocol`.

        Raises
        ------
        ChannelClosed
            The reader has ended.
        """
        try:
            head = _dumps(message, _MARSHAL_VERSION)
        except ValueError:
            head = _dumps(plain(message), _MARSHAL_VERSION)
        frame = b"".join((_PREFIX.pack(len(head), len(behind)), head, behind))
        try:
            with self._sending:
                self.sent += 1
                self.sent_bytes += len(frame)
                if fds:
                    done = socket.send_fds(self._socket, [frame], list(fds))
                    frame = frame[done:]
                self._socket.sendall(frame)
        except OSError as error:
            raise ChannelClosed(str(error)) from None

    def spin(self) -> bool:
        """Poll for the next message for a moment; return True if there is something to read.

        Called before a wait. Saves time if messages follow each other closely, such as consecutive requests
        to a small model; otherwise it returns at once.
        """
        if self._end > self._start:
            return True
        begin = self._waits_since_ns = monotonic_ns()
        if self._waited_ns >= _SOON_NS:
            return False
        if self._paused_for:
            self._paused_for -= 1
            return False
        while not self._poll.poll(0):
            if monotonic_ns() - begin >= _SPIN_NS:
                self._pause = self._paused_for = min(2 * self._pause, _MOST_PAUSE)
                return False
        self._pause = max(self._pause // 2, 1)
        return True

    def receive(self) -> tuple[tuple[Any, ...], memoryview]:
        """Wait for the next message.

        Returns
        -------
        message : tuple
        behind : memoryview
            The bytes after it; valid until the next call.

        Raises
        ------
        ChannelClosed
            The other end is closed.
        """
        while self._end - self._start < _PREFIX.size:
            self._fill(_PREFIX.size)
        head, behind = _PREFIX.unpack_from(self._buffer, self._start)
        total = _PREFIX.size + head + behind
        while self._end - self._start < total:
            self._fill(total)
        if self._waits_since_ns:
            self._waited_ns = monotonic_ns() - self._waits_since_ns
            self._waits_since_ns = 0
        begin = self._start + _PREFIX.size
        middle = begin + head
        self._start = end = middle + behind
        message = _loads(self._view[begin:middle])
        body = self._view[middle:end]
        if self._start == self._end:
            self._start = self._end = 0
        return message, body

    def pop_descriptor(self) -> int:
        """Return the next descriptor that a message passed."""
        assert self._descriptors is not None
        return self._descriptors.pop(0)

    def close(self) -> None:
        """Shut down both directions: threads that wait here or at the other end wake up."""
        with suppress(OSError):  # the other end was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def leave(self) -> None:
        """Close the copy of this end in a forked child; the connection belongs to the parent."""
        self._sending = threading.Lock()  # another thread of the parent may have held it
        self._socket.close()

    def _fill(self, size: int) -> None:
        """Read available bytes, with room for a message of `size` bytes."""
        if self._start + size > len(self._buffer):
            rest = bytes(self._view[self._start : self._end])
            if size > len(self._buffer):
                self._buffer = bytearray(max(size, 2 * len(self._buffer)))
                self._view = memoryview(self._buffer)
            self._view[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        try:
            if self._descriptors is None:
                count = self._socket.recv_into(self._view[self._end :])
            else:
                count = self._receive_descriptors(self._descriptors)
        except OSError as error:
            raise ChannelClosed(str(error)) from None
        if not count:
            raise ChannelClosed("the other end is closed")
        self._end += count
        self.received_bytes += count

    def _receive_descriptors(self, fds_received: list[int]) -> int:
        fds = array.array("i")
        count, ancillary, _, _ = self._socket.recvmsg_into(
            [self._view[self._end :]], socket.CMSG_LEN(_MOST_DESCRIPTORS * fds.itemsize)
        )
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        fds_received += fds
        return count
