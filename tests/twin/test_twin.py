"""A twin of a running server: what its statistics say, and what is made of it."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError, NotFoundError, UnavailableError
from nbtriton.extensions import twin as twins
from nbtriton.extensions.twin import Twin
from nbtriton.extensions.twin.statistics import (
    Times,
    asked_most,
    latest_entries,
    times_of,
    traffic_of,
)
from nbtriton.lab.simulate.model_profile import EngineCosts
from nbtriton.serving.clients.http import HttpClient
from nbtriton.types import Profile
from tests.until import until

STAND_IN = """
backend: "tensorrt" max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
instance_group { kind: KIND_CPU count: 2 }
parameters { key: "STAND_IN_COST_US" value { string_value: "1:5000, 8:12000" } }
"""
ENSEMBLE = """
platform: "ensemble" max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling {
  step { model_name: "slow" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } }
}
"""
STREAM = STAND_IN + "model_transaction_policy { decoupled: true }"


def entry(batches: dict[int, tuple[int, int]], *, version: int = 1, **stages: tuple[int, int]):
    """Return an entry of Triton's statistics: executions and nanoseconds by batch size."""
    executions = sum(count for count, _ in batches.values())
    rows = sum(size * count for size, (count, _) in batches.items())
    found = {"success": (rows, 0), "fail": (0, 0), "queue": (rows, 0)} | stages
    infer = {"compute_infer": (rows, sum(ns for _, ns in batches.values()))}
    empty = {"compute_input": (rows, 0), "compute_output": (rows, 0)}
    return {
        "name": "m",
        "version": str(version),
        "execution_count": executions,
        "inference_count": rows,
        "inference_stats": {
            name: {"count": count, "ns": ns}
            for name, (count, ns) in (found | infer | empty).items()
        },
        "batch_stats": [
            {"batch_size": size, "compute_infer": {"count": count, "ns": ns}}
            for size, (count, ns) in batches.items()
        ],
    }


def test_times_are_of_the_stretch_and_of_all_time_where_a_size_was_not_executed():
    looks = [
        entry({1: (10, 10_000_000), 4: (5, 20_000_000)}),
        entry({1: (30, 90_000_000), 4: (5, 20_000_000)}),
    ]
    assert times_of(looks) == {1: Times(20, 4000.0), 4: Times(5, 4000.0)}


def test_a_model_that_was_loaded_again_counts_from_zero():
    looks = [entry({1: (100, 100_000_000)}), entry({1: (4, 8_000_000)})]
    assert times_of(looks) == {1: Times(4, 2000.0)}
    # Another version, which has executed more in less time.
    looks = [entry({1: (4, 90_000_000)}), entry({1: (10, 20_000_000)}, version=2)]
    assert times_of(looks) == {1: Times(10, 2000.0)}
    looks = [entry({1: (100, 100_000_000)}), entry({1: (4, 8_000_000)})]
    assert traffic_of(looks[0], looks[1], 2.0).requests_per_s == 2.0


def test_the_spread_of_single_executions_follows_from_sums():
    chance = random.Random(5)
    looks, count, ns = [], 0, 0
    for _ in range(200):
        looks.append(entry({1: (count, ns)}))
        for _ in range(chance.randrange(1, 40)):
            count, ns = count + 1, ns + round(chance.gauss(10_000_000, 2_000_000))
    (times,) = times_of(looks).values()
    assert times.mean_us == pytest.approx(10_000, rel=0.02)
    assert times.deviation_us == pytest.approx(2000, rel=0.15)
    quantiles = times.quantiles_us()
    assert np.mean(quantiles) == pytest.approx(times.mean_us)
    assert np.std(quantiles) == pytest.approx(times.deviation_us, rel=0.1)


def test_a_stall_is_none_of_the_spread():
    chance = random.Random(5)
    looks, count, ns = [entry({1: (0, 0)})], 0, 0
    for number in range(20):
        for _ in range(50):
            count, ns = count + 1, ns + round(chance.gauss(10_000_000, 1_000_000))
        ns += 300_000_000 * (number == 7)
        looks.append(entry({1: (count, ns)}))
    (times,) = times_of(looks).values()
    assert times.mean_us == pytest.approx(10_000, rel=0.02)
    assert times.deviation_us == pytest.approx(1000, rel=0.5)
    (stall,) = times.stalls_us
    assert stall == pytest.approx(310_000, rel=0.05)


def test_of_several_versions_the_highest_counts():
    document = {"model_stats": [entry({}, version=9), entry({}, version=10), entry({}, version=2)]}
    (found,) = latest_entries([document])
    assert found["m"]["version"] == "10"


