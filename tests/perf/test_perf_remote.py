"""Measuring a server at a URL: ours and the real one, over HTTP and gRPC, with one report."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")

import nbtriton as nt
from nbtriton.common.errors import (
    CancelledError,
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
)
from nbtriton.lab.perf.point import PerfPoint
from nbtriton.lab.perf.remote import remote_server
from nbtriton.lab.perf.run import environment_of
from nbtriton.magics.cli import main
from nbtriton.serving.clients.http import HttpClient
from tests.differential.servers import COMPLETE
from tests.until import until

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        out = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if (x < 0).any():
                out.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("below zero")))
            else:
                out.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x * 2)]))
        return out
"""
TENSORS = """
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
"""
TWICE = """
platform: "ensemble"
ensemble_scheduling {
  step { model_name: "double" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "between" } }
  step { model_name: "double" model_version: -1
    input_map { key: "IN" value: "between" } output_map { key: "OUT" value: "OUT" } }
}
"""


WORDS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(3):
                x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
MORE = {
    "words": (
        'backend: "python" model_transaction_policy { decoupled: true }' + TENSORS,
        WORDS,
    ),
    "steps": (
        'backend: "python" sequence_batching { max_sequence_idle_microseconds: 60000000 oldest { } }'
        + TENSORS,
        MODEL,
    ),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name, config, source in (
        ("double", 'backend: "python" dynamic_batching { }' + TENSORS, MODEL),
        ("twice", TWICE + TENSORS, None),
        *((name, *files) for name, files in MORE.items()),
    ):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
        if source is not None:
            (root / name / "1" / "model.py").write_text(source)
    return root


@pytest.fixture(scope="module")
def urls(repository: Path) -> Iterator[dict[str, str]]:
    """Our own endpoints."""
    with nt.Server(gpus=()) as server:
        server.load_repository(repository)
        with server.serve(http_port=0, grpc_port=0, metrics_port=None) as endpoints:
            yield {
                "http": f"127.0.0.1:{endpoints.http_port}",
                "grpc": f"127.0.0.1:{endpoints.grpc_port}",
            }


@pytest.fixture(scope="module")
def real_urls(reference, repository: Path) -> Iterator[dict[str, str]]:
    with reference.server(repository, COMPLETE) as server:
        yield {"http": server.http_url, "grpc": server.grpc_url}


def measure(url: str, model: str = "double", **options) -> PerfPoint:
    (point,) = nt.perf(None, model, url=url, request_count=40, **options).points
    return point


def is_counted(point: PerfPoint) -> bool:
    """Whether the server has counted all requests, and those of their steps."""
    assert point.server is not None
    return point.server.success_count == 40 and all(s.success_count == 80 for s in point.composing)


def check_levels(urls: dict[str, str], protocol: str, attempts: int = 1) -> None:
    """One caller, several, a rate, an ensemble: the counts here and at the server."""

    def measured(model: str = "double", **options) -> PerfPoint:
        for _ in range(attempts):
            point = measure(url, model, **options)
            if is_counted(point):
                break
        return point

    url = f"{protocol}://{urls[protocol]}"
    for options, batch in (
        ({}, 1),
        ({"concurrency": 4}, 1),
        ({"concurrency": 2, "batch_size": 3}, 3),
        ({"request_rate": 400.0}, 1),
        ({"concurrency": 3, "batch_size": 2, "shared_memory": "system"}, 2),
    ):
        point = measured(**options)
        assert (point.request_count, point.error_count) == (40, 0), point.first_error
        assert point.server is not None
        assert point.server.success_count == 40
        assert point.server.inference_count == 40 * batch
        assert sum(s * n for s, n in point.server.batch_sizes.items()) == 40 * batch
        assert point.latency_p50_us > 0
    point = measured("twice")
    assert [step.success_count for step in point.composing] == [80]
    assert point.server is not None
    assert point.server.success_count == 40


@pytest.mark.medium
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_our_endpoints(urls, protocol):
    check_levels(urls, protocol)


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_real_server(real_urls, protocol):
    # It counts a request after it has sent the response: now and then the last one comes too late.
    check_levels(real_urls, protocol, attempts=20)


def check_streams_and_sequences(urls: dict[str, str]) -> None:
    for options in ({}, {"concurrency": 4}, {"shared_memory": "system"}):
        point = measure(f"grpc://{urls['grpc']}", "words", streaming=True, **options)
        assert (point.request_count, point.error_count) == (40, 0), point.first_error
        assert point.stream is not None
        assert point.stream.response_count == 120
        assert 0 < point.stream.first.p50_us < point.latency_p99_us
    for protocol, options in (("http", {}), ("grpc", {}), ("grpc", {"streaming": True})):
        url = f"{protocol}://{urls[protocol]}"
        point = measure(url, "steps", concurrency=3, sequence_length=4, **options)
        assert (point.request_count, point.error_count) == (40, 0), point.first_error
        assert point.sequence_count is not None
        assert point.sequence_count >= 7


@pytest.mark.medium
def test_streams_and_sequences(urls):
    check_streams_and_sequences(urls)


@pytest.mark.reference
@pytest.mark.slow
def test_streams_and_sequences_of_the_real_server(real_urls):
    check_streams_and_sequences(real_urls)


@pytest.mark.medium
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_errors_are_counted_with_the_servers_words(urls, protocol):
    inputs = [{"IN": np.full((1, 4), value, np.float32)} for value in (1, -1)]
    report = nt.perf(
        None, "double", url=urls[protocol], protocol=protocol, concurrency=3, request_count=20,
        inputs=inputs,
    )  # fmt: skip
    (point,) = report.points
    assert (point.request_count, point.error_count) == (10, 10)
    assert point.first_error == "below zero"
    assert f"{protocol}://{urls[protocol]}" in report.headline
    assert report.settings["url"] == urls[protocol]
    assert report.environment["server"] == "triton 2.51.0"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_unreachable_server_and_an_unknown_model(urls, protocol):
    with pytest.raises(NotFoundError, match="unknown model: 'nope'"):
        nt.perf(None, "nope", url=urls[protocol], protocol=protocol)
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:9 does not answer"):
        nt.perf(None, "double", url="127.0.0.1:9", protocol=protocol)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_request_is_ended_once_and_threads_go_with_the_server(urls, protocol):
    before = set(threading.enumerate())
    with remote_server(urls[protocol], protocol) as remote:
        request = {"IN": np.ones((1, 4), np.float32)}
        ends = []
        sent = [remote.submit("double", request) for _ in range(8)]
        for each in sent:
            ended = threading.Event()
            each.add_done_callback(lambda one, ended=ended: (ends.append(one), ended.set()))
            assert ended.wait(60)
            assert not each.cancel()
        assert ends == sent
        assert [each.exception() for each in sent] == [None] * 8
        with pytest.raises(TritonError):
            remote.infer("double", {"IN": np.ones((9, 4), np.float32)})
    left = {t for t in set(threading.enumerate()) - before if t.name.startswith("nbtriton-client")}
    assert not left


def test_a_server_that_never_answers_is_left():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        remote = remote_server(f"127.0.0.1:{silent.getsockname()[1]}")
        request = {"IN": np.ones((1, 4), np.float32)}
        first, second = (remote.submit("double", request) for _ in range(2))
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(1)  # it was sent
            assert first.cancel()
            assert isinstance(first.exception(), CancelledError)
            ended = threading.Event()
            second.add_done_callback(lambda _: ended.set())
            remote.close()
            assert ended.is_set()
            assert isinstance(second.exception(), UnavailableError)


def test_a_request_that_is_not_yet_sent_ends_with_its_client():
    class Late(HttpClient):
        def _send(self, *request):
            # `close` has closed all connections by then, and waits for its senders.
            assert until(lambda: self._senders._shutdown)
            super()._send(*request)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Late(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=1)
        pending = client.submit(client.encode("double", {"IN": np.ones((1, 4), np.float32)}))
        client.close()
        assert isinstance(pending.exception(), UnavailableError)
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has come
            silent.accept()


def test_an_interrupt_while_a_server_is_asked_for_its_name_leaves_what_was_measured():
    def answer():
        connection, _ = silent.accept()
        with connection:
            connection.recv(1)
            os.kill(os.getpid(), signal.SIGINT)
            ended.wait(60)

    ended = threading.Event()
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        remote_server(f"127.0.0.1:{silent.getsockname()[1]}") as target,
    ):
        answering = threading.Thread(target=answer)
        answering.start()
        try:
            found = environment_of(target)
        finally:
            ended.set()
            answering.join()
    assert "server" not in found
    assert found["measured_at"]


