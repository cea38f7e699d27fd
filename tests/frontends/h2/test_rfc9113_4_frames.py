"""RFC 9113, section 4: frame format, frame size, field section compression."""

from __future__ import annotations

import pytest

from nbtriton.extensions.grpc.http2.frames import ErrorCode
from tests.frontends.h2.peer import BODY, CONNECTION, OK, PONG, Outcome, block, case, check, request
from tests.frontends.http2_raw import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    frame,
    setting,
)

LONG = frame(DATA, END_STREAM, 1, bytes((4 << 20) + 1))
OPEN = request(1, 0)
HALF = frame(HEADERS, END_STREAM, 1, block()[:9])


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        case("4.1 a frame of an unknown type is ignored", PONG, frame(0x16, 0, 0, bytes(8))),
        case("4.1 an undefined flag is ignored", PONG, frame(PING, 0x16, 0, bytes(8))),
        case("4.1 the reserved bit is ignored", PONG, frame(PING, 0, 1 << 31, bytes(8))),
        case("4.1 the reserved bit of a stream is ignored", OK(), frame(HEADERS, END_HEADERS | END_STREAM, 1 << 31 | 1, block())),
        case("4.2 a DATA frame of 2^14 bytes", OK(), OPEN, frame(DATA, END_STREAM, 1, bytes(1 << 14))),
        case("4.2 a DATA frame of 2^14 and 1 bytes as announced", OK(), OPEN, frame(DATA, END_STREAM, 1, bytes((1 << 14) + 1))),
        case("4.2 a DATA frame above MAX_FRAME_SIZE", CONNECTION(ErrorCode.FRAME_SIZE_ERROR), OPEN, LONG),
        case("4.2 a HEADERS frame above MAX_FRAME_SIZE", CONNECTION(ErrorCode.FRAME_SIZE_ERROR),
             frame(HEADERS, END_HEADERS | END_STREAM, 1, bytes((4 << 20) + 1))),
        case("4.2 a SETTINGS frame above MAX_FRAME_SIZE", CONNECTION(ErrorCode.FRAME_SIZE_ERROR), frame(4, 0, 0, bytes(6 << 20))),
        case("4.3 an invalid header block", CONNECTION(ErrorCode.COMPRESSION_ERROR), request(content=b"\x40")),
        case("4.3 an invalid block of a request that is refused", CONNECTION(ErrorCode.COMPRESSION_ERROR), request(content=b"\xff\xff")),
        case("4.3 PRIORITY within a header block", CONNECTION(ErrorCode.PROTOCOL_ERROR), HALF, frame(2, 0, 1, bytes(5))),
        case("4.3 DATA within a header block", CONNECTION(ErrorCode.PROTOCOL_ERROR), HALF, frame(DATA, 0, 1, BODY)),
        case("4.3 HEADERS of another stream within a header block", CONNECTION(ErrorCode.PROTOCOL_ERROR), HALF, request(3)),
        case("4.3 a header block in two frames", OK(), HALF, frame(CONTINUATION, END_HEADERS, 1, block()[9:])),
        case("5.5 an unknown frame on no stream", PONG, frame(0x16, 0, 0, bytes(9))),
        case("5.5 an unknown frame within a header block", CONNECTION(ErrorCode.PROTOCOL_ERROR), HALF, frame(0x16, 0, 0, bytes(9))),
        case("5.5 an unknown setting", PONG, setting(0xFF, 7)),
    ],
)  # fmt: skip
def test_4_frames(data: bytes, outcome: Outcome) -> None:
    check(data, outcome)
