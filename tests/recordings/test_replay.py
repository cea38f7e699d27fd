"""Replays: live, at another speed and configuration, at a URL, and in the simulator."""

# ruff: noqa: F821, N803, UP037 - function models: Triton's datatypes as annotations

from __future__ import annotations

import itertools
import math
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import (
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
)
from nbtriton.extensions.recordings import Recording
from nbtriton.lab.perf import driver
from nbtriton.lab.perf.machine import others_s
from nbtriton.lab.perf.recording import RecordedRequest, RecordedTensor
from tests.simulate.profiles import chain, profile
from tests.until import PATIENCE_S

ONES = np.ones((1, 4), np.float32)


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    return {"OUT": IN * 2}


def recording(*requests: tuple, name: str = "double", dims: int = 4) -> Recording:
    """Requests at milliseconds, with rows and options, without the contents of their inputs."""
    rows = sorted({one[1] for one in requests})
    return Recording(
        tuple(
            RecordedRequest(round(at * 1e6), name, rows.index(size), size, options)
            for at, size, options in requests
        ),
        tuple({"IN": RecordedTensor("FP32", (size, dims))} for size in rows),
        {name: "max_batch_size: 8"},
        "2026-01-01T00:00:00.000+00:00",
        round(max(one[0] for one in requests) * 1e6),
    )


def what(recorded: Recording) -> list[tuple]:
    """Everything but when it arrived."""
    return [
        (r.model, r.rows, dict(r.options), recorded.inputs[r.inputs]) for r in recorded.requests
    ]


@pytest.fixture
def server():
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8 dynamic_batching { }", double, name="double")
        yield server


def test_a_replay_of_a_replay_is_identical_but_for_jitter(server, tmp_path):
    files = [tmp_path / f"{n}.jsonl" for n in range(3)]
    with nt.record(server, files[0], inputs=True):
        for at in range(20):
            server.infer(
                "double", {"IN": ONES * (at % 3)}, request_id=f"r{at}", priority=at % 2,
                timeout_us=10_000_000, parameters={"at": at}, outputs=["OUT"] if at % 4 else [],
            )  # fmt: skip
    for source, into in itertools.pairwise(files):
        with nt.record(server, into, inputs=True):
            report = nt.replay(source, server)
        (point,) = report.points
        assert (point.mode, point.value, point.request_count) == ("replay", 1.0, 20)
        assert point.error_count == 0
        assert point.server.success_count == 20
    first, second, third = (Recording.load(file) for file in files)
    assert what(first) == what(second) == what(third)
    assert len(first.requests) == 20


def test_the_report_is_one_of_perf(server):
    played = recording(*[(n, 1 + n % 2, {}) for n in range(10)])
    report = nt.replay(played, server, speed=[1, 100], instances=[1, 2], percentile=75)
    assert isinstance(report, nt.types.PerfReport)
    assert report.frame[["speed", "instances", "requests"]].to_numpy().tolist() == [
        [1, 1, 10], [100, 1, 10], [1, 2, 10], [100, 2, 10],
    ]  # fmt: skip
    assert {"latency_p75_us", "server_queue_us", "lateness_avg_us"} <= set(report.frame)
    assert "requests of 1 to 2 rows, 1.5 on average" in report.points[0].notes
    shown = report._repr_mimebundle_()
    assert "speed" in shown["text/plain"]
    assert "<svg" in shown["text/html"]
    assert math.isnan(others_s()) or "other_programs_cores" in report.environment
    assert server.config("double").instance_group[0].count == 1
    assert report.best(p99_ms=1e6).apply().configs["double"].instance_group[0].count in (1, 2)


def test_rows_that_were_refused_are_no_throughput(server):
    # Only the requests of one row fit.
    played = recording(*[(n, 1 + 7 * (n % 2), {}) for n in range(10)])
    (point,) = nt.replay(played, server, max_batch_size=4).points
    assert (point.request_count, point.error_count) == (5, 5)
    assert point.infer_per_s == pytest.approx(5 / point.window_s)
    assert point.throughputs == pytest.approx((point.infer_per_s,))
    assert any("not all were answered" in note for note in point.notes)


