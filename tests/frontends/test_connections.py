"""HTTP connections: order, limits, slow clients and their ends, without harm to other connections."""

from __future__ import annotations

import contextlib
import gzip
import json
import signal
import socket
import struct
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import EngineStoppedError, UnavailableError
from nbtriton.runtime.engine import Server
from nbtriton.serving.frontends import Endpoints, Limits, serve
from nbtriton.serving.frontends.loop import LoopThread
from nbtriton.serving.frontends.service import NoControl
from nbtriton.serving.repository.control import ModelControl
from tests.engine.support import Gate, gated, waited
from tests.frontends.models import load_all
from tests.frontends.raw import Client, post
from tests.until import until

SERVED = ("one", "flexible", "stream", "words")

INFER = "/v2/models/one/infer"
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
CONFIG = """
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""


FLEXIBLE = """
input { name: "IN" data_type: TYPE_INT32 dims: -1 }
output { name: "OUT" data_type: TYPE_INT32 dims: -1 }
"""


def ones(number: float = 1.0, request_id: str = "") -> dict[str, Any]:
    tensor = {"name": "IN", "shape": [1, 4], "datatype": "FP32", "data": [number] * 4}
    return {"id": request_id, "inputs": [tensor]}


@contextlib.contextmanager
def opened(server: Server, **options: Any) -> Iterator[Endpoints]:
    with serve(server, http_port=0, metrics_port=None, **options) as endpoints:
        yield endpoints


@pytest.fixture(scope="module")
def small(repository) -> Iterator[Server]:
    with Server(gpus=()) as server:
        load_all(server, repository, ("one", "words", "stream"))
        yield server


def alive(port: int, host: str = "127.0.0.1") -> bool:
    with Client(port, host) as client:
        client.send(LIVE)
        return client.receive().status == 200


def outputs(received: Any) -> list[float]:
    return json.loads(received.body)["outputs"][0]["data"]


@pytest.mark.medium
def test_keep_alive_and_pipelining_keep_the_order(port: int) -> None:
    with Client(port) as client:
        # Some are slow to answer (a model), some are answered at once (health, a bad path).
        client.send(
            b"".join(post(INFER, ones(n)) + LIVE + post("/v2/nope", b"{}") for n in range(40))
        )
        for number in range(40):
            assert outputs(client.receive()) == [float(number)] * 4
            assert client.receive().status == 200
            assert client.receive().status == 404


@pytest.mark.parametrize("step", [1, 7, 100])
def test_a_request_may_come_in_any_pieces(port: int, step: int) -> None:
    data = post(INFER, ones(3.0)) * 2
    with Client(port) as client:
        for start in range(0, len(data), step):
            client.send(data[start : start + step])
        assert outputs(client.receive()) == outputs(client.receive()) == [3.0] * 4


def test_of_several_fields_of_a_name_the_first_counts(port: int) -> None:
    body = json.dumps(ones(2.0)).encode()
    length = "Inference-Header-Content-Length: {}".format
    for fields, status in (
        ((length(len(body)), length(1)), 200),
        ((length(1), length(len(body))), 500),
        (("Content-Encoding: identity", "Content-Encoding: br"), 200),
        (("Content-Encoding: br", "Content-Encoding: identity"), 501),
    ):
        with Client(port) as client:
            for _ in range(2):  # the second time the head is known
                client.send(post(INFER, body, *fields))
                assert client.receive().status == status


def test_a_chunked_request_body(port: int) -> None:
    body = json.dumps(ones(2.0)).encode()
    parts = b"".join(b"%x\r\n%s\r\n" % (len(body[i : i + 9]), body[i : i + 9]) for i in range(0, len(body), 9))  # fmt: skip
    with Client(port) as client:
        client.send(
            f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            + parts + b"0\r\n\r\n"
        )  # fmt: skip
        assert outputs(client.receive()) == [2.0] * 4


@pytest.mark.parametrize("length", [0, 5, 10_000])
def test_a_length_beside_chunks_does_not_count_and_ends_the_connection(
    port: int, length: int
) -> None:
    body = json.dumps(ones()).encode()
    head = (
        f"POST {INFER} HTTP/1.1\r\nContent-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    smuggled = post("/v2/models/flexible/infer", ones())
    with Client(port) as client:
        client.send(head.encode() + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) + smuggled)
        answer = client.receive()
        assert answer.headers["connection"] == "close"
        assert json.loads(answer.body)["outputs"][0]["data"] == [1.0] * 4
        with pytest.raises((AssertionError, ConnectionResetError)):  # no second answer
            client.receive()


def test_the_same_head_with_other_bodies_is_another_request(port: int) -> None:
    with Client(port) as client:
        for number in (1.5, 2.5, 3.5):
            client.send(post(INFER, ones(number)))
            assert outputs(client.receive()) == [number] * 4
        # The known head, but its body in pieces, and then two requests at once.
        data = post(INFER, ones(4.5))
        client.send(data[:-20])
        client.send(data[-20:])
        assert outputs(client.receive()) == [4.5] * 4
        client.send(post(INFER, ones(5.5)) + post(INFER, ones(6.5)))
        assert outputs(client.receive()) == [5.5] * 4
        assert outputs(client.receive()) == [6.5] * 4


def test_expect_100_continue(port: int) -> None:
    body = json.dumps(ones()).encode()
    head, _, _ = post(INFER, body, "Expect: 100-continue").partition(b"\r\n\r\n")
    with Client(port) as client:
        client.send(head + b"\r\n\r\n")
        assert client.receive().status == 100
        client.send(body)
        assert client.receive().status == 200


def test_http_1_0_and_connection_close(port: int) -> None:
    with Client(port) as client:
        client.send(post(INFER, ones(), version="1.0"))
        assert client.receive().headers["connection"] == "close"
        assert client.is_over()
    with Client(port) as client:
        client.send(post(INFER, ones(), "Connection: keep-alive", version="1.0") * 2)
        assert client.receive().headers["connection"] == "keep-alive"
        assert client.receive().status == 200
    with Client(port) as client:
        client.send(post(INFER, ones(), "Connection: close") + LIVE)
        assert client.receive().headers["connection"] == "close"
        assert client.is_over()


def test_the_answer_to_head_has_no_body(port: int) -> None:
    with Client(port) as client:
        client.send(LIVE.replace(b"GET", b"HEAD") + LIVE)
        refused = client._until(b"\r\n\r\n").decode()
        assert refused.startswith("HTTP/1.1 405 Not Allowed\r\n")
        assert "Content-Length: 30" in refused
        assert client.receive().status == 200


def test_http_1_0_streams_to_the_end_of_the_connection(port: int) -> None:
    with Client(port) as client:
        client.send(post("/v2/models/stream/generate_stream", {"IN": 3}, version="1.0"))
        data = b""
        while piece := client.socket.recv(65536):
            data += piece
    assert data.count(b"data: {") == 3
    assert b"chunked" not in data


def test_an_offer_to_upgrade_is_not_taken(port: int) -> None:
    fields = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    with Client(port) as client:
        client.send(LIVE.replace(b"Host", "\r\n".join((*fields, "Host")).encode()) + LIVE)
        assert client.receive().status == 200
        assert client.receive().status == 200


def upgrading(body: bytes, *framing: str) -> bytes:
    """Return a request as Java's client sends it by default."""
    lines = [
        f"POST {INFER} HTTP/1.1", "Connection: Upgrade, HTTP2-Settings", "Host: x",
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA", "Upgrade: h2c", *framing,
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize("step", [1, 50, 10_000])
def test_a_request_that_offers_to_upgrade_keeps_its_body(port: int, step: int) -> None:
    body = json.dumps(ones(4.0)).encode()
    whole = upgrading(body, f"Content-Length: {len(body)}")
    chunked = upgrading(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body), "Transfer-Encoding: chunked")
    with Client(port) as client:
        for data in (whole, chunked, whole + whole):
            for start in range(0, len(data), step):
                client.send(data[start : start + step])
            for _ in range(data.count(b"Host")):
                assert outputs(client.receive()) == [4.0] * 4
        client.send(LIVE)
        assert client.receive().body == b""


