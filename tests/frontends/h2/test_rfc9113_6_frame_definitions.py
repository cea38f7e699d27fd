"""RFC 9113, section 6: the frames, and section 7: error codes."""

from __future__ import annotations

import struct
import sys
from types import FrameType

import pytest

from nbtriton.extensions.grpc.http2.frames import ErrorCode
from nbtriton.extensions.grpc.http2.streams import Http2Limits
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
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITIZED,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    number,
    setting,
)

OPEN, DONE = request(1, 0), request()
PROTOCOL, SIZE, FLOW = (
    ErrorCode.PROTOCOL_ERROR,
    ErrorCode.FRAME_SIZE_ERROR,
    ErrorCode.FLOW_CONTROL_ERROR,
)
FIELDS = block()
THIRD = len(FIELDS) // 3
LAST = frame(DATA, END_STREAM, 1, BODY)
FIRST_PART = frame(HEADERS, END_STREAM, 1, FIELDS[:THIRD])
WIDEST = number((1 << 31) - 1)
TABLE_SIZE, ENABLE_PUSH, WINDOW_SIZE, FRAME_SIZE = 1, 2, 4, 5


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        case("6.1 DATA", OK(), OPEN, LAST),
        case("6.1 several DATA frames", OK(), OPEN, frame(DATA, 0, 1, BODY), LAST),
        case("6.1 padded DATA", OK(), OPEN, frame(DATA, END_STREAM | PADDED, 1, b"\x06" + BODY + bytes(6))),
        case("6.1 empty DATA", OK(), OPEN, frame(DATA, END_STREAM, 1)),
        case("6.1 DATA on stream 0", CONNECTION(PROTOCOL), frame(DATA, END_STREAM, 0, BODY)),
        case("6.1 DATA on a stream that is not open", STREAM(ErrorCode.STREAM_CLOSED), OPEN, frame(RST_STREAM, 0, 1, number(8)), LAST),
        case("6.1 DATA with more padding than payload", CONNECTION(PROTOCOL), OPEN, frame(DATA, END_STREAM | PADDED, 1, b"\x08test")),
        case("6.1 padded DATA without a pad length", CONNECTION(SIZE), OPEN, frame(DATA, END_STREAM | PADDED, 1)),
        case("6.2 HEADERS", OK(), DONE),
        case("6.2 padded HEADERS", OK(), frame(HEADERS, 0xD, 1, b"\x06" + FIELDS + bytes(6))),
        case("6.2 HEADERS with a priority", OK(), frame(HEADERS, 0x25, 1, number(0) + b"\xff" + FIELDS)),
        case("6.2 padded HEADERS with a priority", OK(), frame(HEADERS, 0x2D, 1, b"\x02" + number(0) + b"\xff" + FIELDS + bytes(2))),
        case("6.2 HEADERS without END_HEADERS, and PRIORITY", CONNECTION(PROTOCOL), FIRST_PART, frame(PRIORITY, 0, 1, bytes(5))),
        case("6.2 HEADERS without END_HEADERS, and HEADERS", CONNECTION(PROTOCOL), FIRST_PART, request(3)),
        case("6.2 HEADERS on stream 0", CONNECTION(PROTOCOL), request(0)),
        case("6.2 HEADERS with more padding than payload", CONNECTION(PROTOCOL), frame(HEADERS, 0xD, 1, b"\xff" + FIELDS)),
        case("6.2 HEADERS that lack their priority", CONNECTION(SIZE), frame(HEADERS, END_HEADERS | PRIORITIZED, 1, b"abc")),
        case("6.3 PRIORITY, weight 1", OK(), frame(PRIORITY, 0, 1, number(0) + b"\0"), DONE),
        case("6.3 PRIORITY, weight 256", OK(), frame(PRIORITY, 0, 1, number(0) + b"\xff"), DONE),
        case("6.3 PRIORITY that depends on a stream", OK(), frame(PRIORITY, 0, 1, number(3) + b"\xff"), DONE),
        case("6.3 PRIORITY, exclusive", OK(), frame(PRIORITY, 0, 1, number(1 << 31 | 3) + b"\xff"), DONE),
        case("6.3 PRIORITY on stream 0", CONNECTION(PROTOCOL), frame(PRIORITY, 0, 0, bytes(5))),
        case("6.3 PRIORITY of another length", STREAM(SIZE), OPEN, frame(PRIORITY, 0, 1, bytes(4))),
        case("6.4 RST_STREAM", PONG, OPEN, frame(RST_STREAM, 0, 1, number(8))),
        case("6.4 RST_STREAM on stream 0", CONNECTION(PROTOCOL), frame(RST_STREAM, 0, 0, number(8))),
        case("6.4 RST_STREAM on an idle stream", CONNECTION(PROTOCOL), frame(RST_STREAM, 0, 1, number(8))),
        case("6.4 RST_STREAM of another length", CONNECTION(SIZE), OPEN, frame(RST_STREAM, 0, 1, b"abc")),
        case("6.5 SETTINGS", PONG, frame(SETTINGS)),
        case("6.5 SETTINGS ACK", PONG, frame(SETTINGS, ACK)),
        case("6.5 SETTINGS ACK with a payload", CONNECTION(SIZE), frame(SETTINGS, ACK, 0, bytes(6))),
        case("6.5 SETTINGS on a stream", CONNECTION(PROTOCOL), frame(SETTINGS, 0, 1, bytes(6))),
        case("6.5 SETTINGS of another length", CONNECTION(SIZE), frame(SETTINGS, 0, 0, bytes(3))),
        case("6.5.2 ENABLE_PUSH of 2", CONNECTION(PROTOCOL), setting(ENABLE_PUSH, 2)),
        case("6.5.2 INITIAL_WINDOW_SIZE above 2^31-1", CONNECTION(FLOW), setting(WINDOW_SIZE, 1 << 31)),
        case("6.5.2 MAX_FRAME_SIZE below 2^14", CONNECTION(PROTOCOL), setting(FRAME_SIZE, (1 << 14) - 1)),
        case("6.5.2 MAX_FRAME_SIZE above 2^24-1", CONNECTION(PROTOCOL), setting(FRAME_SIZE, 1 << 24)),
        case("6.5.2 an unknown setting", PONG, setting(0xFF, 1)),
        case("6.6 PUSH_PROMISE", CONNECTION(PROTOCOL), OPEN, frame(PUSH_PROMISE, END_HEADERS, 1, number(2) + FIELDS)),
        case("6.7 PING on a stream", CONNECTION(PROTOCOL), frame(PING, 0, 1, bytes(8))),
        case("6.7 PING of another length", CONNECTION(SIZE), frame(PING, 0, 0, bytes(6))),
        case("6.8 GOAWAY", OK(), frame(GOAWAY, 0, 0, bytes(8) + b"h2"), DONE),
        case("6.8 GOAWAY on a stream", CONNECTION(PROTOCOL), frame(GOAWAY, 0, 1, bytes(8))),
        case("6.8 GOAWAY that is cut off", CONNECTION(SIZE), frame(GOAWAY, 0, 0, bytes(7))),
        case("6.9 WINDOW_UPDATE of the connection", PONG, frame(WINDOW_UPDATE, 0, 0, number(100))),
        case("6.9 WINDOW_UPDATE of a stream", OK(), OPEN, frame(WINDOW_UPDATE, 0, 1, number(100)), LAST),
        case("6.9 WINDOW_UPDATE by 0", CONNECTION(PROTOCOL), frame(WINDOW_UPDATE, 0, 0, number(0))),
        case("6.9 WINDOW_UPDATE of a stream by 0", STREAM(PROTOCOL), OPEN, frame(WINDOW_UPDATE, 0, 1, number(0))),
        case("6.9 WINDOW_UPDATE of another length", CONNECTION(SIZE), frame(WINDOW_UPDATE, 0, 0, bytes(3))),
        case("6.9.1 the connection's window above 2^31-1", CONNECTION(FLOW), frame(WINDOW_UPDATE, 0, 0, WIDEST) * 2),
        case("6.9.1 a stream's window above 2^31-1", STREAM(FLOW), OPEN, frame(WINDOW_UPDATE, 0, 1, WIDEST) * 2),
        case("6.9.2 a setting that makes a stream's window too wide", CONNECTION(FLOW), OPEN, frame(WINDOW_UPDATE, 0, 1, number(1 << 30)), setting(WINDOW_SIZE, (1 << 31) - 1)),
        case("6.10 CONTINUATION", OK(), FIRST_PART, frame(CONTINUATION, END_HEADERS, 1, FIELDS[THIRD:])),
        case("6.10 several CONTINUATION frames", OK(), FIRST_PART, frame(CONTINUATION, 0, 1, FIELDS[THIRD : 2 * THIRD]), frame(CONTINUATION, END_HEADERS, 1, FIELDS[2 * THIRD :])),
        case("6.10 CONTINUATION, and another frame", CONNECTION(PROTOCOL), FIRST_PART, frame(CONTINUATION, 0, 1, FIELDS[THIRD:]), frame(DATA, END_STREAM, 1, BODY)),
        case("6.10 CONTINUATION on stream 0", CONNECTION(PROTOCOL), FIRST_PART, frame(CONTINUATION, END_HEADERS, 0, FIELDS[THIRD:])),
        case("6.10 CONTINUATION after END_HEADERS", CONNECTION(PROTOCOL), OPEN, frame(CONTINUATION, END_HEADERS, 1, FIELDS)),
        case("6.10 CONTINUATION after a last CONTINUATION", CONNECTION(PROTOCOL), frame(HEADERS, 0, 1, FIELDS[:THIRD]), frame(CONTINUATION, END_HEADERS, 1, FIELDS[THIRD:]), frame(CONTINUATION, END_HEADERS, 1, FIELDS)),
        case("6.10 CONTINUATION after DATA", CONNECTION(PROTOCOL), OPEN, frame(DATA, 0, 1, BODY), frame(CONTINUATION, END_HEADERS, 1, FIELDS)),
        case("7 GOAWAY with an unknown code", PONG, frame(GOAWAY, 0, 0, number(0) + number(0xFF))),
        case("7 RST_STREAM with an unknown code", PONG, OPEN, frame(RST_STREAM, 0, 1, number(0xFF))),
    ],
)  # fmt: skip
def test_6_frame_definitions(data: bytes, outcome: Outcome) -> None:
    check(data, outcome)


