"""Both clients at one server of ours: the same responses, the same errors, one outcome a request."""

# ruff: noqa: F821, N803, UP037 - function models: Triton's datatypes as annotations

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")

import nbtriton as nt
from nbtriton.common.errors import (
    CancelledError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from nbtriton.serving.clients.base import Client, PendingRequest, StreamResponse
from nbtriton.serving.clients.grpc import GrpcClient
from nbtriton.serving.clients.http import HttpClient, _Connection
from tests.until import until

ROWS = {
    "IN": np.arange(8, dtype=np.float32).reshape(2, 4),
    "TEXT": np.array([[b"a"], [b"bc"]], object),
}
# Characters of a path (RFC 3986, 3.3) that Triton takes in the name of a python model.
PUNCTUATED = "bert-v1.0_+,=:@"


def double(IN: "FP32[4]", TEXT: "BYTES[1]") -> {"OUT": "FP32[4]", "SAME": "BYTES[1]"}:
    return {"OUT": IN * 2, "SAME": TEXT}


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", model=double, name="double")
        server.load("max_batch_size: 8", model=double, name=PUNCTUATED)
        with server.serve(http_port=0, grpc_port=0, metrics_port=None) as endpoints:
            yield {
                "http": f"127.0.0.1:{endpoints.http_port}",
                "grpc": f"127.0.0.1:{endpoints.grpc_port}",
            }


@pytest.fixture(params=["http", "grpc"])
def client(request, urls) -> Iterator[Client]:
    kind = {"http": HttpClient, "grpc": GrpcClient}[request.param]
    with kind(urls[request.param], 30) as client:
        yield client


def test_a_request_is_encoded_sent_and_decoded(client):
    response = client.infer("double", ROWS)
    assert response.model_version == 1
    np.testing.assert_array_equal(response.outputs["OUT"], ROWS["IN"] * 2)
    assert response.outputs["SAME"].tolist() == ROWS["TEXT"].tolist()


def test_further_parameters_leave_the_tensors_as_they_are(client):
    request = client.encode("double", ROWS)
    given = client.with_parameters(request, {"priority": 1, "note": "x", "flag": True})
    assert given != request
    response = client.decode(client.send(given))
    np.testing.assert_array_equal(response.outputs["OUT"], ROWS["IN"] * 2)


def test_configuration_statistics_and_name(client, urls):
    config = client.config("double")
    assert (config.name, config.max_batch_size) == ("double", 8)
    assert config == GrpcClient(urls["grpc"]).config("double")
    (entry,) = client.statistics("double")["model_stats"]
    assert (entry["name"], entry["version"]) == ("double", "1")
    assert client.describe().startswith("triton ")


def test_errors_have_the_servers_status(client):
    with pytest.raises(NotFoundError, match="unknown model: 'nope'"):
        client.infer("nope", ROWS)
    with pytest.raises(InvalidArgumentError, match="double"):
        client.infer("double", {"IN": ROWS["IN"]})


def test_a_name_with_punctuation_is_found(client):
    assert client.config(PUNCTUATED).name == PUNCTUATED
    assert client.infer(PUNCTUATED, ROWS).outputs["SAME"].tolist() == ROWS["TEXT"].tolist()


@pytest.mark.parametrize("name", ["a b", "g\N{LATIN SMALL LETTER U WITH DIAERESIS}n", "a\nb"])
def test_a_model_of_any_name_is_asked_for(client, name):
    with pytest.raises(NotFoundError, match="Request for unknown model: "):
        client.infer(name, ROWS)


def test_requests_in_flight_reuse_their_connections(client):
    request = client.encode("double", ROWS)
    ended = threading.Semaphore(0)
    for _ in range(3):
        pending = [client.submit(request) for _ in range(4)]
        for each in pending:
            each.add_done_callback(lambda _: ended.release())
        assert all(ended.acquire(timeout=60) for _ in pending)
        assert [each.exception() for each in pending] == [None] * 4
    if isinstance(client, HttpClient):
        assert len(client._connections) <= 4


def test_streams_are_for_grpc(client, urls):
    request = client.encode("double", ROWS)
    responses: list[tuple[StreamResponse, bool]] = []
    final = threading.Event()

    def on_response(response: StreamResponse, last: bool) -> None:
        responses.append((response, last))
        if last:
            final.set()

    if isinstance(client, HttpClient):
        with pytest.raises(UnsupportedError, match="only allowed with gRPC"):
            client.submit_streaming(request, on_response)
        return
    client.submit_streaming(request, on_response)
    assert final.wait(30)
    assert [sorted(response.outputs) for response, _ in responses if response.outputs] == [
        ["OUT", "SAME"]
    ]
    responses.clear()
    final.clear()
    with GrpcClient(urls["grpc"], 30, decodes_streams=True) as decoding:
        decoding.submit_streaming(request, on_response)
        assert final.wait(30)
    np.testing.assert_array_equal(responses[0][0].outputs["OUT"], ROWS["IN"] * 2)
    assert responses[-1][0].final


def test_a_pending_request_ends_once():
    aborted = []
    pending = PendingRequest()
    pending.abort = lambda: aborted.append(True)
    assert pending.cancel()
    assert not pending.cancel()
    assert not pending.finish(None)
    assert isinstance(pending.exception(), CancelledError)
    assert aborted == [True]
    answered = PendingRequest()
    assert answered.finish(None)
    assert not answered.cancel()
    assert answered.exception() is None


def test_a_cancelled_request_is_not_sent_later(urls):
    with HttpClient(urls["http"]) as client:
        pending = PendingRequest()
        assert pending.cancel()
        client._send(pending, client.encode("double", ROWS))
        assert client._connections == []


def test_a_request_that_is_cancelled_while_it_connects_is_not_sent(monkeypatch):
    connect = _Connection._connect

    def cancelled(connection):
        assert pending.cancel()
        connect(connection)

    monkeypatch.setattr(_Connection, "_connect", cancelled)
    pending = PendingRequest()
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        HttpClient(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2) as client,
    ):
        client._send(pending, client.encode("double", ROWS))
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(1) == b""