@pytest.mark.parametrize("method", ["POST", "CONNECT"])
def test_a_body_behind_an_offer_to_upgrade_is_no_second_request(port: int, method: str) -> None:
    data = upgrading(LIVE, f"Content-Length: {len(LIVE)}").replace(b"POST", method.encode())
    with Client(port) as client:
        client.send(data)
        assert client.receive().status >= 400
        client.socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            assert client.socket.recv(1) == b""


def test_many_offers_to_upgrade_at_once(port: int) -> None:
    fields = b"Connection: Upgrade\r\nUpgrade: h2c\r\nHost"
    with Client(port) as client:
        client.send(LIVE.replace(b"Host", fields) * 3000)
        assert all(client.receive().status == 200 for _ in range(3000))


@pytest.mark.parametrize("count", [1, 3])
def test_a_client_that_closed_its_sending_side_is_answered(port: int, count: int) -> None:
    with Client(port) as client:
        client.send(post(INFER, ones(2.0)) * count)
        client.socket.shutdown(socket.SHUT_WR)
        for _ in range(count):
            assert outputs(client.receive()) == [2.0] * 4
        assert client.is_over()
    with Client(port) as client:
        client.send(post("/v2/models/stream/generate_stream", {"IN": 3}))
        client.socket.shutdown(socket.SHUT_WR)
        assert client.receive().body.count(b"data: {") == 3
        assert client.is_over()


