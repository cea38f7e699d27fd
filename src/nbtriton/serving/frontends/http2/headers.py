"""Decoded header blocks, and the checks of their fields (RFC 9113 sections 8.1 to 8.3)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from nbtriton.serving.frontends.http2.hpack import Field

__all__ = ["HeaderBlock"]

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