@pytest.mark.parametrize("kind", [HttpClient, GrpcClient])
def test_close_ends_requests_at_a_server_that_never_answers(kind):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = kind(f"127.0.0.1:{silent.getsockname()[1]}")
        pending = client.submit(client.encode("double", ROWS))
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(1)
            client.close()
            assert isinstance(pending.exception(30), UnavailableError | CancelledError)


def test_close_ends_a_sender_that_is_still_connecting():
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = True
        while waiting:  # until its backlog is full: what comes then is not answered
            taken = stack.enter_context(socket.socket())
            taken.settimeout(0.2)
            try:
                taken.connect(full.getsockname())
            except TimeoutError:
                waiting = False
        client = HttpClient(f"127.0.0.1:{full.getsockname()[1]}", timeout_s=600)
        pending = client.submit(client.encode("double", ROWS))
        assert until(lambda: client._connections)
        closing = threading.Thread(target=client.close, daemon=True)
        closing.start()
        closing.join(30)
        assert not closing.is_alive()
        assert isinstance(pending.exception(30), UnavailableError)


@pytest.mark.parametrize("end", ["server", "listener"])
def test_a_stream_that_has_ended_leaves_no_thread(end):
    """grpc has one for what is sent over each stream."""

    def listener(response: StreamResponse, final: bool) -> None:
        answered.set()
        if end == "listener":
            raise SystemExit

    def new(name: str) -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one not in before and name in one.name]

    answered = threading.Event()
    before = set(threading.enumerate())
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", model=double, name="double")
        endpoints = server.serve(http_port=None, grpc_port=0, metrics_port=None)
        with GrpcClient(f"127.0.0.1:{endpoints.grpc_port}", 30) as client:
            client.submit_streaming(client.encode("double", ROWS), listener)
            assert answered.wait(30)
            if end == "server":
                endpoints.close()
            assert until(lambda: not client._streams[0].is_open)
            assert until(lambda: not new("nbtriton-client-stream") and not new("(_run)"))


