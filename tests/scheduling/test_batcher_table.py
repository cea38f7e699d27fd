"""The examples of docs/rules/scheduling.md, row by row (D1 to D16, P5): Triton's batches."""

from __future__ import annotations

import pytest

from tests.scheduling.simulator import Simulator, settings


@pytest.mark.parametrize(
    ("config", "sizes", "executed"),
    [
        pytest.param(settings(8), [1] * 5, [[1] * 5], id="no-preferred-5x1"),
        pytest.param(settings(8), [1, 2, 4, 3, 1], [[1, 2, 4], [3, 1]], id="never-split"),
        pytest.param(settings(8, (4,)), [1] * 11, [[1] * 4, [1] * 4, [1] * 3], id="pref4-11x1"),
        pytest.param(settings(8, (2, 6)), [1] * 5, [[1, 1], [1, 1], [1]], id="pref2,6-smallest"),
        pytest.param(
            settings(8, (2, 6), ahead=False), [1] * 7, [[1] * 6, [1]], id="pref2,6-all-queued"
        ),
        pytest.param(
            settings(8, (4,), ahead=False), [3, 3, 1, 1], [[3], [3, 1], [1]], id="pref4-all-queued"
        ),
        pytest.param(settings(8, (4,)), [3, 3, 1, 1], [[3, 3], [1, 1]], id="pref4-overshoot"),
        pytest.param(settings(8, (4,)), [5, 1, 2, 8], [[5], [1, 2], [8]], id="pref4-5,1,2,8"),
        pytest.param(settings(0), [1, 1, 1], [[1], [1], [1]], id="no-batch-dimension"),
        pytest.param(
            settings(0, delay_ms=500), [1, 1, 1], [[1], [1], [1]], id="no-batch-dimension-delay"
        ),
    ],
)
def test_D3_D5_D7_D9_D10_D15_table_busy(config, sizes, executed):
    sim = Simulator(config)
    sim.occupy(300)
    sim.arrive_all(sizes)
    sim.run()
    assert sim.sizes == executed
    assert sim.times[0] == 300
    assert sim.batcher.waiting == 0


@pytest.mark.parametrize(
    ("config", "arrivals", "executed"),
    [
        pytest.param(settings(8), [(0, 1)], [(0, [1])], id="delay0-never-waits"),
        pytest.param(
            settings(8, (4,), 500),
            [(0, 1), (100, 1), (200, 1)],
            [(500, [1, 1, 1])],
            id="pref4-delay-3x1",
        ),
        pytest.param(
            settings(8, (4,), 500),
            [(0, 1), (10, 1), (20, 1), (30, 1)],
            [(30, [1] * 4)],
            id="pref4-delay-4x1",
        ),
        pytest.param(
            settings(8, (4,), 500),
            [(0, 1), (10, 1), (20, 1), (30, 1), (40, 1)],
            [(30, [1] * 4), (540, [1])],
            id="pref4-delay-5x1",
        ),
        pytest.param(
            settings(8, (4,), 500),
            [(0, 3), (100, 3)],
            [(100, [3]), (600, [3])],
            id="pref4-delay-3-then-3",
        ),
        pytest.param(
            settings(8, (2, 4), 300),
            [(10 * i, 1) for i in range(7)],
            [(10, [1, 1]), (30, [1, 1]), (50, [1, 1]), (360, [1])],
            id="pref2,4-delay-7x1",
        ),
        pytest.param(
            settings(8, delay_ms=500),
            [(0, 1), (100, 1), (200, 1)],
            [(500, [1, 1, 1])],
            id="no-preferred-delay-3x1",
        ),
        pytest.param(
            settings(8, delay_ms=500),
            [(0, 8), (100, 1), (200, 8)],
            [(0, [8]), (200, [1]), (201, [8])],
            id="no-preferred-delay-8,1,8",
        ),
        pytest.param(
            settings(0, delay_ms=500),
            [(0, 1), (10, 1)],
            [(0, [1]), (10, [1])],
            id="no-batch-dimension-delay-ignored",
        ),
    ],
)
@pytest.mark.parametrize("ahead", [True, False], ids=["prefetch", "no-prefetch"])
def test_D3_D7_D8_D10_D13_D15_table_idle(config, arrivals, executed, ahead):
    """Beside an idle instance the batches are the same with and without forming ahead of time."""
    if not ahead:
        config = settings(
            config.max_batch_size,
            config.preferred,
            config.max_queue_delay_ns / 1e6,
            ahead=False,
        )
    sim = Simulator(config)
    for at_ms, size in arrivals:
        sim.arrive(at_ms, size)
    sim.run()
    assert list(zip(sim.times, sim.sizes, strict=True)) == executed


@pytest.mark.parametrize(
    ("preferred", "reason"),
    [((4,), "max_queue_delay"), ((2, 4), "merged")],  # the rest of the first joins it by D16
)
@pytest.mark.parametrize("requests", [6, 7])
def test_D14_D16_P5_table_delay_passed_while_busy_is_one_batch(preferred, reason, requests):
    sim = Simulator(settings(8, preferred, 300))
    sim.occupy(900)
    sim.arrive_all([1] * requests)
    sim.run()
    assert sim.sizes == [[1] * requests]
    assert sim.times == [900]
    assert sim.reasons == [reason]


def test_P1_table_the_first_idle_instance_runs_eight():
    """One queue for all instances, not one per instance."""
    sim = Simulator(settings(8), instances=2)
    sim.occupy(200, 100)
    sim.arrive_all([1] * 10)
    sim.run()
    assert [(one.at_ms, one.instance, len(one.tickets)) for one in sim.executed] == [
        (100, 1, 8),
        (101, 1, 2),
    ]


def test_P1_table_the_second_instance_runs_the_rest():
    sim = Simulator(settings(8), instances=2, service_ms=500)
    sim.occupy(200, 100)
    sim.arrive_all([1] * 10)
    sim.run()
    assert [(one.at_ms, one.instance, len(one.tickets)) for one in sim.executed] == [
        (100, 1, 8),
        (200, 0, 2),
    ]