def test_it_lasts_until_the_last_response_and_not_until_the_statistics_are_read(server):
    read, began_ns = server.statistics, []

    def statistics(*args, **options):
        began_ns.append(time.monotonic_ns())
        return read(*args, **options)

    server.statistics = statistics
    (point,) = nt.replay(recording((0, 1, {}), (5, 1, {})), server).points
    assert point.window_s <= (began_ns[-1] - began_ns[0]) / 1e9


def test_a_model_without_batches_has_a_throughput(server, tmp_path):
    server.load("", double, name="plain")
    with nt.record(server, tmp_path / "t.jsonl", models="plain"):
        for _ in range(3):
            server.infer("plain", {"IN": ONES[0]})
    played = Recording.load(tmp_path / "t.jsonl")
    assert [request.rows for request in played.requests] == [0] * 3
    alone = profile({(1, 1): 1.0}, rows=0, more="")
    simulated = replace(played, requests=tuple(one._replace(model="m") for one in played.requests))
    for found in nt.replay(played, server), nt.replay(simulated, alone):
        (point,) = found.points
        assert point.batch_size == 1
        assert point.infer_per_s == pytest.approx(3 / point.window_s)


def test_it_waits_for_the_time_of_each_request(server, tmp_path):
    with nt.record(server, tmp_path / "again.jsonl"):
        nt.replay(recording((0, 1, {}), (100, 1, {}), (300, 1, {})), server, speed=2)
    times_ms = [
        request.at_ns / 1e6 for request in Recording.load(tmp_path / "again.jsonl").requests
    ]
    gaps = np.diff(times_ms)
    # Never earlier than due after the first, which may itself be late.
    assert times_ms[1] >= 50
    assert times_ms[2] >= 150
    assert (gaps > 0).all()


def test_sequences_keep_their_order_and_their_ids(server, tmp_path):
    server.load(
        """name: "sums" backend: "python" max_batch_size: 4
        sequence_batching { max_sequence_idle_microseconds: 60000000 }
        input { name: "IN" data_type: TYPE_FP32 dims: 4 }
        output { name: "OUT" data_type: TYPE_FP32 dims: 4 }""",
        double,
    )
    steps = [
        (0, 1, {"sequence_id": key, "sequence_start": n == 0, "sequence_end": n == 5})
        for n in range(6)
        for key in (3, "four")
    ]
    steps = [(at, rows, {k: v for k, v in o.items() if v}) for at, rows, o in steps]
    played = recording(*steps, name="sums")
    with server.serve(http_port=0, grpc_port=None, metrics_port=None) as served:
        for target in (server, f"127.0.0.1:{served.http_port}"):
            with nt.record(server, tmp_path / "again.jsonl") as tap:
                report = nt.replay(played, target)
            (point,) = report.points
            assert (point.request_count, point.error_count) == (12, 0), point.first_error
            assert point.sequence_count == 2
            again = tap.stop()
            for key in (3, "four"):
                assert [r.options for r in again.requests if r.options["sequence_id"] == key] == [
                    o for _, _, o in steps if o["sequence_id"] == key
                ]


def test_several_models_have_a_point_each(server):
    server.load("max_batch_size: 8", double, name="other")
    one, two = recording(*[(n, 1, {}) for n in range(4)]), recording((2, 1, {}), name="other")
    both = Recording(
        tuple(sorted(one.requests + two.requests)), one.inputs, {}, one.began, one.duration_ns
    )
    report = nt.replay(both, server)
    assert report.model == "double, other"
    assert report.frame[["model", "requests"]].to_numpy().tolist() == [["double", 4], ["other", 1]]
    assert nt.replay(both, server, models="other").points[0].request_count == 1
    renamed = nt.replay(both, server, models={"other": "double"})
    assert (renamed.model, renamed.points[0].server.model) == ("double", "double")
    with pytest.raises(InvalidArgumentError, match="several models: double, other"):
        nt.replay(both, server, instances=2)
    assert len(nt.replay(both, server, instances=2, sweep_models=["other"]).points) == 2


