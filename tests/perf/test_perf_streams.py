"""Sequences and streams under load, in the process and over HTTP and gRPC. Run lengths are counts."""

from __future__ import annotations

import json
import math
import signal
import socket
import threading
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")

import nbtriton as nt
from nbtriton.backends.python.api import pb_utils
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.lab.perf import driver
from tests.until import PATIENCE_S

# A busy machine may take longer between two requests than the second after which Triton gives a sequence up.
SEQUENCE = 'max_batch_size: 4 sequence_batching { max_sequence_idle_microseconds: 60000000 control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } } }'


class Total:
    """Records the requests of each sequence; an unknown one is the server's error."""

    seen: defaultdict[object, list[tuple[float, bool, bool]]]

    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [1]})
        return config

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            flags = request.flags()
            Total.seen[request.correlation_id()].append(
                (
                    float(x[0, 0]),
                    bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
                    bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
                )
            )
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
        return answers


class Words:
    """Answers a request N times; a negative N ends with an error."""

    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "N", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "W", "data_type": "TYPE_INT32", "dims": [1]})
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def execute(self, requests):
        for request in requests:
            n = int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0])
            sender = request.get_response_sender()
            for i in range(abs(n)):
                word = pb_utils.Tensor("W", np.array([i], np.int32))
                sender.send(pb_utils.InferenceResponse([word]))
            if n < 0:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("no more")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


@pytest.fixture(scope="module")
def server():
    with nt.Server(gpus=()) as server:
        server.load(SEQUENCE, model=Total, name="total")
        server.load(None, model=Words, name="words")
        server.serve(http_port=0, grpc_port=0, metrics_port=None)
        yield server


@pytest.fixture(autouse=True)
def seen():
    Total.seen = defaultdict(list)
    return Total.seen


def check_sequences(seen):
    """Every sequence began once and ended once, one after the other for a repeated id."""
    seen.pop(0, None)  # what the batcher puts into slots that are idle
    for requests in seen.values():
        assert requests[0][1]
        assert requests[-1][2]
        for (_, _, ended), (_, starts, _) in pairwise(requests):
            assert ended == starts


@pytest.mark.parametrize("protocol", ["inproc", "http", "grpc"])
@pytest.mark.parametrize("load", [{}, {"concurrency": 3}, {"request_rate": 400.0}])
def test_PA21_PA20_sequences_are_made_and_ended(server, seen, protocol, load):
    (point,) = nt.perf(
        server, "total", protocol=protocol, request_count=50, sequence_length=5,
        sequence_length_variation=0.0, **load,
    ).points  # fmt: skip
    assert (point.request_count, point.error_count) == (50, 0), point.first_error
    check_sequences(seen)
    whole = sum(ends for requests in seen.values() for _, _, ends in requests)
    live = 1 if not load else load.get("concurrency", 4)
    assert point.sequence_count >= 50 // 5 - live
    # Sequences that the end of the load cut short do not count.
    assert point.sequence_count <= whole <= point.sequence_count + live
    assert point.sequences_per_s > 0
    assert nt.perf(server, "total", request_count=4, sequence_id_range=90).points
    assert 90 in seen


def test_PA21_serial_sequences_keep_one_request_each(server, seen):
    (point,) = nt.perf(
        server, "total", request_rate=2000.0, request_count=60, serial_sequences=True,
        num_of_sequences=2, sequence_id_range="5:7",
    ).points  # fmt: skip
    assert point.error_count == 0
    assert seen.keys() - {0} == {5, 6}
    check_sequences(seen)


def test_PA22_a_streams_steps_are_a_sequence(server, seen, tmp_path):
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"data": [[{"X": [1.0]}, {"X": [2.0]}, {"X": [3.0]}]]}))
    report = nt.perf(server, "total", request_count=9, input_data=path)
    assert report.points[0].sequence_count == 3
    assert [[x for x, _, _ in requests] for number, requests in seen.items() if number] == [
        [1, 2, 3]
    ] * 3
    seen.clear()
    steps = [{"X": np.full((1, 1), x, np.float32)} for x in (4, 5)]
    nt.perf(server, "total", request_count=4, inputs=steps)
    assert [[x for x, _, _ in requests] for number, requests in seen.items() if number] == [
        [4, 5]
    ] * 2


def test_an_interrupted_level_leaves_no_sequence_behind(server, seen, monkeypatch):
    monkeypatch.setattr(driver, "GRACE_S", PATIENCE_S)  # no request is cancelled

    def stop(progress):
        if progress.window:
            raise KeyboardInterrupt

    report = nt.perf(
        server, "total", concurrency=3, measurement_mode="count_windows",
        measurement_request_count=50, sequence_length=10**6, observer=stop,
    )  # fmt: skip
    assert report.interrupted
    check_sequences(seen)