def test_a_version_that_another_one_gave_way_to_counts_from_the_first_look():
    old, new = entry({1: (1000, 10**9)}), entry({1: (5, 10**9)}, version=2)
    later = entry({1: (1010, 10**9)})
    first, last = latest_entries([{"model_stats": [old, new]}, {"model_stats": [later]}])
    assert traffic_of(first["m"], last["m"], 1.0).requests == 10
    # One that has come meanwhile counts from its begin.
    first, last = latest_entries([{"model_stats": [old]}, {"model_stats": [later, new]}])
    assert first == {}
    assert last["m"]["version"] == "2"


def test_a_step_is_asked_by_its_ensemble_too():
    ensembles = {"whole": ["slow", "next"]}
    # One request is between its steps.
    assert asked_most({"whole": 9, "slow": 10, "next": 9}, ensembles) == "whole"
    assert asked_most({"slow": 30, "whole": 9, "next": 9}, ensembles) == "slow"


@pytest.fixture(scope="module")
def far() -> Iterator[nt.Server]:
    with nt.Server(stand_in=True, gpus=()) as server:
        for name in ("slow", "idle"):
            server.load(STAND_IN, name=name)
        server.load(ENSEMBLE, name="whole")
        server.load(STREAM, name="stream")
        server.serve(http_port=0, grpc_port=None, metrics_port=None)
        yield server


def url_of(server: nt.Server) -> str:
    (ports,) = server.endpoints
    return f"127.0.0.1:{ports.http_port}"


def visits(server: nt.Server, model: str) -> Callable[[object], None]:
    """Return an observer that sends requests, one after the other, between any two looks."""

    def visit(_: object) -> None:
        for _ in range(4):
            server.infer(model, {"IN": np.zeros((1, 1), np.float32)})

    return visit


def calm(twin: Twin) -> Twin:
    """Return a twin of times that are given: this machine may have stalled while it looked."""
    models = {
        name: replace(
            model,
            points=tuple(
                replace(point, times_us=(6000.0,), stalls_us=()) for point in model.points
            ),
        )
        for name, model in twin.models.items()
    }
    return replace(twin, models=models, costs=EngineCosts(submit_us=100, way_us=(200,)))


@pytest.fixture(scope="module")
def twin(far: nt.Server) -> Twin:
    return nt.twin(url_of(far), duration_s=1, observer=visits(far, "whole"))


@pytest.mark.medium
def test_a_twin_has_the_times_the_traffic_and_the_configurations(far: nt.Server, twin: Twin):
    assert twin.model == "whole"
    assert set(twin.models) == {"slow"}
    assert set(twin.ensembles) == {"whole"}
    assert {point.at_once for point in twin.models["slow"].points} == {1, 2}
    assert twin.models["slow"].points[0].mean_us >= 5000
    traffic = twin.traffic.set_index("model")
    assert 0 < traffic.requests_per_s["slow"] <= 200
    assert traffic.batch_size["slow"] == 1.0
    assert traffic.compute_us["slow"] >= 5000
    assert traffic.predicted_queue_us["slow"] >= 0
    assert any("idle, stream" in note or "stream, idle" in note for note in twin.notes)
    assert twin.config("slow").max_batch_size == 8


@pytest.mark.medium
def test_a_twin_answers_what_if(twin: Twin):
    twin = calm(twin)
    report = nt.whatif(twin, "slow", concurrency=[1, 2, 16], batch_size=1)
    assert [point.outcome for point in report.points[:2]] == ["predicted", "predicted"]
    one, two, _ = report.frame["infer_per_s"]
    assert two == pytest.approx(2 * one, rel=0.1)
    assert report.simulated
    assert nt.whatif(twin, concurrency=1).points[0].infer_per_s <= one


@pytest.mark.medium
def test_more_instances_than_were_seen_are_beyond_the_twin_unless_it_is_told(
    far: nt.Server, twin: Twin
):
    load = {"concurrency": 4, "instances": 4}
    (beyond,) = nt.whatif(twin, "slow", **load).points
    assert beyond.outcome == "beyond the profile"
    told = nt.twin(url_of(far), "slow", duration_s=0.5, at_once=4, observer=visits(far, "slow"))
    (point,) = nt.whatif(calm(told), **load).points
    assert point.outcome == "predicted"
    assert any("assumed: 4 executions" in note for note in told.notes)


