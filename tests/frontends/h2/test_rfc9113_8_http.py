"""RFC 9113, section 8: HTTP semantics: requests, trailers, field names and values, content-length."""

from __future__ import annotations

import pytest

from nbtriton.extensions.grpc.http2.frames import ErrorCode
from nbtriton.extensions.grpc.http2.hpack import Encoder
from nbtriton.extensions.grpc.http2.streams import Http2Limits
from tests.frontends.h2.peer import (
    BODY,
    CONNECTION,
    OK,
    REQUEST,
    STREAM,
    Outcome,
    Peer,
    block,
    case,
    check,
    request,
)
from tests.frontends.http2_raw import DATA, END_HEADERS, END_STREAM, HEADERS, frame, number

OPEN = request(1, 0)
MALFORMED = STREAM(ErrorCode.PROTOCOL_ERROR)


def malformed(name: str, changes: dict[bytes, bytes | None] | None = None, more: tuple[bytes, bytes] | None = None) -> object:  # fmt: skip
    return case(name, MALFORMED, request(content=block(changes, [more] if more else [])))


def fine(name: str, *more: tuple[bytes, bytes]) -> object:
    return case(name, OK(), request(content=block(None, more)))


def trailers(*fields: tuple[bytes, bytes], flags: int = END_STREAM) -> bytes:
    return frame(HEADERS, END_HEADERS | flags, 1, Encoder().encode(fields))


