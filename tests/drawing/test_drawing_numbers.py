"""The notation of numbers and the ticks of axes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtriton.drawing.numbers import (
    count,
    counted,
    lasting,
    log_ticks,
    measure,
    nice_ceiling,
    nice_ticks,
    plain,
    sparkline,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (1.005, "1.00"),
        (9.999, "10.0"),
        (99.96, "100"),
        (1234.5, "1\u202f230"),
        (-4.567, "\u22124.57"),
        (1.797693134862315e308, "1.80e+308"),
        (5e-324, "4.94e-324"),
        (math.nan, "\u2013"),
        (math.inf, "\u2013"),
    ],
)
def test_measures_have_three_digits(value, text):
    assert measure(value) == text


@given(st.floats(1e-9, 1e12))
def test_a_measure_is_within_half_a_percent(value):
    assert float(measure(value).replace("\u202f", "")) == pytest.approx(value, rel=0.00501)


@given(st.integers(-(10**15), 10**15))
def test_counts_are_exact(value):
    assert int(count(value).replace("\u202f", "")) == value


@pytest.mark.parametrize(("value", "text"), [(32.0, "32"), (0.5, "0.5"), (12000, "12\u202f000")])
def test_chosen_numbers_have_no_trailing_zeros(value, text):
    assert plain(value) == text


@given(st.floats(1e-6, 1e9))
def test_ticks_cover_the_range_in_even_steps(high):
    ticks = nice_ticks(0, high)
    assert ticks[0] == 0
    assert ticks[-1] >= high * 0.999999
    assert 2 <= len(ticks) <= 12
    assert ticks[1] * (len(ticks) - 1) == pytest.approx(ticks[-1], rel=1e-6)


@given(st.floats(1e-4, 1e3), st.floats(1.01, 1e4))
def test_log_ticks_cover_the_range(low, ratio):
    ticks = log_ticks(low, low * ratio)
    assert ticks[0] <= low
    assert ticks[-1] >= low * ratio
    assert list(ticks) == sorted(set(ticks))


@given(st.floats(0, 1e9))
def test_the_top_of_a_scale_is_not_below_its_value(value):
    assert nice_ceiling(value) >= value * 0.9999
    assert nice_ceiling(value) <= max(4, value) * 2.01


def test_sparkline():
    assert sparkline([0, 1, 2, 4]) == "▁▃▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


def test_one_thing_is_no_plural():
    assert [counted(number, "row") for number in (0, 1, 1234)] == [
        "0 rows",
        "1 row",
        "1\u202f234 rows",
    ]
    assert [counted(number, "batch", "batches") for number in (1, 2)] == ["1 batch", "2 batches"]


def test_times_have_the_unit_that_fits_them():
    assert [lasting(ms) for ms in (31.2, 990, 1000, 9960, 28_400, 4_000_000)] == [
        "31 ms", "990 ms", "1.0 s", "10 s", "28 s", "4\u202f000 s",
    ]  # fmt: skip
