"""gRPC over HTTP/2: length-prefixed messages, header fields of requests, and status trailers."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from urllib.parse import quote

from nbtriton.common.errors import TritonError
from nbtriton.extensions.grpc.http2.hpack import Field
from nbtriton.serving.frontends.buffers import DecompressionError, Decompressor, OversizeError

# Prefix of a message: compressed flag, length.
PREFIX = Struct(">BI")
# Encodings and their window bits for zlib, the better encodings later.
WINDOW_BITS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
# Tiny pieces of a message are joined up to this size.
_TINY, _PIECE = 512, 16 << 10


class MessageReader:
    """Reader of the messages of one call.

    Parameters
    ----------
    max_size : int
        Limit of a message as sent, in bytes.
    """

    __slots__ = ("_flag", "_lacking", "_max_size", "_offset", "_pieces", "_rest")

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._rest: list[bytes] = []  # unread bytes, from `_offset` on
        self._offset = 0
        self._pieces: list[bytes] | None = None  # of the message being read
        self._flag = self._lacking = 0

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        if self._lacking:
            assert self._pieces is not None
            piece = data[: self._lacking]
            self._lacking -= len(piece)
            _append(self._pieces, piece)
            data = data[len(piece) :]
        if data:
            _append(self._rest, data)

    def next_message(self) -> tuple[int, bytes] | None:
        """Return the next message with its compressed flag; None if incomplete.

        Raises
        ------
        StatusError
            A message is too large.
        """
        if self._pieces is None and not self._begin():
            return None
        if self._lacking:
            return None
        message = b"".join(self._pieces or ())
        self._pieces = None
        return self._flag, message

    def _begin(self) -> bool:
        """Read a prefix; False if it is incomplete."""
        if len(self._rest) > 1:
            self._rest, self._offset = [b"".join(self._rest)[self._offset :]], 0
        data = self._rest[0] if self._rest else b""
        start = self._offset + PREFIX.size
        if len(data) < start:
            return False
        self._flag, size = PREFIX.unpack_from(data, self._offset)
        if size > self._max_size:
            text = f"SERVER: Received message larger than max ({size} vs. {self._max_size})"
            raise StatusError(RESOURCE_EXHAUSTED, text)
        self._offset = start + size
        piece = data[start : self._offset]
        self._pieces, self._lacking = [piece], size - len(piece)
        if self._offset >= len(data):
            self._rest, self._offset = [], 0
        return True


def _append(pieces: list[bytes], data: bytes) -> None:
    if pieces and len(data) < _TINY and len(pieces[-1]) < _PIECE:
        pieces[-1] += data
    else:
        pieces.append(data)


def decompress(message: bytes, encoding: bytes, max_size: int) -> bytes:
    """Decompress a message; raises StatusError if the result is longer than `max_size`."""
    if not encoding:
        raise StatusError(INTERNAL, "Compression bit set but no encoding configured")
    try:
        return bytes(Decompressor(message, WINDOW_BITS[encoding], max_size).all())
    except OversizeError:
        raise StatusError(RESOURCE_EXHAUSTED, "Decompressed message larger than max") from None
    except DecompressionError:
        raise StatusError(INTERNAL, "Decompression failed due to zlib error") from None


def compress(message: bytes, encoding: bytes) -> tuple[int, bytes]:
    """Return a message's compressed flag and bytes; compressed if an encoding is given and it is shorter."""
    if encoding:
        writer = zlib.compressobj(wbits=WINDOW_BITS[encoding])
        data = writer.compress(message) + writer.flush()
        if len(data) < len(message):
            return 1, data
    return 0, message


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


