"""Listening socket on an event loop, for any protocol: connections, batches of requests, shutdown; and the interface of an endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from abc import ABC, abstractmethod
from operator import itemgetter
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from nbtriton.common.errors import UnavailableError
from nbtriton.serving.frontends.loop import TURN_S, LoopThread
from nbtriton.serving.frontends.service import Service

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbtriton.options.table import Option

# Backlog of connections to be accepted, if the system allows it; further clients try again after a second.
# Triton's 1024 are full when 10,000 clients connect at once to a busy machine.
_BACKLOG = 4096
# Limit of requests dispatched together; a batch is seldom larger.
_TOGETHER = 32
# Connections accepted in one turn, before open connections are read.
_ACCEPTED = 32
# Timeout of a TLS handshake: until its end a connection is not counted, but uses a descriptor.
_HANDSHAKE_S = 10.0
# Interval of the checks for stalled connections.
_SWEEP_S = 1.0


class Connection(Protocol):
    """A connection of a listener; all methods are called on the loop."""

    @property
    def busy(self) -> bool:
        """True while a closing listener waits for this connection."""
        ...

    def announce_close(self) -> None:
        """Tell the client that the listener closes."""
        ...

    def idle_since(self) -> float | None:
        """Return the time of the last activity on the loop's clock; None if busy."""
        ...

    def evict(self) -> None:
        """Close the connection to make room for another client."""
        ...

    def abort(self) -> None:
        """End the connection at once."""
        ...

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 if it is closed."""
        ...

    def check_timeouts(self, now: float) -> None:
        """Enforce time limits; `now` is the loop's clock."""
        ...


_C = TypeVar("_C", bound=Connection)


