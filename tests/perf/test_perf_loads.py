"""The notation of levels, the due times of requests, and the search through levels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.lab.perf.loads import (
    LevelRange,
    RequestIntervals,
    RequestRate,
    binary_search,
    check_search,
    level_values,
    linear_search,
    parse_levels,
    send_times_ns,
)


def first(n, load, **more):
    return list(itertools.islice(send_times_ns(load, **more), n))


@pytest.mark.parametrize(
    ("written", "levels"),
    [
        (4, (4,)),
        ("4", (4,)),
        ("1:4", (1, 2, 3, 4)),
        ("1:8:3", (1, 4, 7)),
        ("1:32:x2", (1, 2, 4, 8, 16, 32)),
        ("3:20:x2", (3, 6, 12)),
        ("1,2,8", (1, 2, 8)),
        (range(1, 5), (1, 2, 3, 4)),
        (range(4, 5), (4,)),
        ([8, 1], (8, 1)),
        (np.arange(1, 3), (1, 2)),
        ("1:0", None),
    ],
)
def test_notations_of_levels(written, levels):
    assert level_values(parse_levels(written, option="-c", integral=True)) == levels


def test_rates_may_be_fractions():
    levels = parse_levels("0.1:0.5:0.1", option="-r", integral=False)
    assert level_values(levels) == pytest.approx((0.1, 0.2, 0.3, 0.4, 0.5))


@pytest.mark.parametrize(
    "written", ["", "a", "1:2:3:4", "0:4", "1.5", "4:1", "1:8:x1", "1:8:0", [], 0, "nan", [1, "b"]]
)
def test_impossible_levels_are_refused_with_the_option(written):
    with pytest.raises(InvalidArgumentError, match=r"Failed to parse --concurrency-range\. "):
        parse_levels(written, option="--concurrency-range", integral=True)


def test_constant_schedule_never_drifts():
    times = first(3001, RequestRate(3.0))
    assert times[2] == 1_000_000_000
    assert times[3000 - 1] == 1_000_000_000_000


@given(st.floats(0.5, 1e5), st.sampled_from(["constant", "poisson"]), st.integers(0, 99))
def test_schedules_go_forward_and_repeat_with_their_seed(rate, distribution, seed):
    load = RequestRate(rate, distribution)
    times = first(50, load, seed=seed)
    assert all(a <= b for a, b in itertools.pairwise(times))
    assert times == first(50, load, seed=seed)


def test_poisson_gaps_are_exponential():
    gaps = np.diff([0, *first(20_000, RequestRate(1000.0, "poisson"), seed=7)]) / 1e6  # ms
    assert gaps.mean() == pytest.approx(1.0, rel=0.03)
    assert gaps.std() == pytest.approx(1.0, rel=0.05)
    # An exponential gap is longer than its mean with probability 1/e.
    assert (gaps > 1.0).mean() == pytest.approx(np.exp(-1), abs=0.01)
    # Arrivals in equal slices have variance equal to their mean.
    counts = np.bincount((np.cumsum(gaps) // 50).astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.2)


def test_intervals_are_cycled_and_reported_by_integer_division():
    load = RequestIntervals((10_000, 20_000))
    assert first(5, load) == [10**7, 3 * 10**7, 4 * 10**7, 6 * 10**7, 7 * 10**7]
    assert load.value == 66


# --- search ------------------------------------------------------------------------------------


def walk(search, passes):
    visited, level = [], next(search)
    while True:
        visited.append(level)
        try:
            level = search.send(passes(level))
        except StopIteration:
            return visited


def test_PA9_linear_search_ends_at_the_first_level_that_does_not_pass():
    assert walk(linear_search([1, 2, 4, 8]), lambda level: level < 3) == [1, 2, 4]
    assert walk(linear_search(LevelRange(1, 0, 2, geometric=True)), lambda v: v < 9) == [
        1, 2, 4, 8, 16,
    ]  # fmt: skip


def test_PA10_the_observed_order():
    assert walk(binary_search(LevelRange(1, 8, 2), integral=True), lambda v: v < 2) == [1, 8, 4, 2]


def test_PA10_start_must_pass_and_end_must_fail():
    levels = LevelRange(2, 64, 1)
    assert walk(binary_search(levels, integral=True), lambda _: False) == [2]
    assert walk(binary_search(levels, integral=True), lambda _: True) == [2, 64]


@given(st.integers(1, 50), st.integers(1, 500), st.integers(1, 9), st.data())
def test_PA10_binary_search_brackets_the_last_level_that_passes(start, width, step, data):
    end = start + width
    last_good = data.draw(st.integers(start, end - 1))
    visited = walk(
        binary_search(LevelRange(start, end, step), integral=True), lambda v: v <= last_good
    )
    best = max(v for v in visited if v <= last_good)
    worst = min(v for v in visited if v > last_good)
    assert worst - best <= max(step, 1)
    assert len(visited) == len(set(visited)) <= 2 + width.bit_length()


@pytest.mark.parametrize(
    ("levels", "binary", "limit", "text"),
    [
        ("1:0", False, None, "The end of the search range and the latency limit can not be both 0"),
        ("1:8", True, None, "The --latency-threshold cannot be 0 for binary search mode."),
        ("1:0", True, 5, "The end of the range can not be 0 (or 0.0) for binary search mode."),
        ("1,2", True, 5, "binary search needs a range of levels"),
        ("1:8:x2", True, 5, "binary search narrows down to a step"),
    ],
)
def test_PA10_searches_that_could_not_end_are_refused(levels, binary, limit, text):
    parsed = parse_levels(levels, option="-c", integral=True)
    with pytest.raises(InvalidArgumentError) as error:
        check_search(parsed, binary=binary, latency_threshold_ms=limit)
    assert text in str(error.value)


def test_an_open_range_with_a_limit_may_go():
    check_search(LevelRange(1, 0, 1), binary=False, latency_threshold_ms=5)
    check_search((1, 2), binary=False, latency_threshold_ms=None)
