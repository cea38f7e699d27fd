"""The gRPC endpoint and a client that writes its own frames: what gRPC's own clients never send."""

from __future__ import annotations

import functools
import gc
import gzip
import random
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")
pytest.importorskip("tritonclient.grpc", reason="Triton's stubs need grpcio")

from tritonclient.grpc import service_pb2 as pb

from nbtriton.extensions.grpc import calls, connection
from nbtriton.extensions.grpc.connection import ChannelArguments, Keepalive
from nbtriton.runtime.engine import Server
from nbtriton.serving.frontends import Endpoints, Limits, serve
from tests.frontends.grpc_support import infer, tensor
from tests.frontends.http2_fuzz import fuzz_frames
from tests.frontends.http2_raw import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INFER,
    PADDED,
    PING,
    PREFACE,
    PRIORITIZED,
    RST_STREAM,
    SETTINGS,
    STREAM,
    WINDOW_UPDATE,
    Answer,
    Client,
    fields,
    frame,
    number,
    prefixed,
    setting,
)
from tests.seeds import SEED
from tests.until import until

SERVED = ("one", "flexible", "stream")

GZIP = functools.partial(gzip.compress, mtime=0)  # the same bytes at any time
TIMEOUT_S = 60
ONE = infer("one").SerializeToString()
BODY = prefixed(ONE)
PROTOCOL_ERROR, CANCEL, FLOW_CONTROL_ERROR, ENHANCE_YOUR_CALM = 1, 8, 3, 11
TABLE_SIZE, WINDOW_SIZE, FRAME_SIZE = 1, 4, 5
_WINDOW = 4 << 20


