"""Trials: single requests in virtual time, with the record that a live server would have."""

from __future__ import annotations

from dataclasses import replace

import pytest

import nbtriton as nt
from nbtriton.backends.python import install_pb_utils
from nbtriton.common.errors import (
    ConfigError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
)
from tests.engine.support import WAIT_S, Gate, echo, ensemble_text, gated, ones

SLOW = nt.Profile.declared({"slow": {1: 40, 8: 40}})


@pytest.mark.parametrize(
    ("config", "sizes", "reasons"),
    [
        ("", [1] * 6, ["batching_off"] * 6),
        ("dynamic_batching { }", [1, 5], ["no_delay", "joined"]),
        (
            "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 100000 }",
            [4, 2],
            ["max_batch_size", "max_queue_delay"],
        ),
    ],
)
def test_batches_and_their_reasons(config, sizes, reasons):
    run = nt.trial(SLOW, config=config, arrivals_ms=[0] * 6)
    assert [batch.batch_size for batch in run.batches()] == sizes
    assert [batch.reason for batch in run.batches()] == reasons
    assert sum(run.reasons.values()) == len(sizes)


def test_a_live_server_forms_the_same_batches():
    """Of requests that come while an execution holds the only instance."""
    install_pb_utils()
    config = "max_batch_size: 4 dynamic_batching { }"
    gate = Gate()
    with nt.Server(gpus=()) as server:
        server.load(echo("dynamic_batching { }", max_batch_size=4), gated(gate), name="slow")
        futures = [server.submit("slow", {"IN": ones()})]
        gate.wait_entered()
        futures += [server.submit("slow", {"IN": ones()}) for _ in range(6)]
        gate.open()
        for future in futures:
            future.result(WAIT_S)
    live = [len(ids) for ids in gate.batches]
    run = nt.trial(SLOW, config=config, arrivals_ms=[0, *[1] * 6])
    assert [batch.batch_size for batch in run.batches()] == live == [1, 4, 2]


def test_every_request_is_answered_once_with_its_batch():
    config = "dynamic_batching { } instance_group [{ count: 3 kind: KIND_CPU }]"
    run = nt.trial(SLOW, config=config, concurrency=7, requests=500)
    numbers = sorted(request.number for request in run.requests())
    assert numbers == list(range(1, 501))
    assert {request.batch.instance for request in run.requests()} == {
        f"slow_0_{i}" for i in range(3)
    }
    for request in run.requests():
        assert request.number in request.batch.requests
        assert request.answered_ns == request.batch.end_ns
        assert request.arrival_ns <= request.batch.start_ns
    assert sum(batch.batch_size for batch in run.batches()) == 500


def test_models_do_not_wait_for_each_other():
    profile = nt.Profile.declared({"a": 10, "b": 25})
    run = nt.trial(profile, arrivals_ms={"a": [0, 0], "b": [0, 0]})
    assert run.latencies_ms == (10, 20)
    assert [r.answered_ns / 1e6 for r in run.requests("b")] == [25, 50]
    assert not {r.number for r in run.requests("a")} & {r.number for r in run.requests("b")}
    with pytest.raises(NotFoundError, match="no model 'c'; it has a, b"):
        run.batches("c")


def test_what_is_refused_says_so():
    config = "max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
    run = nt.trial(SLOW, config=config, arrivals_ms=[0] * 5)
    assert [(one.outcome, one.error) for one in run.refused] == [
        ("queue_full", "Exceeds maximum queue size")
    ] * 2
    assert "3 answered, 2 refused (Exceeds maximum queue size)" in repr(run)


def test_a_timeout_and_a_priority_of_requests():
    late = nt.trial(SLOW, config="max_batch_size: 1 dynamic_batching { }", arrivals_ms=[0] * 3,
                    timeout_us=50_000)  # fmt: skip
    assert len(late.latencies_ms) == 3  # a queue policy has to allow it
    allowed = "max_batch_size: 1 dynamic_batching { default_queue_policy { allow_timeout_override: true default_timeout_microseconds: 1000000 } }"
    late = nt.trial(SLOW, config=allowed, arrivals_ms=[0] * 3, timeout_us=50_000)
    assert [one.outcome for one in late.refused] == ["timeout"]
    levels = "max_batch_size: 1 dynamic_batching { priority_levels: 2 default_priority_level: 2 }"
    run = nt.trial(SLOW, config=levels, arrivals_ms=[0] * 3, priority=[2, 2, 1])
    assert [batch.requests for batch in run.batches()] == [(1,), (3,), (2,)]


