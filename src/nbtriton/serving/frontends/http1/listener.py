"""HTTP/1.1 on asyncio and httptools: a listener with its connections.

No model code runs on the loop. Other threads send responses through `LoopThread.post`, which wakes the
loop once for several responses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from nbtriton.serving.frontends.http1.connection import HttpConnection
from nbtriton.serving.frontends.http1.cycle import RequestResponseCycle
from nbtriton.serving.frontends.http1.reader import HeadTemplates, RequestReader
from nbtriton.serving.frontends.listener import Listener, listen
from nbtriton.serving.frontends.loop import LoopThread
from nbtriton.serving.frontends.service import Limits
from nbtriton.serving.frontends.tls import Tls
from nbtriton.serving.frontends.tracing import Tracing

__all__ = ["HttpListener"]

# Size of the receive buffer in bytes, as in asyncio.
_READ_SIZE = 256 << 10


class HttpListener(Listener[HttpConnection]):
    """A listener of HTTP/1.1.

    Parameters
    ----------
    handle : callable
        ``handle(cycles)`` answers requests that arrived together, each now or later; it must not
        raise.
    host : str
    port : int
        0 for any free port.
    limits : Limits
    thread : LoopThread
        Its event loop; several endpoints may share one.
    keep_fields : bool
        Whether cycles keep the header fields as sent.
    tls : Tls, optional
        Enables TLS.

    Raises
    ------
    UnavailableError
        The port is in use, or the address is not this machine's.
    """

    def __init__(
        self,
        handle: Callable[[Sequence[RequestResponseCycle]], None],
        host: str,
        port: int,
        limits: Limits,
        tracing: Tracing,
        thread: LoopThread,
        *,
        keep_fields: bool = False,
        tls: Tls | None = None,
    ) -> None:
        self._handle = handle
        # Shared by all connections: its bytes are parsed before more are received.
        self._buffer = memoryview(bytearray(_READ_SIZE))
        self._new_reader = partial(RequestReader, limits, HeadTemplates(), keep_fields)
        self._ready: list[RequestResponseCycle] = []
        context = None if tls is None else tls.context("http/1.1")
        super().__init__(listen(host, port), limits, tracing, thread, context)

    def make_connection(self) -> HttpConnection:
        return HttpConnection(self, self._new_reader, self._buffer, self._request_ready)

    def _request_ready(self, cycle: RequestResponseCycle) -> None:
        self._ready.append(cycle)
        self.schedule_dispatch()

    def dispatch(self) -> None:
        ready, self._ready = self._ready, []
        self._handle(ready)
