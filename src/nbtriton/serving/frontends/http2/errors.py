"""Errors of HTTP/2: connection errors and stream errors (RFC 9113 sections 5.4 and 7)."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ErrorCode", "HpackError", "Http2ConnectionError", "Http2StreamError"]


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
    """A header block cannot be decoded; nor can later ones (RFC 7541, RFC 9113 section 4.3)."""

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