class Listener(ABC, Generic[_C]):
    """A listening socket with its connections; the constructor starts it.

    Parameters
    ----------
    sock : socket
        Bound by `listen`.
    service : Service
        The server, with its limits and traces.
    thread : LoopThread
        Its event loop; several listeners may share one.
    tls : ssl.SSLContext, optional
        Enables TLS.

    Attributes
    ----------
    closing : bool
        Whether `stop` has begun.
    """

    def __init__(
        self,
        sock: socket.socket,
        service: Service,
        thread: LoopThread,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.limits = service.limits
        self.tracing = service.trace
        self.thread = thread
        self._socket = sock
        self.port: int = sock.getsockname()[1]
        self.connections: set[_C] = set()
        self._ended: set[_C] = set()  # evicted, until they are removed
        self._silent: dict[_C, None] = {}  # have sent no request yet, oldest first
        self._unanswered = 0
        self._sweeping = False
        self.closing = False
        self._idle: asyncio.Event | None = None
        self._all_closed: asyncio.Event | None = None
        self._server = thread.call(self._start(sock, tls))

    async def _start(self, sock: socket.socket, tls: ssl.SSLContext | None) -> asyncio.Server:
        server = await self.thread.loop.create_server(
            self.make_connection,
            sock=sock,
            backlog=_ACCEPTED,
            ssl=tls,
            ssl_handshake_timeout=min(self.limits.head_s, _HANDSHAKE_S) if tls else None,
        )
        sock.listen(_BACKLOG)  # asyncio has one number for both
        return server

    @abstractmethod
    def make_connection(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""

    @abstractmethod
    def dispatch(self) -> None:
        """Answer the requests that have been read; must not raise."""

    def in_child(self) -> None:
        """Close a forked process's copies of the sockets: they would stay open while it lives.

        The parent's loop still watches them, hence neither the loop nor its transports take part.
        """
        with contextlib.suppress(OSError):
            self._socket.close()
        with contextlib.suppress(OSError):
            nothing = os.open(os.devnull, os.O_RDWR)
            for connection in self.connections:
                # Not closed: the transport's socket will close the same descriptor again.
                if (copied := connection.fileno()) >= 0:
                    os.dup2(nothing, copied)
            os.close(nothing)

    def wait_for_clients(self, timeout_s: float) -> int:
        """Stop listening, answer clients until they disconnect; return the number of open connections."""
        return self.thread.call(self._let_leave(timeout_s))

    async def _let_leave(self, timeout_s: float) -> int:
        self._stop_listening()
        if self.connections:
            self._all_closed = self._all_closed or asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), timeout_s)
        return len(self.connections)

    def _stop_listening(self) -> None:
        # In all processes that have the socket: a client must not connect in vain.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._server.close()

    async def stop(self, drain_s: float) -> None:
        """Stop listening, wait for running requests at most `drain_s`, abort the rest; once only."""
        self._stop_listening()
        self.closing = True
        self._idle = asyncio.Event()
        for connection in list(self.connections):
            connection.announce_close()
        self.request_finished()
        if drain_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), drain_s)
        for connection in list(self.connections):
            connection.abort()
        if self.connections:  # their transports close soon
            # `wait_for_clients` may be waiting for the same.
            self._all_closed = self._all_closed or asyncio.Event()
            await self._all_closed.wait()

    def schedule_dispatch(self) -> None:
        """Dispatch a request once everything that has arrived is read.

        Requests that arrive together are submitted together, so that one batch can hold them.
        """
        if not self._unanswered:
            self.thread.loop.call_soon(self._look, 0, 0.0)
        self._unanswered += 1

    def _look(self, previous: int, turn_end: float) -> None:
        found = self._unanswered
        if previous < found < _TOGETHER:  # more has arrived: look again
            now = monotonic()
            turn_end = turn_end or now + TURN_S
            if now < turn_end:
                self.thread.loop.call_soon(self._look, found, turn_end)
                return
        self._unanswered = 0
        self.dispatch()

    def request_finished(self) -> None:
        """Note that a request has ended: it may be the last one that `stop` waits for."""
        if self._idle is not None and not any(c.busy for c in self.connections):
            self._idle.set()

    def add(self, connection: _C) -> None:
        """Note a new connection."""
        self.connections.add(connection)
        self._silent[connection] = None
        if not self._sweeping:
            self._sweeping = True
            self.thread.loop.call_later(_SWEEP_S, self._sweep)

    def mark_active(self, connection: _C) -> None:
        """Note the first request of a connection."""
        self._silent.pop(connection, None)

    def admit(self, connection: _C) -> bool:
        """Return whether a new connection may stay; another one may be evicted for it.

        The oldest one without a request is evicted first, then the one that has been idle longest.
        """
        if len(self.connections) - len(self._ended) <= self.limits.connections:
            return True
        other = next(iter(self._silent))
        if other is connection:
            idle = ((one.idle_since(), one) for one in self.connections - self._ended)
            found = min(
                (
                    (since, one)
                    for since, one in idle
                    if since is not None and one is not connection
                ),
                key=itemgetter(0),
                default=None,
            )
            if found is None:
                return False
            other = found[1]
        self._silent.pop(other, None)
        self._ended.add(other)
        other.evict()
        return True

    def remove(self, connection: _C) -> None:
        """Note the end of a connection."""
        self.connections.discard(connection)
        self._ended.discard(connection)
        self._silent.pop(connection, None)
        if self._all_closed is not None and not self.connections:
            self._all_closed.set()

    def _sweep(self) -> None:
        now = self.thread.loop.time()
        self._sweeping = bool(self.connections)
        if self._sweeping:
            self.thread.loop.call_later(_SWEEP_S, self._sweep)
        for connection in list(self.connections):
            connection.check_timeouts(now)


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket; port 0 is any free port.

    Raises
    ------
    UnavailableError
        The port is in use, or the address is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UnavailableError(f"'{host}' is not an address to listen on: {error}") from None
    try:
        # On Windows SO_REUSEADDR would let two servers share a port.
        option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
        found.setsockopt(socket.SOL_SOCKET, option, 1)
        found.bind(address)
        found.setblocking(False)
    except OSError:
        found.close()
        raise UnavailableError(
            f"Socket '{host}:{port}' already in use ",
            hint="give another port, or 0 for any that is free",
        ) from None
    return found


class Endpoint(ABC):
    """An endpoint: it opens a port, and answers what arrives there.

    Its name in the group gives it the arguments ``NAME_port`` and ``NAME`` of `nbtriton.Server.serve`, the option
    ``--NAME-port`` of ``%triton_serve`` and the flags of ``nbtriton serve``. `HttpEndpoint` is the one for HTTP.

    Attributes
    ----------
    title : str
        In the help of the flags.
    service_name : str
        In the log; by default the title and "Service".
    options_type : type
        Of the argument ``NAME``; without arguments it makes the default.
    flags : tuple of Option
        Of ``nbtriton serve``, with ``--NAME-port``.
    """

    title: ClassVar[str]
    service_name: ClassVar[str] = ""
    options_type: ClassVar[type] = SimpleNamespace
    flags: ClassVar[tuple[Option, ...]] = ()

    @classmethod
    def options_of(cls, arguments: SimpleNamespace) -> Mapping[str, Any]:  # noqa: ARG003 - for those with options
        """Return the arguments of `nbtriton.Server.serve` that the flags set, but for the port."""
        return {}

    @classmethod
    @abstractmethod
    def open(
        cls, service: Service, thread: LoopThread, host: str, port: int, options: Any
    ) -> Listener[Any]:
        """Open the port; `options` is of `options_type`."""
