"""From measured times to the numbers of a profile."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from nbtriton.lab.perf.breakdown import ServerBreakdown
from nbtriton.lab.perf.sample import Sample
from nbtriton.lab.simulate.calibration import Calibration
from nbtriton.lab.simulate.measurements import (
    added_quantiles,
    beyond_chance,
    fitted_line,
    merged,
    relative_losses,
    trimmed,
    without_stalls,
)
from nbtriton.lab.simulate.model_profile import ModelProfile, ServicePoint
from tests.simulate.profiles import chain


def test_what_is_added_from_quantile_to_quantile_gives_the_distribution_back():
    choose = random.Random(1)
    plain = [choose.randrange(1000, 1200) for _ in range(400)]
    times = [choose.randrange(1300, 1500) + 4000 * (choose.random() < 0.03) for _ in range(400)]
    adds = added_quantiles(times, plain)
    at = (np.arange(len(adds)) + 0.5) / len(adds)
    assert np.quantile(plain, at) + adds == pytest.approx(np.quantile(times, at))
    # The tail is kept, and nothing gets shorter.
    assert adds[-1] > 3900
    assert set(added_quantiles(plain, times)) == {0.0}


def test_what_executions_lose_unevenly_is_one_on_average():
    factors = relative_losses([100] * 50, [110] * 45 + [210] * 5, 0.0)
    assert sum(factors) / len(factors) == pytest.approx(1, abs=0.01)
    assert (factors[0], factors[-1]) == pytest.approx((0.5, 5.5), rel=0.05)
    assert relative_losses([100, 100], [90, 100], 0.0) == (1.0,)
    # The factors are in the order of the execution times: here the long ones lose nothing.
    factors = relative_losses([100] * 50 + [900] * 50, [140] * 50 + [900] * 50, 0.0)
    assert (factors[0], factors[-1]) == pytest.approx((2, 0), rel=0.05)


def test_times_between_executions_are_a_line_by_the_requests_of_the_batch():
    assert fitted_line({1: [30], 3: [50, 50]}) == pytest.approx((10, 20))
    assert fitted_line({}) == (0, 0)
    assert fitted_line({1: [30, 30]}) == (15, 15)


def test_the_highest_hundredth_is_left_out():
    assert trimmed([*range(199), 10_000]) == list(range(198))


@pytest.mark.parametrize(
    ("times", "stalls"),
    [
        ([5] * 23 + [45], [45]),  # one stall among few executions adds a third to their mean
        ([5] * 18 + [45] * 3, [45] * 2),  # a tenth at most: so many are the model's own
        ([5] * 20 + [9] * 4, []),  # not twice the median
        ([5], []),
    ],
)
def test_stalls_are_few_and_long(times, stalls):
    kept, left_out = without_stalls(times)
    assert sorted(kept + left_out) == sorted(times)
    assert left_out == stalls


def test_stalls_of_a_point_are_kept_apart():
    """On a disturbed machine what takes twice the median, else what adds more than the longest execution takes."""
    points = [
        ServicePoint(1, 1, (5.0,) * 22 + (15.0, 45.0), 24),
        ServicePoint(4, 1, (20.0,) * 23 + (45.0,), 24),
    ]
    one, four = merged(points, disturbed=True)
    assert (one.mean_us, one.stalls_us, one.executions) == (5.0, (15.0, 45.0), 24)
    assert (four.mean_us, four.stalls_us) == (20.0, (45.0,))
    one, four = merged(points, disturbed=False)
    assert (max(one.times_us), one.stalls_us) == (15.0, (45.0,))
    assert (four.mean_us, four.stalls_us) == (20.0, (45.0,))


def test_stalls_are_as_frequent_as_all_points_together_say():
    points = (
        ServicePoint(1, 1, (5.0,), 100, (45.0,)),
        ServicePoint(4, 1, (10.0,), 40),
        ServicePoint(4, 2, (10.0,), 10, (30.0, 110.0)),
    )
    # 1,000 us of executions with three stalls, each beside its own point's median.
    assert ModelProfile("", "thread", points).stalls_us == (
        pytest.approx(1000 / 3),
        (20.0, 40.0, 100.0),
    )
    assert ModelProfile("", "thread", points[1:2]).stalls_us == (math.inf, ())


def test_a_difference_counts_as_far_as_its_turns_agree():
    assert beyond_chance([3.0, 3.0, 3.0]) == 3.0
    assert beyond_chance([-3.0, -3.0]) == 0.0
    assert beyond_chance([9.0]) == 0.0  # one turn says nothing
    # Mean 4, standard error 2: three quarters of it.
    assert beyond_chance([2.0, 6.0]) == pytest.approx(3.0)
    assert beyond_chance([-20.0, 24.0]) == 0.0


def test_turns_are_one_point_in_which_each_execution_has_the_same_weight():
    slow, fast = ServicePoint(4, 1, (18.0,) * 2, 2), ServicePoint(4, 1, (10.0,) * 6, 6)
    few = [ServicePoint(4, 2, (50.0,), 3)]
    (point,) = merged([fast, slow, *few], disturbed=False)
    assert point == ServicePoint(4, 1, (10.0,) * 6 + (18.0,) * 2, 8)
    # Of several at once a few executions say nothing, and those of all turns are enough.
    assert [(p.rows, p.at_once) for p in merged([fast, *few * 3], disturbed=False)] == [
        (4, 1),
        (4, 2),
    ]


def one_at_a_time(latencies_us, infer_us=0.0):
    """Return the sample of a closed loop, with a server that took so long of each request."""
    ns = [round(us * 1000) for us in latencies_us]
    count = len(ns)
    served = ServerBreakdown("m", "1", count, count, count, infer_us, 0, 0, infer_us, 0, 0, {})
    return Sample(0, sum(ns), ns, 0, "", 0.0, 0.0, 0.0, 0, (served,))


@pytest.mark.parametrize(
    ("latencies_us", "step_us"),
    [
        ([3010] * 8, 5),
        ([3010] * 7 + [33_000], 5),  # a stall
        ([4000] * 8, 50),  # a slow turn: no more than what a request costs beside its execution
        ([2900] * 8, 0),
    ],
)
def test_a_step_of_an_ensemble_costs_what_is_missing_of_its_median_at_most_a_request(
    latencies_us, step_us
):
    found = Calibration(None, None, {})
    found.alone("a", 1, one_at_a_time([1050] * 8, infer_us=1000))
    found.whole("e", 1, one_at_a_time(latencies_us))
    assert found.fitted(chain({"a": 1.0, "b": 2.0})).costs.step_us == pytest.approx(step_us)
