"""Simulated loads in virtual time: what follows from given execution times, exactly."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from nbtriton.common.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from nbtriton.lab.perf.api import perf
from nbtriton.lab.perf.loads import RequestIntervals, send_times_ns
from nbtriton.lab.perf.traffic import Repeated
from nbtriton.lab.simulate.core.loads import OpenLoop
from nbtriton.lab.simulate.model_profile import EngineCosts, Profile
from nbtriton.lab.simulate.prediction import _PLACE, _with_ranges, whatif, with_measurement
from nbtriton.lab.simulate.server import SimulatedServer
from tests.simulate.profiles import chain, config, model_profile, profile


def only(report):
    (point,) = report.points
    return point


def test_one_caller_waits_for_each_execution():
    point = only(whatif(profile(), concurrency=1))
    assert (point.latency_p50_us, point.latency_p99_us) == (1000, 1000)
    assert point.infer_per_s == pytest.approx(1000)
    assert point.outcome == "predicted"


def test_a_full_closed_loop_runs_full_batches():
    point = only(whatif(profile(), concurrency=16))
    assert point.infer_per_s == pytest.approx(4000, rel=0.01)
    assert point.server.batch_sizes.keys() == {8}
    assert (point.server.queue_us, point.server.compute_infer_us) == (2000, 2000)
    assert point.latency_p50_us == 4000


@pytest.mark.parametrize("beside", [{(1, 2): 1.0}, {(1, 2): 1.0, (8, 2): 2.0}])
def test_a_size_that_was_never_measured_alone_lies_between_those_that_were(beside):
    point = only(whatif(profile({(4, 1): 1.0, (8, 1): 2.0, **beside}), concurrency=16))
    assert point.server.batch_sizes.keys() == {8}
    assert point.server.compute_infer_us == 2000


def test_batching_that_is_switched_on_batches():
    off, on = whatif(profile(more=""), concurrency=16, dynamic_batching=[False, True]).points
    assert off.server.batch_sizes.keys() == {1}
    assert on.server.batch_sizes.keys() == {8}


def test_batch_sizes_between_measured_ones_take_what_lies_between():
    point = only(whatif(profile(), concurrency=4))
    assert point.latency_p50_us == pytest.approx(1000 + 3 / 7 * 1000, abs=0.01)


@pytest.mark.medium
def test_the_costs_of_the_engine_add_up():
    costs = EngineCosts(
        submit_us=10, inline_us=20, settle_us=30, answer_us=40, loop_us=50, start_us=60, wake_us=70
    )
    point = only(whatif(profile(costs=costs), concurrency=1))
    assert point.latency_p50_us == 1000 + 10 + 20 + 30 + 40
    assert 1e6 / point.infer_per_s == pytest.approx(1100 + 50, rel=0.01)
    # From one execution of a batch of eight to the next: eight requests, answered and sent again.
    point = only(whatif(profile(costs=costs), concurrency=8))
    assert 8e6 / point.infer_per_s == pytest.approx(2000 + 30 + 8 * (40 + 50 + 10) + 60, rel=0.01)


@pytest.mark.medium
def test_an_instance_does_not_wait_for_a_client_elsewhere():
    far = profile(more="", costs=EngineCosts(way_us=(400,)))
    one, two = whatif(far, concurrency=[1, 2]).points
    assert one.latency_p50_us == one.latency_p99_us == 1000 + 2 * 400
    assert two.infer_per_s == pytest.approx(1000, rel=0.01)
    # Eight that are answered together: the first to be back leaves alone, and the others together.
    batched = only(whatif(profile(costs=EngineCosts(way_us=(400,))), concurrency=8))
    assert set(batched.server.batch_sizes) == {1, 7}
    more = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    full = profile(rows=1, more=more, costs=EngineCosts(way_us=(400,)))
    assert only(whatif(full, concurrency=4, request_count=40)).error_count > 0


def test_ways_are_drawn_for_each_request():
    far = profile(more="", costs=EngineCosts(way_us=(100,) * 9 + (5000,)))
    point = only(whatif(far, request_rate=10, request_count=4000))
    assert point.latency_p50_us == 1000 + 2 * 100
    assert point.latency_p99_us == 1000 + 2 * 5000
    assert point.latency_avg_us == pytest.approx(1000 + 2 * (0.9 * 100 + 0.1 * 5000), rel=0.05)


def test_requests_of_a_client_elsewhere_leave_one_after_the_other():
    costs = EngineCosts(submit_us=100, way_us=(400,))
    point = only(whatif(profile(more="", costs=costs), concurrency=32, instances=32))
    assert point.infer_per_s == pytest.approx(10_000, rel=0.01)


def test_a_lone_request_waits_for_the_queue_delay():
    point = only(whatif(profile(), request_rate=10, max_queue_delay_us=500, request_count=20))
    assert point.outcome == "predicted"
    assert (point.latency_p50_us, point.latency_p99_us) == (1500, 1500)
    assert point.server.queue_us == 500


@pytest.mark.medium
@pytest.mark.parametrize("times_ms", [(1.0,), (0.5,) * 50 + (1.5,) * 50], ids=["D", "G"])
def test_poisson_arrivals_wait_as_queueing_theory_says(times_ms):
    """M/G/1: the mean time in the queue by Pollaczek and Khinchine, whose gaps know nothing of the executions."""
    alone = profile({(1, 1): times_ms}, rows=0, more="")
    point = only(
        whatif(alone, request_rate=700, request_distribution="poisson", request_count=15_000)
    )
    square_ms = sum(ms**2 for ms in times_ms) / len(times_ms)
    assert point.server.queue_us == pytest.approx(0.7 * square_ms / (2 * 0.3) * 1000, rel=0.1)
    assert point.infer_per_s == pytest.approx(700, rel=0.02)


@pytest.mark.medium
def test_an_overloaded_server_delays_its_sender_by_the_queue_that_grew():
    point = only(whatif(profile(), request_rate=8000))
    assert point.infer_per_s == pytest.approx(4000, rel=0.02)
    assert point.delayed_fraction > 0.5
    (note,) = point.notes
    assert note.startswith("throughput 50% of the rate asked for (8000/s): the queue grew")


def test_bursts_come_as_their_intervals_say():
    point = only(whatif(profile(), intervals=[0, 0, 0, 10_000], request_count=400))
    # The first of a burst runs alone; the three behind it are one batch.
    assert dict(point.server.batch_sizes) == {1: 101, 3: 99, 2: 1}
    assert point.infer_per_s == pytest.approx(400, rel=0.02)


@pytest.mark.medium
def test_instances_share_the_load():
    report = whatif(profile(), concurrency=32, instances=[1, 2, 4])
    rates = [point.infer_per_s for point in report.points]
    assert rates == pytest.approx([4000, 8000, 16000], rel=0.02)
    assert [point.configuration["instances"] for point in report.points] == [1, 2, 4]


@pytest.mark.medium
def test_executions_that_share_the_cores_slow_each_other_down():
    shared = profile({(8, 1): 2.0, (1, 1): 1.0, (8, 2): 4.0, (1, 2): 2.0}, cores=1.0)
    one, two = whatif(shared, concurrency=32, instances=[1, 2]).points
    assert two.infer_per_s == pytest.approx(one.infer_per_s, rel=0.02)
    # Two that begin at different times: the first is slowed down from the middle on.
    point = only(
        whatif(
            profile({(1, 1): 1.0, (1, 2): 2.0}, rows=0, more="", cores=1.0, instances=2),
            intervals=[500],
            request_count=2,
        )
    )
    assert sorted([point.latency_p50_us, point.latency_avg_us * 2 - point.latency_p50_us]) == [
        1500, 1500
    ]  # fmt: skip


def test_a_thread_that_wakes_up_waits_for_the_interpreter():
    slow = {(1, 1): 20.0}
    free = profile(slow, rows=0, more="")
    held = profile(slow, rows=0, more="", interpreter_share=1.0, cores=1.0)
    two = {"intervals": [1000], "request_count": 2}
    # The second is due at 2 ms, and waits for the first, which began at 1 ms.
    assert only(whatif(free, **two)).latency_p99_us == 39_000
    # Its sender gets the interpreter 5 ms later, and sends it then.
    assert only(whatif(held, **two)).latency_p99_us == 34_000


def test_expired_requests_are_refused_with_the_scheduler_s_words():
    more = """dynamic_batching { default_queue_policy {
        timeout_action: REJECT default_timeout_microseconds: 3000 } }"""
    point = only(whatif(profile(more=more, rows=1), request_rate=3000, request_count=600))
    assert point.error_count > 100
    assert point.first_error == "Request timeout expired"
    assert point.latency_p99_us <= 3000 + 1000


def test_urgent_requests_overtake():
    more = "dynamic_batching { priority_levels: 2 default_priority_level: 2 }"
    report = whatif(
        profile(more=more, rows=1), concurrency=8, priority=[1, 2, 2, 2], request_count=800
    )
    plain = whatif(profile(more=more, rows=1), concurrency=8, priority=2, request_count=800)
    assert only(report).infer_per_s == pytest.approx(only(plain).infer_per_s, rel=0.02)
    assert only(report).latency_std_us > only(plain).latency_std_us


def test_the_cache_answers_what_it_has():
    more = "dynamic_batching {} response_cache { enable: true }"
    cached = profile(more=more, server={"cache_bytes": 1000}, lookup_us=5)
    point = only(whatif(cached, concurrency=1, request_count=1000))
    assert point.latency_p50_us == 5
    assert point.server.execution_count == 1
    # 2 of 3 different responses of 400 bytes fit: each is gone before it is asked for again.
    larger = profile(more=more, server={"cache_bytes": 1200}, lookup_us=5, output_bytes=400)
    inputs = [{"IN": [[float(k)]]} for k in range(3)]
    point = only(whatif(larger, concurrency=1, request_count=30, inputs=inputs))
    assert point.server.execution_count == 30


CACHED = {"more": "dynamic_batching {} response_cache { enable: true }"}
FULL = {"more": "dynamic_batching { default_queue_policy { max_queue_size: 1 } }", "rows": 1}


@pytest.mark.medium
@pytest.mark.parametrize("costs", [EngineCosts(), EngineCosts(submit_us=2, loop_us=3)])
@pytest.mark.parametrize(
    ("given", "server", "concurrency", "executed"),
    [
        (CACHED, {"cache_bytes": 1000}, 1, 1),
        (CACHED, {"cache_bytes": 1000}, 4, 4),  # none of the first four finds an answer
        (FULL, {}, 8, 10),
    ],
)
def test_instances_go_on_beside_clients_that_are_answered_at_once(
    given, server, concurrency, executed, costs
):
    """From the cache, or as the queue is full: the client sends again before an execution has ended."""
    one = profile({(1, 1): 1.0}, costs=costs, server=server, **given)
    windows = {"measurement_interval_ms": 10 / 1.2, "max_trials": 1, "stability_percentage": 999}
    point = only(whatif(one, concurrency=concurrency, **windows))
    assert point.window_s == pytest.approx(0.010)
    assert point.server.execution_count <= executed
    assert (point.error_count > 0) == (given is FULL)
    if given is FULL:  # an execution takes 1 ms, and one more waits
        assert point.infer_per_s == pytest.approx(1000, rel=0.1)


@pytest.mark.medium
def test_a_prediction_without_an_answer_is_compared_with_nothing():
    prediction = whatif(profile(), concurrency=1, request_count=4)
    measured = replace(prediction, simulated=False, environment={"measured_at": "today"})
    assert with_measurement(prediction, measured).measured
    none = tuple(replace(one, infer_per_s=0.0, request_count=0) for one in prediction.points)
    refused = replace(prediction, points=none)
    assert with_measurement(refused, measured) == refused


def test_a_bound_in_which_nothing_is_answered_is_no_end_of_the_p99_range():
    point = only(whatif(profile({(1, 1): 1.0}), concurrency=1))
    low_us, high_us = point.latency_p99_range_us
    assert _with_ranges(point, [point, point]).latency_p99_range_us is not None
    nothing = replace(point, infer_per_s=0.0, latency_p99_us=math.nan)
    found = _with_ranges(point, [point, nothing, point])
    assert found.latency_p99_range_us is None
    assert found.infer_per_s_range[0] == 0
    assert low_us < high_us


def test_a_prediction_has_the_range_of_what_its_measurements_allow():
    found = profile({(1, 1): 1.0, (8, 1): 2.0, (8, 2): 2.0}, drift=(0.8, 1.25))
    point = only(whatif(found, concurrency=16))
    low, high = point.infer_per_s_range
    # 5% on top of the slowest and the fastest turn, and a request of a hundred.
    assert point.infer_per_s == pytest.approx(4000, rel=0.01)
    assert (low, high) == pytest.approx((3960 / 1.25 / 1.05, 4040 / 0.8 / 0.95), rel=0.005)
    # A rate that each of them follows has a range as well: windows count whole requests.
    slow = only(whatif(found, request_rate=100, request_distribution="constant"))
    assert slow.infer_per_s_range == pytest.approx((99, 101), rel=0.001)
    low_us, high_us = point.latency_p99_range_us
    assert low_us < 4000 * 0.8 < point.latency_p99_us < 4000 * 1.25 < high_us
    # An execution had between three quarters of a core and a whole one; and stalls that were left out may come again.
    busy = replace(found, others=1.0, environment={"cpus": 4})
    wide = only(whatif(busy, concurrency=16)).infer_per_s_range
    assert wide == pytest.approx((low * 0.75, high / 0.75), rel=0.005)
    (model,) = found.models.values()
    stalls = tuple(replace(each, stalls_us=(9000.0,)) for each in model.points)
    stalled = replace(busy, models={"m": replace(model, points=stalls)})
    (point_with,) = whatif(stalled, concurrency=16).points
    assert point_with.infer_per_s == pytest.approx(point.infer_per_s)
    assert point_with.latency_p99_range_us[1] > 9000
    assert "at least" in repr(whatif(found, concurrency=16)._repr_mimebundle_()["text/plain"])


@pytest.mark.medium
def test_an_execution_stalls_as_often_as_in_the_profile():
    """Of 100 executions of 2 ms one took 12 ms: a hundredth of any executions, and of 200 ms computing 10 more."""
    found = profile({(1, 1): 2.0}, rows=1)
    (model,) = found.models.values()
    points = tuple(replace(each, executions=100, stalls_us=(12_000.0,)) for each in model.points)
    stalled = replace(found, models={"m": replace(model, points=points)})
    point = only(whatif(stalled, concurrency=1, request_count=20_000))
    assert point.infer_per_s == pytest.approx(1000 / 2.1, rel=0.01)
    assert point.latency_p95_us == 2000
    # Beside others that used the cores these may be theirs: the prediction has none, and its range has them.
    busy = only(whatif(replace(stalled, others=1.0, environment={"cpus": 4}), concurrency=1))
    assert busy.infer_per_s == pytest.approx(500, rel=0.01)


@pytest.mark.parametrize(("executions", "share"), [(4, 1.5), (100, 1.1)])
def test_few_executions_that_differ_give_a_wide_range(executions, share):
    # A standard deviation of half the mean: two standard errors of the mean are 50% and 10%.
    found = profile({(1, 1): [0.5, 1.5], (1, 2): [0.5, 1.5]}, rows=1)
    (model,) = found.models.values()
    points = tuple(replace(each, executions=executions) for each in model.points)
    low, high = only(
        whatif(replace(found, models={"m": replace(model, points=points)}), concurrency=8)
    ).infer_per_s_range
    assert low == pytest.approx(1000 / share / 1.05 * 0.99, rel=0.03)
    assert high == pytest.approx(1000 * share / 0.95 * 1.01, rel=0.03)


@pytest.mark.parametrize(
    ("others", "foreign", "outcome"),
    [
        (None, 0, "predicted"),
        (0.19, 0, "predicted"),
        (1.0, 1, "predicted"),
        (1.1, 0, "beyond the profile"),
        (0.0, 50, "beyond the profile"),
    ],
)
def test_what_others_took_is_said_and_too_much_is_refused(others, foreign, outcome):
    # 300 executions on two cores.
    found = replace(profile(), others=others, foreign=foreign, environment={"cpus": 2})
    report = whatif(found, concurrency=16)
    assert only(report).outcome == outcome
    assert (only(report).infer_per_s_range is None) == (outcome != "predicted")
    assert (only(report).latency_p99_range_us is None) == (outcome != "predicted")
    assert bool(report.notes) == (foreign > 0 or (others or 0) >= 0.2)
    assert all("while it was measured" in note for note in report.notes)


@pytest.mark.medium
def test_a_profile_that_is_refused_says_as_little_of_stability():
    """Times that differ a hundredfold: no three windows agree within a hundredth of a per cent."""
    wild = profile({(1, 1): [0.1, 10.0]}, rows=1)
    loud = replace(wild, foreign=50)
    asked = {"concurrency": 2, "stability_percentage": 0.01}
    assert only(whatif(wild, **asked)).outcome == "unstable"
    assert only(whatif(wild, **asked)).infer_per_s_range is not None
    point = only(whatif(loud, **asked))
    assert point.outcome == "beyond the profile"
    assert point.infer_per_s_range is None
    assert point.latency_p99_range_us is None


@pytest.mark.medium
def test_a_poisson_load_is_judged_over_a_thousand_requests():
    for seed in range(4):
        point = only(whatif(profile(), request_rate=40, request_distribution="poisson", seed=seed))
        assert point.request_count >= 1000
        assert point.infer_per_s == pytest.approx(40, rel=0.1)


@pytest.mark.medium
def test_the_rate_limiter_lets_one_run_at_a_time():
    needs = 'rate_limiter { resources { name: "R" count: 1 } }'
    limited = profile(group=needs, instances=2, server={"rate_limit": "execution_count"})
    free = profile(instances=2)
    assert only(whatif(free, concurrency=32)).infer_per_s == pytest.approx(8000, rel=0.02)
    assert only(whatif(limited, concurrency=32)).infer_per_s == pytest.approx(4000, rel=0.02)


@pytest.mark.parametrize("strategy", ["", "direct {}", "oldest { max_candidate_sequences: 8 }"])
def test_sequences_run_side_by_side(strategy):
    found = profile(more=f"sequence_batching {{ {strategy} }}")
    point = only(whatif(found, concurrency=8, sequence_length=10, request_count=800))
    # Of 80 sequences in ten rounds of eight, three of the last round are of requests beyond the count.
    assert point.sequence_count == 77
    assert point.server.mean_batch_size == pytest.approx(8, rel=0.02)
    assert point.error_count == 0


@pytest.mark.medium
def test_a_chain_adds_up_and_branches_take_the_longest():
    assert only(whatif(chain({"a": 1, "b": 2, "c": 3}), concurrency=1)).latency_p50_us == 6000
    side = chain({"a": 1, "b": 2, "c": 3}, branches=True)
    assert only(whatif(side, concurrency=1)).latency_p50_us == 5000
    # As many as the slowest step can do, one after the other in batches of one row.
    point = only(whatif(chain({"a": 1, "b": 2}, rows=1), concurrency=8))
    assert point.infer_per_s == pytest.approx(500, rel=0.02)
    assert [step.model for step in point.composing] == ["a", "b"]


@pytest.mark.medium
def test_one_model_in_two_steps_has_one_queue():
    found = chain({"a": 1, "b": 1})
    twice = Profile(
        "e", {"a": found.models["a"]}, {"e": found.ensembles["e"].replace('"b"', '"a"')}
    )
    assert only(whatif(twice, concurrency=1)).latency_p50_us == 2000


@pytest.mark.medium
def test_the_same_seed_gives_the_same_report():
    spread = profile({(1, 1): [0.5, 1.0, 4.0], (8, 1): [1.0, 2.0, 8.0]})
    runs = [whatif(spread, concurrency=5, seed=seed).points for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.medium
def test_a_sweep_and_a_search_are_those_of_perf():
    report = whatif(profile(), concurrency="1:64:x2", latency_threshold_ms=3.5)
    assert [point.value for point in report.points] == [1, 2, 4, 8]
    assert "went over the set limit" in report.notes[0]
    assert report.simulated
    assert "4 levels simulated" in report.headline
    assert "simulated" in report._repr_mimebundle_()["text/html"]


@pytest.mark.medium
def test_it_says_where_it_goes_beyond_what_was_measured():
    narrow = profile({(1, 1): 1.0, (2, 1): 1.5, (1, 2): 1.9}, cores=1.0)
    (point,) = whatif(narrow, concurrency=32, instances=4).points
    assert any(
        "batches of up to 8 rows" in note and "measured 1 to 2" in note for note in point.notes
    )
    assert any("up to 4 executions" in note and "1 to 2 at once" in note for note in point.notes)
    assert whatif(profile(), concurrency=8).points[0].notes == ()


def latencies(found, *, instances=1, requests=3, seed=0):
    """Return the latencies of requests that are sent a millisecond after each other, in order."""
    config = found.config("m")
    config.instance_group[0].count = instances
    world = SimulatedServer(found, {"m": config}, seed=seed)
    load = OpenLoop(
        world.world, world.runtime("m"), Repeated([{}]), 1, requests,
        send_times_ns(RequestIntervals((1000,))),
    )  # fmt: skip
    load.start()
    world.world.calendar.run(10**12, 10**6)
    ends = load.recorder.end_ns
    starts = [end - took for end, took in zip(ends, load.recorder.latency_ns, strict=True)]
    return [took / 1000 for _, took in sorted(zip(starts, load.recorder.latency_ns, strict=True))]


# One row of 10 ms at a time; the engine takes 400 us to take a request.
SLOW = {"times_ms": {(1, 1): 10.0}, "rows": 0, "more": "", "costs": EngineCosts(submit_us=400)}


def test_the_engine_s_work_puts_off_an_execution_beside_it():
    assert latencies(profile(**SLOW), requests=2) == [10_400, 19_400]
    # The second is submitted while the first executes, which waits for half of that time.
    half = profile(**SLOW, gives_way=((1, 0.5),))
    assert latencies(half, requests=2) == [10_600, 19_600]
    # A shared interpreter or not: the share was measured with what there is.
    free = replace(half, shared_interpreter=False)
    assert latencies(free, requests=2) == [10_600, 19_600]


def test_executions_lose_what_was_measured_with_as_many_at_once():
    # In processes on two cores, one execution leaves a core to the engine, two leave none.
    found = profile(**SLOW, gives_way=((1, 0.0), (2, 0.5)))
    # The second is submitted beside one execution, the third beside two.
    assert latencies(found, instances=2) == [10_600, 10_600, 18_600]
    # Between numbers that were measured lies what lies between; beyond them nothing changes.
    wide = profile(**SLOW, gives_way=((1, 0.0), (3, 1.0)))
    assert latencies(wide, instances=2) == [10_600, 10_600, 18_600]
    assert latencies(found, instances=3, requests=4)[:3] == [10_800, 10_800, 10_600]


def test_some_executions_lose_more_than_others():
    found = profile(**SLOW, gives_way=((1, 0.5),), uneven=(0.0, 2.0))
    first = {latencies(found, requests=2, seed=seed)[0] for seed in range(12)}
    assert first == {10_400, 10_800}
    # The execution times that are long lose the most, as they were measured.
    found = profile(
        **(SLOW | {"times_ms": {(1, 1): (10.0, 12.0)}}), gives_way=((1, 0.5),), uneven=(0.0, 2.0)
    )
    first = {latencies(found, requests=2, seed=seed)[0] for seed in range(12)}
    assert first == {10_400, 12_800}
    # One that is late by much does not lose as much again of what comes meanwhile, and so on.
    late = profile(**SLOW, gives_way=((1, 0.5),), uneven=(40.0, 40.0))
    assert latencies(late, requests=20)[0] < 120_000
    # A core that a thread takes is taken from all alike: two wake-ups here.
    costs = replace(SLOW["costs"], wait_us=100)
    alike = profile(**{**SLOW, "costs": costs}, uneven=(0.0, 2.0), cores=1.0)
    alike = replace(alike, environment={"cpus": 1})
    assert {latencies(alike, requests=2, seed=seed)[0] for seed in range(12)} == {10_600}


@pytest.mark.medium
def test_an_idle_instance_takes_longer_and_the_unluckiest_longest():
    # One in fifty times is a long one; of a short idle time half is added.
    adds = (100.0,) * 98 + (800.0,) * 2
    cold = profile(idle_us=((4000.0, (0.0,) * 100), (8000.0, adds)))
    busy, half, idle = (
        only(whatif(cold, intervals=[gap], request_count=2000)) for gap in (3000, 7000, 12_000)
    )
    assert busy.latency_p99_us == 1000
    assert half.latency_p50_us == pytest.approx(1050, abs=5)
    assert (idle.latency_p50_us, idle.latency_p99_us) == (1100, 1800)


@pytest.mark.parametrize(("place", "latency_us"), [("thread", 1000), ("process", 1200)])
def test_threads_are_warm_while_their_model_is_and_a_process_only_while_it_runs_itself(
    place, latency_us
):
    # One caller's requests go to both instances in turn: each is idle while the other one executes.
    found = profile(idle_us=((1000.0, (200.0,) * 100),), instances=2)
    measured = replace(found.models["m"], place=place)
    point = only(whatif(replace(found, models={"m": measured}), request_count=200))
    assert point.latency_p50_us == latency_us


def test_an_idle_time_adds_to_the_execution_time_of_the_same_chance():
    times_ms = [1.0] * 90 + [3.0] * 10
    found = profile({(1, 1): times_ms}, idle_us=((1000.0, (500.0,) * 90 + (0.0,) * 10),))
    point = only(whatif(found, intervals=[20_000], request_count=4000))
    assert (point.latency_p50_us, point.latency_p99_us) == (1500, 3000)


def test_a_queue_delay_wakes_the_scheduler_which_takes_a_core_where_none_is_free():
    costs = EngineCosts(wait_us=100)
    found = profile({(1, 1): 10.0, (8, 1): 10.0}, costs=costs, cores=1.0, instances=1)
    # The second waits for its delay while the first executes: the scheduler's thread is woken for it,
    # and wakes up at its end. A sender wakes up at 2 and 3 ms, and the first ends later by all four.
    delayed = replace(found, environment={"cpus": 1})
    assert latencies(delayed, requests=2)[0] == 10_200
    text = found.models["m"].config.replace(
        "dynamic_batching {}", "dynamic_batching { max_queue_delay_microseconds: 500 }"
    )
    models = {"m": replace(found.models["m"], config=text)}
    assert latencies(replace(delayed, models=models), requests=2)[0] == 10_900
    # In a thread it has to wait for the interpreter where a core is free as well.
    free = replace(found, models=models, environment={"cpus": 2})
    assert latencies(free, requests=2)[0] == 10_700
    assert latencies(replace(free, shared_interpreter=False), requests=2)[0] == 10_500


def test_a_sender_that_wakes_up_takes_a_core_where_none_is_free():
    sender = replace(SLOW["costs"], wait_us=100)
    found = profile(**{**SLOW, "costs": sender}, gives_way=((1, 0.5),), cores=1.0)
    two, one = (replace(found, environment={"cpus": cpus}) for cpus in (2, 1))
    assert latencies(two, requests=2) == [10_600, 19_600]
    # It wakes up for the second request, and once more before it knows that there is no third.
    assert latencies(one, requests=2) == [10_800, 19_800]


@pytest.mark.medium
def test_a_thread_that_wakes_up_beside_an_execution_waits_for_a_core():
    late = EngineCosts(late_us=(0,) * 9 + (3000,))
    found = profile({(1, 1): 10.0}, rows=0, more="", costs=late, cores=1.0)
    # Every other request comes while the one before it is executed: its sender may be late.
    point = only(whatif(found, request_rate=150, request_count=4000, instances=2))
    tenth = only(whatif(found, request_rate=50, request_count=4000))
    assert tenth.latency_p99_us == pytest.approx(10_000)
    # (Late are the sender and the thread of the instance, each in one case of ten.)
    assert point.latency_p90_us == pytest.approx(13_000)
    idle = replace(found, models={"m": replace(found.models["m"], cores=0.0)})
    sleeping = only(whatif(idle, request_rate=150, request_count=4000, instances=2))
    assert sleeping.latency_p99_us == pytest.approx(10_000)


def test_no_core_is_busy_once_nothing_runs():
    found = chain({"a": 1, "b": 2, "c": 1}, branches=True)
    # The first two run side by side, and 0.1 + 0.2 - 0.1 - 0.2 is not 0.
    models = {
        "a": replace(found.models["a"], cores=0.1),
        "b": replace(found.models["b"], cores=0.2),
    }
    found = replace(found, models={**found.models, **models})
    server = SimulatedServer(found, {name: found.config(name) for name in ("a", "b", "c", "e")})
    world = server.world
    OpenLoop(
        world, server.runtime("e"), Repeated([{}]), 1, 3, send_times_ns(RequestIntervals((10_000,)))
    ).start()
    world.calendar.run(11_500_000, 10**6)  # "a" has ended, "b" has not
    assert world.busy == pytest.approx(0.2)
    world.calendar.run(10**12, 10**6)
    assert world.busy == 0.0


def test_an_interrupt_leaves_the_levels_so_far():
    def stop(progress):
        if progress.level == 2:
            raise KeyboardInterrupt

    report = whatif(profile(), concurrency=[1, 2, 4], observer=stop)
    assert report.interrupted
    assert [point.value for point in report.points] == [1]


def test_an_error_leaves_the_levels_so_far():
    wrong = profile(server={"rate_limit_resources": ["R"]})
    report = whatif(wrong, concurrency=2, rate_limit=["off", "execution_count"])
    assert [point.configuration["rate_limit"] for point in report.points] == ["off"]
    assert report.failure.startswith("ended before all levels were measured: ")
    assert report.headline.endswith(", ended by an error")
    with pytest.raises(InvalidArgumentError):
        whatif(wrong, concurrency=2, rate_limit="execution_count")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurency": 2}, "perf has no option 'concurency'"),
        ({"url": "localhost:8000"}, "url has no meaning for a simulated server"),
        ({"streaming": True}, "streams of responses are not simulated"),
        ({"batch_size": 9}, "batch size 9 is larger than max_batch_size 8"),
        ({"concurrency": 2, "request_rate": 5}, "more then one inference load mode"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        whatif(profile(), **options)


def test_unknown_models_and_decoupled_ones_are_refused():
    with pytest.raises(NotFoundError, match="the profile has no model 'n'; it has m"):
        whatif(profile(), "n")
    text = config(more="model_transaction_policy { decoupled: true }")
    decoupled = Profile("m", {"m": model_profile(text, {(1, 1): 1.0})})
    with pytest.raises(UnsupportedError, match="'m' is decoupled"):
        whatif(decoupled)
    with pytest.raises(InvalidArgumentError, match="whatif needs a profile, found NoneType"):
        whatif(None)


def test_it_takes_what_perf_takes():
    import inspect

    names = list(inspect.signature(whatif).parameters)
    wanted = [
        name for name in inspect.signature(perf).parameters if name not in (*_PLACE, "server")
    ]
    assert names == ["profile", *wanted]


def test_a_profile_is_kept_in_a_file(tmp_path):
    found = profile(
        {(1, 1): [0.5, 1.0], (8, 1): 2.0},
        costs=EngineCosts(wake_us=17, wait_us=40, late_us=(0, 0, 900)),
        gives_way=((1, 0.5), (2, 0.25)),
        uneven=(0.5, 1.5),
        idle_us=((1000.0, (0.0, 30.0)), (4000.0, (5.0, 90.0))),
    )
    path = tmp_path / "m.json"
    found.save(path)
    assert Profile.load(path) == found
    assert list(found.frame["mean_us"]) == [750, 2000]
    assert repr(found) == "<Profile m: 2 points measured in 0 s>"
    shown = found._repr_mimebundle_()["text/plain"]
    assert "wakes up in 17" in shown
    assert "mean [ms]" in shown
    # Format 2 had one number where an idle time adds a distribution.
    path.write_text(path.read_text("utf-8").replace('"format": 3', '"format": 2'))
    with pytest.raises(InvalidArgumentError, match="format 2 instead of 3: measure it again"):
        Profile.load(path)
    path.write_text("[]")
    with pytest.raises(InvalidArgumentError, match="is not a profile that this version"):
        Profile.load(path)


def test_only_the_next_steps_of_a_batch_are_gathered():
    """What a callback sends meanwhile reaches its models at once, as in the engine."""
    branches = chain({"fast": 1.0, "slow": 3.0, "join": 0.01}, branches=True)
    point = only(whatif(branches, concurrency=4, request_count=400))
    fast, slow, _ = (dict(each.batch_sizes) for each in point.composing)
    # The answers to a batch of three send three requests: an idle instance takes the first of them alone.
    assert slow == {1: 100, 3: 100}
    assert fast == {1: 199, 2: 99, 3: 1}
