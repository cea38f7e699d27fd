"""Load on a real server: every level, its counts, and its end. Run lengths are counts."""

# ruff: noqa: F821, N803, UP037 - function models: Triton's datatypes as annotations

from __future__ import annotations

import asyncio
import itertools
import pickle
import signal
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbtriton as nt
from nbtriton.common.errors import ConfigError, InvalidArgumentError, NotFoundError
from nbtriton.lab.perf import driver
from nbtriton.lab.perf.loads import RequestIntervals, RequestRate, send_times_ns
from nbtriton.lab.perf.measure import WindowPlan
from nbtriton.lab.perf.records import Slot, collect
from nbtriton.lab.perf.sample import measure_sample
from nbtriton.lab.perf.traffic import Repeated
from tests.perf.models import double
from tests.until import until

# Three windows a level that end with their count: no window is empty, however busy the machine is.
QUICK: dict[str, Any] = {
    "quick": True, "measurement_mode": "count_windows", "measurement_request_count": 5,
}  # fmt: skip
# Longer than any interrupt takes, also on a busy machine.
WINDOW_S = 60


class Watched(nt.Server):
    """The real server, which also counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.sending = self.most = 0
        self.sent: list[Any] = []
        self.measuring = False  # a window has begun: only its bounds read statistics
        self.threads: set[int] = set()
        self.loads: list[tuple[str, int, int]] = []

    @property
    def outstanding(self) -> int:
        """Requests without an answer. (A future is done before its callbacks are called, in any order of threads.)"""
        self.sent = [future for future in self.sent if not future.done()]
        return self.sending + len(self.sent)

    def submit(self, *args, **options):
        with self.lock:
            self.sending += 1
            self.most = max(self.most, self.outstanding)
        future = super().submit(*args, **options)
        with self.lock:
            self.sending -= 1
            self.sent.append(future)
        return future

    def statistics(self, *args, **options):
        self.measuring = True
        return super().statistics(*args, **options)

    def infer(self, *args, **options):
        self.threads.add(threading.get_ident())
        return super().infer(*args, **options)

    def load(self, config=None, model=None, **options):
        handle = super().load(config, model, **options)
        done = self.config(handle.name)
        self.loads.append(
            (handle.name, done.max_batch_size, sum(g.count for g in done.instance_group))
        )
        return handle


@pytest.fixture
def server():
    with Watched() as server:
        server.load("max_batch_size: 8 dynamic_batching {}", model=double, name="double")
        server.loads.clear()
        yield server
    assert not [t for t in threading.enumerate() if t.name == "nbtriton-perf"]


def load(server, function, config="max_batch_size: 8 dynamic_batching {}"):
    server.load(config, model=function, name=function.__name__)
    server.loads.clear()


# --- the loads -----------------------------------------------------------------------------------


def test_closed_loop_keeps_exactly_n_outstanding(server):
    gate = Gate(first=0)  # no request is answered before all four are sent
    load(server, gate.model())
    report = nt.perf(
        server, "gated", concurrency=4, request_count=200,
        observer=lambda _: server.most < 4 or gate.open.set(),
    )  # fmt: skip
    (point,) = report.points
    assert server.most == 4
    assert server.outstanding == 0
    assert (point.request_count, point.error_count, point.outcome) == (200, 0, "not judged")
    assert point.server.success_count == point.server.inference_count == 200
    assert max(point.server.batch_sizes) <= 4


def test_concurrency_1_is_one_caller_in_a_thread_of_its_own(server):
    report = nt.perf(server, "double", concurrency=1, request_count=50)
    assert report.points[0].request_count == 50
    assert server.most == 0
    assert len(server.threads) == 1
    assert threading.get_ident() not in server.threads


def test_request_count_is_clamped_to_the_first_start_and_the_last_end(server):
    started = time.monotonic()
    report = nt.perf(server, "double", concurrency=2, request_count=30)
    point = report.points[0]
    assert 0 < point.window_s < time.monotonic() - started
    assert point.infer_per_s == pytest.approx(30 / point.window_s)


def test_given_inputs_are_sent_in_turn(server):
    seen: deque[float] = deque()

    def keep(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        seen.extend(IN[:, 0].tolist())
        return {"OUT": IN}

    load(server, keep)
    inputs = [{"IN": np.full((1, 4), i, np.float32)} for i in range(10)]
    nt.perf(server, "keep", concurrency=1, request_count=25, inputs=inputs)
    assert list(seen) == [i % 10 for i in range(25)]
    seen.clear()
    nt.perf(server, "keep", concurrency=3, request_count=25, inputs=inputs)
    assert sorted(seen) == sorted(i % 10 for i in range(25))


def test_PA4_throughput_counts_rows(server):
    report = nt.perf(server, "double", concurrency=2, request_count=20, batch_size=[1, 4])
    one, four = report.points
    assert (one.batch_size, four.batch_size) == (1, 4)
    assert four.infer_per_s == pytest.approx(4 * 20 / four.window_s)
    assert four.server.inference_count == 80
    assert four.label == "batch_size=4"


class VirtualClock(driver.Clock):
    """Time passes only while the schedule waits."""

    def __init__(self) -> None:
        self.time_ns = 10**9

    def now_ns(self) -> int:
        return self.time_ns

    def wait(self, stop: threading.Event, duration_ns: int) -> None:
        self.time_ns += duration_ns


class Instant:
    """A target whose requests end at once; it records when they came."""

    def __init__(self, clock: VirtualClock, service_ns: int = 0) -> None:
        self.clock, self.service_ns = clock, service_ns
        self.sent_ns: list[int] = []

    def submit(self, name, inputs, /, *, on_response=None):
        self.sent_ns.append(self.clock.time_ns)
        self.clock.time_ns += self.service_ns
        future = Future()
        future.set_result(None)
        return future


def run_open_loop(load, count: int, *, service_ns: int = 0, seed: int = 0):
    """Return the times at which requests were sent after the start, and what was recorded."""
    clock = VirtualClock()
    start_ns = clock.time_ns
    target = Instant(clock, service_ns)
    spec = driver.LoadSpec(
        target, "m", load, Repeated([{}]), limit=count, seed=seed, clock=clock
    )  # fmt: skip
    run = driver.make_load(spec)
    run.start()
    assert run.finished.wait(60)
    run.stop()
    return [ns - start_ns for ns in target.sent_ns], run.collect(0, time.monotonic_ns())


@pytest.mark.parametrize(
    "load",
    [RequestRate(400), RequestRate(400, "poisson"), RequestIntervals((1000, 3000))],
)
def test_open_loop_sends_on_schedule(load):
    sent_ns, window = run_open_loop(load, 80, seed=3)
    assert sent_ns == list(itertools.islice(send_times_ns(load, seed=3), 80))
    assert window.lateness_ns.tolist() == [0] * 80


def test_PA14_a_request_is_late_by_the_time_since_it_was_due():
    # Due every 2 ms, and the sender is held for 3 ms each time.
    sent_ns, window = run_open_loop(RequestRate(500), 5, service_ns=3_000_000)
    assert sent_ns == [2_000_000, 5_000_000, 8_000_000, 11_000_000, 14_000_000]
    assert sorted(window.lateness_ns.tolist()) == [0, 10**6, 2 * 10**6, 3 * 10**6, 4 * 10**6]


def test_an_open_loop_at_the_real_server(server):
    (point,) = nt.perf(server, "double", request_rate=4000, request_count=40).points
    assert (point.mode, point.value, point.request_count) == ("request_rate", 4000, 40)
    (point,) = nt.perf(server, "double", intervals=[100, 300], request_count=40).points
    assert (point.mode, point.value, point.request_count) == ("intervals", 5000, 40)


def test_PA14_a_sender_that_cannot_keep_up_is_noted(server, monkeypatch):
    monkeypatch.setattr(driver, "MAX_OUTSTANDING", 4)

    def slow(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        assert until(lambda: server.most == 4)  # no request is answered before
        time.sleep(0.002)
        return {"OUT": IN}

    load(server, slow, "max_batch_size: 1")
    report = nt.perf(server, "slow", request_rate=5000, request_count=40)
    (point,) = report.points
    assert server.most == 4
    assert point.request_count == 40
    assert point.delayed_fraction > 0.5
    assert point.lateness_avg_us > 1000
    assert any("not able to keep up with the desired request rate" in n for n in point.notes)


def test_what_ended_before_a_window_is_not_in_it(server):
    permits, done = (
        threading.Semaphore(1),
        threading.Semaphore(0),
    )  # the first request is the warm-up

    def permitted(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        assert permits.acquire(timeout=WINDOW_S)
        done.release()
        return {"OUT": IN}

    load(server, permitted, "max_batch_size: 1")
    read, reads, reported = server.statistics, [], []

    def statistics(*args, **options):
        reads.append(args)
        if (
            len(reads) == 1
        ):  # a stop between the end of the warm-up and the begin of the first window
            permits.release(100)
            assert all(done.acquire(timeout=WINDOW_S) for _ in range(101))
        return read(*args, **options)

    def observe(_):
        if reads and not reported:
            reported.append(True)
            permits.release(5)
        elif len(reads) > 1:
            permits.release(100)  # the load's last request ends

    server.statistics = statistics
    (point,) = nt.perf(
        server, "permitted", concurrency=1, max_trials=1, measurement_mode="count_windows",
        measurement_request_count=4, observer=observe,
    ).points  # fmt: skip
    # The client may see the last of the hundred after the window has begun.
    assert 4 <= point.request_count <= 6


# --- errors --------------------------------------------------------------------------------------


def fails_on_odd(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    if IN[0, 0] % 2:
        raise ValueError("odd one")
    return {"OUT": IN}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_errors_are_counted_and_the_first_text_is_kept(server, concurrency):
    load(server, fails_on_odd, "max_batch_size: 1")
    inputs = [{"IN": np.full((1, 4), i, np.float32)} for i in range(2)]
    report = nt.perf(
        server, "fails_on_odd", concurrency=concurrency, request_count=20, inputs=inputs
    )
    (point,) = report.points
    assert (point.request_count, point.error_count) == (10, 10)
    assert "odd one" in point.first_error
    assert any("10 of 20 requests failed" in note for note in point.notes)


@pytest.mark.parametrize("load_", [{"concurrency": [1, 2]}, {"concurrency": [4, 8]},
                                   {"request_rate": [500, 900]}])  # fmt: skip
def test_a_level_with_only_errors_says_so_and_ends_the_search(server, load_):
    # Refused by submit itself, so that every request ends inside the call.
    wrong = {"IN": np.zeros((1, 5), np.float32)}
    report = nt.perf(server, "double", inputs=wrong, **QUICK, **load_)
    (point,) = report.points
    assert point.outcome == "failed"
    assert point.request_count == 0
    assert point.error_count > 0
    assert "[1,5]" in point.first_error.replace(" ", "") or "shape" in point.first_error
    assert np.isnan(point.latency_p99_us)
    assert "every request failed" in report._repr_mimebundle_()["text/plain"]
    assert server.infer("double", {"IN": np.ones((1, 4), np.float32)})["OUT"].sum() == 8


@pytest.mark.parametrize("option", ["concurrency", "request_rate"])
def test_levels_may_be_an_array(server, option):
    report = nt.perf(server, "double", **{option: np.array([50, 100])}, request_count=2)
    assert [point.value for point in report.points] == [50, 100]


def test_wrong_options_are_errors(server):
    with pytest.raises(NotFoundError):
        nt.perf(server, "nope")
    for options, text in (
        ({"concurrency": 4, "request_rate": 5}, "Cannot specify more then one inference load mode"),
        ({"concurrency": "1:0"}, "The end of the search range and the latency limit"),
        ({"percentile": 100}, r"--percentile\. The value must be -1 for not reporting"),
        ({"measurement_interval_ms": 0}, r"--measurement-interval \(-p\)\. The value must be > 0"),
        ({"request_distribution": "normal"}, "Unsupported type provided: 'normal'"),
        ({"intervals": []}, "intervals must be a list of microseconds"),
        ({"batch_size": 0}, r"-b \(batch size\)\. The value must be > 0"),
        ({"latency_threshold_ms": -1}, r"--latency-threshold \(-l\)"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            nt.perf(server, "double", **options)


# --- windows -------------------------------------------------------------------------------------


def test_PA1_time_windows_are_1_2_intervals_long():
    plan = WindowPlan(interval_ms=100)
    assert plan.wake_ns(5, 77) == 120_000_005
    assert not plan.has_ended(0, 119_999_999, 10**6)
    assert plan.has_ended(0, 120_000_000, 0)


def test_PA2_count_windows_end_with_their_count():
    plan = WindowPlan(mode="count_windows", request_count=50)
    assert not plan.has_ended(0, 10**12, 49)
    assert plan.has_ended(0, 1, 50)


def test_windows_grow_for_slow_models_only_without_a_chosen_length():
    assert WindowPlan(interval_ms=250).fitted(1e6).interval_ms == 250
    free = WindowPlan(interval_ms=250, longest_ms=2000)
    assert free.fitted(10_000).interval_ms == 250
    assert free.fitted(100_000).interval_ms == 500
    assert free.fitted(1e6).interval_ms == 2000


def test_PA3_a_request_belongs_to_the_window_it_ends_in_and_to_no_other():
    slots, errors = [Slot(), Slot()], deque([(15, "a"), (25, "b")])
    for slot, ends in zip(slots, [(5, 10, 20), (11, 30)], strict=True):
        for end in ends:
            slot.start_ns = end - 3
            slot.record_success(end)
    first, second, third = (
        collect(slots, errors, start, end) for start, end in ((0, 10), (10, 20), (20, 40))
    )
    assert [len(w.latencies_ns) for w in (first, second, third)] == [2, 2, 1]
    assert [w.errors for w in (first, second, third)] == [0, 1, 1]
    assert second.first_error == "a"
    assert set(first.latencies_ns) == {3}


@given(
    st.lists(st.lists(st.integers(1, 100), max_size=9).map(sorted), min_size=1, max_size=4),
    st.lists(st.integers(0, 110), max_size=5).map(sorted),
)
def test_PA3_every_request_is_in_exactly_one_window(ends, cuts):
    slots = [Slot() for _ in ends]
    errors: deque[tuple[int, str]] = deque()
    counted, start = 0, 0
    for cut in [*cuts, 110]:
        # Requests that have ended at the time of the look, some of them after the cut.
        for slot, times in zip(slots, ends, strict=True):
            while len(slot.end_ns) < len(times) and times[len(slot.end_ns)] <= cut + 7:
                slot.start_ns = 0
                slot.record_success(times[len(slot.end_ns)])
        window = collect(slots, errors, start, cut)
        # From a start of 0, the latency is the end.
        assert all(start < end <= cut for end in window.latencies_ns)
        counted, start = counted + len(window.latencies_ns), cut
    assert counted == sum(map(len, ends))


def test_time_windows_measure_until_stable_or_out_of_trials(server):
    # Any three windows with requests in them are stable enough: this machine may be busy.
    report = nt.perf(
        server, "double", concurrency=2, measurement_interval_ms=10, max_trials=10_000,
        stability_percentage=1e9, percentile=97,
    )  # fmt: skip
    (point,) = report.points
    assert point.outcome == "stable"
    # Three windows of 12 ms, a little more on a busy machine.
    assert point.window_s >= 0.036
    assert point.infer_per_s == pytest.approx(point.request_count / point.window_s)
    assert point.latency_p95_us <= point.percentile_us <= point.latency_p99_us
    assert "latency_p97_us" in report.frame
    # PA12: the same windows at the server; requests in flight at the bounds make the difference.
    assert point.server.success_count > 0
    assert 0 < point.server.accounted_us <= point.server.request_us + 1


def test_PA2_count_windows_run(server):
    report = nt.perf(
        server, "double", concurrency=4, measurement_mode="count_windows",
        measurement_request_count=20, stability_percentage=1e9, max_trials=3,
    )  # fmt: skip
    assert report.points[0].request_count >= 60


def test_PA9_a_level_over_the_limit_is_not_reported_and_ends_the_search(server):
    report = nt.perf(server, "double", concurrency="1:0", latency_threshold_ms=1e-3, **QUICK)
    assert report.points == ()
    assert report.notes == (
        "concurrency 1: Measured latency went over the set limit of 0.001 msec.",
    )


def test_PA10_binary_search_visits_the_start_and_the_end_first(server):
    visited = []
    report = nt.perf(
        server, "double", concurrency="2:64", latency_threshold_ms=60_000, binary_search=True,
        **QUICK, observer=lambda p: visited.append((p.what, p.levels)),
    )  # fmt: skip
    assert list(dict.fromkeys(visited)) == [("concurrency 2", None), ("concurrency 64", None)]
    assert [point.value for point in report.points] == [2, 64]


@pytest.mark.medium
def test_quick_plans_at_most_three_seconds_and_says_so(server):
    report = nt.perf(server, "double", concurrency="1:16:x2", quick=True)
    assert report.quick
    # 1.7 s of windows, and time to load configurations. A busy machine may take longer, and may
    # leave a window empty, which ends the search: see the tests of windows that count requests.
    assert 5 * 3 * 1.2 * report.settings["measurement_interval_ms"] <= 1700
    assert report.settings["max_trials"] == 3
    assert report.points


# --- progress ------------------------------------------------------------------------------------


def test_the_observer_is_called_for_every_window_in_the_calling_thread(server):
    calls = []
    nt.perf(
        server, "double", concurrency=[1, 2], **QUICK,
        observer=lambda p: calls.append((threading.get_ident(), p)),
    )  # fmt: skip
    assert {ident for ident, _ in calls} == {threading.get_ident()}
    # Once more after a quarter of a second, where a window takes so long.
    calls = [
        next(same)
        for _, same in itertools.groupby(calls, lambda one: (one[1].level, one[1].window))
    ]
    steps = [(p.level, p.levels, p.window, len(p.points)) for _, p in calls]
    assert steps == [(1, 2, 0, 0), (1, 2, 1, 0), (1, 2, 2, 0), (1, 2, 3, 0),
                     (2, 2, 0, 1), (2, 2, 1, 1), (2, 2, 2, 1), (2, 2, 3, 1)]  # fmt: skip
    etas = [p.eta_s for _, p in calls]
    assert etas[:4] == [None] * 4
    assert all(a >= b >= 0 for a, b in itertools.pairwise(etas[4:]))
    assert calls[-1][1].infer_per_s > 0
    assert calls[-1][1].what == "concurrency 2"


def test_an_observer_that_raises_is_removed_and_logged(server, caplog):
    calls = []

    def broken(progress):
        calls.append(progress)
        raise RuntimeError("the view was closed")

    report = nt.perf(server, "double", concurrency=[1, 2], request_count=5, observer=broken)
    assert len(report.points) == 2
    assert len(calls) == 1
    assert "the view was closed" in caplog.text


# --- sweeps --------------------------------------------------------------------------------------


def test_each_configuration_is_applied_and_the_original_is_restored(server):
    before = server.engine.inspection.user_config("double")
    report = nt.perf(
        server, "double", concurrency=[1, 2], request_count=10, instances=[1, 2],
        max_batch_size=[8, 4],
    )  # fmt: skip
    assert [dict(p.configuration) for p in report.points[::2]] == [
        {"instances": 1, "max_batch_size": 8},
        {"instances": 1, "max_batch_size": 4},
        {"instances": 2, "max_batch_size": 8},
        {"instances": 2, "max_batch_size": 4},
    ]
    # The first is loaded already; the last load restores it.
    assert server.loads == [("double", 4, 1), ("double", 8, 2), ("double", 4, 2), ("double", 8, 1)]
    assert server.engine.inspection.user_config("double") == before
    assert report.points[0].label == "instances=1, max_batch_size=8"


def test_without_options_nothing_is_loaded(server):
    nt.perf(server, "double", request_count=5)
    assert server.loads == []


def test_an_impossible_configuration_is_refused_before_any_change(server):
    with pytest.raises(ConfigError):
        nt.perf(server, "double", request_count=5, max_batch_size=[4, 8], preferred=[6])
    assert server.loads == []


def test_the_original_configuration_is_restored_after_an_error(server):
    def picky(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        return {"OUT": IN}

    load(server, picky)
    original = server.load

    def load_or_fail(config=None, model=None, **options):
        if config.instance_group and config.instance_group[0].count == 3:
            raise RuntimeError("no room for three")
        return original(config, model, **options)

    server.load = load_or_fail
    with pytest.raises(RuntimeError, match="no room for three"):
        nt.perf(server, "picky", request_count=5, instances=[3, 2])
    assert [name for name, *_ in server.loads] == ["picky"]
    # What was measured before it is kept, and not told as the whole sweep.
    report = nt.perf(server, "picky", request_count=5, instances=[1, 2, 3, 4])
    assert [p.configuration["instances"] for p in report.points] == [1, 2]
    assert report.failure.endswith("RuntimeError: no room for three")
    assert not report.interrupted
    assert "2 levels measured" in report.headline
    assert report.headline.endswith("ended by an error")
    shown = report._repr_mimebundle_()
    for text in shown["text/plain"], shown["text/html"]:
        assert "of what was measured, " in text
        assert "no room for three" in text
    assert server.loads[-1] == ("picky", 8, 1)
    figure = report.plot()
    assert "of what was measured, " in figure.axes[0].get_title()


@pytest.fixture
def ensemble(server):
    def first(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        return {"OUT": IN + 1}

    def second(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        return {"OUT": IN * 2}

    for function in (first, second):
        load(server, function)
    server.load(
        """
        platform: "ensemble" max_batch_size: 8
        input [{ name: "X" data_type: TYPE_FP32 dims: [4] }]
        output [{ name: "Y" data_type: TYPE_FP32 dims: [4] }]
        ensemble_scheduling { step [
          { model_name: "first" model_version: -1
            input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "t" } },
          { model_name: "second" model_version: -1
            input_map { key: "IN" value: "t" } output_map { key: "OUT" value: "Y" } }
        ] }
        """,
        name="both",
    )
    server.loads.clear()
    return server


def test_PA12_an_ensemble_reports_its_composing_models(ensemble):
    report = nt.perf(ensemble, "both", concurrency=4, request_count=40)
    (point,) = report.points
    assert [step.model for step in point.composing] == ["first", "second"]
    assert [step.success_count for step in point.composing] == [40, 40]
    assert point.server.queue_us == pytest.approx(sum(s.queue_us for s in point.composing))
    assert {"first.mean_batch_size", "second.queue_us"} <= set(report.frame)
    assert "mean batch of first / second" in report._repr_mimebundle_()["text/plain"]


def test_V117_MA8_options_of_an_ensemble_go_to_its_steps_and_its_batch_size_follows(ensemble):
    report = nt.perf(ensemble, "both", request_count=5, max_batch_size=[4, 16], instances=2)
    assert ensemble.loads == [
        # Down: the ensemble first. Up: it last. And back down.
        ("both", 4, 0), ("first", 4, 2), ("second", 4, 2),
        ("first", 16, 2), ("second", 16, 2), ("both", 16, 0),
        ("both", 8, 0), ("first", 8, 1), ("second", 8, 1),
    ]  # fmt: skip
    assert [p.error_count for p in report.points] == [0, 0]


def test_a_model_that_cannot_be_restored_keeps_no_other_from_it(ensemble):
    server, loads = ensemble, []
    original = server.load

    def load_or_fail(config=None, model=None, **options):
        loads.append(options["name"])
        if loads[-1] == "first" and loads.count("first") == 2:
            raise nt.TritonError("no memory")
        return original(config, model, **options)

    server.load = load_or_fail
    report = nt.perf(server, "both", request_count=5, instances=2)
    assert len(report.points) == 1
    assert report.failure.endswith("own configuration again: TritonError: no memory")
    assert server.config("first").instance_group[0].count == 2
    assert server.config("second").instance_group[0].count == 1


def test_sweep_models_names_whose_options_change(ensemble):
    report = nt.perf(ensemble, "both", request_count=5, instances=2, sweep_models=["second"])
    assert ensemble.loads == [("second", 8, 2), ("second", 8, 1)]
    assert "the configurations are those of 'second'" in report.notes
    assert not any("ran 0 times" in note for note in report.notes)
    with pytest.raises(NotFoundError) as error:
        nt.perf(ensemble, "both", request_count=5, instances=2, sweep_models=["secnd"])
    assert "second" in error.value.hint


def test_a_swept_model_that_never_ran_is_named(ensemble):
    report = nt.perf(ensemble, "first", request_count=5, instances=[1, 2], sweep_models=["second"])
    assert report.notes[-2:] == (
        "the configurations are those of 'second'",
        "'second' ran 0 times: its configuration made no difference to 'first'",
    )


def test_a_swept_model_that_was_unloaded_meanwhile_loses_no_level(ensemble):
    def unload(progress):
        if progress.window:
            ensemble.unload("plain")

    def plain(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        return {"OUT": IN}

    load(ensemble, plain)
    report = nt.perf(
        ensemble, "first", request_count=5, instances=1, sweep_models=["plain"], observer=unload
    )
    assert report.points[0].request_count == 5
    assert not any("ran 0 times" in note for note in report.notes)


# --- interrupts ----------------------------------------------------------------------------------


def interrupt():
    """What the kernel's interrupt button does."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def interrupt_from_a_model(server):
    """Load a model that interrupts the main thread amid a window that has requests; return the observer that sees it."""
    ended: list[int] = []  # at each report of the window
    has_requests = threading.Event()
    once = threading.Lock()  # two instances may be as far at the same time

    def observe(progress):
        if server.measuring:
            ended.append(progress.requests)
            if ended[-1] > ended[0]:
                has_requests.set()

    def interrupting(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        if has_requests.is_set() and once.acquire(blocking=False):
            interrupted_at.append(time.monotonic())
            interrupt()
        return {"OUT": IN}

    interrupted_at: list[float] = []
    load(server, interrupting)
    return observe, interrupted_at


@pytest.mark.parametrize("load_", [{"concurrency": 1}, {"concurrency": 8}, {"request_rate": 2000}])
def test_PA15_an_interrupt_stops_within_a_second_and_keeps_what_was_measured(server, load_):
    observe, at = interrupt_from_a_model(server)
    report = nt.perf(
        server, "interrupting", measurement_interval_ms=WINDOW_S * 1000, instances=2, observer=observe,
        **load_,
    )  # fmt: skip
    assert time.monotonic() - at[0] < WINDOW_S / 2
    assert report.interrupted
    (point,) = report.points
    assert point.outcome == "interrupted"
    assert point.request_count > 0
    assert point.infer_per_s > 0
    assert server.loads[-1] == ("interrupting", 8, 1)
    assert server.outstanding == 0
    assert len(server.infer("interrupting", {"IN": np.ones((1, 4), np.float32)})) == 1


def test_PA15_finished_levels_are_kept(server):
    def stop_at_the_second(progress):
        if progress.level == 2 and progress.window == 1:
            raise KeyboardInterrupt

    report = nt.perf(server, "double", concurrency=[1, 2, 4], observer=stop_at_the_second, **QUICK)
    assert report.interrupted
    assert [p.value for p in report.points] == [1, 2]
    assert report.points[0].outcome in ("stable", "unstable")
    assert report.points[1].outcome == "interrupted"


def test_PA15_requests_that_never_end_are_cancelled(server):
    release = threading.Event()

    def stuck(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        if release.wait(WINDOW_S):
            return {"OUT": IN}
        raise RuntimeError("it was never released")

    load(server, stuck, "max_batch_size: 1 dynamic_batching {}")

    once = threading.Lock()  # a second interrupt would be raised

    def stop(progress):
        if once.acquire(blocking=False):
            threading.Timer(0.1, interrupt).start()

    started = time.monotonic()
    report = nt.perf(
        server, "stuck", concurrency=4, measurement_interval_ms=WINDOW_S * 1000, observer=stop
    )
    assert time.monotonic() - started < WINDOW_S / 2
    release.set()
    assert report.interrupted
    assert report.points == ()
    assert len(server.infer("stuck", {"IN": np.ones((1, 4), np.float32)})) == 1
    # It is not a caller who gave them up.
    dropped = [one for one in server.requests("stuck") if one.batch is None]
    assert {(one.outcome, one.status) for one in dropped} == {("load_ended", "CANCELLED")}
    assert any(
        "nbtriton.perf cancels what still waits" in one for one in nt.why(server, "stuck").findings
    )


def test_PA15_an_interrupt_while_the_last_requests_end_keeps_the_level(server):
    drained = threading.Event()

    def ends_late(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        if drained.is_set():
            drained.clear()
            interrupt()
        return {"OUT": IN}

    load(server, ends_late, "max_batch_size: 1")

    def last_window(progress):
        if progress.window == 3:
            drained.set()

    report = nt.perf(
        server, "ends_late", concurrency=[2, 4, 8], observer=last_window,
        stability_percentage=1e9, **QUICK,
    )  # fmt: skip
    assert report.interrupted
    assert report.points[0].value == 2
    assert report.points[0].outcome in ("stable", "interrupted")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("load_", [driver.Concurrency(1), driver.Concurrency(2), RequestRate(1e6)])
def test_a_load_whose_sender_has_failed_ends(server, load_):
    class Short(Repeated):
        def next(self, lane, number):
            if number == 2:
                raise MemoryError
            return super().next(lane, number)

    traffic = Short([{"IN": np.ones((1, 4), np.float32)}])
    run = driver.make_load(driver.LoadSpec(server, "double", load_, traffic, limit=10))
    run.start()
    assert run.finished.wait(WINDOW_S)
    run.stop()


def test_an_interrupt_as_a_sample_begins_leaves_no_load(server, monkeypatch):
    start = driver.LoadRun.start

    def interrupted(run):
        start(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(driver.LoadRun, "start", interrupted)
    traffic = Repeated([{"IN": np.ones((1, 4), np.float32)}])
    spec = driver.LoadSpec(server, "double", driver.Concurrency(2), traffic)
    with pytest.raises(KeyboardInterrupt):
        measure_sample(spec, ("double",), seconds=0.01)
    assert not [one for one in threading.enumerate() if one.name == "nbtriton-perf"]


def test_a_load_that_never_started_stops_at_once(server):
    run = driver.make_load(driver.LoadSpec(server, "double", driver.Concurrency(2), Repeated([{}])))
    run.stop()
    assert not run.finished.is_set()


@pytest.mark.medium
def test_PA15_a_second_interrupt_is_raised(server):
    observe, _ = interrupt_from_a_model(server)
    original, calls = server.load, []

    def load_interrupted(config=None, model=None, **options):
        calls.append(options["name"])
        if len(calls) == 2:  # the one that brings the own configuration back
            raise KeyboardInterrupt
        return original(config, model, **options)

    server.load = load_interrupted
    with pytest.raises(KeyboardInterrupt):
        nt.perf(
            server, "interrupting", measurement_interval_ms=WINDOW_S * 1000, instances=2, observer=observe
        )  # fmt: skip
    assert calls == ["interrupting", "interrupting"]


# --- signs of life, the background, the winner ----------------------------------------------------


class Gate:
    """A model that answers its first requests, and the next ones once it is open."""

    def __init__(self, first: int) -> None:
        self.open = threading.Event()
        self._first = itertools.count(-first)

    def model(self) -> Any:
        def gated(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
            if next(self._first) >= 0:
                self.open.wait()
            return {"OUT": IN}

        return gated


def test_a_level_without_windows_shows_signs_of_life_while_it_runs(server):
    gate = Gate(first=4)
    server.load("max_batch_size: 0", model=gate.model(), name="gated")
    seen = []

    def observe(progress):
        seen.append(progress)
        if progress.requests == 4:
            gate.open.set()

    report = nt.perf(server, "gated", concurrency=2, request_count=20, observer=observe)
    assert report.points[0].request_count == 20
    waiting = [p for p in seen if p.requests == 4]
    assert waiting
    assert waiting[0].window == 0
    assert {p.max_requests for p in seen} == {20}
    assert seen[-1].requests == 20


def test_loading_a_configuration_is_reported(server):
    seen = []
    nt.perf(
        server, "double", request_count=2, instances=[1, 2],
        observer=lambda p: seen.append(p.what),
    )  # fmt: skip
    assert list(dict.fromkeys(seen)) == [
        "loading instances=1", "concurrency 1, instances=1",
        "loading instances=2", "concurrency 1, instances=2",
    ]  # fmt: skip


def test_a_run_in_the_background_is_awaited(server):
    run = nt.types.PerfRun(server, "double", concurrency=[1, 2], request_count=5)

    async def report_of() -> nt.types.PerfReport:
        return await run

    report = asyncio.run(report_of())
    assert [point.value for point in report.points] == [1, 2]
    assert run.done()
    assert run.result() is report
    assert "2 levels" in repr(run)


def test_a_run_in_the_background_is_stopped_and_keeps_what_was_measured(server):
    gate = Gate(first=10)
    server.load("max_batch_size: 0", model=gate.model(), name="gated")
    run = nt.types.PerfRun(server, "gated", concurrency="1:9", request_count=10)
    kept = len(run._future._done_callbacks)
    for _ in range(3):
        with pytest.raises(TimeoutError, match="still being measured"):
            run.result(timeout=0.01)
    assert len(run._future._done_callbacks) == kept
    assert until(lambda: run.progress is not None and run.progress.level == 2)
    assert "level 2 of 9" in repr(run)
    # Behind an open gate it might be through with all levels before it is stopped.
    report = run.stop()
    gate.open.set()
    assert report.interrupted
    assert report.points[0].request_count == 10


def test_wrong_options_of_a_run_in_the_background_are_refused_at_once(server):
    with pytest.raises(InvalidArgumentError, match="concurrency-range"):
        nt.types.PerfRun(server, "double", concurrency="8:1")
    run = nt.types.PerfRun(server, "missing")
    with pytest.raises(NotFoundError):
        run.result()
    assert "failed" in repr(run)


def test_the_winner_is_applied_and_shows_its_configuration(server):
    report = nt.perf(server, "double", request_count=5, instances=[1, 2], max_batch_size=[8, 4])
    chosen = report.points[-1]
    assert dict(chosen.configuration) == {"instances": 2, "max_batch_size": 4}
    applied = chosen.apply()
    assert server.config("double").instance_group[0].count == 2
    assert server.config("double").max_batch_size == 4
    assert repr(applied).startswith("# double/config.pbtxt\n")
    assert "max_batch_size: 4" in applied.config_pbtxt
    # A copy knows the model, and not the server.
    copied = pickle.loads(pickle.dumps(report)).points[0]
    with pytest.raises(InvalidArgumentError, match="not measured on a server of this process"):
        copied.apply()
    copied.apply(server)
    assert server.config("double").max_batch_size == 8


@pytest.mark.medium
def test_one_version_is_measured_and_two_are_compared(server):
    for version in (1, 2):
        wait_s = 0.002 * version

        def versioned(IN: "FP32[4]", wait_s: float = wait_s) -> {"OUT": "FP32[4]"}:
            time.sleep(wait_s)
            return {"OUT": IN}

        text = 'name: "ab" max_batch_size: 1 version_policy { all { } }'
        server.load(text, versioned, name="ab", version=version)
    (point,) = nt.perf(server, "ab", model_version=1, request_count=20, concurrency=2).points
    assert (point.server.version, point.server.success_count) == ("1", 20)
    assert {one.version for one in server.requests("ab")} == {1}
    options = {"server": server, "model": "ab", "rounds": 2, "request_count": 20}
    found = nt.compare({"model_version": 1}, {"model_version": 2}, **options)
    assert found.names == ("model_version=1", "model_version=2")
    assert {one.version for one in server.requests("ab")} == {1, 2}
    again = nt.compare(point, {"model_version": 2}, **options)
    assert len(again.rounds) == 2
    report = nt.perf(server, "ab", model_version=2, request_count=4)
    assert report.headline.startswith("ab version 2: ")
    with pytest.raises(nt.TritonError, match=r"ab.*version 7"):
        nt.perf(server, "ab", model_version=7)
    with pytest.raises(nt.TritonError, match="a version, from 1 on"):
        nt.perf(server, "ab", model_version=0)