class Blocking:
    """A model that answers once it may, unless its request is cancelled."""

    running = threading.Event()
    leave = threading.Event()
    cancelled = threading.Event()

    def execute(self, requests: Any) -> Any:
        import triton_python_backend_utils as pb_utils

        Blocking.running.set()
        for request in requests:
            while not Blocking.leave.wait(0.005):
                if request.is_cancelled():
                    Blocking.cancelled.set()
                    break
        zeros = np.zeros((1, 4), np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", zeros)]) for _ in requests]


BLOCKING = """
name: "blocking" max_batch_size: 64
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
dynamic_batching { }
"""


@pytest.fixture(scope="module")
def endpoints(server: Server) -> Iterator[Endpoints]:
    with serve(server, http_port=None, metrics_port=None, grpc_port=0) as opened:
        yield opened


@pytest.fixture
def port(endpoints: Endpoints) -> int:
    assert endpoints.grpc_port is not None
    return endpoints.grpc_port


@pytest.fixture
def blocking(server: Server) -> Iterator[type[Blocking]]:
    for event in (Blocking.running, Blocking.leave, Blocking.cancelled):
        event.clear()
    server.load(BLOCKING, Blocking)
    yield Blocking
    Blocking.leave.set()
    server.unload("blocking", timeout_s=60)


class Sending:
    """A decoupled model that sends twenty responses of 60,000 bytes."""

    sent: list[int]
    ended: threading.Event

    def execute(self, requests: Any) -> None:
        import triton_python_backend_utils as pb_utils

        for request in requests:
            sender = request.get_response_sender()
            for count in range(20):
                if request.is_cancelled():
                    break
                self.sent.append(count)
                out = np.full(15_000, count, np.int32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self.ended.set()


SENDING = """
name: "sending" max_batch_size: 0
model_transaction_policy { decoupled: true }
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }
parameters { key: "MAX_UNREAD_RESPONSES" value { string_value: "3" } }
"""
SEND = frame(HEADERS, END_HEADERS, 1, fields({b":path": STREAM})) + frame(
    DATA, END_STREAM, 1, prefixed(infer("sending", [tensor(shape=[4])]).SerializeToString())
)


@pytest.fixture
def sending(server: Server) -> Iterator[type[Sending]]:
    Sending.sent, Sending.ended = [], threading.Event()
    server.load(SENDING, Sending)
    yield Sending
    server.unload("sending", timeout_s=60)


def call(stream: int = 1, body: bytes = BODY, block: bytes | None = None) -> bytes:
    """Return the frames of a whole call."""
    return frame(HEADERS, END_HEADERS, stream, block or fields()) + frame(
        DATA, END_STREAM, stream, body
    )


def is_good(answer: Answer) -> bool:
    ((flag, message),) = answer.messages
    response = pb.ModelInferResponse.FromString(message)
    return (
        answer.status == (0, "")
        and not flag
        and response.raw_output_contents[0] == infer("one").raw_input_contents[0]
    )


# -- frames ------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_frames_may_come_in_any_pieces(port: int) -> None:
    conversation = PREFACE + frame(SETTINGS) + call() + call(3)
    for size in (1, 2, 7, 64):
        with Client(port, preface=b"") as client:
            for at in range(0, len(conversation), size):
                client.send(conversation[at : at + size])
            assert is_good(client.answer(1))
            assert is_good(client.answer(3))


def test_a_message_may_come_in_any_frames(port: int) -> None:
    whole = prefixed(infer("one", request_id="x" * 100).SerializeToString())
    for size in (1, 3, 4, 50):
        pieces = [frame(DATA, 0, 1, whole[at : at + size]) for at in range(0, len(whole), size)]
        with Client(port, frame(HEADERS, END_HEADERS, 1, fields()), *pieces) as client:
            client.send(frame(DATA, END_STREAM, 1))
            assert is_good(client.answer())


def test_padding_priority_and_continuations(port: int) -> None:
    block = fields()
    padded = bytes((9,)) + number(0) + b"\x07" + block[:40] + bytes(9)
    frames = [
        frame(HEADERS, PADDED | PRIORITIZED, 1, padded),
        frame(CONTINUATION, 0, 1, block[40:90]),
        frame(CONTINUATION, END_HEADERS, 1, block[90:]),
        frame(DATA, PADDED | END_STREAM, 1, b"\x05" + BODY + bytes(5)),
    ]
    with Client(port, *frames) as client:
        assert is_good(client.answer())


def test_frames_of_unknown_types_and_priorities_are_ignored(port: int) -> None:
    strange = frame(0xBE, 0xFF, 1, b"anything") + frame(2, 0, 1, b"\0\0\0\0\x10")
    with Client(port, strange, call(), strange) as client:
        assert is_good(client.answer())


def test_literal_and_indexed_fields_mean_the_same(port: int) -> None:
    """The first answers say in full what later ones say in a byte each."""
    with Client(port) as client:
        for stream in (1, 3, 5, 7):
            client.send(call(stream))
            assert is_good(client.answer(stream))
        assert len({tuple(answer.fields) for answer in client.answers.values() if answer.data}) == 1
        assert len(client.blocks[-2] + client.blocks[-1]) == 4


def test_a_client_with_a_table_of_size_0_gets_literal_fields_only(port: int) -> None:
    with Client(port, call()) as client:
        assert is_good(client.answer())
        client.send(setting(TABLE_SIZE, 0), call(3), call(5))
        assert is_good(client.answer(3))
        assert is_good(client.answer(5))
        changed, *later = client.blocks[2:]
        assert changed.startswith(b"\x20\x88\x0f")
        assert not any(block.startswith(b"\x20") for block in later)


def test_cached_header_blocks_are_dropped_when_the_dynamic_table_changes(port: int) -> None:
    """The same bytes, and another meaning: 62 is what was remembered last."""

    def remembered_path(path: bytes) -> bytes:
        return b"\x44" + bytes((len(path),)) + path

    rest = fields({b":path": None})
    with Client(port) as client:
        client.send(call(1, block=remembered_path(INFER) + rest))
        assert is_good(client.answer(1))
        for stream in (3, 5):
            client.send(call(stream, block=b"\xbe" + rest))
            assert is_good(client.answer(stream))
        client.send(call(7, block=remembered_path(STREAM) + rest))
        streamed = client.answer(7).messages
        client.send(call(9, block=b"\xbe" + rest))
        assert client.answer(9).messages == streamed
        assert pb.ModelStreamInferResponse.FromString(streamed[0][1]).infer_response.outputs


# -- windows -----------------------------------------------------------------------------------------


def test_a_response_keeps_within_the_windows(port: int) -> None:
    with Client(port, setting(WINDOW_SIZE, 10), call()) as client:
        client.until(lambda: client.answers.get(1) and len(client.answers[1].data) == 10)
        answer = client.answers[1]
        client.send(frame(WINDOW_UPDATE, 0, 1, number(7)))
        client.until(lambda: len(answer.data) == 17)
        client.send(setting(WINDOW_SIZE, 16))  # for what has begun too
        client.until(lambda: len(answer.data) == 23)
        assert not answer.ended
        client.send(frame(WINDOW_UPDATE, 0, 1, number(1000)))
        assert is_good(client.answer())
        assert answer.sizes[:3] == [10, 7, 6]


def test_a_window_may_be_negative(port: int, blocking: Any) -> None:
    question = infer("blocking").SerializeToString()
    with Client(port, setting(WINDOW_SIZE, 50), call(1, prefixed(question))) as client:
        assert blocking.running.wait(TIMEOUT_S)
        client.send(setting(WINDOW_SIZE, 0), frame(PING, 0, 0, b"........"))
        client.until(lambda: client.of(PING))
        blocking.leave.set()
        client.send(frame(WINDOW_UPDATE, 0, 1, number(20)))
        client.until(lambda: client.answers.get(1) and len(client.answers[1].data) == 20)
        client.send(setting(WINDOW_SIZE, 1 << 20))
        assert client.answer().status == (0, "")


def test_large_responses_share_the_window_of_the_connection(port: int) -> None:
    size = 1 << 17
    large = infer("flexible", [tensor(datatype="INT32", shape=[size // 4])], [bytes(size)])
    body = prefixed(large.SerializeToString())
    with Client(port, setting(WINDOW_SIZE, 1 << 30), call(1, body), call(3, body)) as client:
        found = client.answers
        given = 65_535

        def over() -> bool:
            return all(stream in found and found[stream].ended for stream in (1, 3))

        while not over():
            client.until(
                lambda given=given: over() or sum(len(one.data) for one in found.values()) == given
            )
            given += 50_000
            client.send(frame(WINDOW_UPDATE, 0, 0, number(50_000)))
        for stream in (1, 3):
            answer = client.answers[stream]
            assert answer.status == (0, "")
            assert max(answer.sizes) <= 16_384  # what a client takes that does not say otherwise
            ((_, message),) = answer.messages
            assert pb.ModelInferResponse.FromString(message).raw_output_contents[0] == bytes(size)


@pytest.mark.medium
def test_a_client_that_keeps_within_its_windows_can_send_as_much_as_it_likes(port: int) -> None:
    size = 3 * _WINDOW
    body = prefixed(
        infer("flexible", [tensor(datatype="INT32", shape=[size // 4])], [bytes(size)]).SerializeToString()
    )  # fmt: skip
    with Client(
        port,
        setting(WINDOW_SIZE, 1 << 30),
        frame(WINDOW_UPDATE, 0, 0, number(1 << 30)),
        frame(HEADERS, END_HEADERS, 1, fields()),
    ) as client:
        at = 0
        seen = 0
        rooms = {0: 65_535, 1: _WINDOW}
        client.until(lambda: client.of(WINDOW_UPDATE))
        while at < len(body):
            for one in client.frames[seen:]:
                if one.kind == WINDOW_UPDATE:
                    rooms[one.stream] += int.from_bytes(one.content, "big")
            seen = len(client.frames)
            piece = body[at : at + min(1 << 16, *rooms.values())]
            if not piece:
                client.until(lambda seen=seen: len(client.frames) > seen)
                continue
            at += len(piece)
            rooms = {stream: room - len(piece) for stream, room in rooms.items()}
            client.send(frame(DATA, END_STREAM if at == len(body) else 0, 1, piece))
        assert client.answer().status == (0, "")
        assert len(client.of(WINDOW_UPDATE)) < 10  # not one for each frame


@pytest.mark.slow
def test_a_stream_with_too_much_in_progress_is_not_read_from(
    port: int, blocking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client gets no more room, other calls of the same client do; nothing is lost."""
    most = 400
    monkeypatch.setattr(calls, "_MAX_IN_FLIGHT", most)
    question = prefixed(infer("blocking", request_id="x" * 11_000).SerializeToString())
    assert most * len(question) > _WINDOW
    count = most + 100
    with Client(
        port,
        setting(WINDOW_SIZE, 1 << 30),
        frame(WINDOW_UPDATE, 0, 0, number(1 << 30)),
        frame(HEADERS, END_HEADERS, 1, fields({b":path": STREAM})),
    ) as client:
        room = _WINDOW
        sent = 0
        while sent < count and room >= len(question):
            client.send(frame(DATA, 0, 1, question))
            sent += 1
            room -= len(question)
        client.until(lambda: [one for one in client.of(WINDOW_UPDATE) if one.stream == 1])
        while sent < count:
            client.send(frame(DATA, 0, 1, question))
            sent += 1
        client.send(call(3))
        assert is_good(client.answer(3))
        given = sum(int.from_bytes(one.content, "big") for one in client.of(WINDOW_UPDATE) if one.stream == 1)  # fmt: skip
        assert given <= most * len(question)
        blocking.leave.set()
        client.send(frame(DATA, END_STREAM, 1))
        answer = client.answer(1)
        assert answer.status == (0, "")
        assert len(answer.messages) == count


# -- header fields and messages of calls -------------------------------------------------------------


def _compressed(pack: Any, message: bytes = ONE) -> bytes:
    return prefixed(pack(message), 1)


@pytest.mark.parametrize(
    ("changes", "more", "body", "status"),
    [
        ({b"content-type": None}, (), BODY, (0, "")),
        ({b"grpc-encoding": b"gzip"}, (), _compressed(GZIP), (0, "")),
        ({b"grpc-encoding": b"deflate"}, (), _compressed(zlib.compress), (0, "")),
        ({b"grpc-encoding": b"identity"}, (), BODY, (0, "")),
        ({b"grpc-encoding": b"gzip"}, (), BODY, (0, "")),
        ({b"grpc-encoding": b"gzip"}, (), prefixed(b"abc", 1),
         (13, "Decompression failed due to zlib error")),
        ({b"grpc-encoding": b"gzip"}, (), _compressed(GZIP)[:-9] + b"\0" * 9,
         (13, "Decompression failed due to zlib error")),
        ({b"grpc-encoding": b"gzip"}, (), _compressed(GZIP, bytes(1 << 21)),
         (8, "Decompressed message larger than max")),
        ({b"grpc-encoding": b"snappy"}, (), prefixed(b"abc", 1),
         (13, "Error parsing 'grpc-encoding' metadata")),
        ({}, (), prefixed(b"abc", 1), (13, "Compression bit set but no encoding configured")),
        ({}, (), b"\0" + number((1 << 20) + 1),
         (8, "SERVER: Received message larger than max (1048577 vs. 1048576)")),
        ({}, (), b"", (13, "the call carries no message, or one too large")),
        ({}, (), BODY[:-1], (13, "the call carries no message, or one too large")),
        ({}, (), BODY * 2, (0, "")),
        ({b"grpc-timeout": b"99S"}, (), BODY, (0, "")),
        ({b"grpc-timeout": b"99999999H"}, (), BODY, (0, "")),
        ({b"grpc-timeout": b"123456789S"}, (), BODY, (13, "Error parsing 'grpc-timeout' metadata")),
        ({b"grpc-timeout": b"1x"}, (), BODY, (13, "Error parsing 'grpc-timeout' metadata")),
        ({b":path": b"/x/Y"}, (), BODY, (12, "")),
        ({}, [(b"a!b", b"c")], BODY, (13, "Illegal header key: a!b")),
        ({b":method": b"GET"}, (), BODY, (2, "Bad method header")),
        ({b"te": None}, (), BODY, (2, "Missing :te header")),
        ({b":authority": None}, (), BODY, (2, "Missing :authority header")),
        ({}, [(b"a-bin", b"*")], BODY, (13, "Error parsing 'a-bin' metadata: illegal base64 encoding")),
        ({}, [(b"a-bin", b"AAE")], BODY, (0, "")),
        ({}, [(b"x", b"y" * 1000)] * 20, BODY, (8, "received metadata size exceeds hard limit")),
    ],
)  # fmt: skip
def test_header_fields_of_calls(server: Server, changes: Any, more: Any, body: bytes, status: Any) -> None:  # fmt: skip
    limits = Limits(body_bytes=1 << 20, header_bytes=8192)
    with (
        serve(server, http_port=None, metrics_port=None, grpc_port=0, limits=limits) as endpoints,
        Client(endpoints.grpc_port or 0, call(1, body, fields(changes, more)), call(3)) as client,
    ):
        assert client.answer(1).status == status
        assert is_good(client.answer(3))


@pytest.mark.parametrize(
    "changes",
    [{b":method": None}, {b":scheme": None}, {b":path": None}, {b":path": b""}, {b"te": b"gzip"}, {b"A": b"b"}],
    ids=lambda changes: next(iter(changes)).decode(),
)  # fmt: skip
def test_a_malformed_request_is_reset(port: int, changes: Any) -> None:
    with Client(port, call(1, BODY, fields(changes)), call(3)) as client:
        assert client.answer(1).reset == PROTOCOL_ERROR
        assert is_good(client.answer(3))


@pytest.mark.parametrize(
    ("level", "accepted", "packing"),
    [
        (0, b"gzip, deflate", b""), (1, b"gzip, deflate, identity", b"gzip"), (1, b"deflate", b"deflate"),
        (1, b"identity", b""), (2, b"deflate,gzip", b"deflate"), (2, b"gzip", b"gzip"),
        (3, b"gzip, deflate", b"deflate"), (3, b"gzip", b"gzip"),
    ],
)  # fmt: skip
def test_compression_of_responses(server: Server, level: int, accepted: bytes, packing: bytes) -> None:  # fmt: skip
    """As gRPC's own server chooses; what would not be shorter is sent as it is."""
    options = (("grpc.default_compression_level", level),)
    long = infer("flexible", [tensor(datatype="INT32", shape=[100])], [bytes(400)])
    block = fields(more=[(b"grpc-accept-encoding", accepted)])
    with (
        serve(
            server, http_port=None, metrics_port=None, grpc_port=0, grpc_options=options
        ) as endpoints,
        Client(
            endpoints.grpc_port or 0,
            call(1, prefixed(long.SerializeToString()), block),
            frame(HEADERS, END_HEADERS | END_STREAM, 3, fields({b":path": STREAM})),
        ) as client,
    ):
        answer = client.answer()
        assert dict(answer.fields).get(b"grpc-encoding", b"") == packing
        ((flag, message),) = answer.messages
        assert bool(flag) == bool(packing)
        if packing:
            message = zlib.decompress(message, 47)
        assert pb.ModelInferResponse.FromString(message).raw_output_contents[0] == bytes(400)
        assert client.answer(3).status == (0, "")


# -- the end of calls --------------------------------------------------------------------------------


def test_the_server_enforces_a_deadline(port: int, blocking: Any) -> None:
    question = prefixed(infer("blocking").SerializeToString())
    for limit in (b"100m", b"2S", b"20S"):
        with Client(port, call(1, question, fields({b"grpc-timeout": limit}))) as client:
            assert client.answer().status == (4, "Deadline Exceeded")
            if blocking.running.is_set():
                assert blocking.cancelled.wait(TIMEOUT_S)
                break
    else:  # a busy machine needs more than the short times
        pytest.fail("the model never ran")


def test_a_call_that_is_reset_is_cancelled(port: int, blocking: Any) -> None:
    question = prefixed(infer("blocking").SerializeToString())
    with Client(port, call(1, question)) as client:
        assert blocking.running.wait(TIMEOUT_S)
        client.send(frame(RST_STREAM, 0, 1, number(CANCEL)))
        assert blocking.cancelled.wait(TIMEOUT_S)
        client.send(call(3))
        assert is_good(client.answer(3))
        assert not client.answers.get(1, Answer()).fields


def test_a_call_that_is_answered_before_its_end_is_reset_without_an_error(port: int) -> None:
    with Client(port, frame(HEADERS, END_HEADERS, 1, fields()), frame(DATA, 0, 1, BODY)) as client:
        assert is_good(client.answer())
        client.until(lambda: client.of(RST_STREAM))
        assert client.answers[1].reset == 0
        client.send(
            frame(DATA, END_STREAM, 1, BODY), frame(WINDOW_UPDATE, 0, 1, number(9)), call(3)
        )
        assert is_good(client.answer(3))


@pytest.mark.medium
@pytest.mark.parametrize("path", [INFER, STREAM], ids=["calls", "streams"])
def test_requests_that_are_answered_leave_nothing_to_the_garbage_collector(
    port: int, path: bytes
) -> None:
    """A cycle would keep the tensors of requests until the collector looks, which it seldom does."""
    with Client(port, frame(WINDOW_UPDATE, 0, 0, number(1 << 30))) as client:
        client.send(call(1, block=fields({b":path": path})))
        assert client.answer(1).status == (0, "")
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for stream in range(3, 43, 2):
                client.send(call(stream, BODY * 2, fields({b":path": path})))
                assert client.answer(stream).status == (0, "")
            gc.collect()
            left = Counter(type(one).__name__ for one in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert not left.keys() & {"InferenceRequest", "InferCall", "ndarray", "Response"}, left


# -- the end of connections --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (frame(WINDOW_UPDATE, 0, 0, number(0)), 1),
        (frame(WINDOW_UPDATE, 0, 0, number((1 << 31) - 1)), FLOW_CONTROL_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, b"abc"), 6),
        (frame(SETTINGS, 0, 0, b"abc"), 6),
        (setting(FRAME_SIZE, 1), 1),
        (setting(WINDOW_SIZE, (1 << 32) - 1), FLOW_CONTROL_ERROR),
        (frame(PING, 0, 0, b"abc"), 6),
        (frame(5, END_HEADERS, 1, b"abcd"), 1),
        (frame(CONTINUATION, END_HEADERS, 1, b"abcd"), 1),
        (frame(HEADERS, 0, 1, fields()) + frame(PING, 0, 0, b"........"), 1),
        (frame(HEADERS, 0, 1, fields()) + frame(CONTINUATION, END_HEADERS, 3), 1),
        (frame(HEADERS, 0, 1, fields()) + frame(CONTINUATION, 0, 1) * 100, ENHANCE_YOUR_CALM),
        (frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"), 9),
        (frame(HEADERS, END_HEADERS | PADDED, 1, b"\xffabc"), 1),
        (frame(DATA, PADDED, 1, b"\xffabc"), 1),
        (struct.pack(">IBI", 0xFFFFFF << 8 | DATA, 0, 1), 6),
        (struct.pack(">IBI", 0x7FFFFF << 8 | HEADERS, 0, 1), 6),
        (frame(PING, 0, 0, b"........") * 6, ENHANCE_YOUR_CALM),
    ],
    ids=str,
)  # fmt: skip
def test_a_connection_error_is_reported_with_goaway(port: int, frames: bytes, code: int) -> None:
    with Client(port, call()) as other, Client(port, frames) as client:
        client.to_the_end()
        (last,) = client.of(GOAWAY)
        assert int.from_bytes(last.content[4:8], "big") == code
        assert is_good(other.answer())
        other.send(call(3))
        assert is_good(other.answer(3))


@pytest.mark.parametrize(
    "preface", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nxx", PREFACE + call()]
)
def test_a_client_of_another_protocol_is_disconnected(port: int, preface: bytes) -> None:
    with Client(port, preface=preface) as client:
        client.to_the_end()
        assert not client.of(HEADERS)


def test_calls_of_a_client_that_breaks_the_protocol_are_cancelled(port: int, blocking: Any) -> None:
    with Client(port, call(1, prefixed(infer("blocking").SerializeToString()))) as client:
        assert blocking.running.wait(TIMEOUT_S)
        client.send(frame(PING, 0, 0, b"abc"))
        assert blocking.cancelled.wait(TIMEOUT_S)


def test_pings_between_answers_are_no_strikes(port: int) -> None:
    with Client(port) as client:
        for n in range(10):
            client.send(frame(PING, 0, 0, struct.pack(">Q", n)), call(2 * n + 1))
            assert is_good(client.answer(2 * n + 1))
        assert [one.content for one in client.of(PING)] == [struct.pack(">Q", n) for n in range(10)]
        assert {one.flags for one in client.of(PING)} == {ACK}


def test_a_client_that_sends_and_does_not_read_is_disconnected(port: int) -> None:
    settings = frame(SETTINGS) * 10_000
    with Client(port) as client, pytest.raises(ConnectionError):
        for _ in range(1000):
            client.send(settings)


def test_a_connection_above_the_limit_gets_goaway(server: Server) -> None:
    limits = Limits(connections=1)
    with (
        serve(server, http_port=None, metrics_port=None, grpc_port=0, limits=limits) as endpoints,
        Client(endpoints.grpc_port or 0, frame(HEADERS, END_HEADERS, 1, fields())) as first,
    ):
        first.send(frame(PING, 0, 0, bytes(8)))
        first.until(lambda: first.of(PING))
        with Client(endpoints.grpc_port or 0, preface=b"") as second:
            second.to_the_end()
            assert second.of(GOAWAY)[0].content.endswith(b"the server has too many connections")
        first.send(frame(DATA, END_STREAM, 1, BODY))
        assert is_good(first.answer())
        # Without a call it has to leave, and gets GOAWAY.
        with Client(endpoints.grpc_port or 0, call()) as third:
            first.to_the_end()
            assert first.of(GOAWAY)[0].content.endswith(b"the server has too many connections")
            assert is_good(third.answer())


# -- time --------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_max_connection_age_drains_a_connection(
    server: Server, blocking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However late this client reads and sends, only its answer to the ping brings the second GOAWAY.
    monkeypatch.setattr(connection, "_WARNING_S", 10.0 * TIMEOUT_S)
    question = call(1, prefixed(infer("blocking").SerializeToString()))
    with (
        serve(
            server, http_port=None, metrics_port=None, grpc_port=0,
            grpc_options=[("grpc.max_connection_age_ms", 1)],
        ) as endpoints,
        Client(endpoints.grpc_port or 0, question) as client,
    ):  # fmt: skip
        client.until(lambda: client.of(PING))
        (warning,) = client.of(GOAWAY)
        assert warning.content[:8] == number((1 << 31) - 1) + number(0)
        client.send(call(3))  # it cannot know
        client.send(frame(PING, ACK, 0, client.of(PING)[0].content))
        client.until(lambda: len(client.of(GOAWAY)) == 2)
        assert client.of(GOAWAY)[1].content[:8] == number(3) + number(0)
        client.send(call(5))
        blocking.leave.set()
        client.to_the_end()
        assert client.answers[1].status == client.answers[3].status == (0, "")
        assert 5 not in client.answers


@pytest.mark.medium
def test_a_silent_connection_is_pinged_and_closed(server: Server) -> None:
    with (
        serve(
            server, http_port=None, metrics_port=None, grpc_port=0,
            grpc_options=[
                ("grpc.keepalive_time_ms", 1), ("grpc.keepalive_timeout_ms", 1),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        ) as endpoints,
        Client(endpoints.grpc_port or 0) as client,
    ):  # fmt: skip
        client.to_the_end()
        assert [one.flags for one in client.of(PING)] == [0]


def _keepalive(**options: int) -> Keepalive:
    return Keepalive(ChannelArguments(**options), 0.0)


def test_keepalive() -> None:
    keepalive = _keepalive(keepalive_time_ms=10_000, keepalive_timeout_ms=5_000)
    assert [keepalive.due(now, True) for now in (9.0, 10.0, 11.0)] == ["", "ping", ""]
    keepalive.received_at = 12.0
    assert [keepalive.due(now, True) for now in (21.0, 22.0, 26.0, 27.0)] == ["", "ping", "", "end"]


def test_keepalive_without_calls_or_data() -> None:
    assert _keepalive(keepalive_time_ms=1000).due(9.0, False) == ""
    keepalive = _keepalive(keepalive_time_ms=1000, keepalive_permit_without_calls=1)
    found = []
    for now in range(1, 12, 2):
        found.append(keepalive.due(float(now), False))
        keepalive.received_at = now + 0.5
    assert found == ["ping", "ping", "", "", "", ""]
    keepalive.has_responded = True
    assert keepalive.due(20.0, False) == "ping"


def test_pings_of_a_client() -> None:
    keepalive = _keepalive(min_ping_interval_without_data_ms=10_000, max_ping_strikes=2)
    assert not any(keepalive.record_ping(now, True) for now in (0.0, 10.0, 20.0, 21.0, 22.0))
    assert keepalive.record_ping(23.0, True)
    idle = _keepalive(min_ping_interval_without_data_ms=10_000, max_ping_strikes=1)
    assert [idle.record_ping(now, False) for now in (0.0, 100.0, 200.0)] == [False, False, True]
    allowed = _keepalive(min_ping_interval_without_data_ms=10_000, max_ping_strikes=1,
                     keepalive_permit_without_calls=1)  # fmt: skip
    assert not any(allowed.record_ping(now, False) for now in (0.0, 100.0, 200.0))
    assert not any(_keepalive(max_ping_strikes=0).record_ping(0.0, True) for _ in range(9))


@pytest.mark.medium
def test_age_and_idleness() -> None:
    random.seed(0)
    keepalive = _keepalive(max_connection_age_ms=100_000, max_connection_age_grace_ms=10_000)
    assert keepalive.due(89.0, True) == ""
    assert keepalive.due(111.0, True) == "leave"
    assert [keepalive.due(now, True) for now in (112.0, 120.0, 121.0)] == ["", "", "end"]
    idle = _keepalive(max_connection_idle_ms=10_000)
    assert [idle.due(now, now == 5) for now in (5.0, 14.0, 15.0)] == ["", "", "leave"]


@pytest.mark.medium
def test_channel_arguments() -> None:
    arguments = [("grpc.keepalive_time_ms", 5), ("grpc.http2.max_ping_strikes", "7"),
                 ("grpc.default_compression_level", 3), ("grpc.lb_policy_name", "pick_first")]  # fmt: skip
    assert ChannelArguments.parse(arguments) == ChannelArguments(
        keepalive_time_ms=5, max_ping_strikes=7, level=3
    )


# -- mutated frames ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_mutated_frames_harm_no_other_client(server: Server) -> None:
    fuzz_frames(server, 300, SEED)


# -- a client that is behind -------------------------------------------------------------------------


def test_a_decoupled_model_waits_for_its_client_where_its_configuration_says_so(
    port: int, sending: type[Sending]
) -> None:
    with Client(port, frame(WINDOW_UPDATE, 0, 0, number(4 << 20)), SEND) as client:
        # One and a part of the next fit into the call's window; that one and two more wait, the last is held.
        assert until(lambda: len(sending.sent) == 5)
        client.send(call(3))
        assert is_good(client.answer(3))
        assert sending.sent == list(range(5))
        assert not sending.ended.is_set()
        client.send(frame(WINDOW_UPDATE, 0, 1, number(4 << 20)))
        found = [pb.ModelStreamInferResponse.FromString(m) for _, m in client.answer().messages]
        values = [np.frombuffer(one.infer_response.raw_output_contents[0], "<i4") for one in found]
        assert [set(one.tolist()) for one in values] == [{count} for count in range(20)]
        assert sending.ended.wait(TIMEOUT_S)


@pytest.mark.parametrize("how", ["cancels", "disconnects", "server"])
def test_a_model_that_waits_for_its_client_ends_with_it(
    server: Server, sending: type[Sending], how: str
) -> None:
    with (
        serve(server, http_port=None, metrics_port=None, grpc_port=0) as endpoints,
        Client(int(endpoints.grpc_port or 0), SEND) as client,
    ):
        assert until(lambda: len(sending.sent) == 5)
        if how == "cancels":
            client.send(frame(RST_STREAM, 0, 1, number(CANCEL)))
        elif how == "disconnects":
            client.socket.close()
        else:
            endpoints.close()
        assert sending.ended.wait(TIMEOUT_S)
        assert len(sending.sent) == 5