# -- 6.5.3, 6.7: acknowledgements ---------------------------------------------------------------------


def test_6_5_3_every_SETTINGS_is_acknowledged_and_no_ACK_is() -> None:
    peer = Peer()
    peer.send(frame(SETTINGS) + frame(SETTINGS, ACK) + setting(WINDOW_SIZE, 7))
    assert [one.flags for one in peer.of(SETTINGS)] == [0, ACK, ACK, ACK]


def test_6_5_3_values_of_one_frame_apply_in_their_order() -> None:
    peer = Peer()
    two = struct.pack(">HIHI", WINDOW_SIZE, 100, WINDOW_SIZE, 1)
    peer.send(frame(SETTINGS, 0, 0, two) + DONE)
    assert peer.data(1) == BODY[:1]


def test_6_7_a_PING_is_acknowledged_with_its_payload_and_an_ACK_is_not() -> None:
    peer = Peer()
    peer.send(frame(PING, ACK, 0, b"12345678") + frame(PING, 0, 0, b"abcdefgh"))
    assert [(one.flags, one.content) for one in peer.of(PING)] == [(ACK, b"abcdefgh")]


# -- 6.8: GOAWAY --------------------------------------------------------------------------------------


def test_6_8_a_shutdown_is_announced_and_then_new_streams_are_ignored() -> None:
    peer = Peer(answers=False)
    peer.send(OPEN)
    peer.connection.begin_shutdown()
    peer.read()
    (ping,) = peer.of(PING)
    assert peer.of(GOAWAY)[0].content == number((1 << 31) - 1) + number(0)
    peer.answers = True
    peer.send(request(3) + frame(PING, ACK, 0, ping.content))
    assert peer.data(3) == BODY  # the client could not know
    assert type(peer.events[-1]).__name__ == "ShutdownAcknowledged"
    peer.connection.finish_shutdown()
    peer.send(request(5, 0) + frame(DATA, END_STREAM, 5, BODY) + LAST)
    assert peer.of(GOAWAY)[1].content == number(3) + number(0)
    assert peer.data(1) == BODY
    assert 5 not in peer.fields
    assert len(peer.of(GOAWAY)) == 2


