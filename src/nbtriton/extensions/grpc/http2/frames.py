"""Frames of HTTP/2 (RFC 9113 sections 4 and 6): types, flags, layouts and sizes."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct


class ErrorCode(IntEnum):
    """Error codes of RST_STREAM and GOAWAY (section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Http2ConnectionError(Exception):
    """A connection error (section 5.4.1).

    Parameters
    ----------
    text : str
        Debug data of the GOAWAY frame.
    code : ErrorCode, optional
    """

    def __init__(self, text: str, code: ErrorCode = ErrorCode.PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class HpackError(Http2ConnectionError):
    """A header block cannot be decoded, and neither can later ones (RFC 7541, RFC 9113 section 4.3)."""

    def __init__(self, text: str) -> None:
        super().__init__(f"Failed parsing HTTP/2 ({text})", ErrorCode.COMPRESSION_ERROR)


class Http2StreamError(Exception):
    """A stream error (section 5.4.2).

    Parameters
    ----------
    stream_id : int
    code : ErrorCode, optional
    """

    def __init__(self, stream_id: int, code: ErrorCode = ErrorCode.PROTOCOL_ERROR) -> None:
        super().__init__(f"stream {stream_id}: {code.name}")
        self.code = code
        self.stream_id = stream_id


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Frame header: length and type as one number, flags, stream identifier.
FRAME = Struct(">IBI")

(DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE,
 CONTINUATION) = range(10)  # fmt: skip
END_STREAM = ACK = 0x01
END_HEADERS, PADDED, PRIORITY_FLAG = 0x04, 0x08, 0x20
(HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE,
 MAX_HEADER_LIST_SIZE) = range(1, 7)  # fmt: skip
MAX_WINDOW = MAX_STREAM_ID = (1 << 31) - 1

_NUMBER = Struct(">IBII")
_SETTING = Struct(">HI")
# Minimum and maximum of a setting, and the error code beyond (section 6.5.2).
_ALLOWED = {
    ENABLE_PUSH: (0, 1, ErrorCode.PROTOCOL_ERROR),
    INITIAL_WINDOW_SIZE: (0, MAX_WINDOW, ErrorCode.FLOW_CONTROL_ERROR),
    MAX_FRAME_SIZE: (1 << 14, (1 << 24) - 1, ErrorCode.PROTOCOL_ERROR),
}


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return FRAME.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def number_frame(kind: int, stream_id: int, number: int) -> bytes:
    """Return a frame with one number as its payload: RST_STREAM or WINDOW_UPDATE."""
    return _NUMBER.pack(4 << 8 | kind, 0, stream_id, number)


def settings_frame(settings: Iterable[tuple[int, int]]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*one) for one in settings))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return identifiers and values in order; raises Http2ConnectionError."""
    if len(payload) % _SETTING.size:
        raise Http2ConnectionError("settings are cut off", ErrorCode.FRAME_SIZE_ERROR)
    settings = list(_SETTING.iter_unpack(payload))
    for name, value in settings:
        least, most, code = _ALLOWED.get(name, (0, value, ErrorCode.NO_ERROR))
        if not least <= value <= most:
            raise Http2ConnectionError("HTTP2 settings error", code)
    return settings


def strip_padding(flags: int, payload: bytes) -> bytes:
    """Return the payload of a DATA or HEADERS frame without padding and priority fields."""
    start = bool(flags & PADDED) + 5 * bool(flags & PRIORITY_FLAG)
    if start > len(payload):
        raise Http2ConnectionError("a frame is cut off", ErrorCode.FRAME_SIZE_ERROR)
    end = len(payload) - (payload[0] if flags & PADDED else 0)
    if start > end:
        raise Http2ConnectionError("a frame holds less than its padding")
    return payload[start:end]


def read_dependency(payload: bytes) -> int:
    """Return the stream that a priority depends on (RFC 7540 section 5.3.1)."""
    return int.from_bytes(payload[:4], "big") & MAX_STREAM_ID
