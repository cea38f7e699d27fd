"""Minimal HTTP client: one prepared request on persistent connections, in a loop.

All servers compared over HTTP are measured by the same client.
"""

from __future__ import annotations

import asyncio
import http.client
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from statistics import median
from time import perf_counter_ns
from typing import cast

from bench.figures import Missing
from bench.load import Measured

__all__ = ["Request", "wait_until_answered"]

JSON = {"Content-Type": "application/json"}
# Until a server that does not answer under load has failed.
_PATIENCE_S = 60.0


class _Connection(asyncio.Protocol):
    """Connection that sends the request again after each response."""

    def __init__(self, request: bytes, took_ns: list[int]) -> None:
        self._request = request
        self._took_ns = took_ns
        self._write: Callable[[bytes], None] | None = None
        self._got = b""
        self._sent_ns = 0
        self.failed = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast("asyncio.Transport", transport).write
        self._send()

    def data_received(self, data: bytes) -> None:
        got = self._got = self._got + data if self._got else data
        end = got.find(b"\r\n\r\n")
        if end < 0:
            return
        head = got[:end].lower()
        at = head.find(b"content-length:")
        if at >= 0:
            if len(got) < end + 4 + int(head[at + 15 :].split(b"\r\n", 1)[0]):
                return
        elif not got.endswith(b"\r\n0\r\n\r\n"):
            # Chunked coding, whose last chunk is empty.
            return
        if b" 200 " not in head[:16]:
            self.failed = got[:300].decode(errors="replace")
            return
        self._took_ns.append(perf_counter_ns() - self._sent_ns)
        self._got = b""
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.failed and exc is not None:
            self.failed = str(exc)

    def _send(self) -> None:
        assert self._write is not None
        self._sent_ns = perf_counter_ns()
        self._write(self._request)


class Request:
    """One prepared request to a server on this machine.

    Parameters
    ----------
    port : int
    path : str
    body : bytes
    headers : mapping of str to str
    method : str
    """

    def __init__(
        self,
        port: int,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] = JSON,
        method: str = "POST",
    ) -> None:
        self.port, self.path, self.body, self.headers, self.method = (
            port, path, body, headers, method
        )  # fmt: skip
        fields = {"Host": f"127.0.0.1:{port}", "Content-Length": str(len(body)), **headers}
        lines = [f"{method} {path} HTTP/1.1", *(f"{key}: {fields[key]}" for key in fields), "", ""]
        self._request = "\r\n".join(lines).encode() + body

    def once(self) -> bytes:
        """Send the request once and return the response's body; raise `Missing` for an error status."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(self.method, self.path, self.body, dict(self.headers))
            reply = connection.getresponse()
            answer = reply.read()
        finally:
            connection.close()
        if reply.status != 200:
            raise Missing(f"{self.path} answered {reply.status}: {answer[:200]!r}")
        return answer

    def load(self, connections: int, seconds: float) -> Measured:
        """Keep connections busy; raise `Missing` if the server does not respond."""
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            try:
                return runner.run(self._load(connections, seconds))
            except OSError as error:
                raise Missing(f"{self.path} is not there: {error}") from None

    async def _load(self, connections: int, seconds: float) -> Measured:
        loop = asyncio.get_running_loop()
        times: list[int] = []
        opened = [
            await loop.create_connection(
                lambda: _Connection(self._request, times), "127.0.0.1", self.port
            )
            for _ in range(connections)
        ]

        def failure() -> str:
            return next((protocol.failed for _, protocol in opened if protocol.failed), "")

        # A tenth of the time for warmup.
        await asyncio.sleep(seconds / 10)
        begin, first = perf_counter_ns(), len(times)
        # Once more where a busy machine has not let the server answer.
        for _ in range(math.ceil(_PATIENCE_S / seconds)):
            await asyncio.sleep(seconds)
            if len(times) > first or failure():
                break
        end, last = perf_counter_ns(), len(times)
        for transport, _ in opened:
            transport.abort()
        if failure() or first == last:
            raise Missing(f"{self.path} failed under load: {failure() or 'no answer'}")
        return Measured((last - first) / (end - begin) * 1e9, median(times[first:last]) / 1000)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory if it is installed: the client is twice as fast with it."""
    with suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None


def wait_until_answered(request: Request, alive: Callable[[], bool], timeout_s: float) -> None:
    """Send the request until the server responds; raise `Missing` if it has exited."""
    deadline = time.monotonic() + timeout_s
    reason = "nothing"
    while time.monotonic() < deadline and alive():
        try:
            request.once()
            return
        except (Missing, OSError) as error:
            reason = str(error)
        time.sleep(0.2)
    raise Missing(f"the server did not come up ({reason})")
