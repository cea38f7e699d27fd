"""Frames of HTTP/2 (RFC 9113): their numbers, their shape, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

__all__ = [
    "ACK", "CANCEL", "COMPRESSION_ERROR", "CONTINUATION", "DATA", "END_HEADERS", "END_STREAM",
    "ENHANCE_YOUR_CALM", "FLOW_CONTROL_ERROR", "FRAME", "FRAME_SIZE_ERROR", "GOAWAY", "HEADERS",
    "HEADER_TABLE_SIZE", "INITIAL_WINDOW_SIZE", "INTERNAL_ERROR", "LARGEST_WINDOW",
    "MAX_CONCURRENT_STREAMS", "MAX_FRAME_SIZE", "MAX_HEADER_LIST_SIZE", "NO_ERROR", "PADDED", "PING", "PREFACE",
    "PRIORITIZED", "PRIORITY", "PROTOCOL_ERROR", "PUSH_PROMISE", "REFUSED_STREAM", "RST_STREAM", "SETTINGS",
    "WINDOW_UPDATE", "FaultError", "content_of", "frame", "number_frame", "read_settings", "settings_frame",
]  # fmt: skip

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Length and kind in one number, flags, stream.
FRAME = Struct(">IBI")

(DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE,
 CONTINUATION) = range(10)  # fmt: skip
END_STREAM = ACK = 0x01
END_HEADERS, PADDED, PRIORITIZED = 0x04, 0x08, 0x20
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = range(4)
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 6, 7, 8, 9, 11
HEADER_TABLE_SIZE, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 1, 3, 4
MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 5, 6
LARGEST_WINDOW = (1 << 31) - 1

_NUMBER = Struct(">IBII")
_SETTING = Struct(">HI")
_LEAST_FRAME, _MOST_FRAME = 1 << 14, (1 << 24) - 1


class FaultError(Exception):
    """The other side breaks the protocol: the connection ends.

    Parameters
    ----------
    code : int
        Of HTTP/2's errors.
    text : str
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    """Return a whole frame."""
    return FRAME.pack(len(content) << 8 | kind, flags, stream) + content


def number_frame(kind: int, stream: int, number: int) -> bytes:
    """Return a frame that holds one number: RST_STREAM or WINDOW_UPDATE."""
    return _NUMBER.pack(4 << 8 | kind, 0, stream, number)


def settings_frame(settings: Mapping[int, int]) -> bytes:
    """Return a frame that tells settings."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*one) for one in settings.items()))


def read_settings(content: bytes) -> dict[int, int]:
    """Return settings by their numbers, the last one of each; raises FaultError."""
    if len(content) % _SETTING.size:
        raise FaultError(FRAME_SIZE_ERROR, "settings are cut off")
    settings = dict(_SETTING.iter_unpack(content))
    if settings.get(INITIAL_WINDOW_SIZE, 0) > LARGEST_WINDOW:
        raise FaultError(FLOW_CONTROL_ERROR, "HTTP2 settings error")
    if not _LEAST_FRAME <= settings.get(MAX_FRAME_SIZE, _LEAST_FRAME) <= _MOST_FRAME:
        raise FaultError(PROTOCOL_ERROR, "HTTP2 settings error")
    return settings


def content_of(flags: int, content: bytes) -> bytes:
    """Return what a DATA or HEADERS frame holds, without padding and priority; raises FaultError."""
    at, end = 0, len(content)
    if flags & PADDED:
        at = 1
        end -= content[0] if content else 0
    if flags & PRIORITIZED:
        at += 5
    if at > end:
        raise FaultError(PROTOCOL_ERROR, "a frame holds less than its padding")
    return content[at:end]