@pytest.mark.parametrize("kind", [HttpClient, GrpcClient])
def test_a_server_that_does_not_answer_in_time_is_a_timeout(kind):
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        kind(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2) as client,
        pytest.raises(TimeoutError),
    ):
        client.infer("double", ROWS)


ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"outputs":[]}'


def take(connection: socket.socket) -> None:
    """Read a request."""
    head, body, length = b"", b"", 0
    while not head or len(body) < length:
        data = connection.recv(65536)
        assert data
        body += data
        if not head and b"\r\n\r\n" in body:
            head, _, body = body.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])


@pytest.mark.parametrize("reset", [False, True])
def test_a_server_that_was_started_again_is_connected_anew(reset):
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        HttpClient(f"127.0.0.1:{listening.getsockname()[1]}", 30) as client,
    ):
        request = client.encode("double", ROWS)
        for _ in range(2):
            pending = client.submit(request)
            connection, _ = listening.accept()
            with connection:
                take(connection)
                connection.sendall(ANSWER)
                assert client.decode(pending.result(30)).outputs == {}
                if reset:
                    linger = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            # Until this machine has noticed it.
            (idle,) = client._idle
            assert select.select([idle._connection.sock], [], [], 30)[0]


def test_an_abort_that_comes_late_does_not_meet_another_request():
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        HttpClient(f"127.0.0.1:{listening.getsockname()[1]}", 30) as client,
    ):
        request = client.encode("double", ROWS)
        first = PendingRequest()
        sender = threading.Thread(target=client._send, args=(first, request))
        sender.start()
        connection, _ = listening.accept()
        with connection:
            take(connection)
            # The first two lines of `cancel`; its thread then stops for a while.
            assert first.finish(CancelledError("the request was cancelled by the caller"))
            abort = first.abort
            connection.sendall(ANSWER)
            sender.join(30)
            second = client.submit(request)
            other, _ = listening.accept()
            with other:
                take(other)
                abort()
                other.sendall(ANSWER)
                assert client.decode(second.result(30)).outputs == {}


def test_a_cancel_that_comes_late_does_not_end_another_request_of_the_stream():
    entered, leave = threading.Event(), threading.Event()

    def slow(IN: "FP32[1]") -> {"OUT": "FP32[1]"}:
        if IN.flat[0]:
            entered.set()
            leave.wait(60)
        return {"OUT": IN}

    def asked(client: GrpcClient, value: float):
        request = client.encode("slow", {"IN": np.full((1, 1), value, np.float32)})
        ended = threading.Event()
        responses: list[StreamResponse] = []
        pending = client.submit_streaming(
            request, lambda one, final: (responses.append(one), final and ended.set())
        )
        return pending, responses, ended

    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", model=slow, name="slow")
        with (
            server.serve(http_port=None, grpc_port=0, metrics_port=None) as endpoints,
            GrpcClient(f"127.0.0.1:{endpoints.grpc_port}", 30) as client,
        ):
            first, _, over = asked(client, 0)
            assert over.wait(30)
            _, responses, over = asked(client, 1)
            assert entered.wait(30)
            assert len(client._streams) == 1
            assert first.cancel()
            leave.set()
            assert over.wait(30)
            assert [one.error for one in responses] == [None] * len(responses)
            # And one in time ends it.
            entered.clear()
            leave.clear()
            third, responses, over = asked(client, 1)
            assert entered.wait(30)
            assert third.cancel()
            assert over.wait(30)
            assert isinstance(responses[-1].error, CancelledError)
            leave.set()
            # The stream is gone: what follows has a new one, and the old one is forgotten.
            for old in client._streams:
                old.thread.join(30)
            _, responses, over = asked(client, 0)
            assert over.wait(30)
            assert responses[0].error is None
            assert len(client._streams) == 1