def test_it_shows_itself():
    run = nt.trial(SLOW, config="dynamic_batching { }", request_rate=60, requests=80)
    assert "<svg" in run._repr_html_()
    assert "instance" in repr(run)
    assert "slow: 80 requests" in repr(run.why())
    assert run.timeline(100).span_ms == 100
    assert [len(b.requests) for b in nt.last_batches(run, "slow", requests=1)]
    again = nt.trial(SLOW, config="dynamic_batching { }", request_rate=60, requests=80)
    assert again.latencies_ms == run.latencies_ms
    other = nt.trial(SLOW, config="dynamic_batching { }", request_rate=60, requests=80, seed=1)
    assert other.latencies_ms != run.latencies_ms


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "one of arrivals_ms, request_rate and concurrency, found none"),
        ({"request_rate": 1, "concurrency": 1}, "found 2"),
        ({"arrivals_ms": []}, "needs times from 0 on"),
        ({"arrivals_ms": [-1]}, "needs times from 0 on"),
        ({"request_rate": 0}, "request_rate=0"),
        ({"concurrency": 9, "requests": 8}, "there are 1 to 8 clients"),
        ({"concurrency": 1, "rows": 9}, "max_batch_size of 'slow' is 8"),
        ({"arrivals_ms": [0, 1], "priority": [1]}, "2 requests and 1 priorities"),
    ],
)
def test_a_load_that_cannot_be(options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        nt.trial(SLOW, **options)


def test_configurations_that_cannot_be():
    with pytest.raises(ConfigError):
        nt.trial(SLOW, config="max_batchsize: 1", arrivals_ms=[0])
    with pytest.raises(ConfigError):
        nt.Profile.declared({"m": 1}, {"m": "max_batch_size: -1"})
    with pytest.raises(InvalidArgumentError, match="configuration of 'n', and no time"):
        nt.Profile.declared({"m": 1}, {"n": ""})
    with pytest.raises(InvalidArgumentError, match="no execution time"):
        nt.Profile.declared({"m": {1: 0}})
    with pytest.raises(UnsupportedError, match="a model of sequences"):
        nt.trial(SLOW, config="sequence_batching { }", arrivals_ms=[0])


def test_a_curve_compares_configurations():
    configs = {"alone": "", "batches": "dynamic_batching { }"}
    curve = nt.trial_curve(SLOW, configs, request_rate=[10, 100], requests=400, target_ms=200)
    assert curve.best() == ("batches", 100)
    stable = {one.name: [point.outcome for point in one.points] for one in curve.series}
    assert stable == {"alone": ["predicted", "unstable"], "batches": ["predicted", "predicted"]}
    assert "<svg" in curve._repr_html_()
    assert "batches" in repr(curve)
    with pytest.raises(InvalidArgumentError, match="levels of one of"):
        nt.trial_curve(SLOW, configs)


def test_a_declared_profile_serves_for_what_if(tmp_path):
    report = nt.whatif(SLOW, "slow", concurrency=1, request_count=50)
    assert report.points[0].latency_p50_us == pytest.approx(40_000)
    SLOW.save(tmp_path / "slow.json")
    assert nt.Profile.load(tmp_path / "slow.json") == SLOW
    assert "declared, not measured" in str(SLOW._repr_mimebundle_())


def test_a_trial_of_an_ensemble_keeps_its_steps():
    profile = nt.Profile.declared({"m": 10})
    text = ensemble_text(
        ("m", {"IN": "A"}, {"OUT": "B"}), ("m", {"IN": "B"}, {"OUT": "C"}),
        inputs={"A": "FP32[1]"}, outputs={"C": "FP32[1]"}, max_batch_size=1,
    )  # fmt: skip
    run = nt.trial(replace(profile, ensembles={"e": text}), "e", arrivals_ms=[0, 0])
    assert run.latencies_ms == (30, 40)
    assert len(run.batches("m")) == 4
    assert {one.caller for one in run.requests("m")} == {1, 2}
    assert run.why().bottleneck == "m"