@pytest.mark.medium
def test_stand_ins_run_here_for_views_and_measurements(twin: Twin):
    with twin.stand_ins() as server:
        assert {model.name for model in server.models()} == {"slow", "whole"}
        found = server.infer("whole", {"IN": np.ones((3, 1), np.float32)})
        assert found["OUT"].tolist() == [[0.0]] * 3
        assert nt.status(server).set_index("model").requests["whole"] == 1
        assert nt.why(server, "slow").requests == 1


@pytest.mark.medium
def test_stand_ins_that_cannot_be_leave_no_server(twin: Twin):
    before = set(threading.enumerate())
    (model,) = twin.models.values()
    broken = replace(model, config=model.config.replace("TYPE_FP32", "TYPE_INVALID"))
    with pytest.raises(nt.TritonError) as error:  # it is kept, as a notebook keeps the last one
        replace(twin, models={**twin.models, "broken": broken}).stand_ins()
    assert error.tb is not None
    assert until(lambda: not {one for one in threading.enumerate() if "slow" in one.name} - before)


@pytest.mark.medium
def test_what_is_saved_is_a_profile(twin: Twin, tmp_path):
    twin.save(tmp_path / "twin.json")
    assert Profile.load(tmp_path / "twin.json").models == twin.models


@pytest.mark.medium
def test_a_short_load_measures_what_statistics_do_not_say(far: nt.Server):
    before = far.statistics("idle")["model_stats"][0]["inference_stats"]["success"]["count"]
    found = nt.twin(url_of(far), "idle", duration_s=0.1, measure_s=0.3)
    assert far.statistics("idle")["model_stats"][0]["inference_stats"]["success"]["count"] > before
    assert found.models["idle"].rows[-1] == 8


@pytest.mark.medium
@pytest.mark.parametrize("least", [1, 3])  # before and after each size of a batch was measured once
def test_ctrl_c_in_the_short_load_ends_it_and_is_told(far: nt.Server, least: int):
    stopped = []

    def interrupt(progress):
        if progress.what != "statistics" and progress.level == least:
            stopped.append(progress.what)
            raise KeyboardInterrupt

    far.infer("slow", {"IN": np.ones((1, 1), np.float32)})
    found = nt.twin(url_of(far), "slow", duration_s=0.1, measure_s=0.3, observer=interrupt)
    assert found.interrupted
    assert found.headline.endswith(", interrupted")
    assert len(stopped) == 1


@pytest.mark.medium
def test_a_stop_while_the_statistics_are_read_makes_the_rates_a_range(far: nt.Server, monkeypatch):
    jumped_s = 0.0

    def monotonic() -> float:
        return time.monotonic() + jumped_s

    statistics = HttpClient.statistics

    def read(client):
        nonlocal jumped_s
        document = statistics(client)
        jumped_s = 30.0  # the first reading was followed by a stop, before the time was taken
        return document

    clock = SimpleNamespace(
        monotonic=monotonic, sleep=time.sleep, perf_counter=time.perf_counter, thread_time=time.thread_time
    )  # fmt: skip
    monkeypatch.setattr(twins, "time", clock)
    monkeypatch.setattr(HttpClient, "statistics", read)
    looked_s = []
    visit = visits(far, "slow")

    def observe(progress):
        looked_s.append(time.monotonic())
        visit(progress)

    began_s = time.monotonic()
    found = nt.twin(url_of(far), "slow", duration_s=0.5, observer=observe)
    most_s = 30 + looked_s[-1] - began_s
    slow = found.traffic.set_index("model").loc["slow"]
    (note,) = (note for note in found.notes if "took long to be read" in note)
    low, high = (int(share) / 100 for share in re.findall(r"(\d+)%", note))
    assert slow.requests / slow.requests_per_s > 15  # not the moment that was left after the stop
    said = slow.requests_per_s
    # The shares are whole per cents.
    assert said * (low - 0.01) <= slow.requests / most_s
    assert slow.requests / 30 <= said * (high + 0.01)


def test_errors_say_what_is_there():
    with nt.Server(stand_in=True, gpus=()) as server:
        server.load(STAND_IN, name="slow")
        server.serve(http_port=0, grpc_port=None, metrics_port=None)
        with pytest.raises(NotFoundError, match=r"no model of http://.* has executed anything"):
            nt.twin(url_of(server), duration_s=0.01)
        with pytest.raises(NotFoundError, match="has no model 'slwo'; it has slow") as caught:
            nt.twin(url_of(server), "slwo", duration_s=0.01)
        assert "slow" in caught.value.hint
        with pytest.raises(InvalidArgumentError, match="duration_s"):
            nt.twin(url_of(server), duration_s=0)
        gone = url_of(server)
    with pytest.raises(UnavailableError):
        nt.twin(gone, duration_s=0.01)