@pytest.mark.parametrize("idle", [b"", LIVE[:20], LIVE, post(INFER, ones())[:-5]])
def test_a_client_without_a_request_ends_without_an_answer(port: int, idle: bytes) -> None:
    with Client(port) as client:
        client.send(idle)
        if idle == LIVE:
            client.receive()
        client.socket.shutdown(socket.SHUT_WR)
        assert client.is_over()


@pytest.mark.parametrize(
    "endless",
    [
        b"0\r\n" + b"A: b\r\n" * 40_000,
        b"0\r\nA: " + b"b" * 400_000,
        b"1;" + b"x" * 400_000,
        b"1;x=" + b"y" * 400_000,
    ],
)
def test_bytes_between_chunks_are_bounded(port: int, endless: bytes) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with Client(port) as client:
        with contextlib.suppress(OSError):
            client.send(head + endless)
        assert client.receive().status == 431
        assert client.is_over()


def test_trailers_are_read_and_ignored(port: int) -> None:
    body = json.dumps(ones(2.0)).encode()
    trailers = b"Content-Encoding: br\r\nInference-Header-Content-Length: 7\r\nX: y\r\n"
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with Client(port) as client:
        for extension in (b"", b";a=b"):
            chunk = b"%x%s\r\n%s\r\n" % (len(body), extension, body)
            client.send(head + chunk + b"0\r\n" + trailers + b"\r\n")
            assert outputs(client.receive()) == [2.0] * 4


@pytest.mark.parametrize(
    "junk",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        b"FOO /v2 HTTP/1.1\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        *(
            b"POST /v2 HTTP/1.1\r\n%bTransfer-Encoding: %b\r\n\r\n{}" % (length, coding)
            for coding in (b"xchunked", b"identity", b'"chunked"', b"gzip", b"chunked, identity")
            for length in (b"", b"Content-Length: 2\r\n")
        ),
        b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
        b"\0" * 100,
    ],
)
def test_bytes_that_are_not_http_end_only_their_own_connection(port: int, junk: bytes) -> None:
    with Client(port) as bystander, Client(port) as client:
        client.send(junk)
        assert client.receive().status == 400
        assert client.is_over()
        bystander.send(post(INFER, ones()))
        assert bystander.receive().status == 200


def test_junk_behind_a_request_waits_for_its_answer(port: int) -> None:
    with Client(port) as client:
        client.send(post(INFER, ones()) + b"junk\r\n\r\n")
        assert client.receive().status == 200
        assert client.receive().status == 400
        assert client.is_over()


