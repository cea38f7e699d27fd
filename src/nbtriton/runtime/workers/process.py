"""A worker process: its start, its supervision and its end in the kernel.

It has sockets, pipes and a process group, and no named resource that could be left behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nbtriton.backends.python.imports import model_folders
from nbtriton.common.errors import InternalError
from nbtriton.runtime.interrupts import interrupts_allowed, wait_in_slices
from nbtriton.runtime.workers.launching import (
    Forked,
    ForkServer,
    Interpreter,
    OutputPipe,
    fork_server_of,
)

_log = logging.getLogger("nbtriton.runtime.workers")

# Seconds from the end of its connections to the end of a worker, and from a kill to its report.
_GRACE_S: Final = 5.0
# Seconds to start an interpreter and import NumPy on a busy machine.
_START_S: Final = 60.0
# A fork server may end between its look-up and the request.
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """The end of a worker.

    Attributes
    ----------
    code : int
        The exit status, or the negative number of the signal, as `subprocess.Popen.returncode`.
    """

    code: int

    def __str__(self) -> str:
        if self.code >= 0:
            return f"exit status {self.code}"
        if self.code == -signal.SIGKILL:
            return "killed (SIGKILL), as the system does when memory runs out"
        try:
            return f"killed ({signal.Signals(-self.code).name})"
        except ValueError:
            return f"killed (signal {-self.code})"


class Peer:
    """What runs a worker, here or elsewhere: its connections and its end.

    Parameters
    ----------
    name : str
        Of the instance.
    lanes : sequence of socket.socket
    calls : socket.socket
        The kernel's ends of the connections. All are at their end after the worker has ended, even if
        one of its children still has the other ends. `close` closes them.
    outputs : tuple of OutputPipe
        What it prints.

    Attributes
    ----------
    pid : int
    exit : WorkerExit or None
        None while it runs.
    reason : str
        Of its end, without an exit.
    node : str
        What it runs on, if that is not this machine.
    """

    def __init__(
        self,
        name: str,
        lanes: Sequence[socket.socket],
        calls: socket.socket,
        outputs: tuple[OutputPipe, ...],
    ) -> None:
        self.name = name
        self.pid = 0
        self.node = ""
        self.exit: WorkerExit | None = None
        self.reason = ""
        self.lanes = lanes
        self.calls = calls
        self.outputs = outputs
        self._ended = threading.Event()
        self._forked = False

    def kill(self) -> None:
        """End it at once, with the processes that it has started."""
        raise NotImplementedError

    @property
    def is_forwarding(self) -> bool:
        """Whether a thread writes what it has read of the output."""
        return any(output.busy for output in self.outputs)

    def forward_output(self) -> None:
        """Print its output so far, on this thread.

        Called after its reply, so that the output of ``execute`` comes before the result, in the cell of the
        request. (Other output is printed as it arrives.)
        """
        for output in self.outputs:
            output.forward()

    def end(self, timeout_s: float = _GRACE_S) -> None:
        """End its connections; if it does not end in time, it is killed."""
        if self._forked:
            return
        self._shut_down()
        if not self._ended.wait(timeout_s):
            self.kill()
            if not self._ended.wait(_GRACE_S):
                _log.warning("process %d of %s has not ended", self.pid, self.name)

    def close(self, timeout_s: float = _GRACE_S) -> None:
        """End it, and close the connections; no thread may wait on them."""
        self.end(timeout_s)
        for connection in (*self.lanes, self.calls):
            connection.close()

    def ended(self, code: int | None, reason: str = "") -> None:
        """Handle its end, or a failed start (None)."""
        self.reason = reason
        for output in self.outputs:
            output.close()
        self.exit = None if code is None or not self.pid else WorkerExit(code)
        self._shut_down()
        self._ended.set()

    def in_child(self) -> None:
        """Close the copies in a forked child of the kernel; the connections belong to the parent."""
        self._forked = True
        for connection in (*self.lanes, self.calls):
            connection.close()
        for output in self.outputs:
            output.in_child()

    def _shut_down(self) -> None:
        for connection in (*self.lanes, self.calls):
            with contextlib.suppress(OSError):  # closed, or at its end
                connection.shutdown(socket.SHUT_RDWR)


class WorkerProcess(Peer, Forked):
    """One worker, as a process of a fork server.

    Parameters
    ----------
    name : str
        Of the instance.
    """

    def __init__(self, name: str) -> None:
        self._settled = threading.Event()  # started, or ended without a start
        self._server: ForkServer | None = None
        self._number = 0
        mine, execute = socket.socketpair()
        calls_here, calls = socket.socketpair()
        super().__init__(name, [mine], calls_here, (OutputPipe("stdout"), OutputPipe("stderr")))
        self._theirs = [execute.detach(), calls.detach(), *(pipe.writer for pipe in self.outputs)]

    def kill(self) -> None:
        """End it at once, with the processes that it has started."""
        if self._server is not None and not self._forked:
            self._server.signal(self._number, signal.SIGKILL)

    def request(self, interpreter: Interpreter, message: Mapping[str, object]) -> None:
        """Request the process from a fork server, and wait for it."""
        try:
            for _ in range(_ATTEMPTS):
                server = self._server = fork_server_of(interpreter)
                self._number = server.start(self, message, tuple(self._theirs))
                if self._number:
                    break
                server.join(_GRACE_S)
                if server.failure:
                    break
        finally:
            self._close_theirs()
        try:
            if self._number and not interrupts_allowed(
                wait_in_slices, self._settled.wait, _START_S
            ):
                server.abandon(self._number)
                self._settled.wait(_GRACE_S)
        except KeyboardInterrupt:
            self.kill()  # as soon as it has started
            self.lanes[0].close()
            self.calls.close()
            raise
        if not self.pid:
            self.reason = self.reason or server.failure or "no answer in time"
            self._ended.set()
            for output in self.outputs:
                output.close()
            self.close(0)
            raise InternalError(f"failed to start a process for '{self.name}': {self.reason}")

    def _close_theirs(self) -> None:
        while self._theirs:
            os.close(self._theirs.pop())

    # -- called by the fork server -----------------------------------------------------------------

    def started(self, pid: int) -> None:
        """Handle the start."""
        self.pid = pid
        self._settled.set()

    def ended(self, code: int | None, reason: str = "") -> None:
        """Handle the end, or a failed start (None)."""
        super().ended(code, reason)
        self._settled.set()

    def in_child(self) -> None:
        """Close the copies in a forked child of the kernel; the connections belong to the parent."""
        super().in_child()
        self._close_theirs()


def start_worker(
    name: str,
    *,
    interpreter: Interpreter | None = None,
    environment: Mapping[str, str] | None = None,
) -> WorkerProcess:
    """Start a worker; it runs after the return.

    Parameters
    ----------
    name : str
        Of the instance.
    interpreter : Interpreter, optional
        By default the kernel's own.
    environment : mapping of str to str, optional
        Variables in addition to the kernel's. (OpenBLAS reads its own earlier: it has one thread.)

    Raises
    ------
    InternalError
        The interpreter could not be started, or a worker's imports fail; the text has its output.
    """
    interpreter = interpreter or Interpreter()
    worker = WorkerProcess(name)
    worker.request(
        interpreter,
        {
            "name": name,
            "environment": interpreter.variables() | dict(environment or {}),
            "directory": current_directory(),
            "path": _path() if interpreter.path is None else None,
        },
    )
    return worker


def _path() -> list[str]:
    """Return `sys.path` without the folders of the notebook and of models: a worker's model has its own.

    Serialized objects of the notebook bring their path along (`nbtriton.runtime.workers.carry`).
    """
    others = {"", current_directory(), *model_folders()}
    return [entry for entry in sys.path if entry not in others]


def current_directory() -> str:
    """Return the kernel's folder; the root if it has been removed."""
    try:
        return os.getcwd()  # noqa: PTH109 - for a process of any version
    except FileNotFoundError:
        return os.sep