# -- 6.9: flow control --------------------------------------------------------------------------------


def test_6_9_1_a_response_keeps_within_the_window_of_its_stream() -> None:
    peer = Peer()
    peer.send(setting(WINDOW_SIZE, 1) + DONE)
    assert [one.content for one in peer.of(DATA)] == [BODY[:1]]
    peer.send(frame(WINDOW_UPDATE, 0, 1, number(3)))
    assert peer.data(1) == BODY[:4]
    peer.send(frame(WINDOW_UPDATE, 0, 1, number(300)))
    assert peer.data(1) == BODY
    assert dict(peer.fields[1])[b"grpc-status"] == b"0"


def test_6_9_1_responses_share_the_window_of_the_connection() -> None:
    peer = Peer(answers=False)
    peer.send(setting(WINDOW_SIZE, 1 << 20) + request(1) + request(3))
    for stream in list(peer.connection.streams.values()):
        peer.connection.send_data(stream, bytes(40_000))
    peer.read()
    assert len(peer.data(1)) + len(peer.data(3)) == 65_535
    assert max(len(one.content) for one in peer.of(DATA)) <= 16_384
    peer.send(frame(WINDOW_UPDATE, 0, 0, number(14_465)))
    assert len(peer.data(1)) == len(peer.data(3)) == 40_000