@pytest.mark.parametrize("protocol", ["inproc", "grpc"])
@pytest.mark.parametrize("load", [{}, {"concurrency": 3}, {"request_rate": 200.0}])
def test_streams_are_measured_response_by_response(server, protocol, load):
    (point,) = nt.perf(
        server, "words", protocol=protocol, streaming=True, request_count=20,
        inputs={"N": np.array([4], np.int32)}, **load,
    ).points  # fmt: skip
    assert (point.request_count, point.error_count) == (20, 0), point.first_error
    stream = point.stream
    assert stream.response_count == 80
    assert stream.responses_per_s == pytest.approx(80 / point.window_s)
    assert 0 < stream.first.p50_us <= point.latency_p99_us
    assert stream.between.p50_us >= 0
    # PA3: a request lasts until its last response with outputs.
    assert point.latency_avg_us == pytest.approx(
        stream.first.avg_us + 3 * stream.between.avg_us, rel=0.01
    )


@pytest.mark.parametrize("protocol", ["inproc", "grpc"])
def test_a_request_without_responses_and_one_that_fails(server, protocol):
    inputs = [{"N": np.array([n], np.int32)} for n in (0, -2)]
    (point,) = nt.perf(
        server, "words", protocol=protocol, streaming=True, request_count=10, inputs=inputs
    ).points
    assert (point.request_count, point.error_count) == (5, 5)
    assert "no more" in point.first_error
    assert point.stream.response_count == 0
    assert math.isnan(point.stream.first.p50_us)


@pytest.mark.parametrize("protocol", ["inproc", "grpc"])
def test_other_models_stream_one_response(server, protocol):
    (point,) = nt.perf(
        server, "total", protocol=protocol, streaming=True, request_count=12, sequence_length=4
    ).points
    assert (point.request_count, point.error_count) == (12, 0), point.first_error
    assert point.stream.response_count == 12


@pytest.mark.medium
@pytest.mark.parametrize("streaming", [False, True])
def test_a_model_that_never_answers_is_left(streaming):
    release = threading.Event()

    class Stuck(Total):
        def execute(self, requests):
            assert release.wait(60)
            return super().execute(requests)

    once = threading.Lock()  # a second interrupt would be raised

    def stop(progress):
        if once.acquire(blocking=False):
            threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()

    with nt.Server(gpus=()) as server:
        server.load(SEQUENCE, model=Stuck, name="stuck")
        report = nt.perf(server, "stuck", concurrency=3, streaming=streaming, observer=stop)
        assert report.interrupted
        release.set()


def test_what_is_refused_before_any_load(server):
    for options, text in (
        ({"model": "words"}, "model 'words' is decoupled"),
        ({"model": "words", "streaming": True, "protocol": "http"}, "Streaming is only allowed"),
        ({"model": "total", "batch_size": 2}, "batch size > 1 when using a sequence model"),
        ({"model": "total", "concurrency": 4, "sequence_id_range": "1:3"}, "collision may occur"),
        ({"model": "total", "sequence_length": 0}, "Failed to parse --sequence-length."),
        ({"model": "words", "streaming": True, "batch_size": 2}, "does not support batching"),
        ({"model": "total", "input_data": "nowhere.json"}, "no input data 'nowhere.json'"),
    ):
        model = options.pop("model")
        with pytest.raises(nt.TritonError, match=text):
            nt.perf(server, model, **options)


def test_a_batch_that_no_configuration_takes_is_refused(server):
    def same(X: "FP32[1]") -> {"Y": "FP32[1]"}:  # noqa: F821, N803, UP037
        return {"Y": X}

    server.load("max_batch_size: 8", model=same, name="same")
    with pytest.raises(InvalidArgumentError, match="batch size 16 is larger than max_batch_size 8"):
        nt.perf(server, "same", batch_size=[4, 16])
    with pytest.raises(InvalidArgumentError, match="larger than max_batch_size 4"):
        nt.perf(server, "same", batch_size=8, max_batch_size=[4, 8])
    report = nt.perf(server, "same", batch_size=16, max_batch_size=16, request_count=3)
    assert report.points[0].request_count == 3


def test_PA25_the_report_shows_streams_and_sequences(server, tmp_path):
    words = nt.perf(
        server, "words", streaming=True, request_count=5, inputs={"N": np.array([3], np.int32)}
    )
    text = words._repr_mimebundle_()["text/plain"]
    for column in (
        "responses [1/s]",
        "first p50 [",
        "between p99 [",
    ):  # in µs, on a busy machine in ms
        assert column in text
    assert {"responses", "first_response_p99_us", "between_responses_avg_us"} <= set(words.frame)
    words.to_csv(tmp_path / "words.csv")
    head = (tmp_path / "words.csv").read_text().splitlines()[0].split(",")
    assert head[:3] == ["Concurrency", "Inferences/Second", "Response Throughput"]
    words.save(tmp_path / "words.json")
    total = nt.perf(server, "total", request_count=45)
    assert "sequences [1/s]" in total._repr_mimebundle_()["text/plain"]
    assert {"sequences", "sequences_per_s"} <= set(total.frame)


def test_a_server_that_serves_nowhere_opens_a_port_for_the_run():
    def same(X: "FP32[1]") -> {"Y": "FP32[1]"}:  # noqa: F821, N803, UP037
        return {"Y": X}

    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", model=same, name="same")
        for protocol in ("http", "grpc"):
            report = nt.perf(server, "same", protocol=protocol, request_count=5, instances=[1, 2])
            assert [point.request_count for point in report.points] == [5, 5]
            assert report.settings["protocol"] == protocol
            host, _, port = report.settings["url"].partition(":")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, int(port)))
