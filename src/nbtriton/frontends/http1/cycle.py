"""One HTTP request with its response: what a handler gets, without the connection."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nbtriton.frontends.http1.response import Data, HttpResponse
from nbtriton.frontends.tracing import NOT_SEEN

__all__ = ["RequestHead", "RequestResponseCycle"]


class RequestHead:
    """Request line and header fields: one object for all requests whose heads are the same bytes.

    Parameters
    ----------
    method, path : str
        The path without query, as the client wrote it.
    headers : mapping of bytes to bytes
        By lower-case name; of several of a name the first.
    fields : sequence of (name, value)
        As the client wrote them; only where header fields may be forwarded.
    keep_alive : bool
        Whether the connection stays open after the response.
    old : bool
        HTTP/1.0, which has no chunks.

    Attributes
    ----------
    route_handler : callable
        Answers the requests with this head; None until the first of them.
    """

    __slots__ = ("fields", "headers", "keep_alive", "method", "old", "path", "route_handler")

    def __init__(
        self,
        method: str,
        path: str,
        headers: Mapping[bytes, bytes],
        fields: Sequence[tuple[bytes, bytes]] = (),
        *,
        keep_alive: bool = True,
        old: bool = False,
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.fields = fields
        self.keep_alive = keep_alive
        self.old = old
        self.route_handler: Any = None


class RequestResponseCycle(ABC):
    """A request that has arrived completely, and its response, from any thread.

    Either `respond` is called once, or `begin`, any number of `chunk`, and `end`.

    Parameters
    ----------
    head : RequestHead
    data : bytes-like
        Ends with the body.
    start : int
        Where in `data` the body begins: such that the tensors in it begin well aligned.

    Attributes
    ----------
    on_disconnect : callable
        Called if the client leaves before the response.
    received_ns : tuple of int
        When the first and the last byte came; zeros where nothing is traced.
    """

    __slots__ = ("data", "head", "on_disconnect", "received_ns", "start")

    def __init__(self, head: RequestHead, data: Data = b"", start: int = 0) -> None:
        self.head = head
        self.data = data
        self.start = start
        self.on_disconnect: Callable[[], object] | None = None
        self.received_ns = NOT_SEEN

    @property
    def body(self) -> Data:
        """The body."""
        return memoryview(self.data)[self.start :] if self.start else self.data

    @abstractmethod
    def respond(self, response: HttpResponse) -> None:
        """Send a whole response."""

    @abstractmethod
    def begin(self, status: int, content_type: bytes) -> None:
        """Start a response of unknown length."""

    @abstractmethod
    def chunk(self, data: bytes) -> None:
        """Send the next part of it."""

    @abstractmethod
    def end(self) -> None:
        """Finish it."""

    @abstractmethod
    def is_disconnected(self) -> bool:
        """True once no client waits for the response."""

    @abstractmethod
    def work(self, task: Callable[[], None]) -> None:
        """Run something long where no other request waits for it."""
