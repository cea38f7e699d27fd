"""Fairness between clients with many and with few requests, and limits of what one client may do."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")
pytest.importorskip("tritonclient.grpc", reason="Triton's stubs need grpcio")

from nbtriton.runtime.engine import Server
from nbtriton.serving.frontends import Endpoints, Limits, serve
from tests.engine.support import Gate, gated, waited
from tests.frontends.grpc_support import infer, tensor
from tests.frontends.http2_raw import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    STREAM,
    WINDOW_UPDATE,
    fields,
    frame,
    number,
    prefixed,
    setting,
)
from tests.frontends.http2_raw import Client as GrpcClient
from tests.frontends.raw import Client, post
from tests.frontends.starving import CONFIG, LIVE

REFUSED, CANCEL, CALM = 7, 8, 11
WINDOW_SIZE, MOST_CALLS = 4, 3
HEAD = fields()


@pytest.fixture(scope="module")
def gate() -> Gate:
    return Gate(is_open=True)


@pytest.fixture(scope="module")
def server(gate: Gate) -> Iterator[Server]:
    with Server(gpus=()) as running:
        running.load(CONFIG, gated(gate), name="m")
        yield running


@contextlib.contextmanager
def opened(server: Server, **limits: Any) -> Iterator[Endpoints]:
    with serve(
        server, http_port=0, grpc_port=0, metrics_port=None, limits=Limits(**limits)
    ) as endpoints:
        yield endpoints


@pytest.fixture(scope="module")
def endpoints(server: Server) -> Iterator[Endpoints]:
    with opened(server) as found:
        yield found


@contextlib.contextmanager
def stopped(endpoints: Endpoints) -> Iterator[None]:
    """Block the loop while a test prepares what it will read."""
    stands, goes_on = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        waited(goes_on)

    endpoints._thread.loop.call_soon_threadsafe(stand)
    waited(stands)
    try:
        yield
    finally:
        goes_on.set()


def call(stream: int, request_id: str = "", *, last: bool = True) -> bytes:
    request = infer("m", request_id=request_id).SerializeToString()
    head = frame(HEADERS, END_HEADERS, stream, HEAD)
    return head + frame(DATA, END_STREAM if last else 0, stream, prefixed(request))


def http_infer(request_id: str) -> bytes:
    tensor = {"name": "IN", "shape": [1, 4], "datatype": "FP32", "data": [1.0] * 4}
    return post("/v2/models/m/infer", {"id": request_id, "inputs": [tensor]})


def ids(gate: Gate) -> list[str]:
    return [one for batch in gate.batches for one in batch]


def grpc_ready(endpoints: Endpoints) -> GrpcClient:
    client = GrpcClient(endpoints.grpc_port or 0)
    client.until(lambda: client.of(SETTINGS))
    return client


def with_http(endpoints: Endpoints) -> Callable[[], None]:
    client = Client(endpoints.http_port or 0)
    client.send(http_infer("honest"))

    def answered() -> None:
        with client:
            assert client.receive().status == 200

    return answered


def with_grpc(endpoints: Endpoints) -> Callable[[], None]:
    client = GrpcClient(endpoints.grpc_port or 0, call(1, "honest"))

    def answered() -> None:
        with client:
            assert client.answer().status == (0, "")

    return answered


HONEST = pytest.mark.parametrize("honest", [with_http, with_grpc])


@HONEST
def test_one_request_does_not_wait_for_the_thousands_of_another_client(
    endpoints: Endpoints, gate: Gate, honest: Callable[..., Callable[[], None]]
) -> None:
    gate.batches.clear()
    calls = [call(2 * n + 1, str(n)) for n in range(900)]
    with grpc_ready(endpoints) as flood:
        with stopped(endpoints):
            flood.send(*calls)
            answered = honest(endpoints)
        answered()
        flood.answer(2 * 899 + 1)
    order = ids(gate)
    assert sorted(order) == sorted(["honest", *map(str, range(900))])
    assert order.index("honest") < 800


@HONEST
def test_pipelined_requests_are_read_as_they_are_answered(
    endpoints: Endpoints, honest: Callable[..., Callable[[], None]]
) -> None:
    with Client(endpoints.http_port or 0) as flood:
        with stopped(endpoints):
            flood.send(LIVE * 4000)
            answered = honest(endpoints)
        answered()
        connections = list(endpoints._open["http"].connections)  # they end meanwhile
        pending = [len(one._pending) for one in connections]  # type: ignore[attr-defined]
        assert max(pending, default=0) < 300
        assert all(flood.receive().status == 200 for _ in range(4000))


@contextlib.contextmanager
def occupied(endpoints: Endpoints) -> Iterator[Callable[[], None]]:
    """Keep all workers of the loop busy until the end of the block, or until what it yields is called."""
    begun, over = threading.Semaphore(0), threading.Event()

    def occupy() -> None:
        begun.release()
        waited(over)

    try:
        for _ in range(4):
            endpoints._thread.run_on_worker(occupy)
            assert begun.acquire(timeout=30)
        yield over.set
    finally:
        over.set()


@HONEST
def test_a_long_decompression_blocks_no_other_client(
    server: Server, honest: Callable[..., Callable[[], None]]
) -> None:
    body = json.dumps({"inputs": []}).encode().ljust(1 << 20)
    packed = gzip.compress(infer("m", parameters={"p": "x" * (1 << 20)}).SerializeToString())
    head = fields(more=[(b"grpc-encoding", b"gzip")])
    with opened(server) as endpoints, contextlib.ExitStack() as stack:
        release = stack.enter_context(occupied(endpoints))
        bomber = stack.enter_context(Client(endpoints.http_port or 0))
        bomber.send(post("/v2/models/m/infer", gzip.compress(body), "Content-Encoding: gzip"))
        other = stack.enter_context(GrpcClient(endpoints.grpc_port or 0))
        other.send(
            frame(HEADERS, END_HEADERS, 1, head) + frame(DATA, END_STREAM, 1, prefixed(packed, 1)),
            frame(PING, 0, 0, bytes(8)),
        )
        other.until(lambda: other.of(PING))
        honest(endpoints)()
        assert not other.of(DATA)
        release()
        assert bomber.receive().status == 400
        assert other.answer().status == (0, "")


LONG = " " * ((64 << 10) + 1)


@HONEST
def test_what_is_long_to_read_is_not_read_on_the_loop(
    server: Server, honest: Callable[..., Callable[[], None]]
) -> None:
    texts = {
        "/v2/models/m/infer": LONG + json.dumps({"inputs": []}),
        "/v2/models/m/generate": LONG + json.dumps({"IN": [1.0] * 4}),
        "/v2/trace/setting": LONG + "{}",
        "/v2/logging": LONG + "{}",
    }
    head = fields({b":path": b"/inference.GRPCInferenceService/ServerLive"})
    typed = tensor(parameters={"p": LONG}, fp32_contents=[1.0] * 4)
    messages = [(HEAD, infer("m", [typed], []).SerializeToString()), (head, LONG.encode())]
    messages.append(
        (HEAD, infer("m", [tensor("IN", "BYTES")], [LONG.encode()]).SerializeToString())
    )
    with opened(server) as endpoints, contextlib.ExitStack() as stack:
        release = stack.enter_context(occupied(endpoints))
        clients = [stack.enter_context(Client(endpoints.http_port or 0)) for _ in texts]
        for client, (path, text) in zip(clients, texts.items(), strict=True):
            client.send(post(path, text.encode()))
        other = stack.enter_context(GrpcClient(endpoints.grpc_port or 0))
        for stream, (fields_, message) in zip((1, 3, 5), messages, strict=True):
            other.send(
                frame(HEADERS, END_HEADERS, stream, fields_)
                + frame(DATA, END_STREAM, stream, prefixed(message))
            )
        other.send(frame(PING, 0, 0, bytes(8)))
        other.until(lambda: other.of(PING))
        honest(endpoints)()
        assert not other.of(HEADERS)
        for client in clients:
            client.socket.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.socket.recv(1)
            client.socket.settimeout(30)
        release()
        assert [client.receive().status for client in clients] == [400, 200, 200, 200]
        assert [other.answer(stream).status[0] for stream in (1, 3, 5)] == [0, 13, 3]


def test_packed_messages_of_a_stream_keep_their_order(endpoints: Endpoints, gate: Gate) -> None:
    gate.batches.clear()
    head = fields({b":path": STREAM}, more=[(b"grpc-encoding", b"gzip")])
    requests = [infer("m", request_id=str(n)) for n in range(9)]
    for request in requests[::3]:
        request.parameters["long"].string_param = "x" * (1 << 20)
    data = b"".join(prefixed(gzip.compress(request.SerializeToString()), 1) for request in requests)
    for last in (True, False):
        with grpc_ready(endpoints) as client:
            gate.batches.clear()
            client.send(frame(HEADERS, END_HEADERS, 1, head))
            client.send(frame(DATA, END_STREAM if last else 0, 1, data))
            if not last:
                client.send(frame(DATA, END_STREAM, 1, b""))
            assert client.answer().status == (0, "")
            assert len(client.answers[1].messages) == 9
        assert ids(gate) == [str(n) for n in range(9)]


def test_the_limit_of_open_calls_is_advertised_and_enforced(server: Server) -> None:
    with opened(server, calls=2) as endpoints, grpc_ready(endpoints) as client:
        settings = client.of(SETTINGS)[0].content
        pairs = {settings[i : i + 2]: settings[i + 2 : i + 6] for i in range(0, len(settings), 6)}
        assert pairs[MOST_CALLS.to_bytes(2, "big")] == number(2)
        client.send(*(frame(HEADERS, END_HEADERS, stream, HEAD) for stream in (1, 3)), call(5))
        assert client.answer(5).reset == REFUSED
        request = prefixed(infer("m").SerializeToString())
        client.send(*(frame(DATA, END_STREAM, stream, request) for stream in (1, 3)))
        assert client.answer(1).status == client.answer(3).status == (0, "")
        client.send(call(7))
        assert client.answer(7).status == (0, "")


def test_a_client_that_only_cancels_calls_is_disconnected(server: Server) -> None:
    reset = number(CANCEL)
    with opened(server, calls=50) as endpoints, grpc_ready(endpoints) as client:
        with contextlib.suppress(ConnectionError):  # the server may have gone before all is sent
            client.send(*(call(n) + frame(RST_STREAM, 0, n, reset) for n in range(1, 10_000, 2)))
        client.to_the_end()
        (goodbye,) = client.of(GOAWAY)
        assert int.from_bytes(goodbye.content[4:8], "big") == CALM
        assert goodbye.content[8:] == b"too many calls are given up"
        answered = with_grpc(endpoints)
        answered()


def test_a_client_with_too_many_calls_is_disconnected(server: Server) -> None:
    with opened(server, calls=20) as endpoints, grpc_ready(endpoints) as client:
        with contextlib.suppress(ConnectionError):
            client.send(*(frame(HEADERS, END_HEADERS, n, HEAD) for n in range(1, 10_000, 2)))
        client.to_the_end()
        assert int.from_bytes(client.of(GOAWAY)[0].content[4:8], "big") == CALM


def test_one_cancelled_call_for_each_answered_one_is_no_attack(server: Server) -> None:
    with opened(server, calls=10) as endpoints, grpc_ready(endpoints) as client:
        for n in range(1, 400, 4):
            given_up = frame(HEADERS, END_HEADERS, n, HEAD)
            client.send(given_up, frame(RST_STREAM, 0, n, number(CANCEL)), call(n + 2))
            assert client.answer(n + 2).status == (0, "")


def test_a_client_that_floods_settings_is_disconnected(endpoints: Endpoints) -> None:
    with grpc_ready(endpoints) as client:
        client.send(*(frame(HEADERS, END_HEADERS, n, HEAD) for n in range(1, 1000, 2)))
        with contextlib.suppress(ConnectionError):
            client.send(*(setting(WINDOW_SIZE, 1000 + n % 2) for n in range(1000)))
        client.to_the_end()
        (goodbye,) = client.of(GOAWAY)
        assert goodbye.content[4:] == number(CALM) + b"too many settings"
        assert 90 < sum(bool(one.flags & ACK) for one in client.of(SETTINGS)) < 1000
        with_grpc(endpoints)()


IDLE = {
    "acknowledgements of settings": frame(SETTINGS, ACK),
    "acknowledgements of pings": frame(PING, ACK, 0, bytes(8)),
    "priorities": frame(PRIORITY, 0, 99, number(0) + b"\0"),
    "empty data": frame(DATA, 0, 1),
    "unknown frames": frame(0x42, 0, 1, b"x"),
    "updates of the window": frame(WINDOW_UPDATE, 0, 0, number(1)),
    "updates of a stream's window": frame(WINDOW_UPDATE, 0, 1, number(1)),
}


@pytest.mark.parametrize("kind", IDLE)
def test_a_client_that_floods_frames_without_effect_is_disconnected(
    endpoints: Endpoints, kind: str
) -> None:
    with grpc_ready(endpoints) as client:
        client.send(frame(HEADERS, END_HEADERS, 1, HEAD))
        client.send(IDLE[kind] * 9_000, call(3))
        assert client.answer(3).status == (0, "")
        with contextlib.suppress(ConnectionError):
            client.send(IDLE[kind] * 200_000)
        client.to_the_end()
        (goodbye,) = client.of(GOAWAY)
        assert goodbye.content[4:] == number(CALM) + b"too many idle frames"
    with_grpc(endpoints)()


def test_small_updates_of_two_windows_for_each_message_are_no_attack(endpoints: Endpoints) -> None:
    with grpc_ready(endpoints) as client:
        client.send(frame(WINDOW_UPDATE, 0, 0, number(1)) * 9_900)
        for n in range(1, 2000, 2):
            updates = frame(WINDOW_UPDATE, 0, 0, number(1)) + frame(WINDOW_UPDATE, 0, n, number(1))
            client.send(call(n), updates * 2)
        assert client.answer(1999).status == (0, "")


def test_silent_connections_block_no_client(server: Server) -> None:
    with opened(server, connections=20) as endpoints, contextlib.ExitStack() as stack:
        for port in (endpoints.http_port or 0, endpoints.grpc_port or 0):
            for _ in range(100):
                stack.enter_context(Client(port))
        with_http(endpoints)()
        with_grpc(endpoints)()


def test_a_call_that_is_cancelled_at_once_never_runs(endpoints: Endpoints, gate: Gate) -> None:
    gate.batches.clear()
    with grpc_ready(endpoints) as client:
        with stopped(endpoints):
            reset = frame(RST_STREAM, 0, 1, number(CANCEL))
            client.send(call(1, "given up", last=False) + reset + call(3, "wanted"))
        assert client.answer(3).status == (0, "")
    assert ids(gate) == ["wanted"]


def test_tensors_of_a_bomb(server: Server) -> None:
    """A body that unpacks to more than the limit is refused over both protocols; the next request is answered."""
    bomb = gzip.compress(bytes(10_000_000))
    head = fields(more=[(b"grpc-encoding", b"gzip")])
    with opened(server, decompressed_bytes=1_000_000) as endpoints:
        with Client(endpoints.http_port or 0) as client:
            client.send(post("/v2/models/m/infer", bomb, "Content-Encoding: gzip"))
            refused = client.receive()
            assert refused.status == 400
            assert "larger than the limit of 1000000 bytes" in refused.error
            client.send(http_infer("x"))
            assert client.receive().status == 200
        with grpc_ready(endpoints) as client:
            packed = prefixed(bomb, 1)
            client.send(frame(HEADERS, END_HEADERS, 1, head), frame(DATA, END_STREAM, 1, packed))
            assert client.answer().status == (8, "Decompressed message larger than max")
            client.send(call(3))
            assert client.answer(3).status == (0, "")
