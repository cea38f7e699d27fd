"""HTTP/1.1 on asyncio and httptools: a port with its clients.

No model code runs on the loop. Answers come from other threads through `LoopThread.post`, which
wakes the loop once for as many as there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence

from nbtriton.errors import UnavailableError
from nbtriton.frontends.connection import Connection
from nbtriton.frontends.exchange import Exchange
from nbtriton.frontends.heads import Heads
from nbtriton.frontends.loop import LoopThread
from nbtriton.frontends.service import Limits

__all__ = ["HttpEndpoint"]

# What is read at a time, as asyncio does.
_READ_SIZE = 256 << 10
# Triton's backlog.
_BACKLOG = 1024
# As many requests as may wait for each other to be read; a batch is seldom larger.
_TOGETHER = 32
# How often stalled connections are looked for.
_SWEEP_S = 1.0


class HttpEndpoint:
    """One port that answers HTTP.

    Parameters
    ----------
    handle : callable
        ``handle(exchanges)`` answers requests that came together, each now or later; it must not
        raise.
    host : str
    port : int
        0 for any that is free.
    limits : Limits
    thread : LoopThread
        Where it runs; several endpoints may share one.
    keep_fields : bool
        Whether exchanges keep the header fields as they were written.

    Raises
    ------
    UnavailableError
        The address is taken or is none of this machine's.
    """

    def __init__(
        self,
        handle: Callable[[Sequence[Exchange]], None],
        host: str,
        port: int,
        limits: Limits,
        thread: LoopThread,
        *,
        keep_fields: bool = False,
    ) -> None:
        self.handle = handle
        self.limits = limits
        self.thread = thread
        self.keep_fields = keep_fields
        self.connections: set[Connection] = set()
        # One for all: what is read is parsed before anything else is read.
        self.buffer = memoryview(bytearray(_READ_SIZE))
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self.heads = Heads()
        self._read: list[Exchange] = []
        self._sweeping = False
        self._idle: asyncio.Event | None = None
        self._gone: asyncio.Event | None = None
        self._server = thread.call(self._start())

    async def _start(self) -> asyncio.Server:
        return await self.thread.loop.create_server(
            lambda: Connection(self), sock=self._socket, backlog=_BACKLOG
        )

    def close(self, *, drain_s: float = 0.0) -> None:
        """Stop listening, wait so long for running requests, cut the rest off; once only."""
        self.thread.call(self._stop(drain_s))

    async def _stop(self, drain_s: float) -> None:
        self._server.close()
        self._idle = asyncio.Event()
        self.answered()
        if drain_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), drain_s)
        for connection in list(self.connections):
            connection.cut_off()
        if self.connections:  # their transports tell them soon
            self._gone = asyncio.Event()
            await self._gone.wait()

    def arrived(self, exchange: Exchange) -> None:
        """Answer a request once all that has arrived is read.

        So requests that arrive together are submitted together, and one batch can hold them.
        """
        if not self._read:
            self.thread.loop.call_soon(self._hand_over, 0)
        self._read.append(exchange)

    def _hand_over(self, seen: int) -> None:
        found = len(self._read)
        if seen < found < _TOGETHER:  # more has come: look once more
            self.thread.loop.call_soon(self._hand_over, found)
            return
        read, self._read = self._read, []
        self.handle(read)

    def answered(self) -> None:
        """A request is finished: perhaps it was the last one that `close` waits for."""
        if self._idle is not None and not any(c.busy for c in self.connections):
            self._idle.set()

    def lost(self, connection: Connection) -> None:
        """A client has gone."""
        self.connections.discard(connection)
        if self._gone is not None and not self.connections:
            self._gone.set()

    def opened(self, connection: Connection) -> None:
        """A client has come."""
        self.connections.add(connection)
        if not self._sweeping:
            self._sweeping = True
            self.thread.loop.call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        now = self.thread.loop.time()
        for connection in list(self.connections):
            connection.look_at_the_clock(now)
        if self.connections:
            self.thread.loop.call_later(_SWEEP_S, self._sweep)
        else:
            self._sweeping = False


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UnavailableError(f"'{host}' is no address to listen on: {error}") from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.setblocking(False)
    except OSError:
        found.close()
        raise UnavailableError(
            f"Socket '{host}:{port}' already in use ",
            hint="give another port, or 0 for any that is free",
        ) from None
    return found