def test_a_server_that_ends_in_a_sweep_leaves_what_was_measured(repository):
    with nt.Server(gpus=()) as server:
        server.load_repository(repository)
        endpoints = server.serve(http_port=0, grpc_port=None, metrics_port=None)

        def end(progress):
            if progress.level == 2:
                endpoints.stop()

        report = nt.perf(
            None, "double", url=f"127.0.0.1:{endpoints.http_port}", concurrency=[1, 2],
            request_count=10, observer=end,
        )  # fmt: skip
    assert report.points[0].request_count == 10
    assert [p.value for p in report.points if p.request_count] == [1]
    assert "UnavailableError" in report.failure


def test_contradictory_options_are_refused(urls):
    with pytest.raises(InvalidArgumentError, match="configuration of a server at a url"):
        nt.perf(None, "double", url=urls["http"], instances=[1, 2])
    with pytest.raises(InvalidArgumentError, match="unknown protocol 'htp'") as caught:
        nt.perf(None, "double", url="htp://host:1")
    assert "http" in caught.value.hint
    with pytest.raises(InvalidArgumentError, match="not to be reached over http"):
        nt.perf(None, "double", url="grpc://host:1", protocol="http")
    with pytest.raises(InvalidArgumentError, match="not the address of a server"):
        nt.perf(None, "double", url="http://host:1/v2")
    with pytest.raises(InvalidArgumentError, match="nothing to measure"):
        nt.perf(None, "double")
    with nt.Server(gpus=()) as server:
        with pytest.raises(InvalidArgumentError, match="not both"):
            nt.perf(server, "double", url=urls["http"])
        with pytest.raises(InvalidArgumentError, match="is not in this process"):
            nt.perf(None, "double", url=urls["http"], protocol="inproc")
        with pytest.raises(InvalidArgumentError, match="Streaming is only allowed with gRPC"):
            nt.perf(None, "double", url=urls["http"], streaming=True)