def test_decoupled_models_stream(server):
    import triton_python_backend_utils as pb_utils

    class Twice:
        @staticmethod
        def auto_complete_config(config):
            config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
            config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]})
            config.set_max_batch_size(8)
            config.set_model_transaction_policy({"decoupled": True})
            return config

        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
                for _ in range(2):
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    server.load(model=Twice, name="twice")
    (point,) = nt.replay(recording((0, 1, {}), (1, 1, {}), name="twice"), server).points
    assert point.request_count == 2
    assert point.stream.response_count == 4


def test_an_error_in_a_later_replay_keeps_what_was_measured(server, monkeypatch):
    original = server.load

    def load_or_fail(config=None, model=None, **options):
        if [group.count for group in config.instance_group] == [3]:
            raise TritonError("no room for three")
        return original(config, model, **options)

    monkeypatch.setattr(server, "load", load_or_fail)
    report = nt.replay(recording((0, 1, {})), server, instances=[2, 3])
    (point,) = report.points
    assert point.configuration["instances"] == 2
    assert report.failure.endswith("TritonError: no room for three")
    assert len(server.config("double").instance_group) == 1
    assert server.config("double").instance_group[0].count == 1
    with pytest.raises(TritonError, match="no room"):
        nt.replay(recording((0, 1, {})), server, instances=3)


def test_an_interrupt_leaves_a_partial_report_and_ends_its_sequences(server, monkeypatch):
    monkeypatch.setattr(driver, "GRACE_S", PATIENCE_S)  # no request is cancelled
    server.load(
        """name: "sums" backend: "python" max_batch_size: 4
        sequence_batching { max_sequence_idle_microseconds: 60000000 }
        input { name: "IN" data_type: TYPE_FP32 dims: 4 }
        output { name: "OUT" data_type: TYPE_FP32 dims: 4 }""",
        double,
    )
    threads = set(threading.enumerate())
    played = recording(
        (0, 1, {"sequence_id": 1, "sequence_start": True}),
        (PATIENCE_S * 1e4, 1, {"sequence_id": 1, "sequence_end": True}),
        name="sums",
    )
    once = threading.Lock()  # a second interrupt would be raised

    def interrupt(progress):
        if progress.requests and once.acquire(blocking=False):
            signal.raise_signal(signal.SIGINT)

    report = nt.replay(played, server, observer=interrupt)
    assert report.interrupted
    (point,) = report.points
    assert (point.outcome, point.request_count) == ("interrupted", 1)
    assert not [t for t in set(threading.enumerate()) - threads if t.name == "nbtriton-perf"]
    # The sequence was ended: its two requests are all that the model has seen.
    assert server.statistics("sums")["model_stats"][0]["inference_count"] == 2


MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy() * 2)]
            )
            for r in requests
        ]
