"""A client that writes bytes and reads answers, so that a test decides what is on the wire."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import Any, Self

__all__ = ["Client", "Received", "post"]

WAIT_S = 30.0


@dataclass(frozen=True)
class Received:
    """One answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        return json.loads(self.body)["error"]


class Client:
    """One connection."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), timeout=WAIT_S)
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def is_over(self) -> bool:
        """True once the server has ended the connection; what is left to read is thrown away."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionResetError:
            pass
        return True

    def receive(self) -> Received:
        """Read one answer, chunked or not."""
        head = self._until(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        status = int(lines[0].split()[1])
        if status == 100:
            return Received(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self._until(b"\r\n"), 16):
                body += self._exactly(size)
                self._exactly(2)
            self._exactly(2)
        else:
            body = self._exactly(int(headers["content-length"]))
        return Received(status, headers, body)

    def _until(self, end: bytes) -> bytes:
        while end not in self._read:
            self._more()
        found, _, self._read = self._read.partition(end)
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self._read) < size:
            self._more()
        found, self._read = self._read[:size], self._read[size:]
        return found

    def _more(self) -> None:
        data = self.socket.recv(65536)
        assert data, "the server ended the connection"
        self._read += data


def post(path: str, body: bytes | Any, *fields: str, version: str = "1.1") -> bytes:
    """The bytes of a POST; a body that is no bytes is written as JSON."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/{version}", "Host: x", f"Content-Length: {len(body)}", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
