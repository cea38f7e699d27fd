"""The fork servers of this process, one for each interpreter, and their reports."""

from __future__ import annotations

import codecs
import contextlib
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from nbtriton.backends.forking import after_fork, per_process
from nbtriton.common.errors import InternalError
from nbtriton.runtime.workers.fork_server import receive_message, send_message

_log = logging.getLogger("nbtriton.runtime.workers")

# A fork server without workers stays for the next run of a cell, or until its server is closed.
LINGER_S: Final = 600.0
# Seconds from the end of its connection, or a kill, to the end of a fork server.
_GRACE_S: Final = 5.0
# Last characters of a fork server's output, for the error about its end.
_LAST_TEXT = 4000
# OpenBLAS starts its threads as NumPy is imported, and a fork would leave them behind.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
# Variables of the kernel's own interpreter, wrong for another one.
_OWN_VARIABLES = ("PYTHONHOME", "PYTHONPATH")
_BOOTSTRAP = (
    "import sys; sys.path[:] = [*sys.argv[3:], *filter(None, sys.path)]; "
    "from nbtriton.runtime.workers.fork_server import main; main(int(sys.argv[1]), sys.argv[2])"
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python of workers.

    Parameters
    ----------
    executable : str
        By default the kernel's own.
    path : tuple of str, optional
        Folders in front of its `sys.path`, with nbtriton. By default the kernel's whole path at the start of
        each worker.
    environment : tuple of (str, str)
        Variables that must be set before its start, such as ``LD_LIBRARY_PATH``.
    entry : str
        The worker's function, as ``module:function``: called with two sockets and the worker's name.
    versions : tuple of str
        Of what its fork server has imported; one with others is another interpreter.
    """

    executable: str = sys.executable
    path: tuple[str, ...] | None = None
    environment: tuple[tuple[str, str], ...] = ()
    entry: str = "nbtriton.runtime.workers.worker.server:main"
    versions: tuple[str, ...] = ()

    def variables(self) -> dict[str, str]:
        """Return the current environment of its workers."""
        own = {} if self.path is None else dict.fromkeys(_OWN_VARIABLES)
        variables = {name: value for name, value in os.environ.items() if name not in own}
        return variables | dict(self.environment)


class Forked:
    """A worker, for its fork server; by itself one without a waiting caller, which is killed at its start."""

    pid = 0  # before its start
    outputs: tuple[OutputPipe, ...] = ()

    def started(self, pid: int) -> None:
        """Handle the start."""

    def ended(self, code: int | None, reason: str = "") -> None:
        """Handle the end, with its exit code, or None and the reason of a failed start."""

    def in_child(self) -> None:
        """Close the copies in a forked child of this process."""


class ForkServer:
    """The connection to one fork server, and the thread that reads from it.

    Parameters
    ----------
    interpreter : Interpreter

    Attributes
    ----------
    closing : bool
        Whether it accepts no more workers.
    """

    def __init__(self, interpreter: Interpreter) -> None:
        self._lock = threading.Lock()
        self._workers: dict[int, Forked] = {}
        self._next = 0
        self.closing = False
        self._ready = False
        self._text = ""
        self._idle_since = monotonic()
        self._connection, theirs = socket.socketpair()
        reader, writer = os.pipe()
        self._errors = reader
        path = interpreter.path
        if path is None:
            path = tuple([folder or os.curdir for folder in sys.path])
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - the user's own interpreter
                    [interpreter.executable, "-c", _BOOTSTRAP, str(theirs.fileno()),
                     interpreter.entry, *path],
                    env=interpreter.variables() | _ONE_THREAD,
                    stdin=subprocess.DEVNULL, stdout=writer, stderr=writer,
                    pass_fds=(theirs.fileno(),), start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                self._connection.close()
                os.close(reader)
                raise InternalError(
                    f"failed to start {interpreter.executable}: {error.strerror or error}"
                ) from None
            finally:
                os.close(writer)
        self._thread = threading.Thread(target=self._live, name="nbtriton-workers", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str:
        """Its output, if it ended before it served."""
        return "" if self._ready else self._text.strip()

    def start(
        self, worker: Forked, message: Mapping[str, Any], descriptors: tuple[int, ...]
    ) -> int:
        """Request a worker; return its number, or 0 if this fork server ends.

        The descriptors may be closed after the return.
        """
        with self._lock:
            if self.closing:
                return 0
            self._next += 1
            self._workers[self._next] = worker
            try:
                send_message(self._connection, {**message, "start": self._next}, descriptors)
            except OSError:  # it has ended, which its thread will soon see
                del self._workers[self._next]
                self.closing = True
                return 0
            return self._next

    def signal(self, worker: int, number: int) -> None:
        """Send a signal to a worker, if it has not ended."""
        with self._lock:
            if worker in self._workers:
                try:
                    send_message(self._connection, {"signal": [worker, number]})
                except OSError:
                    return

    def abandon(self, worker: int) -> None:
        """Stop waiting for a worker's start: the start fails, unless it has happened by now.

        A fork server that has never served is killed, as its imports may hang. One with other workers is
        slow, or was stopped, and its workers continue.
        """
        if not self._ready:
            self._process.kill()
            return
        with self._lock:
            known = self._workers.get(worker)
            if known is None or known.pid:
                return
            self._workers[worker] = Forked()
            with contextlib.suppress(OSError):  # after its start
                send_message(self._connection, {"signal": [worker, signal.SIGKILL]})
        known.ended(None, "no answer in time")

    def end_if_idle(self, for_s: float = 0.0) -> bool:
        """Begin to end it if it had no worker for a time; return True if it ends."""
        with self._lock:
            if not self.closing and not self._workers and monotonic() - self._idle_since >= for_s:
                self.closing = True
                self._connection.shutdown(socket.SHUT_WR)
            return self.closing

    def join(self, timeout_s: float) -> bool:
        """Wait for its end; return False after the timeout."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def in_child(self) -> None:
        """Close the copies in a forked child of this process."""
        self._close()
        for worker in self._workers.values():
            worker.in_child()

    def _close(self) -> None:
        self._connection.close()
        errors, self._errors = self._errors, -1  # first: a fork in between would close it twice
        if errors >= 0:
            os.close(errors)

    def _live(self) -> None:
        try:
            self._read()
        finally:
            self._end()

    def _read(self) -> None:
        """Handle reports and output until the connection ends."""
        with selectors.PollSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ, self._receive)
            selector.register(self._errors, selectors.EVENT_READ, self._read_text)
            connected = True
            while connected:
                idle_s = monotonic() - self._idle_since
                ready = selector.select(None if self._workers else max(0.0, LINGER_S - idle_s))
                if not ready:
                    self.end_if_idle(LINGER_S)
                for key, _ in ready:
                    if key.data == self._receive:
                        connected = self._receive(selector)
                    # A worker that has just ended has closed its pipes.
                    elif selector.get_map().get(key.fd) is key and not key.data():
                        selector.unregister(key.fd)

    def _receive(self, selector: selectors.BaseSelector) -> bool:
        """Handle one report; return False at the end."""
        try:
            received = receive_message(self._connection)
        except OSError:
            received = None
        if received is None:
            return False
        message = received[0]
        if "started" in message:
            with self._lock:  # or it has been abandoned
                worker = self._workers[message["started"]]
                for output in worker.outputs:
                    selector.register(output.reader, selectors.EVENT_READ, output.forward)
                worker.started(message["pid"])
        elif "ended" in message:
            worker = self._remove(message["ended"])
            for output in worker.outputs:
                if output.reader in selector.get_map():
                    selector.unregister(output.reader)
            worker.ended(message["code"])
        elif "refused" in message:
            self._remove(message["refused"]).ended(None, message["reason"])
        elif "failed" in message:
            self._text = message["failed"]
        else:
            self._ready = True
        return True

    def _remove(self, number: int) -> Forked:
        with self._lock:
            self._idle_since = monotonic()
            return self._workers.pop(number)

    def _read_text(self) -> bool:
        data = os.read(self._errors, _LAST_TEXT)
        text = data.decode(errors="replace")
        self._text = (self._text + text)[-_LAST_TEXT:]
        if text.strip():
            _log.debug("fork server: %s", text.rstrip())
        return bool(data)

    def _end(self) -> None:
        with self._lock:
            self.closing = True
            workers = [*self._workers.values()]
            self._workers.clear()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        while self._read_text():
            pass
        self._close()
        for worker in workers:  # they end with it
            worker.ended(-signal.SIGKILL, self.failure)


