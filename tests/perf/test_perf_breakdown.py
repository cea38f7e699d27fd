"""Server-side numbers are differences of statistics: rules PA12 and PA13."""

from __future__ import annotations

import pytest

from nbtriton.lab.perf.breakdown import breakdown, network_us, with_composing


def entry(name="m", version="1", *, requests=0, rows=None, executions=None, us=(0, 0, 0, 0, 0)):
    """One model's statistics in Triton's JSON form; `us` is total, queue, input, infer, output."""
    sizes = executions or {}
    stages = ("success", "queue", "compute_input", "compute_infer", "compute_output")
    return {
        "name": name,
        "version": version,
        "inference_count": requests if rows is None else rows,
        "execution_count": sum(sizes.values()),
        "inference_stats": {
            stage: {"count": requests, "ns": round(requests * each * 1000)}
            for stage, each in zip(stages, us, strict=True)
        },
        "batch_stats": [
            {"batch_size": size, "compute_infer": {"count": n, "ns": 1}}
            for size, n in sizes.items()
        ],
    }


def stats(*entries):
    return {"model_stats": list(entries)}


def test_PA12_numbers_are_differences():
    before = stats(entry(requests=10, executions={1: 10}, us=(100, 10, 10, 10, 10)))
    after = stats(entry(requests=30, executions={1: 10, 4: 5}, us=(200, 40, 10, 20, 10)))
    result = breakdown(before, after, "m")
    assert result.success_count == 20
    assert result.execution_count == 5
    assert result.inference_count == 20
    assert result.mean_batch_size == 4
    assert result.batch_sizes == {4: 5}
    # (30 * 200 - 10 * 100) / 20
    assert result.request_us == pytest.approx(250)
    assert result.queue_us == pytest.approx(55)
    assert result.compute_infer_us == pytest.approx(25)


def test_executions_that_failed_make_no_batch_smaller():
    after = stats(entry(requests=4, rows=4, executions={4: 2}))  # one of the two failed
    assert breakdown(stats(), after, "m").mean_batch_size == 4


def test_PA12_the_version_whose_queue_count_grew_the_highest_with_a_warning():
    before = stats(entry(version="1", requests=5), entry(version="9", requests=5))
    after = stats(entry(version="1", requests=5), entry(version="9", requests=6))
    assert breakdown(before, after, "m").version == "9"
    assert not breakdown(before, after, "m").warning
    both = stats(entry(version="9", requests=6), entry(version="10", requests=1))
    result = breakdown(before, both, "m")
    assert result.version == "10"
    assert result.warning.startswith("WARNING: Multiple versions of model m")


def test_PA12_a_model_that_served_nothing_has_no_numbers():
    same = stats(entry(requests=5))
    assert breakdown(same, same, "m") is None
    assert breakdown(same, stats(), "m") is None


def test_PA12_statistics_that_restarted_count_from_zero():
    before = stats(entry(requests=100, us=(9, 9, 9, 9, 9)))
    after = stats(entry(requests=3, executions={1: 3}, us=(50, 1, 1, 1, 1)))
    result = breakdown(before, after, "m")
    assert result.success_count == 3
    assert result.request_us == pytest.approx(50)


def test_PA13_overhead_is_what_is_left_and_never_negative():
    after = stats(entry(requests=4, executions={1: 4}, us=(100, 20, 10, 30, 10)))
    assert breakdown(stats(), after, "m").overhead_us == pytest.approx(30)
    after = stats(entry(requests=4, executions={1: 4}, us=(50, 20, 10, 30, 10)))
    assert breakdown(stats(), after, "m").overhead_us == 0


def test_PA13_network_is_client_latency_less_what_the_server_accounts_for():
    result = breakdown(
        stats(), stats(entry(requests=4, executions={1: 4}, us=(100, 20, 10, 30, 10))), "m"
    )
    assert network_us(120, result) == pytest.approx(50)
    assert network_us(60, result) == 0
    assert network_us(60, None) == 60


def test_PA13_an_ensemble_sums_its_steps_and_a_repeated_step_counts_twice():
    whole = breakdown(
        stats(), stats(entry("e", requests=10, executions={1: 10}, us=(500, 1, 9, 9, 9))), "e"
    )
    a = breakdown(
        stats(), stats(entry("a", requests=10, executions={1: 10}, us=(99, 10, 20, 30, 40))), "a"
    )
    b = breakdown(
        stats(), stats(entry("b", requests=20, executions={2: 10}, us=(99, 5, 10, 15, 20))), "b"
    )
    result = with_composing(whole, [a, b])
    assert result.queue_us == pytest.approx(10 + 2 * 5)
    assert result.compute_infer_us == pytest.approx(30 + 2 * 15)
    assert result.overhead_us == pytest.approx(500 - 200)
    assert with_composing(whole, []) is whole
