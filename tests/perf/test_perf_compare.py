"""``nt.compare``: intervals of paired ratios, and variants measured in turn."""

# ruff: noqa: F821, N803, UP037 - function models: Triton's datatypes as annotations

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError, UnavailableError
from nbtriton.extensions.comparison import Comparison, paired_ratio
from nbtriton.lab.perf.machine import disturbance

POSITIVE = st.floats(0.1, 1e6)


def test_a_ratio_has_the_interval_of_student():
    # By hand: logs 0.0953, 0.1044, 0.0831; mean 0.09426, s 0.01066; t(2) = 4.303.
    found = paired_ratio([100, 200, 150], [110, 222, 163])
    assert found.ratio == pytest.approx(1.0988, abs=1e-4)
    assert (found.low, found.high) == pytest.approx((1.0701, 1.1283), abs=1e-4)
    assert found.differs


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=2, max_size=40))
def test_the_other_way_round_is_the_inverse(pairs):
    first, second = zip(*pairs, strict=True)
    there, back = paired_ratio(first, second), paired_ratio(second, first)
    assert there.low <= there.ratio <= there.high
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.differs == back.differs


def test_one_round_has_no_interval_and_none_no_ratio():
    assert not paired_ratio([100], [300]).differs
    assert str(paired_ratio([100], [300])) == "3.00x (one round)"
    nothing = paired_ratio([0, math.nan], [100, 100])
    assert (nothing.rounds, str(nothing)) == (0, "\u2013")


@pytest.mark.medium
def test_the_interval_holds_the_truth_in_95_of_100_cases():
    random = np.random.default_rng(7)
    for rounds in (3, 6, 50):
        drift = random.lognormal(0, 0.5, (2000, rounds))  # of the machine: both sides have it
        noise = random.lognormal(0, 0.05, (2, 2000, rounds))
        found = [
            paired_ratio(a, b)
            for a, b in zip(drift * noise[0], 1.1 * drift * noise[1], strict=True)
        ]
        held = statistics.fmean(one.low <= 1.1 <= one.high for one in found)
        assert 0.935 < held < 0.965


@pytest.fixture
def server() -> Iterator[nt.Server]:
    def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        return {"OUT": IN * 2}

    with nt.Server() as server:
        for name in ("double", "twin"):
            server.load("max_batch_size: 8 dynamic_batching {}", model=double, name=name)
        yield server


FEW: dict[str, Any] = {"request_count": 5, "rounds": 4}


def test_a_busy_machine_is_told_beside_the_verdict():
    quiet = Comparison(("a", "b"), ())
    busy = replace(quiet, disturbance=disturbance(1.6, 2))
    assert "other programs" not in repr(quiet)
    assert "But while it was measured, other programs used 1.6 of 2 cores" in repr(busy)


def test_a_round_without_an_answer_has_no_part_in_a_median():
    made = [SimpleNamespace(latency_p99_us=us) for us in (3000.0, math.nan, 1000.0)]
    found = Comparison(("a", "b"), tuple((point, point) for point in made))
    assert found._median(0, "latency_p99_us") == 3000.0


def test_variants_take_turns_and_the_first_is_compared_with(server):
    order = []

    def observe(progress):
        if not order or order[-1] != progress.what:
            order.append(progress.what)

    before = server.engine.inspection.user_config("double")
    found = nt.compare(
        {"instances": 1}, {"instances": 2}, server=server, model="double", observer=observe, **FEW
    )
    levels = [what for what in order if "loading" not in what]
    assert [what.partition(":")[0] for what in levels] == [
        "round 1 of 4, instances=1", "round 1 of 4, instances=2",
        "round 2 of 4, instances=2", "round 2 of 4, instances=1",
        "round 3 of 4, instances=1", "round 3 of 4, instances=2",
        "round 4 of 4, instances=2", "round 4 of 4, instances=1",
    ]  # fmt: skip
    assert [[p.configuration["instances"] for p in points] for points in found.rounds] == [
        [1, 2]
    ] * 4
    assert server.engine.inspection.user_config("double") == before
    assert list(found.frame["variant"].unique()) == ["instances=1", "instances=2"]
    assert found.ratio(1).rounds == 4
    forms = found._repr_mimebundle_()
    assert found.verdict in forms["text/plain"]
    assert "<table" in forms["text/html"]