_lock = per_process(threading.Lock)
_servers: dict[Interpreter, ForkServer] = {}


def fork_server_of(interpreter: Interpreter) -> ForkServer:
    """Return the fork server of an interpreter, started if needed."""
    with _lock():
        server = _servers.get(interpreter)
        if server is None or server.closing:
            server = _servers[interpreter] = ForkServer(interpreter)
        return server


def end_idle_servers(timeout_s: float = _GRACE_S) -> None:
    """End the fork servers without workers, and wait for them."""
    with _lock():
        idle = [one for one, server in _servers.items() if server.end_if_idle()]
        servers = [_servers.pop(one) for one in idle]
    deadline = monotonic() + timeout_s
    for server in servers:
        server.join(max(0.0, deadline - monotonic()))


_of_parent: list[ForkServer] = []  # never freed: they would report other processes


def _in_child() -> None:
    for server in _servers.values():
        server.in_child()
        _of_parent.append(server)
    _servers.clear()


after_fork(_in_child)


# The capacity of a pipe, and so the most that was written before a given moment.
_CAPACITY = 1 << 16


class OutputPipe:
    """A pipe from a worker's standard output or error to `sys.stdout` or `sys.stderr`.

    Parameters
    ----------
    stream : str
        ``stdout`` or ``stderr``; looked up at each write, as a notebook replaces them.
    reader : int, optional
        What to read from instead of a new pipe.

    Attributes
    ----------
    reader, writer : int
        The two descriptors; the worker gets a copy of `writer`, and the caller closes this one.
    """

    def __init__(self, stream: str, reader: int = -1) -> None:
        self.reader, self.writer = (reader, -1) if reader >= 0 else os.pipe()
        os.set_blocking(self.reader, False)
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._lock = threading.Lock()
        self._open = True

    @property
    def busy(self) -> bool:
        """Whether a thread is in `forward`: what it has read may not be written yet."""
        return self._lock.locked()

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
                except OSError:  # the machine of a worker elsewhere has gone, or does not answer
                    data = b""
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
        with contextlib.suppress(Exception):  # closed, without a reader, or the user's own
            stream.write(text)
            stream.flush()
