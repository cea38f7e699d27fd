"""One HTTP request with its response, as handlers know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from nbtriton.frontends.http1.response import Data, HttpResponse
from nbtriton.frontends.tracing import NOT_SEEN

__all__ = ["RequestHead", "RequestResponseCycle", "ResponseWriter"]


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


class ResponseWriter(Protocol):
    """Writes the responses of a connection, on its loop."""

    def run(self, function: Callable[..., None], *arguments: Any) -> None: ...
    def respond(self, cycle: RequestResponseCycle, response: HttpResponse) -> None: ...
    def begin(self, cycle: RequestResponseCycle, status: int, content_type: bytes) -> None: ...
    def chunk(self, cycle: RequestResponseCycle, data: bytes) -> None: ...
    def end(self, cycle: RequestResponseCycle) -> None: ...
    def work(self, task: Callable[[], None]) -> None: ...


class RequestResponseCycle:
    """A request that has arrived completely, and its response, from any thread.

    Either `respond` is called once, or `begin`, any number of `chunk`, and `end`.

    Parameters
    ----------
    writer : ResponseWriter
    head : RequestHead
    data : bytes-like
        Ends with the body.
    start : int
        Where in `data` the body begins: such that the tensors in it begin well aligned.

    Attributes
    ----------
    finished : bool
        Whether it is answered, or the client has left.
    keep_alive : bool
        Whether the connection stays open after the response.
    on_disconnect : callable
        Called if the client leaves before the response.
    ends_with_client : bool
        Whether a client that will send nothing more has left. Otherwise it may still read.
    received_ns : tuple of int
        When the first and the last byte came; zeros where nothing is traced.
    """

    __slots__ = (
        "data", "ends_with_client", "finished", "head", "keep_alive", "on_disconnect", "received_ns",
        "start", "writer",
    )  # fmt: skip

    def __init__(
        self, writer: ResponseWriter, head: RequestHead, data: Data = b"", start: int = 0
    ) -> None:
        self.writer = writer
        self.head = head
        self.data = data
        self.start = start
        self.keep_alive = head.keep_alive
        self.finished = False
        self.ends_with_client = False
        self.on_disconnect: Callable[[], object] | None = None
        self.received_ns = NOT_SEEN

    @property
    def body(self) -> Data:
        """The body."""
        return memoryview(self.data)[self.start :] if self.start else self.data

    def respond(self, response: HttpResponse) -> None:
        """Send a whole response."""
        self.writer.run(self.writer.respond, self, response)

    def begin(self, status: int, content_type: bytes) -> None:
        """Start a response of unknown length."""
        self.writer.run(self.writer.begin, self, status, content_type)

    def chunk(self, data: bytes) -> None:
        """Send the next part of it."""
        self.writer.run(self.writer.chunk, self, data)

    def end(self) -> None:
        """Finish it."""
        self.writer.run(self.writer.end, self)

    def work(self, task: Callable[[], None]) -> None:
        """Run a long task where no other request waits for it."""
        self.writer.work(task)