def sized(size: bytes, *parts: bytes) -> bytes:
    head = request(1, 0, block(None, [(b"content-length", size)]))
    frames = [frame(DATA, 0, 1, part) for part in parts[:-1]]
    return b"".join((head, *frames, frame(DATA, END_STREAM, 1, parts[-1])))


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        case("8.1 POST", OK(), request()),
        case("8.1 GET is HTTP, whatever gRPC says", OK(), request(content=block({b":method": b"GET"}))),
        case("8.1 HEAD is HTTP, whatever gRPC says", OK(), request(content=block({b":method": b"HEAD"}))),
        case("8.1 POST with trailers", OK(), OPEN, frame(DATA, 0, 1, BODY), trailers((b"x-a", b"b"))),
        case("8.1 a second HEADERS without END_STREAM", MALFORMED, OPEN, frame(DATA, 0, 1, BODY), trailers((b"x-a", b"b"), flags=0)),
        malformed("8.2 a name in capital letters", more=(b"X-A", b"b")),
        malformed("8.2.1 a name with a space", more=(b"x a", b"b")),
        malformed("8.2.1 a name with a colon", more=(b"x:a", b"b")),
        malformed("8.2.1 a name that is empty", more=(b"", b"b")),
        malformed("8.2.1 a name beyond ASCII", more=(b"x\xe9", b"b")),
        malformed("8.2.1 a value with a line break", more=(b"x-a", b"b\nc")),
        malformed("8.2.1 a value with a carriage return", more=(b"x-a", b"b\rc")),
        malformed("8.2.1 a value with a zero", more=(b"x-a", b"b\0c")),
        malformed("8.2.1 a path with a line break", {b":path": b"/a\n"}),
        fine("8.2.1 a value beyond ASCII", (b"x-a", "ä".encode())),
        fine("8.2.1 a value with space around it is left as it is, as by grpc-core", (b"x-a", b" b ")),
        fine("8.2.1 a name with any character of a token", (b"!#$%&'*+-.^_`|~09az", b"b")),
        malformed("8.2.2 connection", more=(b"connection", b"keep-alive")),
        malformed("8.2.2 keep-alive", more=(b"keep-alive", b"1")),
        malformed("8.2.2 proxy-connection", more=(b"proxy-connection", b"close")),
        malformed("8.2.2 transfer-encoding", more=(b"transfer-encoding", b"chunked")),
        malformed("8.2.2 upgrade", more=(b"upgrade", b"h2c")),
        malformed("8.2.2 te other than trailers", {b"te": b"trailers, deflate;q=0.5"}),
        malformed("8.3 an unknown pseudo-header field", more=(b":test", b"b")),
        malformed("8.3 a response's pseudo-header field", more=(b":status", b"200")),
        case("8.3 a pseudo-header field in trailers", MALFORMED, OPEN, frame(DATA, 0, 1, BODY), trailers((b":method", b"POST"))),
        case("8.3 a malformed field in trailers", MALFORMED, OPEN, trailers((b"X-A", b"b"))),
        case("8.3 a pseudo-header field after others", MALFORMED, request(content=Encoder().encode(REQUEST[1:] + REQUEST[:1]))),
        malformed("8.3.1 an empty path", {b":path": b""}),
        malformed("8.3.1 no method", {b":method": None}),
        malformed("8.3.1 no scheme", {b":scheme": None}),
        malformed("8.3.1 no path", {b":path": None}),
        case("8.3.1 the method twice", MALFORMED, request(content=Encoder().encode((REQUEST[0], *REQUEST)))),
        case("8.3.1 the scheme twice", MALFORMED, request(content=Encoder().encode((REQUEST[1], *REQUEST)))),
        case("8.3.1 the path twice", MALFORMED, request(content=Encoder().encode((REQUEST[2], *REQUEST)))),
        malformed("8.5 CONNECT with a path", {b":method": b"CONNECT", b":authority": None}),
        case("8.1.1 content-length of one DATA frame", OK(), sized(b"9", BODY)),
        case("8.1.1 content-length of several DATA frames", OK(), sized(b"18", BODY, BODY)),
        case("8.1.1 content-length and padding", OK(), request(1, 0, block(None, [(b"content-length", b"9")])), frame(DATA, 9, 1, b"\x02" + BODY + bytes(2))),
        case("8.1.1 content-length above one DATA frame", MALFORMED, sized(b"10", BODY)),
        case("8.1.1 content-length below one DATA frame", MALFORMED, sized(b"8", BODY)),
        case("8.1.1 content-length unlike the sum", MALFORMED, sized(b"10", BODY, BODY)),
        case("8.1.1 content-length without content", MALFORMED, request(content=block(None, [(b"content-length", b"1")]))),
        case("8.1.1 content-length above what came before trailers", MALFORMED, request(1, 0, block(None, [(b"content-length", b"1")])), trailers((b"x-a", b"b"))),
        case("8.1.1 content-length that is no number", MALFORMED, sized(b"-9", BODY)),
        case("8.1.1 content-length of more digits than Python reads", MALFORMED, sized(b"9" * 5000, BODY)),
        case("8.1.1 two lengths", MALFORMED, request(content=block(None, [(b"content-length", b"0"), (b"content-length", b"1")]))),
        case("8.1.1 one length twice", OK(), request(content=block(None, [(b"content-length", b"0"), (b"content-length", b"0")]))),
        case("8.4 PUSH_PROMISE", CONNECTION(ErrorCode.PROTOCOL_ERROR), frame(5, END_HEADERS, 1, number(2) + block())),
    ],
)  # fmt: skip
def test_8_http_semantics(data: bytes, outcome: Outcome) -> None:
    check(data, outcome)


def test_8_1_a_response_that_ends_before_its_request_resets_the_stream_without_an_error() -> None:
    peer = Peer(answers=False)
    peer.send(OPEN)
    stream = peer.connection.streams[1]
    fields = ((b":status", b"200"),)
    peer.connection.send_response(stream, fields, (BODY,), ((b"grpc-status", b"0"),))
    peer.read()
    assert peer.data(1) == BODY
    assert peer.reset(1) is ErrorCode.NO_ERROR
    assert not peer.connection.streams


def test_10_5_1_fields_above_the_limit_are_reported_without_being_held() -> None:
    peer = Peer(Http2Limits(max_header_list_size=16 << 10), answers=False)
    peer.send(request(content=block(None, [(b"x", bytes(b"y" * 8000))] * 3)))
    (event,) = peer.events
    assert isinstance(event, tuple)
    _, headers, _, _ = event
    assert headers is not None
    assert headers.fields is None


def test_a_header_block_is_decoded_once_while_no_table_changes() -> None:
    peer = Peer(answers=False)
    plain = block()
    peer.send(request(1, content=plain) + request(3, content=plain))
    indexing = b"\x40\x01a\x01b"
    peer.send(request(5, content=plain + indexing) + request(7, content=plain))
    first, second, _, fourth = (event[1] for event in peer.events if isinstance(event, tuple))
    assert first is second
    assert first is not fourth
