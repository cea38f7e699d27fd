"""The far end: an actor that becomes a worker."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import signal
import socket
import sys
from time import monotonic
from typing import Final

# The connections of a worker, in this order: calls, what it prints, and its lanes, of which this is one.
CONNECTIONS: Final = 4
TOKEN_BYTES: Final = 16
# Seconds for the kernel to connect.
_CONNECT_S: Final = 60.0
# Seconds without an answer of the other machine to what was sent, until it counts as gone.
_SILENT_S: Final = 20


def configure(sock: socket.socket) -> None:
    """Send small messages at once, and notice a machine that has vanished without a word."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _SILENT_S // 2),
        ("TCP_KEEPINTVL", _SILENT_S // 4),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", _SILENT_S * 1000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Place:
    """A place for the instances that share it; Ray makes it an actor, whose methods run on the main thread of its process."""

    def __init__(self) -> None:
        from ray.util import get_node_ip_address

        self._host = get_node_ip_address()
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._listener = socket.create_server((self._host, 0))

    def where(self) -> tuple[str, int, str, int, bytes]:
        """Return how to reach it: address, port, the id of its node, its process, and a secret."""
        from ray import get_runtime_context

        node = get_runtime_context().get_node_id()
        port = self._listener.getsockname()[1]
        return self._host, port, node, os.getpid(), self._token

    def serve(self, name: str, lanes: int, directory: str) -> None:
        """Be the worker of so many instances, until its connections end."""
        from nbtriton.runtime.workers.worker.server import main

        # Ray's handler raises SystemExit in the model, which would then be told as the one that failed.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        calls, stdout, stderr, execute, *more = self._accept(CONNECTIONS + lanes - 1)
        for sock, number in ((stdout, 1), (stderr, 2)):
            os.dup2(sock.fileno(), number)
            sock.close()
        streams = [
            open(number, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115 - for the process
            for number in (1, 2)
        ]
        sys.stdout, sys.stderr = streams
        with contextlib.suppress(OSError):  # a folder of the kernel's machine
            os.chdir(directory)
        main(execute, calls, name, *more)

    def _accept(self, count: int) -> list[socket.socket]:
        """Wait for the kernel's connections; others, which do not know the secret, are closed."""
        found: dict[int, socket.socket] = {}
        deadline = monotonic() + _CONNECT_S
        with self._listener as listener:
            while len(found) < count:
                listener.settimeout(max(0.01, deadline - monotonic()))
                sock, _ = listener.accept()
                sock.settimeout(5.0)
                try:
                    said = sock.recv(TOKEN_BYTES + 1, socket.MSG_WAITALL)
                except OSError:
                    said = b""
                if not hmac.compare_digest(said[:TOKEN_BYTES], self._token):
                    sock.close()
                    continue
                sock.settimeout(None)
                configure(sock)
                found[said[-1]] = sock
        return [found[index] for index in range(count)]