def test_the_verdict_follows_from_the_interval(server):
    found = nt.compare("double", "twin", server=server, **FEW)
    ratio = found.ratio(1)
    told = f"twin has {ratio.ratio:.2f}x the throughput of double"
    assert (told in found.verdict) == ratio.differs
    assert ("No difference" in found.verdict) == (not ratio.differs)
    assert "4 rounds" in found.verdict


@pytest.mark.medium
def test_a_rate_is_judged_by_its_latency(server):
    found = nt.compare("double", "twin", server=server, request_rate=500, **FEW)
    assert "p99 latency" in found.verdict


@pytest.mark.medium
def test_points_and_reports_are_measured_again_as_they_were(server):
    alone = nt.perf(server, "double", concurrency=2, request_count=5, batch_size=2)
    swept = nt.perf(server, "twin", concurrency=[1, 3], request_count=5, max_batch_size=4)
    found = nt.compare(alone, swept.points[1], rounds=2, request_count=5)
    (first, second), _ = found.rounds
    assert (first.source.model, first.value, first.batch_size) == ("double", 2, 2)
    assert (second.source.model, second.value, dict(second.configuration)) == (
        "twin", 3, {"max_batch_size": 4},
    )  # fmt: skip
    assert found.names == ("double, batch_size=2", "twin, max_batch_size=4")


def test_variants_are_named_by_what_differs(server):
    both = {"model": "double", "protocol": "inproc", "server": server}
    found = nt.compare(
        {**both, "batch_size": 1}, {**both, "batch_size": 2}, rounds=1, request_count=1
    )
    assert found.names == ("batch_size=1", "batch_size=2")


def test_an_interrupt_keeps_whole_rounds(server):
    def stop(progress):
        if progress.what.startswith("round 2"):
            raise KeyboardInterrupt

    found = nt.compare("double", "twin", server=server, observer=stop, **FEW)
    assert found.interrupted
    assert len(found.rounds) == 1
    assert "too few to tell" in found.verdict
    assert "Interrupted" in repr(found)


def test_an_error_in_a_later_round_keeps_whole_rounds(server):
    rounds, original = [], server.statistics

    def fail(*arguments):
        if rounds and rounds[-1].startswith("round 2"):
            raise UnavailableError("the server has gone")
        return original(*arguments)

    server.statistics = fail
    try:
        found = nt.compare(
            "double", "twin", server=server, observer=lambda one: rounds.append(one.what), **FEW
        )
        with pytest.raises(UnavailableError, match="has gone"):
            nt.compare("double", "twin", server=server, **FEW)
    finally:
        del server.statistics
    assert len(found.rounds) == 1
    assert not found.interrupted
    assert "the server has gone" in found.failure
    assert found.failure in repr(found)
    assert "Interrupted" not in repr(found)


@pytest.mark.parametrize(
    ("variants", "options", "text"),
    [
        (["double"], {}, "1 variants, not 2 or more"),
        (["double", "twin"], {"rounds": 0}, "rounds must be a whole number from 1 on"),
        (["double", "twin"], {"concurrency": "1:8"}, "one level of load"),
        (["double", {"model": "twin", "instances": [1, 2]}], {}, "one configuration"),
        ([{"instances": 1}, {"instances": 2}], {}, "no model to compare"),
        ([{"instance": 1}, "twin"], {"model": "double"}, "perf has no option 'instance'"),
        (["double", "twin"], {"latency_threshold_ms": 5}, "at any latency"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_load(server, variants, options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        nt.compare(*variants, server=server, **options)
    assert server.statistics("double")["model_stats"][0]["execution_count"] == 0