class StatusError(Exception):
    """End of a call with a gRPC status.

    Parameters
    ----------
    code : int
    text : str
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def code_of(error: TritonError) -> int:
    """Return the gRPC status code of an error."""
    return _CODES[error.status]


_STATUS_200 = (b":status", b"200")
_CONTENT_TYPE = (b"content-type", b"application/grpc")
_ACCEPT = (b"grpc-accept-encoding", b"identity, deflate, gzip")
_OK = (b"grpc-status", b"0")
OK_TRAILERS: tuple[Field, ...] = (_OK,)
_RESPONSE = (_STATUS_200, _CONTENT_TYPE, _ACCEPT)
# Fields of every response: each gets an entry of the client's HPACK table.
INDEXED = frozenset({_CONTENT_TYPE, _ACCEPT, _OK})
_NO_METADATA = frozenset({b"te", b"content-type", b"host"})
_NAME = re.compile(rb"[0-9a-z_.-]+")
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_LONGEST_TIMEOUT_S = 1e8  # three years
# A client refuses trailers of more than 8 KiB; percent-encoding may triple a byte.
_LONGEST_TEXT = 2500
_UNQUOTED = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


@dataclass(frozen=True, slots=True)
class RequestHeaders:
    """Parsed header fields, shared by all requests with the same fields.

    Parameters
    ----------
    path : bytes
        Full method name with a leading slash.
    metadata : tuple of (str, str or bytes)
        Custom metadata; names that end in ``-bin`` have bytes.
    timeout_s : float, optional
        Timeout of the call.
    encoding : bytes
        Compression of the client's messages; empty for none.
    response_encoding : bytes
        Compression of responses; empty for none.
    response : tuple of fields
        Response headers.
    fault : StatusError, optional
        Error that refuses the call.
    """

    path: bytes = b""
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    timeout_s: float | None = None
    encoding: bytes = b""
    response_encoding: bytes = b""
    response: tuple[Field, ...] = _RESPONSE
    fault: StatusError | None = None


def read_headers(fields: Sequence[Field] | None, level: int) -> RequestHeaders:
    """Parse the header fields of a request.

    Parameters
    ----------
    fields : sequence of (name, value), optional
        None if they exceed the limit.
    level : int
        Compression level of responses, if the client accepts it: 0 none, 3 best.
    """
    if fields is None:
        text = "received metadata size exceeds hard limit"
        return RequestHeaders(fault=StatusError(RESOURCE_EXHAUSTED, text))
    named = dict(fields)
    try:
        _check_call(named)
        encoding = _response_encoding(named.get(b"grpc-accept-encoding", b""), level)
        response = (_STATUS_200, _CONTENT_TYPE, (b"grpc-encoding", encoding), _ACCEPT)
        return RequestHeaders(
            named[b":path"],
            tuple(_metadata(name, value) for name, value in fields if _is_metadata(name)),
            _timeout_s(named.get(b"grpc-timeout")),
            _encoding(named.get(b"grpc-encoding", b"identity")),
            encoding,
            response if encoding else _RESPONSE,
        )
    except StatusError as fault:
        return RequestHeaders(fault=fault)


def _check_call(named: dict[bytes, bytes]) -> None:
    """Refuse requests that HTTP/2 allows and gRPC does not, with the texts of gRPC's server."""
    if named[b":method"] != b"POST":
        raise StatusError(UNKNOWN, "Bad method header")
    if b"te" not in named:
        raise StatusError(UNKNOWN, "Missing :te header")
    if not named.get(b":authority", named.get(b"host")):
        raise StatusError(UNKNOWN, "Missing :authority header")


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
    if value not in WINDOW_BITS:
        raise StatusError(INTERNAL, "Error parsing 'grpc-encoding' metadata")
    return value


def _response_encoding(accepted: bytes, level: int) -> bytes:
    """Choose as gRPC does: the first, middle or last of the encodings that the client accepts."""
    names = {name.strip() for name in accepted.split(b",")}
    able = [name for name in WINDOW_BITS if name in names]
    if not level or not able:
        return b""
    return able[(0, len(able) // 2, len(able) - 1)[level - 1]]


# -- responses ---------------------------------------------------------------------------------------


def status_trailers(code: int, text: str, *, has_begun: bool) -> tuple[Field, ...]:
    """Return the trailers of a call; with response headers for a response that has not begun."""
    trailers: tuple[Field, ...] = ((b"grpc-status", b"%d" % code),)
    if text:
        short = text.encode("utf-8", "replace")[:_LONGEST_TEXT].decode("utf-8", "ignore")
        trailers += ((b"grpc-message", quote(short, safe=_UNQUOTED).encode()),)
    elif code:
        trailers += ((b"grpc-message", b""),)
    return trailers if has_begun else (_STATUS_200, _CONTENT_TYPE, *trailers)
