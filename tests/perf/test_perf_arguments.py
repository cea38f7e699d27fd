"""Arguments that make no sense get one sentence before any load; a rate that cannot be reached one after it."""

from __future__ import annotations

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError, TritonError
from tests.simulate.profiles import profile


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": "5:1"}, "must not be less than its start"),
        ({"concurrency": []}, "does not match <start:end:step>"),
        ({"request_rate": "fast"}, "does not match <start:end:step>"),
        ({"request_rate": float("nan")}, "does not match <start:end:step>"),
        ({"batch_size": []}, r"The value must be > 0; found \[\]"),
        ({"batch_size": "big"}, "The value must be > 0"),
        ({"instances": []}, "instances is an empty list"),
        ({"instances": "2"}, "instances must be a whole number, or a list; found '2'"),
        ({"instances": True}, "instances must be a whole number"),
        ({"instances": 0}, "must be a number from 1"),
        ({"max_queue_delay_us": 1.5}, "max_queue_delay_us must be a whole number"),
        ({"dynamic_batching": "on"}, "dynamic_batching must be True or False"),
        ({"cache": "on"}, "cache must be True or False"),
        ({"kind": 3}, "kind must be a name"),
        ({"preferred": "4,8"}, "preferred must be sizes"),
        ({"isolation": "proces"}, "unknown isolation 'proces'"),
        ({"intervals": "soon"}, "intervals must be a list of microseconds"),
        ({"seed": "x"}, "seed must be a whole number from 0 on; found 'x'"),
        ({"max_trials": "3"}, "Failed to parse --max-trials"),
        ({"request_count": -1}, "Failed to parse --request-count"),
    ],
)
def test_one_sentence_before_any_load(server, options, text):
    before = server.statistics("double")
    with pytest.raises(TritonError, match=text):
        nt.perf(server, "double", **options)
    assert server.statistics("double") == before


def test_an_unknown_parameter_names_the_nearest(server):
    with pytest.raises(InvalidArgumentError, match="no option 'concurency'") as caught:
        nt.types.PerfRun(server, "double", concurency=3)
    assert "'concurrency'" in caught.value.hint
    with pytest.raises(InvalidArgumentError, match="no option 'concurency'") as caught:
        nt.whatif(profile(), concurency=3)
    assert "'concurrency'" in caught.value.hint


def test_values_may_be_numpys(server):
    points = nt.perf(
        server, "double", instances=np.array([1, 2]), batch_size=np.int64(2), request_count=2
    ).points
    assert [point.configuration for point in points] == [{"instances": 1}, {"instances": 2}]


@pytest.mark.medium
def test_a_rate_that_cannot_be_reached_says_so():
    alone = profile({(1, 1): 1.0}, rows=0, more="")  # 1000 a second at most
    (missed,) = nt.whatif(alone, request_rate=1500).points
    assert "throughput 67% of the rate asked for (1500/s): the queue grew" in " ".join(missed.notes)
    (counted,) = nt.whatif(alone, request_rate=1500, request_count=200).points
    assert "the queue grew" in " ".join(counted.notes)
    for load in (
        {"request_rate": 900},
        {"request_rate": 900, "request_count": 30},
        {"request_rate": 700, "request_distribution": "poisson"},
        {"request_rate": 700, "request_distribution": "poisson", "request_count": 20},
        {"concurrency": 4},
    ):
        (point,) = nt.whatif(alone, **load).points
        assert "the queue grew" not in " ".join(point.notes)


def test_an_address_in_place_of_a_server_is_told_where_it_belongs():
    with pytest.raises(InvalidArgumentError, match="None with url='HOST:PORT'"):
        nt.perf("http://127.0.0.1:8000", "double")
