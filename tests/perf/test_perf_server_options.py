"""Sweeps over the response cache and the rate limiter: what the server, and not the model alone, has."""

from __future__ import annotations

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError
from tests.perf.models import double
from tests.simulate.profiles import profile

X = {"IN": np.ones((1, 4), np.float32)}
NEEDS = (
    "instance_group { count: 2 kind: KIND_CPU rate_limiter { resources { name: 'R' count: 1 } } }"
)


def test_the_cache_is_swept_and_switched_back():
    with nt.Server(gpus=(), cache_bytes=100_000) as server:
        server.load("max_batch_size: 8", double, name="double")
        report = nt.perf(server, "double", inputs=X, request_count=20, cache=[False, True])
        assert list(report.frame["cache"]) == [False, True]
        # 20 times the same inputs: one execution, and 19 hits.
        assert [point.server.execution_count for point in report.points] == [20, 1]
        assert not server.config("double").response_cache.enable
        report.points[1].apply()
        assert server.config("double").response_cache.enable


def test_the_rate_limiter_is_swept_and_switched_back():
    with nt.Server(gpus=()) as server:
        server.load(f"max_batch_size: 8 {NEEDS}", double, name="double")
        server.load("max_batch_size: 8", double, name="other")
        seen = []
        report = nt.perf(
            server, "double", inputs=X, request_count=5, instances=[1, 2],
            rate_limit=["off", "execution_count"],
            observer=lambda progress: seen.append((progress.what, server.options.rate_limit)),
        )  # fmt: skip
        assert report.frame[["rate_limit", "instances"]].to_numpy().tolist() == [
            ["off", 1], ["off", 2], ["execution_count", 1], ["execution_count", 2],
        ]  # fmt: skip
        for what, limit in seen:
            if not what.startswith("loading"):
                assert f"rate_limit={limit}" in what
        assert server.options.rate_limit == "off"
        assert server.config("double").instance_group[0].count == 2
        assert server.infer("other", X)["OUT"].tolist() == [[2, 2, 2, 2]]


@pytest.mark.medium
def test_both_are_simulated():
    limited = profile(
        {(1, 1): 1.0, (1, 2): 1.0}, rows=0, more="", instances=2,
        group='rate_limiter { resources { name: "R" count: 1 } }',
        server={"rate_limit_resources": ["R:1"]},
    )  # fmt: skip
    off, on = nt.whatif(limited, concurrency=2, rate_limit=["off", "execution_count"]).points
    assert off.infer_per_s == pytest.approx(2 * on.infer_per_s, rel=0.02)
    cached = profile(server={"cache_bytes": 1000})
    without, hits = nt.whatif(cached, concurrency=1, request_count=10, cache=[False, True]).points
    assert [without.server.execution_count, hits.server.execution_count] == [10, 1]


def test_what_cannot_be_is_refused_before_anything_is_measured():
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", double, name="double")
        with pytest.raises(InvalidArgumentError, match="no response cache") as caught:
            nt.perf(server, "double", inputs=X, cache=[False, True])
        assert "--cache-bytes" in caught.value.hint
        with pytest.raises(InvalidArgumentError, match="unknown rate limit 'on'"):
            nt.perf(server, "double", inputs=X, rate_limit="on")
        assert server.statistics("double")["model_stats"][0]["inference_count"] == 0
    with pytest.raises(InvalidArgumentError, match="no response cache"):
        nt.whatif(profile(), cache=True)
    with pytest.raises(InvalidArgumentError, match="kind has no meaning"):
        nt.whatif(profile(), kind="gpu")
    with pytest.raises(InvalidArgumentError, match="at a url is not changed: rate_limit"):
        nt.perf(None, "double", url="127.0.0.1:1", rate_limit="off")
