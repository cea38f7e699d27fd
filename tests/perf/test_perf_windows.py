"""Windows, percentiles, stability, verdicts and merging: rules PA3 to PA9, without clocks or threads."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtriton.drawing.numbers import percentile
from nbtriton.lab.perf.measure import measured_point
from nbtriton.lab.perf.windows import (
    DRIFT,
    LevelMeter,
    StabilityRule,
    Window,
    is_stable,
    merge,
    summarize,
)

SECOND = 10**9


class Clock:
    """A clock for windows, one after the other."""

    def __init__(self, start_ns: int = 123_456_789) -> None:
        self.now_ns = start_ns

    def window(
        self, count: int, latency_us: float = 100, *, seconds: float = 1.0, **more
    ) -> Window:
        start = self.now_ns
        self.now_ns += round(seconds * SECOND)
        return Window(start, self.now_ns, np.full(count, round(latency_us * 1000)), **more)


def feed(meter: LevelMeter, windows):
    for n, window in enumerate(windows, 1):
        verdict = meter.add(window)
        if verdict:
            return n, verdict
    return None, None


# --- percentiles -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("percent", "index"),
    # n = 10: floor(p/100 * 9 + 0.5)
    [(50, 5), (90, 8), (95, 9), (99, 9), (1, 0), (5.6, 1)],
)
def test_PA8_percentile_index_is_floor_of_p_times_n_minus_1_plus_half(percent, index):
    pool = np.arange(10) * 1000
    assert percentile(pool, percent) / 1000 == index


def test_PA8_percentiles_of_an_empty_pool_are_nan():
    summary = summarize(np.empty(0, np.int64), 42)
    assert math.isnan(summary.p50_us)
    assert math.isnan(summary.avg_us)


latencies = st.lists(st.integers(1, 10**10), min_size=1, max_size=200).map(np.array)


@given(latencies, st.floats(0, 100), st.floats(0, 100))
def test_PA8_percentiles_are_members_and_ordered(pool, p, q):
    pool = np.sort(pool)
    low, high = sorted((p, q))
    assert percentile(pool, low) / 1000 <= percentile(pool, high) / 1000
    assert percentile(pool, p) / 1000 in pool / 1000
    assert percentile(pool, 0) / 1000 == pool[0] / 1000
    assert percentile(pool, 100) / 1000 == pool[-1] / 1000


@given(latencies)
def test_PA8_summary_does_not_depend_on_the_order(pool):
    assert summarize(pool, 42) == summarize(pool[::-1].copy(), 42)


# --- stability -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([100, 100, 100], True),
        ([100, 105, 110], True),
        ([100, 105, 111], False),
        ([0, 0, 0], False),
        ([100, 0, 100], False),
        ([100, math.nan, 100], False),
    ],
)
def test_PA5_three_windows_agree_within_the_percentage(values, expected):
    assert is_stable(values, 10) is expected


positive = st.floats(1e-3, 1e9)


@given(st.lists(positive, min_size=3, max_size=3), positive)
def test_PA5_stability_knows_no_unit_and_no_order(values, scale):
    spread = (max(values) / min(values) - 1) * 100
    assert is_stable(values, spread * 1.001 + 1e-6)
    assert is_stable([v * scale for v in reversed(values)], spread * 1.001 + 1e-6)
    if spread > 1e-3:
        assert not is_stable(values, spread * 0.999)


def test_PA5_a_level_needs_three_windows_and_looks_at_the_last_three():
    clock = Clock()
    n, verdict = feed(
        LevelMeter(StabilityRule(), "concurrency 1"),
        [clock.window(count) for count in (10, 50, 100, 101, 102, 103)],
    )
    assert (n, verdict.outcome) == (5, "stable")
    assert [len(w.latencies_ns) for w in verdict.windows] == [100, 101, 102]


def test_PA5_latency_must_hold_too():
    clock = Clock()
    windows = [clock.window(100, latency) for latency in (100, 200, 300, 310, 320)]
    n, verdict = feed(LevelMeter(StabilityRule(), "concurrency 1"), windows)
    assert (n, verdict.outcome) == (5, "stable")


def test_PA5_stabilises_on_the_chosen_percentile():
    clock = Clock()

    def window(tail_us):
        pool = np.r_[np.full(98, 100_000), np.full(2, tail_us * 1000)]
        return Window(clock.now_ns, clock.now_ns + SECOND, pool)

    # The mean moves by less than 10 %, the p99 doubles.
    windows = [window(tail) for tail in (200, 300, 400, 500, 600)]
    mean = LevelMeter(StabilityRule(), "concurrency 1")
    assert feed(mean, windows)[0] == 3
    tail = LevelMeter(StabilityRule(percentile=99, max_trials=5), "concurrency 1")
    assert feed(tail, windows)[1].outcome == "unstable"


def test_PA6_not_stable_after_max_trials():
    clock = Clock()
    counts = [100, 200] * 5
    meter = LevelMeter(StabilityRule(max_trials=10), "concurrency 4")
    n, verdict = feed(meter, [clock.window(c) for c in counts])
    assert (n, verdict.outcome) == (10, "unstable")
    assert verdict.message == (
        "Failed to obtain stable measurement within 10 measurement windows for concurrency 4. "
        "Please try to increase the --measurement-interval."
    )
    rate = LevelMeter(StabilityRule(max_trials=3), "request rate 50/s")
    _, verdict = feed(rate, [clock.window(c) for c in counts])
    assert verdict.message == "Failed to obtain stable measurement."


def test_PA7_growing_latency_is_accepted_only_for_asynchronous_senders():
    clock = Clock()
    windows = [clock.window(100, 100 * 2**k) for k in range(10)]
    meter = LevelMeter(StabilityRule(asynchronous=True), "request rate 50/s")
    _, verdict = feed(meter, windows)
    assert verdict.outcome == "stable"
    warning = "Warning: Request latency is not stabilizing."
    assert verdict.message == f"{warning} Please try lowering the request rate."
    # Where there is no request rate to be lowered.
    closed = LevelMeter(StabilityRule(asynchronous=True), "concurrency 2")
    _, verdict = feed(closed, windows)
    assert verdict.outcome == "stable"
    assert verdict.message == f"{warning} The level is stable in throughput only."
    _, verdict = feed(LevelMeter(StabilityRule(), "concurrency 1"), windows)
    assert verdict.outcome == "unstable"


@pytest.mark.parametrize(
    ("latencies_us", "said"),
    [
        ((500, 100, 200, 400, 800, 1600), "from 0.100 to 1.60 ms"),
        ((100, 200, 400, 300, 600, 1200), ""),
        ((100, 200, 400), ""),
    ],
)
def test_a_latency_that_only_grows_is_told_as_such(latencies_us, said):
    clock = Clock()
    meter = LevelMeter(StabilityRule(max_trials=len(latencies_us)), "concurrency 2")
    _, verdict = feed(meter, [clock.window(100, latency) for latency in latencies_us])
    assert verdict.outcome == "unstable"
    assert said in verdict.cause
    assert verdict.cause.startswith(DRIFT) == bool(said)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 1000)), min_size=1, max_size=14),
    st.integers(1, 10),
    st.booleans(),
)
def test_PA5_PA6_every_level_ends_within_max_trials_and_stable_means_stable(rows, trials, async_):
    clock = Clock()
    meter = LevelMeter(
        StabilityRule(max_trials=trials, asynchronous=async_, percentage=20), "concurrency 2"
    )
    n, verdict = feed(meter, [clock.window(*row) for row in rows])
    if verdict is None:
        assert len(rows) < trials
        return
    assert n <= max(trials, 1)
    assert len(verdict.windows) <= 3
    if verdict.outcome == "stable":
        assert is_stable([w.requests_per_s for w in verdict.windows], 20)
        assert len(verdict.windows) == 3


# --- the limit, errors, one window ---------------------------------------------------------------


@pytest.mark.parametrize(("latency_us", "over"), [(999, False), (1000, True), (1001, True)])
def test_PA9_the_limit_is_reached_at_or_above(latency_us, over):
    rule = StabilityRule(latency_threshold_ms=1)
    assert rule.over_limit(np.array([latency_us * 1000])) is over
    assert not StabilityRule().over_limit(np.array([10**12]))


def test_PA9_three_windows_over_the_limit_end_the_level_early():
    clock = Clock()
    meter = LevelMeter(StabilityRule(latency_threshold_ms=1), "concurrency 8")
    # Not stable at all, but the level ends after three.
    n, verdict = feed(meter, [clock.window(c, lat) for c, lat in ((10, 2e3), (90, 5e3), (40, 9e3))])
    assert (n, verdict.outcome) == (3, "over_limit")
    assert verdict.message == "Measured latency went over the set limit of 1 msec."


def test_PA11_windows_without_any_request_are_empty():
    clock = Clock()
    meter = LevelMeter(StabilityRule(max_trials=3), "concurrency 1")
    _, verdict = feed(meter, [clock.window(0)] * 3)
    assert verdict.outcome == "empty"
    assert verdict.message == (
        "No valid requests recorded within time interval. Please use a larger time window."
    )


def test_only_errors_end_the_level_at_once_and_say_so():
    clock = Clock()
    meter = LevelMeter(StabilityRule(), "concurrency 1")
    n, verdict = feed(meter, [clock.window(0, errors=7, first_error="no such model")] * 2)
    assert (n, verdict.outcome) == (1, "failed")
    assert "no such model" in verdict.message
    # In the window before no request had ended.
    windows = [clock.window(0), clock.window(0, errors=7, first_error="no such model")]
    n, verdict = feed(LevelMeter(StabilityRule(), "concurrency 1"), windows)
    assert (n, verdict.message) == (2, "every request failed: no such model")


NEVER = {"model_stats": []}


def notes_of(latencies_ms, seconds, *, late_ms=0.0, rate=400.0, rule=StabilityRule(single=True)):  # noqa: B008
    """What is said of one window of requests, sent at a rate, that end within some seconds."""
    window = Window(
        0, round(seconds * SECOND), np.array(latencies_ms) * 1_000_000,
        lateness_ns=np.full(len(latencies_ms), round(late_ms * 1e6)),
    )  # fmt: skip
    verdict = LevelMeter(rule, f"request rate {rate:g}").add(window)
    point = measured_point(
        "request_rate", rate, rule, verdict, {0: NEVER, window.end_ns: NEVER}, ("m",),
        configuration={}, batch_size=1, sequences=False,
    )  # fmt: skip
    return " ".join(point.notes)


def test_a_rate_that_the_server_cannot_follow_is_not_the_senders_fault():
    grows = np.linspace(5, 500, 200)
    said = notes_of(grows, 1.0, late_ms=2.0)
    assert "throughput 50% of the rate asked for (400/s): the queue grew" in said
    assert "sender" not in said
    # The sender is: it was late by as much as is missing.
    said = notes_of([5] * 200, 1.0, late_ms=250.0)
    assert "The sender was not able to keep up" in said
    assert "queue grew" not in said
    # So it is where the last request stalls, which lengthens the window but makes no other late.
    said = notes_of([2] * 39 + [2000], 2.1, late_ms=36.0)
    assert "The sender was not able to keep up" in said
    # Neither: the last requests are answered a second after the last one was sent.
    assert not notes_of([1000] * 40, 1.1, rate=400.0)


def test_request_count_is_one_window_which_says_nothing_about_stability():
    meter = LevelMeter(StabilityRule(single=True), "concurrency 1")
    assert meter.add(Clock().window(5)).outcome == "not judged"


def test_PA15_cut_keeps_the_last_three_windows_with_the_unfinished_one():
    clock = Clock()
    meter = LevelMeter(StabilityRule(), "concurrency 1")
    feed(meter, [clock.window(c) for c in (10, 100, 200)])
    verdict = meter.cut(clock.window(7, seconds=0.1))
    assert verdict.outcome == "interrupted"
    assert [len(w.latencies_ns) for w in verdict.windows] == [100, 200, 7]
    assert len(meter.cut(clock.window(0)).windows) == 3


# --- merging -----------------------------------------------------------------------------------


def test_PA1_throughput_divides_by_the_real_window():
    assert Clock().window(60, seconds=1.2).requests_per_s == pytest.approx(50)


@given(st.lists(latencies, min_size=1, max_size=3), st.integers(0, 5))
@pytest.mark.medium
def test_PA8_merging_pools_latencies_and_adds_counts_and_durations(pools, errors):
    clock = Clock()
    windows = []
    for pool in pools:
        start, clock.now_ns = clock.now_ns, clock.now_ns + SECOND
        windows.append(Window(start, clock.now_ns, pool, errors, "boom" if errors else ""))
    merged = merge(windows, StabilityRule(percentile=42))
    pooled = np.sort(np.concatenate(pools))
    assert merged.request_count == len(pooled)
    assert merged.error_count == errors * len(pools)
    assert merged.window_s == pytest.approx(len(pools))
    assert merged.latency.p99_us == percentile(pooled, 99) / 1000
    assert merged.latency.percentile_us == percentile(pooled, 42) / 1000
    assert merged.latency.avg_us == pytest.approx(pooled.mean() / 1000)


def test_PA14_delayed_share_and_lateness():
    late = np.array([0, 0, 0, 4_000_000])
    window = Window(0, SECOND, np.full(4, 10), lateness_ns=late)
    merged = merge([window], StabilityRule())
    assert merged.delayed_fraction == 0.25
    assert merged.lateness_avg_us == 1000.0
    # The timer's own error is no delay.
    window = Window(0, SECOND, np.full(4, 10), lateness_ns=np.full(4, 60_000))
    assert merge([window], StabilityRule()).delayed_fraction == 0
