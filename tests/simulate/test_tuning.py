"""The search on given execution times, where the best is known; and one live run, through to `apply`."""

from __future__ import annotations

import pytest

import nbtriton as nt
from nbtriton.config import format_pbtxt
from nbtriton.errors import InvalidArgumentError
from nbtriton.perf.sweep import SweepPlan, model_tree
from nbtriton.simulate import Profile
from nbtriton.simulate.search import Goal, Search
from tests.simulate.profiles import chain, model_profile, profile

SLEEPS = """name: "sleeps" backend: "identity" max_batch_size: 4 dynamic_batching {}
    input { name: "INPUT0" data_type: TYPE_FP32 dims: 2 }
    output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 2 }
    instance_group { count: 1 kind: KIND_CPU }
    parameters { key: "execute_delay_ms" value { string_value: "3" } }"""
FOREVER_S = 600.0


def search(found, goal, spaces, seconds=FOREVER_S):
    ensembles, others = model_tree(found, found.model)
    one = Search(found, SweepPlan(ensembles, others), spaces, goal)
    one.run(seconds, lambda _: None)
    return one


SPACE = {"instances": [1, 2, 4], "max_batch_size": [1, 4, 8], "max_queue_delay_us": [0]}


def test_a_small_space_is_searched_whole():
    # The larger the batch the more throughput; four instances do not disturb each other.
    found = search(
        profile({(1, 1): 1.0, (8, 1): 2.0, (1, 4): 1.0, (8, 4): 2.0}), Goal(), {"m": SPACE}
    )
    assert len(found.found) == 3 * 3
    best = found.best()[0]
    assert best.options["m"]["instances"] == 4
    assert best.options["m"]["max_batch_size"] == 8
    assert best.point.infer_per_s == pytest.approx(16_000, rel=0.05)


def test_instances_that_bring_nothing_are_not_taken():
    # Two at once take twice as long: a second instance is memory for nothing.
    contended = profile({(1, 1): 1.0, (8, 1): 2.0, (1, 4): 4.0, (8, 4): 8.0}, cores=1.0)
    best = search(contended, Goal(), {"m": SPACE}).best()[0]
    assert best.options["m"]["instances"] == 1
    assert best.options["m"]["max_batch_size"] == 8


def test_a_latency_limit_holds():
    # A batch of eight takes 8 ms: with a limit of 5 ms only smaller ones are possible.
    slow = profile({(1, 1): 1.0, (8, 1): 8.0, (1, 4): 1.0, (8, 4): 8.0})
    best = search(slow, Goal(p99_ms=5), {"m": SPACE}).best()[0]
    assert best.point.latency_p99_us <= 5000
    assert best.options["m"]["instances"] == 4


def test_the_fewest_instances_for_a_rate():
    goal = Goal("instances", request_rate=5000, p99_ms=10)
    best = search(profile({(1, 1): 1.0, (8, 1): 2.0, (1, 4): 1.0, (8, 4): 2.0}), goal, {"m": SPACE})
    # One does 4000 requests a second at most, two do 8000.
    assert best.best()[0].options["m"]["instances"] == 2


def test_the_steps_of_an_ensemble_have_options_of_their_own():
    space = {"instances": [1, 2, 3, 4]}
    found = search(chain({"a": 1, "b": 3}, rows=1), Goal(concurrency=16), {"a": space, "b": space})
    best = found.best()[0].options
    # The slow step limits: with four instances it does 1333 a second, for which the fast one needs two.
    assert best["b"]["instances"] == 4
    assert best["a"]["instances"] == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"maximize": "profit"}, "maximize is throughput"),
        ({"minimize": "memory"}, "unknown objective 'memory'"),
        ({"minimize": "latency"}, "the lowest latency is that of no load"),
        ({"p99_ms": 0}, "p99_ms must be > 0"),
        ({"concurrency": 1, "request_rate": 5}, "not both"),
        ({"finalists": 0}, "finalists must be at least 1"),
    ],
)
def test_goals_that_make_no_sense_are_refused(options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        nt.tune(None, "m", **options)


def test_a_model_is_tuned_and_the_best_applied():
    with nt.Server() as server:
        server.load(SLEEPS)
        seen = []
        text = format_pbtxt(server.config("sleeps"))
        found = Profile("sleeps", {"sleeps": model_profile(text, {(1, 1): 3.1, (1, 2): 3.1})})
        best = nt.tune(
            server, "sleeps", instances=[1, 2], max_queue_delay_us=[0], seconds=5, finalists=1,
            profile=found, observer=seen.append,
        )  # fmt: skip
        assert any("configurations simulated" in progress.what for progress in seen)
        # 3 ms for up to four rows: what has more of both is better.
        assert best.models == {
            "sleeps": {"instances": 2, "max_batch_size": 4, "max_queue_delay_us": 0}
        }
        assert best.configuration.items() >= best.models["sleeps"].items()
        assert best.configuration["concurrency"] >= 8
        assert server.config("sleeps").instance_group[0].count == 1
        assert list(best.frontier["infer_per_s"]) == sorted(best.frontier["infer_per_s"])
        shown = best._repr_mimebundle_()
        assert "config.pbtxt" in shown["text/plain"]
        assert "predicted" in shown["text/html"]
        applied = best.apply()
        assert server.config("sleeps").instance_group[0].count == 2
        assert applied.config_pbtxt.split() == best.config_pbtxt.split()
