"""One HTTP request and the way back: what a handler gets, whoever carries the bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbtriton.errors import InternalError, TritonError
from nbtriton.frontends.kserve.jsontext import dumps
from nbtriton.frontends.tracing import NOT_SEEN

__all__ = [
    "JSON",
    "TEXT",
    "Data",
    "HttpResponse",
    "RequestHead",
    "RequestResponseCycle",
    "error_body",
    "error_response",
    "unexpected_error",
]

Data = bytes | memoryview

JSON = b"application/json"
TEXT = b"text/plain"

# KS5
_STATUS = {
    "INVALID_ARG": 400,
    "ALREADY_EXISTS": 400,
    "CANCELLED": 400,
    "UNKNOWN": 400,
    "NOT_FOUND": 404,
    "INTERNAL": 500,
    "UNSUPPORTED": 501,
    "UNAVAILABLE": 503,
}


@dataclass(slots=True)
class HttpResponse:
    """A whole answer.

    Parameters
    ----------
    status : int
    content_type : bytes
    parts : sequence of bytes-like
        The body.
    headers : sequence of (name, value)
        Further header fields.
    """

    status: int = 200
    content_type: bytes = TEXT
    parts: Sequence[Data] = ()
    headers: Sequence[tuple[bytes, bytes]] = ()


def error_body(message: str) -> bytes:
    """Return the body of every error (KS3)."""
    return dumps({"error": message})


def error_response(error: TritonError, content_type: bytes = JSON) -> HttpResponse:
    """Return the answer to a request that failed."""
    return HttpResponse(_STATUS[error.status], content_type, (error_body(error.message),))


def unexpected_error(error: Exception, content_type: bytes = TEXT) -> HttpResponse:
    """Return the answer to a request that met an error of ours, or of a model's configuration."""
    return error_response(InternalError(f"{type(error).__name__}: {error}"), content_type)


class RequestHead:
    """What comes before the body: one for all requests whose heads are the same bytes.

    Parameters
    ----------
    method, path : str
        The path without query, as the client wrote it.
    headers : mapping of bytes to bytes
        By lower-case name; of several of a name the first.
    fields : sequence of (name, value)
        As the client wrote them; only where header fields may be forwarded.
    keep_alive : bool
        Whether the connection stays open after the answer.
    old : bool
        HTTP/1.0, which knows no chunks.

    Attributes
    ----------
    route_handler : object
        What a handler made of it, None until it has seen it.
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
    """A request that is there completely, and how to answer it, from any thread.

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
    on_gone : callable
        Called if the client leaves before the answer.
    received_ns : tuple of int
        When the first and the last byte came; zeros where nothing is traced.
    """

    __slots__ = ("data", "head", "on_gone", "received_ns", "start")

    def __init__(self, head: RequestHead, data: Data = b"", start: int = 0) -> None:
        self.head = head
        self.data = data
        self.start = start
        self.on_gone: Callable[[], object] | None = None
        self.received_ns = NOT_SEEN

    @property
    def body(self) -> Data:
        """The body."""
        return memoryview(self.data)[self.start :] if self.start else self.data

    @abstractmethod
    def respond(self, response: HttpResponse) -> None:
        """Send a whole answer."""

    @abstractmethod
    def begin(self, status: int, content_type: bytes) -> None:
        """Start an answer whose length is not known."""

    @abstractmethod
    def chunk(self, data: bytes) -> None:
        """Send the next part of it."""

    @abstractmethod
    def end(self) -> None:
        """Finish it."""

    @abstractmethod
    def is_gone(self) -> bool:
        """True once nobody waits for the answer any more."""

    @abstractmethod
    def work(self, task: Callable[[], None]) -> None:
        """Run what takes long where it keeps no other request waiting."""