def test_6_9_2_a_setting_changes_the_windows_of_open_streams_even_below_zero() -> None:
    peer = Peer()
    peer.send(setting(WINDOW_SIZE, 3) + DONE)
    assert peer.data(1) == BODY[:3]
    peer.send(setting(WINDOW_SIZE, 0) + frame(WINDOW_UPDATE, 0, 1, number(3)))
    assert peer.data(1) == BODY[:3]
    peer.send(frame(WINDOW_UPDATE, 0, 1, number(1)))
    assert peer.data(1) == BODY[:4]
    peer.send(setting(WINDOW_SIZE, 100))
    assert peer.data(1) == BODY


def test_6_9_a_client_that_ignores_the_window_of_a_stream_loses_it() -> None:
    peer = Peer(Http2Limits(stream_window=1000))
    peer.send(OPEN + frame(DATA, 0, 1, bytes(1001)) + request(3))
    assert peer.reset(1) is FLOW
    assert peer.data(3) == BODY


def test_6_9_windows_are_restored_as_data_is_read() -> None:
    peer = Peer(Http2Limits(stream_window=1000, connection_window=70_000))
    peer.send(OPEN + frame(DATA, 0, 1, bytes(600)))
    stream = peer.connection.streams[1]
    assert not peer.of(WINDOW_UPDATE, 1)
    peer.connection.acknowledge(stream)
    peer.send(frame(DATA, PADDED, 1, b"\x09" + bytes(400) + bytes(9)))
    assert [one.content for one in peer.of(WINDOW_UPDATE, 1)] == [number(600)]
    for _ in range(100):
        peer.connection.acknowledge(stream)
        peer.send(frame(DATA, 0, 1, bytes(500)))
    given = sum(int.from_bytes(one.content, "big") for one in peer.of(WINDOW_UPDATE, 0)[1:])
    assert 0 <= 600 + 410 + 50_000 - given <= 35_000


def test_6_5_2_a_response_block_longer_than_a_frame_is_continued() -> None:
    peer = Peer(answers=False)
    peer.send(DONE)
    fields = ((b":status", b"200"), (b"x", bytes(40_000)))
    peer.connection.send_headers(peer.connection.streams[1], fields)
    peer.connection.send_headers(peer.connection.streams[1], ((b"a", b"b"),), end_stream=True)
    sent = peer.connection.data_to_send()
    assert isinstance(sent, bytes)
    assert sent[3:5] == bytes((HEADERS, 0))
    at = 9 + 16_384
    assert sent[at + 3 : at + 5] == bytes((CONTINUATION, 0))
    at += 9 + 16_384
    assert sent[at + 3 : at + 5] == bytes((CONTINUATION, END_HEADERS))