@pytest.mark.medium
def test_headers_are_bounded(small: Server) -> None:
    with opened(small, limits=Limits(header_bytes=2000)) as endpoints:
        port = endpoints.http_port
        for data in (
            b"GET /v2 HTTP/1.1\r\nA: " + b"a" * 3000 + b"\r\n\r\n",
            b"GET /v2 HTTP/1.1\r\nA: " + b"a" * 300_000,  # without an end
            b"GET /" + b"a" * 300_000,
        ):
            with Client(port) as client:
                with contextlib.suppress(OSError):
                    client.send(data)
                    client.send(b"b" * 300_000)
                assert client.receive().status == 431
        assert alive(port)


@pytest.mark.medium
def test_bodies_are_bounded_however_they_come(small: Server) -> None:
    with opened(small, limits=Limits(body_bytes=10_000)) as endpoints:
        port = endpoints.http_port
        announced = (
            f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n".encode()
        )
        chunked = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        for data in (announced, chunked + b"10000\r\n" + b"a" * 0x10000):
            with Client(port) as client:
                client.send(data)
                assert client.receive().status == 413
        bomb = gzip.compress(b" " * 1_000_000)
        with Client(port) as client:
            client.send(post(INFER, bomb, "Content-Encoding: gzip"))
            assert client.receive().status == 400
        assert alive(port)


# The same bytes at any time: they are part of the ids, which all workers must agree on.
WHOLE = gzip.compress(json.dumps(ones()).encode(), mtime=0)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        *((WHOLE[:-missing], "the end is missing") for missing in (1, 8, 20)),
        (WHOLE[:-8] + bytes(4) + WHOLE[-4:], "incorrect data check"),
        (WHOLE[:12] + b"\xff\xff" + WHOLE[14:], "Error -3 while decompressing data"),
        (b"no gzip", "incorrect header check"),
        (b"", "nothing to be decompressed"),
    ],
)
@pytest.mark.parametrize("model", ["one", "flexible"])
def test_a_compressed_body_that_cannot_be_read_is_refused(
    port: int, model: str, body: bytes, error: str
) -> None:
    with Client(port) as client:
        client.send(post(f"/v2/models/{model}/infer", body, "Content-Encoding: gzip"))
        refused = client.receive()
        assert refused.status == 400
        assert error in refused.error
        client.send(post(INFER, WHOLE, "Content-Encoding: gzip"))
        assert outputs(client.receive()) == [1.0] * 4


@pytest.mark.medium
def test_only_the_connection_of_a_slow_client_ends(small: Server) -> None:
    with opened(small, limits=Limits(head_s=0.2, idle_s=0.4)) as endpoints:
        port = endpoints.http_port
        with Client(port) as silent, Client(port) as head, Client(port) as body:
            head.send(b"GET /v2 HTT")
            body.send(post(INFER, ones())[:-5])
            assert head.receive().status == 408
            assert body.receive().status == 408
            # One that has sent nothing may stay: it keeps its connection for later.
            silent.send(LIVE)
            assert silent.receive().status == 200


@pytest.mark.medium
def test_the_connection_of_a_client_that_reads_nothing_is_aborted(small: Server) -> None:
    with opened(small, limits=Limits(unread_bytes=100_000)) as endpoints:
        port = endpoints.http_port
        waited_for = threading.Event()
        http = endpoints._open["http"]
        remove = http.remove

        def notify(connection: object) -> None:
            remove(connection)
            waited_for.set()

        http.remove = notify  # type: ignore[method-assign]
        with Client(port) as client:
            # The system keeps megabytes: each response has the long id.
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.send(post("/v2/models/stream/generate_stream", {"id": "x" * 2000, "IN": 5000}))
            waited(waited_for)
        assert alive(port)


def test_a_new_connection_evicts_one_without_a_request(small: Server) -> None:
    with opened(small, limits=Limits(connections=5)) as endpoints, contextlib.ExitStack() as stack:
        port = endpoints.http_port
        answered = stack.enter_context(Client(port))
        answered.send(LIVE)
        answered.receive()
        silent = [stack.enter_context(Client(port)) for _ in range(30)]
        silent[10].send(b"GET /v2 HTT")
        for _ in range(3):
            assert alive(port)
        answered.send(LIVE)
        assert answered.receive().status == 200
        assert all(client.is_over() for client in silent[:25])


