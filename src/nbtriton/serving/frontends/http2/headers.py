"""Header blocks of one connection: joined from frames, and decoded once (RFC 9113 section 4.3)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from nbtriton.serving.frontends.http2.frames import (
    CONTINUATION,
    END_HEADERS,
    ErrorCode,
    Http2ConnectionError,
)
from nbtriton.serving.frontends.http2.hpack import Decoder, Field

# Limits: cached header blocks, bytes of each, and frames of one block.
_MAX_CACHED, _MAX_CACHED_SIZE, _MAX_FRAGMENTS = 256, 4096, 64


class HeaderBlockReader:
    """Reader of header blocks; a block that does not change the table is cached by its bytes.

    Parameters
    ----------
    max_list_size : int
        Limit of a block's fields, as HPACK counts them.
    max_size : int
        Limit of a block in bytes.

    Attributes
    ----------
    cached : dict of bytes to HeaderBlock
        Valid until the decoder's table changes. A repeated call has the same bytes.
    continued : (int, int), optional
        Stream and flags of the HEADERS frame whose block is continued.
    """

    __slots__ = ("_decoder", "_fragments", "_max_list_size", "_max_size", "cached", "continued")

    def __init__(self, max_list_size: int, max_size: int) -> None:
        self.cached: dict[bytes, HeaderBlock] = {}
        self.continued: tuple[int, int] | None = None
        self._decoder = Decoder()
        self._fragments: list[bytes] = []
        self._max_list_size = max_list_size
        self._max_size = max_size

    def begin(self, stream_id: int, flags: int, fragment: bytes) -> None:
        """Read HEADERS that lacks END_HEADERS."""
        self.continued = (stream_id, flags)
        self._fragments = [fragment]

    def append(
        self, kind: int, flags: int, stream_id: int, fragment: bytes
    ) -> tuple[int, bytes] | None:
        """Read the next frame; return the flags of HEADERS and the block once it is complete."""
        if self.continued is None or kind != CONTINUATION or stream_id != self.continued[0]:
            raise Http2ConnectionError(
                f"Failed parsing HTTP/2 (Expected CONTINUATION frame, got frame type {kind:02x})"
            )
        self._fragments.append(fragment)
        if len(self._fragments) > _MAX_FRAGMENTS or sum(map(len, self._fragments)) > self._max_size:
            raise Http2ConnectionError(
                "received metadata size exceeds hard limit", ErrorCode.ENHANCE_YOUR_CALM
            )
        if not flags & END_HEADERS:
            return None
        found = self.continued[1], b"".join(self._fragments)
        self._fragments, self.continued = [], None
        return found

    def decode(self, block: bytes) -> HeaderBlock:
        """Decode a block that is not cached."""
        changes = self._decoder.changes
        headers = HeaderBlock(self._decoder.decode(block, self._max_list_size))
        if self._decoder.changes != changes or len(self.cached) >= _MAX_CACHED:
            self.cached.clear()
        if self._decoder.changes == changes and len(block) <= _MAX_CACHED_SIZE:
            self.cached[block] = headers
        return headers


_PSEUDO_FIELDS = frozenset({b":method", b":scheme", b":path", b":authority"})
_CONNECTION_FIELDS = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_NAME = re.compile(rb"[!-9;-@\[-~]+")  # no capital letters, colons, spaces or control characters
_VALUE = re.compile(rb"[^\0\r\n]*")


class HeaderBlock:
    """Decoded fields and their properties, shared by all blocks of the same bytes.

    Parameters
    ----------
    fields : sequence of (name, value), optional
        None if they exceed the limit.

    Attributes
    ----------
    is_request, are_trailers : bool
        Whether the fields are valid as a request's header, and as its trailers.
    content_length : int, optional
    parsed : object
        For the user of the connection: its reading of the fields.
    """

    __slots__ = ("are_trailers", "content_length", "fields", "is_request", "parsed")

    def __init__(self, fields: Sequence[Field] | None) -> None:
        self.fields = fields
        self.parsed: Any = None
        self.content_length: int | None = None
        pseudo: dict[bytes, bytes] = {}
        self.is_request = self.are_trailers = self._read(fields or (), pseudo)
        if pseudo:
            self.are_trailers = False
        if fields is not None:
            needed = _PSEUDO_FIELDS - {b":authority"}
            if pseudo.get(b":method") == b"CONNECT":
                needed = frozenset({b":method", b":authority"})
            self.is_request &= all(pseudo.get(name) for name in needed)

    def _read(self, fields: Sequence[Field], pseudo: dict[bytes, bytes]) -> bool:
        """Collect pseudo-header fields and the content's length; False if a field is malformed."""
        for name, value in fields:
            if name not in _PSEUDO_FIELDS or name in pseudo:
                break
            pseudo[name] = value
        lengths = set()
        for name, value in fields[len(pseudo) :]:
            if not _NAME.fullmatch(name) or name in _CONNECTION_FIELDS:
                return False
            if name == b"te" and value != b"trailers":
                return False
            if name == b"content-length":
                lengths.add(value)
        if lengths:
            length = lengths.pop()
            if lengths or not length.isdigit():
                return False
            self.content_length = int(length)
        return all(_VALUE.fullmatch(value) for _, value in fields)