def test_the_port_of_an_address():
    for host, port in product(("localhost", "[::1]"), ("70000", "x", "", "-1")):
        with pytest.raises(InvalidArgumentError, match=f"has the port '{port}'"):
            remote_server(f"{host}:{port}")
    for given, url in (
        ("host", "host:8000"), ("host:80", "host:80"), ("[::1]", "[::1]:8000"), ("http://[::1]:80/", "[::1]:80")
    ):  # fmt: skip
        with remote_server(given) as remote:
            assert remote.url == url
    with remote_server("grpc://host") as remote:
        assert (remote.url, remote.protocol) == ("host:8001", "grpc")


@pytest.mark.slow
def test_the_command(urls, capsys):
    assert main(["perf", "double", "-u", urls["grpc"], "-i", "grpc", "--request-count", "10"]) == 0
    assert "double at grpc://" in capsys.readouterr().out
    stream = ["perf", "words", "-u", urls["grpc"], "-i", "grpc", "--streaming"]
    assert main([*stream, "--request-count", "10"]) == 0
    assert re.search(r"first p50 \[(µs|ms)\]", capsys.readouterr().out)
    steps = ["perf", "steps", "-u", urls["http"], "--request-count", "10", "--sequence-length", "5"]
    assert main([*steps, "--sequence-length-variation", "0", "--sequence-id-range", "7:9"]) == 0
    assert "sequences [1/s]" in capsys.readouterr().out
    assert main(["perf", "words", "-u", urls["grpc"], "-i", "grpc"]) == 2
    assert "model 'words' is decoupled" in capsys.readouterr().err
    assert main(["perf", "double", "-u", urls["http"], "--instances", "1,2"]) == 2
    assert "is not changed: instances" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["perf", "double", "-u", urls["http"], "--model-repository", "models"])
    with pytest.raises(SystemExit):
        main(["perf", "double", "-u", urls["http"], "--concurency", "4"])
    assert "--concurency 4 (did you mean '--concurrency'?)" in capsys.readouterr().err