def test_a_new_connection_evicts_an_idle_one_if_all_have_sent_requests(small: Server) -> None:
    with opened(small, limits=Limits(connections=3)) as endpoints, contextlib.ExitStack() as stack:
        clients = []
        for _ in range(4):
            clients.append(stack.enter_context(Client(endpoints.http_port)))
            clients[-1].send(LIVE)
            assert clients[-1].receive().status == 200
        served = []
        for client in clients:
            with contextlib.suppress(AssertionError, OSError):
                client.send(LIVE)
                served.append(client.receive().status)
        assert served == [200] * 3


def test_too_many_connections_are_refused() -> None:
    gate = Gate()
    with Server(gpus=()) as server, contextlib.ExitStack() as stack:
        server.load(CONFIG, gated(gate), name="gated")
        endpoints = stack.enter_context(opened(server, limits=Limits(connections=3)))
        clients = [stack.enter_context(Client(endpoints.http_port)) for _ in range(3)]
        for client in clients:
            client.send(post("/v2/models/gated/infer", ones()))
        gate.wait_entered()
        assert until(lambda: server.models()[0].queued == 2)
        with Client(endpoints.http_port) as refused:
            assert refused.receive().status == 503
        gate.open()
        assert all(client.receive().status == 200 for client in clients)
        assert alive(endpoints.http_port)


def test_X1_a_client_that_leaves_cancels_its_request() -> None:
    import triton_python_backend_utils as pb_utils

    entered, saw_it = threading.Event(), threading.Event()

    class TritonPythonModel:
        def execute(self, requests):
            entered.set()
            assert until(requests[0].is_cancelled)
            saw_it.set()
            return [pb_utils.InferenceResponse([]) for _ in requests]

    with Server(gpus=()) as server:
        server.load(CONFIG, TritonPythonModel, name="patient")
        with opened(server) as endpoints:
            with Client(endpoints.http_port) as client:
                client.send(post("/v2/models/patient/infer", ones()))
                waited(entered)
                # At once, as a process that is killed: a mere end says that it will ask no more.
                client.socket.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
            waited(saw_it)


def test_requests_that_arrive_together_are_one_batch() -> None:
    gate = Gate()
    with Server(gpus=()) as server:
        server.load(CONFIG + "dynamic_batching { }", gated(gate), name="gated")
        with opened(server) as endpoints, contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Client(endpoints.http_port)) for _ in range(9)]
            clients[0].send(post("/v2/models/gated/infer", ones()))
            gate.wait_entered()
            for client in clients[1:]:
                client.send(post("/v2/models/gated/infer", ones()))
            assert until(lambda: server.models()[0].queued == 8)
            gate.open()
            assert all(client.receive().status == 200 for client in clients)
    assert [len(batch) for batch in gate.batches] == [1, 8]


def test_closing_leaves_nothing_behind(repository) -> None:
    with Server(gpus=()) as server:
        load_all(server, repository, ("one",))
        before = set(threading.enumerate())
        # An address of its own: at the usual one another process may take a port that is free again.
        host = "127.0.0.17"
        endpoints = serve(server, http_port=0, metrics_port=0, host=host)
        port = endpoints.http_port
        with Client(port, host) as client, Client(port, host) as partly:
            client.send(post(INFER, ones()))
            client.receive()
            partly.send(b"POST /v2 HTTP/1.1\r\nContent-Le")
            endpoints.close()
            endpoints.close()
            assert client.is_over()
            assert partly.is_over()
        assert set(threading.enumerate()) <= before
        assert endpoints.http_port is None
        with pytest.raises(OSError):
            Client(port, host)
        # The port is free again, and the server goes on.
        with serve(server, http_port=port, metrics_port=None, host=host):
            assert alive(port, host)


