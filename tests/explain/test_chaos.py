"""Planned faults: what clients see of them, that each request is answered once, that nothing stays."""

# ruff: noqa: F821, N803, UP037 - function models: Triton's datatypes as annotations

from __future__ import annotations

import itertools
import signal
import threading

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import (
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
    UnsupportedError,
)
from nbtriton.extensions.chaos import ChaosReport, _Experiment
from nbtriton.extensions.chaos.injection import FaultyInstance
from nbtriton.runtime.engine import ArrivalListener
from tests.until import PATIENCE_S, until

ONES = {"IN": np.ones((1, 4), np.float32)}


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    return {"OUT": IN * 2}


@pytest.fixture
def server():
    with nt.Server(gpus=()) as server:
        server.load(
            "max_batch_size: 8 dynamic_batching { } instance_group { count: 2 kind: KIND_CPU }",
            double, name="double",
        )  # fmt: skip
        yield server


def backend_instances(server, name="double"):
    found = []

    def note(model):
        found.append(model)
        return model

    for instance in server.engine.registry.resolve(name).instances():
        instance.exchange(note)
    return found


def table(report) -> dict[tuple[str, str], int]:
    return {(row["fault"], row["status"]): row["count"] for row in report.rows}


def test_a_rate_is_of_the_time_in_which_the_requests_came(server):
    seen = []

    def observe(progress):
        seen.append(progress)
        if len(seen) == 1:  # a stop, while its clients go on
            before = server.statistics("double")["model_stats"][0]["inference_count"]
            enough = before + 200
            assert until(
                lambda: server.statistics("double")["model_stats"][0]["inference_count"] >= enough
            )

    nt.chaos(server, "double", faults={"raise": 0.0}, duration_s=0.5, observer=observe)
    for before, after in itertools.pairwise(seen):
        took_s = after.elapsed_s - before.elapsed_s
        assert after.infer_per_s * took_s == pytest.approx(after.requests - before.requests, abs=1e-3)  # fmt: skip


@pytest.mark.medium
def test_clients_see_each_fault_as_it_is(server):
    before = backend_instances(server), server.config("double")
    for fault, status in (
        ("raise", "INTERNAL"), ("nan", "OK"), ("lost", "INTERNAL"), ("queue_full", "UNAVAILABLE"),
    ):  # fmt: skip
        report = nt.chaos(server, "double", faults={fault: 0.2}, request_count=150, seed=3)
        counts = table(report)
        assert sum(counts.values()) == 150
        assert set(counts) == {("none", "OK"), (fault, status)}
        assert report.injected[fault] >= 1
        assert report.unanswered == 0
    assert (backend_instances(server), server.config("double")) == before
    assert all(not each.restart.down for each in server.models()[0].instances)
    # Nothing goes wrong any more.
    assert server.infer("double", ONES)["OUT"].tolist() == [[2, 2, 2, 2]]


def test_a_report_counts_the_requests_of_others_that_are_still_in_flight():
    for unanswered, text in (
        (1, "; 1 request still in flight"),
        (2, "; 2 requests still in flight"),
    ):
        assert ChaosReport("m", 0, {}, (), unanswered).headline.endswith(text)


@pytest.mark.medium
def test_a_slow_execution_takes_as_long_as_it_says(server):
    report = nt.chaos(
        server, "double", faults={"slow": 0.1}, slow_ms=300, request_count=60, concurrency=1
    )
    slow = next(row for row in report.frame.to_dict("records") if row["fault"] == "slow")
    assert slow["status"] == "OK"
    assert slow["p50_ms"] >= 300
    assert slow["effect_ms"] > 0
    shown = report._repr_mimebundle_()
    assert "slow" in shown["text/plain"]
    assert "<table" in shown["text/html"]


def test_the_same_seed_gives_the_same_faults(server):
    server.load("max_batch_size: 8", double, name="alone")  # each execution has one request
    shares = {"raise": 0.2, "nan": 0.2, "queue_full": 0.1}

    def run(seed):
        report = nt.chaos(
            server, "alone", faults=shares, request_count=200, seed=seed, concurrency=1
        )
        return dict(report.injected), table(report)

    assert run(5) == run(5) != run(6)


