"""What the workers of these tests run: each message on the first socket is an expression of Python.

Its value comes back as text; the second socket is open as long as the worker lives.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

__all__ = ["main", "os", "subprocess", "time"]


def main(execute: socket.socket, calls: socket.socket, name: str) -> None:
    scope = {**globals(), "calls": calls, "name": name}
    while command := execute.recv(1 << 16):
        execute.sendall(repr(eval(command, scope)).encode())


def leave(status: int) -> None:
    sys.exit(status)