@pytest.mark.medium
def test_closing_can_wait_for_running_requests() -> None:
    gate = Gate()
    with Server(gpus=()) as server:
        server.load(CONFIG, gated(gate), name="gated")
        endpoints = serve(server, http_port=0, metrics_port=None)
        with Client(endpoints.http_port) as client:
            client.send(post("/v2/models/gated/infer", ones()))
            gate.wait_entered()
            closing = threading.Thread(target=endpoints.close, kwargs={"drain_s": 30.0})
            closing.start()
            gate.open()
            assert client.receive().status == 200
            closing.join(30)
            assert not closing.is_alive()


def listens(port: int | None) -> bool:
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_ports_are_closed_concurrently() -> None:
    gate = Gate()
    with Server(gpus=()) as server:
        server.load(CONFIG, gated(gate), name="gated")
        endpoints = serve(server, http_port=0, metrics_port=0)
        ports = (endpoints.http_port, endpoints.metrics_port)
        with Client(endpoints.http_port) as client:
            client.send(post("/v2/models/gated/infer", ones()))
            gate.wait_entered()
            closing = threading.Thread(target=endpoints.close, kwargs={"drain_s": 30.0})
            closing.start()
            # None of them waits for the request that HTTP still has to answer.
            assert until(lambda: not any(map(listens, ports)))
            gate.open()
            assert client.receive().status == 200
            closing.join(30)


def test_closing_cancels_running_requests() -> None:
    gate = Gate()
    with Server(gpus=()) as server:
        server.load(CONFIG, gated(gate), name="gated")
        endpoints = serve(server, http_port=0, metrics_port=None)
        with Client(endpoints.http_port) as client:
            client.send(post("/v2/models/gated/infer", ones()))
            gate.wait_entered()
            endpoints.stop()
            assert client.is_over()
            gate.open()


def test_a_taken_port_is_refused_and_leaves_nothing_open(small: Server) -> None:
    before = set(threading.enumerate())
    with opened(small) as endpoints:
        port = endpoints.http_port
        with pytest.raises(UnavailableError) as caught:
            serve(small, http_port=0, metrics_port=port)
        assert caught.value.message == f"Socket '127.0.0.1:{port}' already in use "
        assert "give another metrics_port (--metrics-port)" in caught.value.hint
    assert set(threading.enumerate()) <= before


def test_endpoints_listen_on_this_machine_only_by_default(small: Server) -> None:
    with pytest.warns(UserWarning, match="everyone who can reach this machine"):
        serve(small, http_port=0, metrics_port=None, host="0.0.0.0").close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        serve(small, http_port=0, metrics_port=None).close()
        serve(small, http_port=0, metrics_port=None, host="localhost").close()


@pytest.mark.medium
def test_thousands_of_connections_leave_nothing(small: Server) -> None:
    with opened(small) as endpoints:
        for number in range(2000):
            with Client(endpoints.http_port) as client:
                if number % 3:
                    client.send(LIVE)
                    client.receive()
                elif number % 2:
                    client.send(b"POST /v2/models/one/inf")
        assert alive(endpoints.http_port)
        connections = endpoints._open["http"].connections
        assert until(lambda: not connections)


LONG = np.arange(50_001, dtype=np.int32)


def long(array: np.ndarray, *fields: str) -> bytes:
    """A request whose body is too long for one read."""
    tensor = {"name": "IN", "shape": [array.size], "datatype": "INT32",
              "parameters": {"binary_data_size": array.nbytes}}  # fmt: skip
    header = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    text = json.dumps(header).encode()
    return post(
        "/v2/models/flexible/infer",
        text + array.tobytes(),
        f"Inference-Header-Content-Length: {len(text)}",
        *fields,
    )


def tensor_of(received: Any) -> np.ndarray:
    length = int(received.headers["inference-header-content-length"])
    return np.frombuffer(received.body[length:], np.int32)


@pytest.fixture(scope="module")
def flexible(repository) -> Iterator[int]:
    with Server(gpus=()) as server:
        load_all(server, repository, ("flexible",))
        with opened(server) as endpoints:
            assert endpoints.http_port is not None
            yield endpoints.http_port


