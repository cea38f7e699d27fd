"""HTTP responses and their bytes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from nbtriton.common.errors import InternalError, TritonError
from nbtriton.serving.frontends.kserve.jsontext import dumps

_log = logging.getLogger("nbtriton.serving.frontends")

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
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_STATUS_LINES[405] = b"HTTP/1.1 405 Not Allowed\r\n"  # evhtp's reason phrase


@dataclass(slots=True)
class HttpResponse:
    """A complete response.

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
    """Return the body of every error (KS3); half of a surrogate pair becomes a question mark."""
    try:
        return dumps({"error": message})
    except UnicodeEncodeError:
        return dumps({"error": message.encode(errors="replace").decode()})


def error_response(error: TritonError, content_type: bytes = JSON) -> HttpResponse:
    """Return the response to a request that failed."""
    return HttpResponse(_STATUS[error.status], content_type, (error_body(error.message),))


def unexpected_error(error: Exception, path: str, content_type: bytes = TEXT) -> HttpResponse:
    """Log an unexpected exception, and return the response to the request that it failed."""
    _log.error("a request to %s failed", path, exc_info=error)
    return error_response(InternalError(f"{type(error).__name__}: {error}"), content_type)


@lru_cache(maxsize=256)
def response_head(
    status: int,
    content_type: bytes,
    size: int,
    headers: tuple[tuple[bytes, bytes], ...],
    connection: bytes,
) -> bytes:
    """Return status line and header fields; `connection` is the field's value, empty for no field."""
    fields = ((b"Content-Type", content_type), (b"Content-Length", b"%d" % size), *headers)
    return _head(status, fields, connection)


def chunked_head(status: int, content_type: bytes, connection: bytes, *, chunked: bool) -> bytes:
    """Return the head of a response of unknown length; without chunks the connection's end ends it."""
    fields = [(b"Content-Type", content_type)]
    if chunked:
        fields.append((b"Transfer-Encoding", b"chunked"))
    return _head(status, fields, connection)


def _head(status: int, fields: Sequence[tuple[bytes, bytes]], connection: bytes) -> bytes:
    more = ((b"Connection", connection),) if connection else ()
    lines = [b"%s: %s\r\n" % field for field in (*fields, *more)]
    return b"".join((_STATUS_LINES[status], *lines, b"\r\n"))


@dataclass(slots=True, eq=False)
class RequestHead:
    """Request line and header fields, shared by all requests whose heads are the same bytes.

    Parameters
    ----------
    method, path : str
        The path without query, as the client wrote it.
    headers : mapping of bytes to bytes
        By lower-case name; the first field of a name counts.
    fields : sequence of (name, value)
        The header fields as sent; only where they may be forwarded.
    keep_alive : bool
        Whether the connection stays open after the response.
    old : bool
        HTTP/1.0, which has no chunked coding.

    Attributes
    ----------
    route_handler : callable
        Handler of the requests with this head; None before the first request.
    """

    method: str
    path: str
    headers: Mapping[bytes, bytes]
    fields: Sequence[tuple[bytes, bytes]] = ()
    _: KW_ONLY
    keep_alive: bool = True
    old: bool = False
    route_handler: Any = None
