"""What gRPC says in HTTP/2's header fields, and how it frames and packs messages."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from urllib.parse import quote

from nbtriton.errors import TritonError
from nbtriton.frontends.decompression import DecompressionError, Decompressor, OversizeError
from nbtriton.frontends.http2.hpack import Field, literal

__all__ = [
    "ACCEPT", "CANCELLED", "CONTENT_TYPE", "DEADLINE_EXCEEDED", "INTERNAL", "MESSAGE", "OK",
    "OK_STATUS", "RESOURCE_EXHAUSTED", "STATUS_200", "UNIMPLEMENTED", "Opening", "StatusError", "code_of",
    "packed", "read_opening", "status_fields", "unpacked",
]  # fmt: skip

OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, ALREADY_EXISTS = range(7)
RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 8, 12, 13, 14
_CODES = {
    "INVALID_ARG": INVALID_ARGUMENT,
    "NOT_FOUND": NOT_FOUND,
    "INTERNAL": INTERNAL,
    "UNSUPPORTED": UNIMPLEMENTED,
    "UNAVAILABLE": UNAVAILABLE,
    "ALREADY_EXISTS": ALREADY_EXISTS,
    "CANCELLED": CANCELLED,
    "UNKNOWN": UNKNOWN,
}
# Whether a message is packed, and its length.
MESSAGE = Struct(">BI")
STATUS_200 = b"\x88"  # as every answer begins
CONTENT_TYPE = (b"content-type", b"application/grpc")
ACCEPT = (b"grpc-accept-encoding", b"identity, deflate, gzip")
OK_STATUS = (b"grpc-status", b"0")
# How messages may be packed, and zlib's number for it; the better ones later.
_WINDOW_BITS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
_NEEDED = frozenset({b":scheme", b":path", b":authority"})
_NO_METADATA = frozenset({b"te", b"content-type", b"host"})
_NAME = re.compile(rb"[0-9a-z_.-]+")
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_LONGEST_TIMEOUT_S = 1e8  # three years
# A client refuses trailers of more than 8 KiB; percent-encoding may triple a byte.
_LONGEST_TEXT = 2500
_UNQUOTED = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class StatusError(Exception):
    """A call ends with a status of gRPC's.

    Parameters
    ----------
    code : int
    text : str
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class Opening:
    """What a call says before its messages: one for all calls whose fields are the same.

    Parameters
    ----------
    path : bytes
        The full name of its method, with a slash before it.
    metadata : tuple of (str, str or bytes)
        What is not gRPC's own; names that end in ``-bin`` have bytes.
    timeout_s : float, optional
        How long the client waits.
    encoding : bytes
        How its messages may be packed; empty for not at all.
    packing : bytes
        How the answers are to be packed; empty for not at all.
    fault : StatusError, optional
        Why it is not answered.
    is_grpc : bool
        False for what is no call at all.
    """

    path: bytes = b""
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    timeout_s: float | None = None
    encoding: bytes = b""
    packing: bytes = b""
    fault: StatusError | None = None
    is_grpc: bool = True


def read_opening(fields: Sequence[Field], level: int) -> Opening:
    """Return what fields say.

    Parameters
    ----------
    fields : sequence of (name, value)
    level : int
        How well answers are packed, if the client can read it: 0 not at all, 3 best.
    """
    known = dict(fields)
    known.setdefault(b":authority", known.get(b"host", b""))
    if (
        known.get(b":method") != b"POST"
        or known.get(b"te") != b"trailers"
        or not all(known.get(name) for name in _NEEDED)
    ):
        return Opening(is_grpc=False)
    try:
        return Opening(
            known[b":path"],
            tuple(_metadata(name, value) for name, value in fields if _is_metadata(name)),
            _timeout_s(known.get(b"grpc-timeout")),
            _encoding(known.get(b"grpc-encoding", b"identity")),
            _packing(known.get(b"grpc-accept-encoding", b""), level),
        )
    except StatusError as fault:
        return Opening(known[b":path"], fault=fault)


def _is_metadata(name: bytes) -> bool:
    return not name.startswith((b":", b"grpc-")) and name not in _NO_METADATA


def _metadata(name: bytes, value: bytes) -> tuple[str, str | bytes]:
    text = name.decode("utf-8", "replace")
    if not _NAME.fullmatch(name):
        raise StatusError(INTERNAL, f"Illegal header key: {text}")
    if not name.endswith(b"-bin"):
        return text, value.decode("utf-8", "replace")
    try:
        missing = b"=" * (-len(value) % 4)
        return text, base64.b64decode(value + missing, validate=True)
    except binascii.Error:
        raise StatusError(
            INTERNAL, f"Error parsing '{text}' metadata: illegal base64 encoding"
        ) from None


def _timeout_s(value: bytes | None) -> float | None:
    if value is None:
        return None
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise StatusError(INTERNAL, "Error parsing 'grpc-timeout' metadata")
    return min(int(found[1]) * _UNITS[found[2]], _LONGEST_TIMEOUT_S)


def _encoding(value: bytes) -> bytes:
    if value == b"identity":
        return b""
    if value not in _WINDOW_BITS:
        raise StatusError(INTERNAL, "Error parsing 'grpc-encoding' metadata")
    return value


def _packing(accepted: bytes, level: int) -> bytes:
    """Choose as gRPC does: the first of what the client can read, one in the middle, or the last."""
    names = {name.strip() for name in accepted.split(b",")}
    able = [name for name in _WINDOW_BITS if name in names]
    if not level or not able:
        return b""
    return able[(0, len(able) // 2, len(able) - 1)[level - 1]]


# -- messages ----------------------------------------------------------------------------------------


def unpacked(message: bytes, encoding: bytes, most: int) -> bytes:
    """Return a message of at most so many bytes that came packed; raises StatusError."""
    if not encoding:
        raise StatusError(INTERNAL, "Compression bit set but no encoding configured")
    try:
        return bytes(Decompressor(message, _WINDOW_BITS[encoding], most).all())
    except OversizeError:
        raise StatusError(RESOURCE_EXHAUSTED, "Decompressed message larger than max") from None
    except DecompressionError:
        raise StatusError(INTERNAL, "Decompression failed due to zlib error") from None


def packed(message: bytes, packing: bytes) -> tuple[int, bytes]:
    """Return a message's flag and bytes: packed if it is to be, and shorter that way."""
    if packing:
        writer = zlib.compressobj(wbits=_WINDOW_BITS[packing])
        data = writer.compress(message) + writer.flush()
        if len(data) < len(message):
            return 1, data
    return 0, message


# -- the end -----------------------------------------------------------------------------------------


def code_of(error: TritonError) -> int:
    """Return gRPC's code of an error."""
    return _CODES[error.status]


def status_fields(code: int, text: str) -> bytes:
    """Return the fields that end a call, as they travel."""
    status = literal(OK_STATUS[0], b"%d" % code)
    if not code and not text:
        return status
    short = text.encode("utf-8", "replace")[:_LONGEST_TEXT].decode("utf-8", "ignore")
    return status + literal(b"grpc-message", quote(short, safe=_UNQUOTED).encode())