@pytest.mark.medium
def test_large_tensors_come_and_go_unharmed(flexible: int) -> None:
    array = np.arange(3_000_001, dtype=np.int32)
    with Client(flexible) as client:
        for _ in range(3):
            client.send(long(array))
            np.testing.assert_array_equal(tensor_of(client.receive()), array)


@pytest.mark.parametrize("cut", [30, 250, 400, 70_000, 200_000])
def test_a_long_body_may_come_in_pieces_and_be_followed_at_once(flexible: int, cut: int) -> None:
    sent = [LONG, LONG + 1, LONG[:5], LONG + 2]
    data = b"".join(map(long, sent))
    with Client(flexible) as client:
        client.send(data[:cut])
        client.send(data[cut:])
        for array in sent:
            np.testing.assert_array_equal(tensor_of(client.receive()), array)


def test_a_long_body_waits_for_100_continue_and_ends_a_connection(flexible: int) -> None:
    head, _, body = long(LONG, "Expect: 100-continue", "Connection: close").partition(b"\r\n\r\n")
    with Client(flexible) as client:
        client.send(head + b"\r\n\r\n")
        assert client.receive().status == 100
        client.send(body)
        np.testing.assert_array_equal(tensor_of(client.receive()), LONG)
        assert client.is_over()


@pytest.mark.medium
def test_a_long_body_that_never_ends_harms_only_its_client(flexible: int) -> None:
    data = long(LONG)
    for size in (len(data) - 1, 100_000, 1000):
        with Client(flexible) as client:
            client.send(data[:size])
    assert alive(flexible)


@pytest.mark.medium
def test_tensors_that_a_model_keeps_are_never_written_over() -> None:
    kept: list[np.ndarray] = []

    def keep(IN: np.ndarray) -> np.ndarray:  # noqa: N803
        kept.append(IN)
        return IN

    with Server(gpus=()) as server:
        server.load(FLEXIBLE, keep, name="flexible")
        with opened(server) as endpoints, Client(endpoints.http_port) as client:
            for number in range(6):
                client.send(long(LONG + number))
                assert tensor_of(client.receive())[0] == number
    for number, array in enumerate(kept):
        np.testing.assert_array_equal(array.reshape(-1), LONG + number)


# -- stops and interrupts ----------------------------------------------------------------------------


def test_what_waits_behind_a_slow_answer_is_not_late() -> None:
    gate = Gate()
    with Server(gpus=()) as server:
        server.load(CONFIG, gated(gate), name="gated")
        with opened(server) as endpoints, Client(endpoints.http_port) as client:
            listener = endpoints._open["http"]
            # More than are read ahead: the last one read is cut off, and the rest waits.
            count = 200
            client.send(post("/v2/models/gated/infer", ones()) + LIVE * count)
            gate.wait_entered()
            (connection,) = listener.connections
            assert until(lambda: connection._paused)

            async def look_a_day_later() -> bool:
                connection.check_timeouts(listener.thread.loop.time() + 86_400)
                return connection._state.in_request

            assert listener.thread.call(look_a_day_later())
            gate.open()
            assert [client.receive().status for _ in range(1 + count)] == [200] * (1 + count)


def test_a_wait_for_clients_ends_when_another_thread_closes_the_ports(small: Server) -> None:
    endpoints = serve(small, http_port=0, metrics_port=None)
    listener = endpoints._open["http"]
    left: list[int] = []
    with Client(endpoints.http_port) as client:
        client.send(LIVE)
        client.receive()
        waiting = threading.Thread(
            target=lambda: left.append(endpoints.wait_for_clients(3600)), daemon=True
        )
        waiting.start()
        assert until(lambda: listener._all_closed is not None)
        endpoints.close()
        waiting.join(30)
    assert left == [0]


def test_a_call_that_fails_on_the_loop_does_not_stop_those_behind_it() -> None:
    thread = LoopThread("nbtriton-test")
    entered, done = threading.Event(), threading.Event()

    def fail() -> None:
        entered.set()
        raise ValueError("no")

    thread.post(fail)
    waited(entered)
    thread.post(done.set)
    waited(done)
    thread.stop()


