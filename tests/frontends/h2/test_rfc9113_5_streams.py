"""RFC 9113, section 5: streams, their states, concurrency, priority and errors."""

from __future__ import annotations

import itertools

import pytest

from nbtriton.extensions.grpc.http2.frames import ErrorCode
from nbtriton.extensions.grpc.http2.streams import (
    TRANSITIONS,
    Http2Limits,
    StreamInput,
    StreamState,
    Violation,
)
from tests.frontends.h2.peer import (
    BODY,
    CONNECTION,
    OK,
    PONG,
    STREAM,
    Outcome,
    Peer,
    block,
    case,
    check,
    request,
)
from tests.frontends.http2_raw import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITIZED,
    PRIORITY,
    RST_STREAM,
    WINDOW_UPDATE,
    frame,
    number,
)

OPEN, DONE = request(1, 0), request()
CANCEL = frame(RST_STREAM, 0, 1, number(8))
PROTOCOL, CLOSED = ErrorCode.PROTOCOL_ERROR, ErrorCode.STREAM_CLOSED
MORE_DATA = frame(DATA, END_STREAM, 1, b"test")
WIDER = frame(WINDOW_UPDATE, 0, 1, number(100))
PRIORITY_1 = frame(PRIORITY, 0, 1, number(0) + b"\x10")


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        case("5.1 idle: DATA", CONNECTION(PROTOCOL), MORE_DATA),
        case("5.1 idle: RST_STREAM", CONNECTION(PROTOCOL), CANCEL),
        case("5.1 idle: WINDOW_UPDATE", CONNECTION(PROTOCOL), WIDER),
        case("5.1 idle: CONTINUATION", CONNECTION(PROTOCOL), frame(CONTINUATION, END_HEADERS, 1, block())),
        case("5.1 idle: PRIORITY", PONG, PRIORITY_1),
        case("5.1 idle: PRIORITY, and a request below it", OK(3), frame(PRIORITY, 0, 5, number(0) + b"\x10"), request(3)),
        case("5.1 half-closed (remote): CONTINUATION", CONNECTION(PROTOCOL), DONE, frame(CONTINUATION, END_HEADERS, 1, block())),
        case("5.1 half-closed (remote): PRIORITY", OK(), DONE, PRIORITY_1),
        case("5.1 closed: DATA after RST_STREAM", STREAM(CLOSED), OPEN, CANCEL, MORE_DATA),
        case("5.1 closed: HEADERS after RST_STREAM", CONNECTION(CLOSED), OPEN, CANCEL, DONE),
        case("5.1 closed: CONTINUATION after RST_STREAM", CONNECTION(PROTOCOL), OPEN, CANCEL, frame(CONTINUATION, END_HEADERS, 1, block())),
        case("5.1 closed: PRIORITY", PONG, OPEN, CANCEL, PRIORITY_1),
        case("5.1 closed: WINDOW_UPDATE", PONG, OPEN, CANCEL, WIDER),
        case("5.1 closed: RST_STREAM", PONG, OPEN, CANCEL, CANCEL),
        case("5.1.1 an even stream", CONNECTION(PROTOCOL), request(2)),
        case("5.1.1 a stream below one that was opened", CONNECTION(PROTOCOL), request(5), request(3)),
        case("5.1.1 DATA on a stream below one that was opened", CONNECTION(PROTOCOL), request(5), frame(DATA, 0, 3, BODY)),
        case("5.3.1 HEADERS that depend on themselves", STREAM(PROTOCOL),
             frame(HEADERS, END_HEADERS | PRIORITIZED, 1, number(1) + b"\x07" + block())),
        case("5.3.1 PRIORITY that depends on itself", STREAM(PROTOCOL), OPEN, frame(PRIORITY, 0, 1, number(1) + b"\x07")),
        case("5.3.1 PRIORITY of an idle stream that depends on itself", CONNECTION(PROTOCOL), frame(PRIORITY, 0, 1, number(1) + b"\x07")),
        case("5.4.1 an invalid PING", CONNECTION(ErrorCode.FRAME_SIZE_ERROR), frame(PING, 0, 0, bytes(6))),
    ],
)  # fmt: skip
def test_5_streams(data: bytes, outcome: Outcome) -> None:
    check(data, outcome)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(MORE_DATA, CLOSED, id="DATA"),
        pytest.param(DONE, CLOSED, id="HEADERS"),
        pytest.param(WIDER, None, id="WINDOW_UPDATE"),
        pytest.param(CANCEL, None, id="RST_STREAM"),
    ],
)
def test_5_1_half_closed_remote_before_the_answer(data: bytes, code: ErrorCode | None) -> None:
    peer = Peer(answers=False)
    peer.send(DONE + data)
    assert peer.reset(1) is code
    assert peer.goaway is None


@pytest.mark.parametrize(
    ("data", "reset", "goaway"),
    [
        pytest.param(MORE_DATA, CLOSED, None, id="DATA"),
        pytest.param(DONE, None, CLOSED, id="HEADERS"),
        pytest.param(frame(CONTINUATION, END_HEADERS, 1, block()), None, PROTOCOL, id="CONTINUATION"),
        pytest.param(PRIORITY_1 + WIDER + CANCEL, None, None, id="others"),
    ],
)  # fmt: skip
def test_5_1_closed_after_the_answer(
    data: bytes, reset: ErrorCode | None, goaway: ErrorCode | None
) -> None:
    peer = Peer()
    peer.send(DONE)
    assert peer.data(1) == BODY
    peer.send(data)
    assert (peer.reset(1), peer.goaway) == (reset, goaway)


def test_5_1_frames_on_their_way_to_a_stream_that_was_reset_are_ignored() -> None:
    peer = Peer(answers=False)
    peer.send(OPEN)
    stream = peer.connection.streams[1]
    peer.connection.send_headers(stream, ((b":status", b"200"),), end_stream=True)
    peer.send(frame(DATA, 0, 1, BODY) + WIDER + frame(HEADERS, 5, 1, b""))
    assert peer.reset(1) is ErrorCode.NO_ERROR
    assert len(peer.of(RST_STREAM)) == 1
    assert peer.goaway is None


def test_5_1_2_streams_above_the_limit_are_refused_and_the_others_are_not() -> None:
    peer = Peer(Http2Limits(max_concurrent_streams=2))
    peer.send(b"".join(request(stream, 0) for stream in (1, 3, 5)))
    assert [peer.reset(stream) for stream in (1, 3, 5)] == [None, None, ErrorCode.REFUSED_STREAM]
    peer.send(frame(DATA, END_STREAM, 5, BODY) + frame(DATA, END_STREAM, 1, BODY))
    peer.send(request(7))
    assert peer.data(1) == peer.data(7) == BODY
    assert peer.goaway is None


def test_5_4_1_goaway_names_the_last_stream() -> None:
    peer = Peer()
    peer.send(request(7) + frame(PING, 0, 0, bytes(6)))
    assert peer.of(GOAWAY)[0].content[:8] == number(7) + number(ErrorCode.FRAME_SIZE_ERROR)


def test_5_1_the_table_has_a_state_or_an_error_for_every_input() -> None:
    for received, state in itertools.product(StreamInput, StreamState):
        found = TRANSITIONS[received][state]
        if isinstance(found, Violation):
            assert found.code in (PROTOCOL, CLOSED)
        else:
            assert found is not StreamState.IDLE
    assert set(TRANSITIONS) == set(StreamInput)