def test_all_faults_at_once_and_each_request_is_answered_once(server):
    """Beside its own clients others send, whose answers are counted by themselves."""
    answers: list[list[object]] = []
    stop = threading.Event()

    def traffic():
        while not stop.is_set():
            called: list[object] = []
            answers.append(called)
            try:
                future = server.submit("double", ONES)
            except TritonError as refused:
                called.append(refused)
            else:
                future.add_done_callback(called.append)
                future.exception()

    thread = threading.Thread(target=traffic)
    thread.start()
    try:
        report = nt.chaos(server, "double", request_count=400, slow_ms=5, seed=1)
    finally:
        stop.set()
        thread.join()
    # A future is done before its callbacks are called.
    assert until(lambda: all(answers))
    assert {len(called) for called in answers} == {1}
    assert set(report.injected) == {"slow", "raise", "nan", "lost", "queue_full"}
    # Its own, and of the others those that came meanwhile.
    assert 400 <= sum(row["count"] for row in report.rows) <= 400 + len(answers)


def test_nan_is_in_floating_point_outputs_alone(server):
    def both(IN: "FP32[4]") -> {"OUT": "FP32[4]", "N": "INT32[4]"}:
        return {"OUT": IN, "N": IN.astype(np.int32)}

    server.load("max_batch_size: 8", both, name="both")
    seen = []

    class Sends(ArrivalListener):
        """Keeps what clients of the model get."""

        def __call__(self, request, version, options):
            seen.append(request.expect())

        def close(self):
            pass

    listener = Sends()
    server.engine.dispatcher.listen(listener)
    try:
        nt.chaos(server, "both", faults={"nan": 1}, request_count=5)
    finally:
        server.engine.dispatcher.stop_listening(listener)
    assert len(seen) == 5
    for future in seen:
        outputs = future.result()
        assert np.isnan(outputs["OUT"]).all()
        assert outputs["OUT"].dtype == np.float32
        assert outputs["N"].dtype == np.int32


def test_an_ensemble_is_hit_in_its_steps(server):
    server.load(
        """name: "twice" platform: "ensemble" max_batch_size: 8
        input { name: "IN" data_type: TYPE_FP32 dims: 4 }
        output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
        ensemble_scheduling {
          step { model_name: "double" model_version: -1
            input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "T" } }
          step { model_name: "double" model_version: -1
            input_map { key: "IN" value: "T" } output_map { key: "OUT" value: "OUT" } } }"""
    )
    report = nt.chaos(server, "twice", faults={"raise": 0.3, "queue_full": 0.2}, request_count=100)
    counts = table(report)
    assert set(counts) == {("none", "OK"), ("raise", "INTERNAL"), ("queue_full", "UNAVAILABLE")}
    assert sum(counts.values()) == 100


def test_sequences_are_hit_and_lost(server):
    server.load(
        """name: "sums" backend: "python" max_batch_size: 4
        sequence_batching { max_sequence_idle_microseconds: 60000000 }
        input { name: "IN" data_type: TYPE_FP32 dims: 4 }
        output { name: "OUT" data_type: TYPE_FP32 dims: 4 }""",
        double,
    )
    report = nt.chaos(server, "sums", faults={"raise": 0.3}, request_count=60)
    assert ("raise", "INTERNAL") in table(report)
    assert report.unanswered == 0
    # With the instance its sequences are lost: the rest of each is refused, as in production.
    report = nt.chaos(server, "sums", faults={"lost": 0.2}, request_count=60)
    assert table(report)["none", "INVALID_ARG"] >= 1
    assert report.unanswered == 0


def test_an_interrupt_restores_the_model_and_leaves_what_was_seen(server):
    before = backend_instances(server)
    once = threading.Lock()  # a second interrupt would be raised

    def interrupt(progress):
        if progress.requests > 20 and once.acquire(blocking=False):
            signal.raise_signal(signal.SIGINT)

    report = nt.chaos(
        server,
        "double",
        faults={"slow": 0.1, "raise": 0.1},
        duration_s=PATIENCE_S * 20,
        observer=interrupt,
    )
    assert report.interrupted
    assert sum(row["count"] for row in report.rows) > 20
    assert backend_instances(server) == before
    assert not any(isinstance(each, FaultyInstance) for each in backend_instances(server))
    assert server.infer("double", ONES)["OUT"].tolist() == [[2, 2, 2, 2]]