def test_a_worker_outlives_a_task_that_ends_its_thread() -> None:
    thread = LoopThread("nbtriton-test")
    done = threading.Event()

    async def submit() -> None:
        for _ in range(8):
            thread.run_on_worker(sys.exit)
        thread.run_on_worker(done.set)

    thread.call(submit())
    waited(done)
    thread.stop()


def test_a_close_that_was_interrupted_is_completed_by_the_next() -> None:
    before = set(threading.enumerate())
    server = nt.Server(gpus=())
    endpoints = server.serve(http_port=0, metrics_port=None)
    blocked, go_on = threading.Event(), threading.Event()
    endpoints._thread.post(lambda: (blocked.set(), go_on.wait()))
    waited(blocked)

    def interrupt() -> None:
        assert until(lambda: endpoints._stopping is not None)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        server.close()
    other.join()
    go_on.set()
    server.close()
    assert until(lambda: set(threading.enumerate()) <= before)


def test_an_interrupt_while_the_ports_open_leaves_them_to_the_server() -> None:
    before = set(threading.enumerate())
    interrupted: list[str] = []

    def trace(frame: Any, event: str, _: object) -> Any:
        if event == "call":
            return trace if frame.f_code is serve.__code__ else None
        if event == "line" and "thread" in frame.f_locals and not interrupted:
            interrupted.append(event)
            signal.raise_signal(signal.SIGINT)
        return trace

    with nt.Server(gpus=()) as server:
        sys.settrace(trace)
        try:
            with pytest.raises(KeyboardInterrupt):
                server.serve(http_port=0, metrics_port=None)
        finally:
            sys.settrace(None)
        assert interrupted
        assert len(server.endpoints) == 1
    assert until(lambda: set(threading.enumerate()) <= before)


@pytest.mark.parametrize("first", ["serve", "close"])
def test_ports_that_open_while_the_server_closes_are_closed(first: str, tmp_path: Path) -> None:
    """The other one is called, by another thread, in the midst of the first one."""
    before = set(threading.enumerate())
    server = nt.Server(gpus=())
    server.load_repository(tmp_path)
    opened: list[Endpoints] = []

    def open_ports() -> None:
        opened.append(server.serve(http_port=0, grpc_port=None, metrics_port=None))

    inside = LoopThread.__init__ if first == "serve" else ModelControl.close
    others = [threading.Thread(target=server.close if first == "serve" else open_ports)]

    def trace(frame: Any, _event: str, _: object) -> None:
        if frame.f_code is inside.__code__ and others:
            other = others.pop()
            other.start()
            other.join(30)

    sys.settrace(trace)
    try:
        if first == "serve":
            with pytest.raises(EngineStoppedError):
                open_ports()
        else:
            server.close()
    finally:
        sys.settrace(None)
    assert not others
    assert not server.endpoints
    assert until(lambda: set(threading.enumerate()) <= before)


def test_what_is_posted_after_the_end_is_not_kept() -> None:
    thread = LoopThread("nbtriton-test")
    thread.stop()
    response = Gate()
    seen = weakref.ref(response)
    thread.post(response.open)
    del response
    assert seen() is None


class Hanging(NoControl):
    """A control whose loads go on until `leave` is set."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.loading = threading.Semaphore(0)
        self.leave = threading.Event()

    def load(self, name: str, parameters: dict[str, Any]) -> None:
        self.loading.release()
        self.leave.wait(30)


def test_loads_that_hang_do_not_keep_requests_from_their_workers(small: Server) -> None:
    control = Hanging(small)
    with opened(small, control=control) as endpoints, contextlib.ExitStack() as stack:
        for _ in range(4):
            client = stack.enter_context(Client(endpoints.http_port))
            client.send(post("/v2/repository/models/m/load", b""))
            assert control.loading.acquire(timeout=30)
        client = stack.enter_context(Client(endpoints.http_port))
        body = gzip.compress(json.dumps(ones(3.0)).encode())
        client.send(post(INFER, body, "Content-Encoding: gzip"))
        assert outputs(client.receive()) == [3.0] * 4
        client.send(post("/v2/repository/index", b""))
        assert client.receive().status == 200
        control.leave.set()
