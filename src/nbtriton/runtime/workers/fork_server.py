"""The fork server: a small process with one thread that forks workers on request.

A kernel has threads, which do not survive a fork while their locks do. A new process has none, but takes 0.2
s of a processor to import NumPy. So one such process is started for each interpreter and forks every worker:
that takes 10 ms, and the workers share its memory. (`multiprocessing.forkserver` has one server per process
for one interpreter, which the user's own code configures, and does not report how a child has ended.)

The fork server is the parent of its workers. It reports their ends, and they die with it (PR_SET_PDEATHSIG,
which follows the parent's thread: in the kernel, that thread may have ended). It ends with its connection,
when the kernel has closed it or has ended.

This module runs in the interpreter of an execution environment: the standard library only, Python 3.9.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_LENGTH = struct.Struct("<I")
_MOST_DESCRIPTORS = 8
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
# Added to the worker's own score: when memory runs out the system kills a worker and not the notebook.
_OOM_SCORE = 300


def send_message(
    connection: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()
) -> None:
    """Send one message with descriptors, which are copied to the receiver."""
    content = json.dumps(message).encode()
    data = _LENGTH.pack(len(content)) + content
    sent = socket.send_fds(connection, [data], descriptors) if descriptors else 0
    connection.sendall(data[sent:])


def receive_message(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Receive one message and its descriptors; None at the end of the connection."""
    data, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, _MOST_DESCRIPTORS)
    length = data + _receive(connection, _LENGTH.size - len(data)) if data else b""
    if len(length) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(length)
    content = _receive(connection, size)
    return (json.loads(content), descriptors) if len(content) == size else None


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size and (part := connection.recv(min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def main(descriptor: int, entry: str) -> None:
    """Serve one connection to its end.

    Parameters
    ----------
    descriptor : int
        Of a connected stream socket.
    entry : str
        ``module:function``, imported before the first fork. A worker calls the function with its sockets
        and its name.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    module, _, function = entry.partition(":")
    try:
        run = getattr(importlib.import_module(module), function)
    except BaseException:
        send_message(connection, {"failed": traceback.format_exc()})
        return
    send_message(connection, {"ready": os.getpid(), "python": sys.version_info[:3]})
    gc.collect()
    gc.freeze()  # a collection in a worker would copy the pages of every object
    _Server(connection, run).serve()


class _Server:
    """Workers by process id, and the descriptors to wait on."""

    def __init__(self, connection: socket.socket, run: Callable[..., None]) -> None:
        self._connection = connection
        self._run = run
        self._workers: dict[int, int] = {}  # process id: number of the request
        self._ended, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._ended, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        # What is to be done is written to the pipe.
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Fork and report until the connection ends; no worker outlives it."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(self._ended, select.POLLIN)
        try:
            while True:
                ready = dict(poll.poll())
                if self._ended in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._ended, 4096)
                    self._report_ended()
                if self._connection.fileno() in ready:
                    received = receive_message(self._connection)
                    if received is None:
                        return
                    self._handle(*received)
        except OSError:  # the kernel has ended
            return
        finally:
            for pid in self._workers:
                _kill_group(pid)

    def _handle(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "start" in message:
            self._start(message, descriptors)
            return
        number, sent = message["signal"]
        for pid, known in self._workers.items():  # an unknown one has ended
            if known == number:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sent)

    def _start(self, message: dict[str, Any], descriptors: list[int]) -> None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # no memory, or too many processes
            send_message(self._connection, {"refused": message["start"], "reason": str(error)})
            return
        finally:
            if os.getpid() == server:
                for descriptor in descriptors:
                    os.close(descriptor)
        if not pid:
            status = 1
            try:
                _die_with(server)
                signal.set_wakeup_fd(-1)
                self._connection.close()
                os.close(self._ended)
                os.close(self._wake)
                status = _work(self._run, message, descriptors)
            except BaseException:
                traceback.print_exc()
            finally:
                _leave(status)
        self._workers[pid] = message["start"]
        send_message(self._connection, {"started": message["start"], "pid": pid})

    def _report_ended(self) -> None:
        while self._workers:
            ended = _end_one(self._workers)
            if ended is None:
                return
            pid, status = ended
            number = self._workers.pop(pid, None)
            if number is not None:
                code = os.waitstatus_to_exitcode(status)
                send_message(self._connection, {"ended": number, "code": code})


def _end_one(pids: Iterable[int]) -> tuple[int, int] | None:
    """Reap a worker that has ended, and kill its group; return its number and status, or None."""
    if hasattr(os, "waitid"):
        # The group is killed before its leader is reaped, while its number cannot be reused.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        _kill_group(ended.si_pid)
        return os.waitpid(ended.si_pid, 0)
    for pid in pids:  # Python has no waitid on macOS before 3.13
        reaped = os.waitpid(pid, os.WNOHANG)
        if reaped[0]:
            _kill_group(pid)
            return reaped
    return None


def _kill_group(pid: int) -> None:
    """Kill the processes that a worker has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


# -- in the worker ---------------------------------------------------------------------------------


def _control(option: int, value: Any) -> None:
    """Call Linux's prctl."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _die_with(server: int) -> None:
    """Let the system kill this process at any end of the fork server.

    macOS has no such call: there the end of the sockets ends the worker.
    """
    _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:  # it has ended already
        os._exit(1)


def _work(run: Callable[..., None], message: dict[str, Any], descriptors: list[int]) -> int:
    """Become the worker that a message describes; return its exit status."""
    os.setsid()  # Ctrl-C at a terminal belongs to the kernel, and the worker's children to its group
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    execute, calls, stdout, stderr = descriptors
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)
    streams: Any = (sys.stdout, sys.stderr)
    for stream in streams:
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    os.environ.clear()
    os.environ.update(message["environment"])
    with contextlib.suppress(OSError):  # the kernel's own may have been deleted
        os.chdir(message["directory"])
    if message["path"] is not None:
        sys.path[:] = message["path"]
    _control(_PR_SET_NAME, f"nbt {message['name']}".encode())  # for ps and top
    _prefer_as_victim()
    _seed()
    sockets = socket.socket(fileno=execute), socket.socket(fileno=calls)
    try:
        run(*sockets, message["name"])
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0


def _prefer_as_victim() -> None:
    with contextlib.suppress(OSError, ValueError):
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(min(1000, int(score.read_text()) + _OOM_SCORE)))


def _seed() -> None:
    """Seed this process's random numbers (`random` does so itself)."""
    generators = sys.modules.get("numpy.random")
    if generators is not None:
        generators.seed()


def _leave(status: int) -> None:
    """End the worker without returning into the fork server's code."""
    try:
        atexit._run_exitfuncs()  # noqa: SLF001 - as multiprocessing's children do
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(status)