"""


@pytest.mark.reference
@pytest.mark.slow
def test_the_real_server_gets_the_same_requests(reference, tmp_path):
    (tmp_path / "double" / "1").mkdir(parents=True)
    (tmp_path / "double" / "config.pbtxt").write_text(
        """backend: "python" max_batch_size: 8 dynamic_batching { }
        input { name: "IN" data_type: TYPE_FP32 dims: 4 }
        output { name: "OUT" data_type: TYPE_FP32 dims: 4 }"""
    )
    (tmp_path / "double" / "1" / "model.py").write_text(MODEL)
    played = recording(
        *[
            (n, 1 + n % 3, {"priority": n % 2, "request_id": f"r{n}", "outputs": ["OUT"]})
            for n in range(20)
        ]
    )
    with reference.server(tmp_path) as real:
        for url in (real.http_url, f"grpc://{real.grpc_url}"):
            (point,) = nt.replay(played, url, speed=2).points
            assert (point.request_count, point.error_count) == (20, 0), point.first_error
            # It counts a request just after its response: the last ones may be missing.
            assert 0 < point.server.inference_count <= sum(1 + n % 3 for n in range(20))


# -- the simulator -----------------------------------------------------------------------------------


def test_in_the_simulator_it_is_identical_to_the_byte(tmp_path):
    played = recording(
        *[(n * 0.7, 1 + n % 3, {"priority": n % 2} if n % 2 else {}) for n in range(50)],
        name="m", dims=1,
    )  # fmt: skip
    files = [tmp_path / f"{n}.jsonl.gz" for n in range(3)]
    played.save(files[0])
    measured = profile(costs=nt.types.Profile("m", {}).costs)
    reports = [
        nt.replay(source, measured, record=into, seed=4)
        for source, into in itertools.pairwise(files)
    ]
    assert files[0].read_bytes() == files[1].read_bytes() == files[2].read_bytes()
    assert reports[0].points == reports[1].points
    assert reports[0].simulated
    assert reports[0].points[0].request_count == 50


def test_recorded_arrivals_wait_as_they_must():
    # 1 ms for one row, no batching: three at once wait for 0, 1 and 2 ms.
    played = recording(*[(10 * n, 1, {}) for n in range(5) for _ in range(3)], name="m", dims=1)
    alone = profile({(1, 1): 1.0}, rows=0, more="")
    (point,) = nt.replay(played, alone).points
    assert (point.latency_p50_us, point.latency_p99_us) == (2000, 3000)
    one, two = nt.replay(played, alone, instances=[1, 3], speed=2).points
    assert (one.latency_p99_us, two.latency_p99_us) == (3000, 1000)
    assert one.value == 2
    # Five times as fast they come as fast as they go: none is idle in between.
    assert nt.replay(played, alone, speed=5).points[0].latency_p99_us > 3000


def test_a_profile_of_a_busy_machine_is_told_and_judges_nothing():
    played = recording(*[(10 * n, 1, {}) for n in range(5)], name="m", dims=1)
    quiet = replace(profile(), environment={"cpus": 2}, others=0.0)
    assert nt.replay(played, quiet).points[0].outcome == "predicted"
    report = nt.replay(played, replace(quiet, others=1.6))
    assert report.points[0].outcome == "beyond the profile"
    assert (
        "while it was measured, other programs used 1.6 of 2 cores"
        in report._repr_mimebundle_()["text/plain"]
    )


def test_an_ensemble_and_sequences_are_simulated():
    (point,) = nt.replay(
        recording((0, 1, {}), (50, 1, {}), name="e", dims=1), chain({"a": 1.0, "b": 2.0})
    ).points
    assert point.latency_p50_us == 3000
    assert [step.model for step in point.composing] == ["a", "b"]
    steps = [
        (n, 1, {"sequence_id": 1, "sequence_start": n == 0, "sequence_end": n == 3})
        for n in range(4)
    ]
    (point,) = nt.replay(
        recording(*steps, name="m", dims=1), profile(more="sequence_batching { }")
    ).points
    assert (point.request_count, point.sequence_count, point.error_count) == (4, 1, 0)


# -- what is refused ---------------------------------------------------------------------------------


def test_the_times_of_a_recording_are_a_load_of_perf_and_whatif(server, tmp_path):
    bursts = recording(*((at, 2, {}) for at in (0, 0, 0, 0, 40, 40, 80)))
    path = tmp_path / "bursts.jsonl"
    bursts.save(path)
    began_s: dict[int, float] = {}
    report = nt.perf(
        server, "double", recording=path, speed=[1, 2], batch_size=4,
        observer=lambda progress: began_s.setdefault(progress.level, progress.elapsed_s),
    )  # fmt: skip
    assert [(p.mode, p.value, p.request_count) for p in report.points] == [
        ("replay", 1, 7), ("replay", 2, 7),
    ]  # fmt: skip
    assert list(report.frame["speed"]) == [1, 2]
    # The last is due after 80 ms. (The window begins with the first request, which may be late.)
    assert began_s[2] - began_s[1] >= 0.08
    assert report.settings["recording"] == str(path)
    # One instance, 1 ms a request: of four at once the last waits for three.
    alone = profile({(1, 1): 1.0}, rows=0, more="")
    times = recording(*((at, 1, {}) for at in (0, 0, 0, 0, 40, 40, 80)), name="m")
    (once,) = nt.whatif(alone, recording=times).points
    assert sorted(round(each) for each in (once.latency_p50_us, once.latency_p99_us)) == [
        2000,
        4000,
    ]
    (again,) = nt.whatif(alone, recording=times, request_count=14).points
    assert again.window_s > 2 * once.window_s - 0.01
    replayed = nt.replay(times, alone).points[0]
    assert (once.latency_avg_us, once.window_s) == (replayed.latency_avg_us, replayed.window_s)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"recording": "/nowhere"}, "there is no recording '/nowhere'"),
        ({"recording": recording((5, 1, {}), name="other")}, "no requests for model 'double'"),
        ({"recording": recording((0, 1, {}))}, "came at once"),
        ({"recording": recording((5, 1, {})), "concurrency": 2}, "more then one inference load"),
        ({"recording": recording((5, 1, {})), "speed": 0}, "speed must be a number above 0"),
        ({"recording": recording((5, 1, {})), "binary_search": True, "latency_threshold_ms": 1}, "a range"),
        ({"speed": 2}, "speed is that of a recording"),
    ],
)  # fmt: skip
def test_a_load_of_recorded_times_that_makes_no_sense(server, options, text):
    with pytest.raises(TritonError, match=text):
        nt.perf(server, "double", **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"speed": 0}, "speed must be a number above 0, found 0"),
        ({"speed": []}, "speed is an empty list"),
        ({"speed": float("inf")}, "speed must be"),
        ({"percentile": 100}, r"--percentile\. The value must be"),
        ({"protocol": "ftp"}, "Unsupported type provided: 'ftp'"),
        ({"models": "doubel"}, "has no requests for model 'doubel'"),
        ({"models": []}, "models names none"),
        ({"models": {"double": "nope"}}, "'nope' is not found"),
    ],
)
def test_bad_arguments_get_one_sentence(server, options, text):
    with pytest.raises((InvalidArgumentError, NotFoundError), match=text):
        nt.replay(recording((0, 1, {})), server, **options)


def test_bad_targets_get_one_sentence(server):
    played = recording((0, 1, {}))
    cut = {"IN": RecordedTensor("FP32", (1, 4), b"123")}
    with pytest.raises(InvalidArgumentError, match="has 3 bytes for its input 'IN' of FP32"):
        nt.replay(replace(played, inputs=(cut,)), server)
    with pytest.raises(InvalidArgumentError, match="found int"):
        nt.replay(played, 5)
    with pytest.raises(UnavailableError, match="does not answer"):
        nt.replay(played, "127.0.0.1:1")
    with pytest.raises(InvalidArgumentError, match="at a url is not changed: instances"):
        nt.replay(played, "127.0.0.1:1", instances=2)
    with pytest.raises(InvalidArgumentError, match="no meaning for a simulated"):
        nt.replay(recording((0, 1, {}), name="m"), profile(), protocol="http")
    with pytest.raises(NotFoundError, match="double"):
        nt.replay(played, profile())
    with pytest.raises(InvalidArgumentError, match="has no requests"):
        nt.replay(Recording(()), server)
