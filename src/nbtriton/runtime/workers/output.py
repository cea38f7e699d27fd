"""The output of a worker: through a pipe to the kernel's stream of the same name."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import threading

__all__ = ["OutputPipe"]

# The capacity of a pipe, and so the most that was written before a given moment.
_CAPACITY = 1 << 16


class OutputPipe:
    """A pipe from a worker's standard output or error to `sys.stdout` or `sys.stderr`.

    Parameters
    ----------
    stream : str
        ``stdout`` or ``stderr``; looked up at each write, as a notebook replaces them.

    Attributes
    ----------
    reader, writer : int
        The two descriptors; the worker gets a copy of `writer`, and the caller closes this one.
    """

    def __init__(self, stream: str) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._lock = threading.Lock()
        self._open = True

    def forward(self) -> bool:
        """Write the output so far to the stream; return False at the end of the pipe."""
        left = (
            _CAPACITY  # and not more: a worker that never stops printing must not block this thread
        )
        with self._lock:
            while self._open and left > 0:
                try:
                    data = os.read(self.reader, left)
                except BlockingIOError:
                    return True
                _write(self._stream, self._decode(data, not data))
                if not data:
                    return False
                left -= len(data)
            return self._open

    def close(self) -> None:
        """Write the remaining output and close the pipe, whose other end a child of the worker may hold."""
        self.forward()
        with self._lock:
            if self._open:
                self._open = False
                os.close(self.reader)

    def in_child(self) -> None:
        """Close the copy in a forked child of the kernel, where its lock may be held forever."""
        if self._open:
            self._open = False
            os.close(self.reader)


def _write(name: str, text: str) -> None:
    stream = getattr(sys, name)
    if text and stream is not None:
        with contextlib.suppress(OSError, ValueError):  # closed, without a reader
            stream.write(text)
            stream.flush()
