"""A port that answers gRPC calls: bytes in, bytes out; nothing here knows what a message means.

HTTP/2 is read and written here, on the loop that the HTTP endpoint runs on too. gRPC's own core costs
three events and four operations a call, and hands each of them over alone: 62 us of processor time of
the thread that has them, where 25 do for what is read, handed over and written together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nbtriton.errors import UnavailableError
from nbtriton.frontends.grpc.calls import Handler
from nbtriton.frontends.grpc.connection import Connection
from nbtriton.frontends.grpc.keepalive import Options
from nbtriton.frontends.grpc.outlet import Outlet
from nbtriton.frontends.listener import Listener, listen
from nbtriton.frontends.loop import LoopThread
from nbtriton.frontends.service import Limits
from nbtriton.frontends.tls import Tls
from nbtriton.frontends.tracing import Tracing

__all__ = ["Transport"]


class Transport(Listener[Connection]):
    """A port that answers gRPC calls.

    Parameters
    ----------
    host, port
        Where to listen; 0 takes any port that is free.
    handlers : mapping of bytes to handler
        By full method name, such as ``b"/grpc.health.v1.Health/Check"``.
    limits : Limits
        What one client may cost.
    tracing : Tracing
        Whether it is to be noted when messages come.
    thread : LoopThread
        Where it runs; several ports may share one.
    options : Options
    after_messages : callable, optional
        Called on the loop when all messages that came together have been handed out; must not raise.
    tls : Tls, optional
        With what clients are to talk.

    Attributes
    ----------
    most_received, most_unpacked : int
        Bytes of one message, and what a packed one may unpack to.

    Raises
    ------
    UnavailableError
        The port is taken, or the address is none of this machine's.
    """

    def __init__(
        self,
        host: str,
        port: int,
        handlers: Mapping[bytes, Handler],
        limits: Limits,
        tracing: Tracing,
        thread: LoopThread,
        *,
        options: Options,
        after_messages: Callable[[], object] = lambda: None,
        tls: Tls | None = None,
    ) -> None:
        self.handlers = handlers
        self.options = options
        self.most_received = limits.body_bytes
        self.most_unpacked = min(limits.body_bytes, limits.decompressed_bytes)
        self._after_messages = after_messages
        self._spoken: list[Outlet] = []
        context = None if tls is None else tls.context("h2")
        try:
            at = listen(host, port)
        except UnavailableError:
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise UnavailableError(
                f"failed to listen for gRPC on {address}", hint="is it in use?"
            ) from None
        super().__init__(at, limits, tracing, thread, context)

    def make_connection(self) -> Connection:
        return Connection(self)

    def dispatch(self) -> None:
        self._after_messages()

    def spoken(self, connection: Outlet) -> None:
        """Have written what is said to a client, with all that is said in the same moment."""
        if not self._spoken:
            self.thread.loop.call_soon(self._flush)
        self._spoken.append(connection)

    def _flush(self) -> None:
        spoken, self._spoken = self._spoken, []
        for connection in spoken:
            connection.flush()