def test_a_model_that_was_unloaded_meanwhile_stays_unloaded(server):
    runtime = server.engine.registry.resolve("double")

    def unload(progress):
        for instance in runtime.instances():
            instance.recovery.down = True  # lost for good
        server.unload("double")

    nt.chaos(server, "double", faults={"raise": 0.1}, duration_s=0.3, observer=unload)
    assert server.models() == ()


def test_a_second_interrupt_leaves_no_faults_and_no_clients(server, monkeypatch):
    before = backend_instances(server)
    end = _Experiment.end

    def interrupted_end(experiment):
        signal.raise_signal(signal.SIGINT)
        end(experiment)

    monkeypatch.setattr(_Experiment, "end", interrupted_end)
    with pytest.raises(KeyboardInterrupt):
        nt.chaos(server, "double", faults={"raise": 0.1}, duration_s=0.05)
    assert backend_instances(server) == before
    answered = server.infer("double", ONES, request_id="after")
    assert answered["OUT"].tolist() == [[2, 2, 2, 2]]
    assert not [each for each in threading.enumerate() if each.name == "nbtriton-perf"]


def test_a_lost_instance_is_back_at_the_end(server):
    nt.chaos(server, "double", faults={"lost": 1}, request_count=1)
    assert sum(each.restart.restarts for each in server.models()[0].instances) == 1


@pytest.mark.slow
def test_processes_are_killed_and_come_back():
    with nt.Server(gpus=(), isolation="process") as apart:
        apart.load("max_batch_size: 8", double, name="double")
        report = nt.chaos(
            apart, "double", faults={"lost": 0.2}, request_count=40, seed=2, concurrency=2
        )
        counts = table(report)
        assert sum(counts.values()) == 40
        assert 1 <= report.injected["lost"] <= 4
        assert "is not healthy" in next(r["error"] for r in report.rows if r["fault"] == "lost")
        (instance,) = apart.models()[0].instances
        assert instance.restart.restarts == report.injected["lost"]
        assert apart.infer("double", ONES)["OUT"].tolist() == [[2, 2, 2, 2]]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"faults": "slwo"}, "unknown fault 'slwo'"),
        ({"faults": []}, "faults names none"),
        ({"faults": {"raise": 2}}, "must be a number from 0 to 1, found 2"),
        ({"faults": {"raise": 0.6, "nan": 0.6}}, "add up to 1.2"),
        ({"duration_s": 0}, "duration_s must be"),
        ({"request_count": 0}, "request_count must be"),
        ({"slow_ms": -1}, "slow_ms must be"),
        ({"concurrency": -1}, "must be a whole number from 0 on"),
        ({"concurrency": 0, "request_count": 5}, "of its own clients"),
    ],
)
def test_bad_arguments_get_one_sentence(server, options, text):
    before = backend_instances(server)
    with pytest.raises(InvalidArgumentError, match=text):
        nt.chaos(server, "double", **options)
    assert backend_instances(server) == before


def test_what_cannot_be_is_refused(server):
    with pytest.raises(NotFoundError, match="unknown model"):
        nt.chaos(server, "doubel")
    server.load(
        """name: "stream" backend: "repeat" max_batch_size: 0
        model_transaction_policy { decoupled: true }
        input [ { name: "IN" data_type: TYPE_INT32 dims: -1 },
          { name: "DELAY" data_type: TYPE_UINT32 dims: -1 },
          { name: "WAIT" data_type: TYPE_UINT32 dims: 1 } ]
        output [ { name: "OUT" data_type: TYPE_INT32 dims: 1 },
          { name: "IDX" data_type: TYPE_UINT32 dims: 1 } ]"""
    )
    with pytest.raises(UnsupportedError, match="is decoupled"):
        nt.chaos(server, "stream", faults="nan")
    inputs = {
        "IN": np.array([1, 2], np.int32), "DELAY": np.zeros(2, np.uint32), "WAIT": np.zeros(1, np.uint32),
    }  # fmt: skip
    report = nt.chaos(server, "stream", faults={"raise": 0.3}, inputs=inputs, request_count=30)
    assert set(table(report)) == {("none", "OK"), ("raise", "INTERNAL")}
    with nt.Server(gpus=(), recorder=False) as bare:
        bare.load("max_batch_size: 8", double, name="double")
        with pytest.raises(UnavailableError, match="no recorder"):
            nt.chaos(bare, "double")