# -- floods -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(frame(SETTINGS) * 101, id="SETTINGS"),
        pytest.param(b"".join(request(n, 0) + frame(RST_STREAM, 0, n, number(8)) for n in range(1, 2003, 2)), id="RST_STREAM"),
        pytest.param(b"".join(request(n, 0) + frame(WINDOW_UPDATE, 0, n, number(0)) for n in range(1, 2003, 2)), id="stream-errors"),
        pytest.param(b"".join(request(n, 0) for n in range(1, 4003, 2)), id="refused-streams"),
        pytest.param(frame(HEADERS, 0, 1, FIELDS) + frame(CONTINUATION, 0, 1) * 64, id="CONTINUATION"),
        pytest.param(frame(HEADERS, 0, 1, bytes(16_000)) + frame(CONTINUATION, 0, 1, bytes(16_000)) * 2, id="a-long-block"),
    ],
)  # fmt: skip
def test_what_costs_the_server_more_than_the_client_ends_the_connection(data: bytes) -> None:
    peer = Peer(answers=False)
    peer.send(data)
    assert peer.goaway is ErrorCode.ENHANCE_YOUR_CALM


def test_a_peer_that_does_not_read_gets_a_bounded_number_of_acknowledgements() -> None:
    peer = Peer(Http2Limits(max_unread_replies=10))
    peer.send(frame(PING, 0, 0, bytes(8)) * 20)
    assert len(peer.of(PING)) == 20
    peer.connection.writer.is_paused = True
    peer.send(frame(PING, 0, 0, bytes(8)) * 10)
    assert peer.goaway is None
    peer.send(frame(PING, 0, 0, bytes(8)))
    assert peer.goaway is ErrorCode.ENHANCE_YOUR_CALM


def test_a_peer_that_does_not_read_gets_a_bounded_number_of_header_blocks() -> None:
    peer = Peer(Http2Limits(max_unread_replies=10), answers=False)
    peer.connection.writer.is_paused = True
    for n in range(1, 21, 2):
        peer.send(request(n))
        peer.connection.send_headers(peer.connection.streams[n], ((b"a", b"b"),), end_stream=True)
    peer.send(request(21))
    assert peer.goaway is None
    peer.connection.send_headers(peer.connection.streams[21], ((b"a", bytes(300)),), end_stream=True)  # fmt: skip
    peer.send(request(23))
    assert peer.goaway is ErrorCode.ENHANCE_YOUR_CALM


def _calls_for_a_window_update(waiting: int) -> int:
    """Count our calls for a WINDOW_UPDATE of the connection while responses wait for their own windows."""
    peer = Peer()
    peer.send(setting(WINDOW_SIZE, 0) + b"".join(request(1 + 2 * n) for n in range(waiting)))
    assert not peer.of(DATA)
    calls = 0

    def count(running: FrameType, event: str, _: object) -> None:
        nonlocal calls
        # Not what a garbage collection calls, which may come at any allocation: hypothesis times them.
        ours = running.f_globals["__name__"].startswith("nbtriton.")
        calls += event == "call" and ours

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        peer.send(frame(WINDOW_UPDATE, 0, 0, number(1)))
    finally:
        sys.setprofile(before)
    peer.send(setting(WINDOW_SIZE, 100))
    assert len(peer.of(DATA)) == waiting
    return calls


def test_6_9_streams_that_wait_for_their_own_windows_cost_nothing_as_the_connection_s_grows() -> None:  # fmt: skip
    assert _calls_for_a_window_update(100) == _calls_for_a_window_update(1)


def test_resets_are_earned_by_answers_and_by_time() -> None:
    peer = Peer(Http2Limits(max_concurrent_streams=2, resets_per_s=1))
    for n in range(1, 101, 4):
        peer.send(request(n) + request(n + 2, 0) + frame(RST_STREAM, 0, n + 2, number(8)))
    assert peer.goaway is None
    for n, now in enumerate((1.0, 2.0, 3.0, 4.0)):
        stream = 201 + 2 * n
        peer.send(request(stream, 0) + frame(RST_STREAM, 0, stream, number(8)), now)
    assert peer.goaway is None
    for stream in (301, 303, 305):
        peer.send(request(stream, 0) + frame(RST_STREAM, 0, stream, number(8)), 4.0)
    assert peer.goaway is ErrorCode.ENHANCE_YOUR_CALM


def test_one_call_reads_no_more_than_a_turn() -> None:
    peer = Peer(Http2Limits(turn_bytes=100), answers=False)
    data = b"".join(request(n) for n in range(1, 201, 2))
    seen = len(peer.connection.receive_data(data, 0.0))
    turns = 1
    while peer.connection.has_more:
        found = len(peer.connection.receive_data(b"", 0.0))
        assert found <= 2
        seen += found
        turns += 1
    assert seen == 100
    assert turns >= 50
