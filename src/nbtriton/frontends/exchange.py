"""One HTTP request and the way back: what a handler gets, whoever carries the bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nbtriton.errors import TritonError
from nbtriton.frontends.jsontext import dumps

__all__ = ["JSON", "TEXT", "Exchange", "Reply", "error_body", "error_reply"]

JSON = b"application/json"
TEXT = b"text/plain"

# P-5
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
class Reply:
    """A whole answer.

    Parameters
    ----------
    status : int
    content_type : bytes
    parts : sequence of bytes
        The body.
    headers : sequence of (name, value)
        Further header fields.
    """

    status: int = 200
    content_type: bytes = TEXT
    parts: Sequence[bytes] = ()
    headers: Sequence[tuple[bytes, bytes]] = ()


def error_body(message: str) -> bytes:
    """Return the body of every error (P-3)."""
    return dumps({"error": message})


def error_reply(error: TritonError, content_type: bytes = JSON) -> Reply:
    """Return the answer to a request that failed."""
    return Reply(_STATUS[error.status], content_type, (error_body(error.message),))


@dataclass(slots=True)
class Exchange(ABC):
    """A request that is there completely, and how to answer it, from any thread.

    Either `respond` is called once, or `begin`, any number of `chunk`, and `end`.

    Attributes
    ----------
    method, path : str
        The path without query, as the client wrote it.
    headers : mapping of bytes to bytes
        By lower-case name; of several of a name the last.
    fields : sequence of (name, value)
        As the client wrote them; only where header fields may be forwarded.
    body : bytes-like
    on_gone : callable
        Called if the client leaves before the answer.
    """

    method: str
    path: str
    headers: Mapping[bytes, bytes]
    body: bytes | memoryview
    fields: Sequence[tuple[bytes, bytes]] = ()
    on_gone: Callable[[], object] | None = field(default=None, init=False)

    @abstractmethod
    def respond(self, reply: Reply) -> None:
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
        """Run what takes long where it keeps nobody else waiting."""
