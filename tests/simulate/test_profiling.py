"""Profiles of live models: what is measured, and what is left behind. Nothing here is compared in time."""

# ruff: noqa: F821, N803, UP037 - function models: Triton's datatypes as annotations

from __future__ import annotations

import itertools
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import (
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnsupportedError,
)
from nbtriton.lab.perf import machine
from nbtriton.lab.perf.driver import LoadSpec
from nbtriton.lab.perf.loads import Concurrency
from nbtriton.lab.perf.machine import descendants_s
from nbtriton.lab.perf.sample import measure_sample
from nbtriton.lab.perf.traffic import Repeated
from nbtriton.lab.simulate.measurements import ModelMeasurements, gaps_of
from nbtriton.runtime.engine.core.snapshot import BatchRecord
from tests.until import until

SLEEPS = """name: "sleeps" backend: "identity" max_batch_size: 4 dynamic_batching {}
    input { name: "INPUT0" data_type: TYPE_FP32 dims: 2 }
    output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 2 }
    instance_group { count: 1 kind: KIND_CPU }
    parameters { key: "execute_delay_ms" value { string_value: "3" } }"""


def halve(IN: "FP32[2]") -> {"OUT": "FP32[1]"}:
    return {"OUT": IN[:, :1] / 2}


@pytest.fixture(scope="module")
def server():
    with nt.Server(cache_bytes=1_000_000) as server:
        server.load(SLEEPS)
        server.load("max_batch_size: 4 dynamic_batching {}", model=halve, name="halve")
        server.load(
            """name: "both" platform: "ensemble" max_batch_size: 4
            input { name: "A" data_type: TYPE_FP32 dims: 2 }
            output { name: "B" data_type: TYPE_FP32 dims: 1 }
            ensemble_scheduling {
              step { model_name: "sleeps" model_version: -1
                input_map { key: "INPUT0" value: "A" } output_map { key: "OUTPUT0" value: "a" } }
              step { model_name: "halve" model_version: -1
                input_map { key: "IN" value: "a" } output_map { key: "OUT" value: "B" } } }"""
        )
        yield server


def thread_names() -> Counter[str]:
    """Count the threads by name; an instance that replaces another one has its number in its name."""
    return Counter(re.sub(r"\d+", "", thread.name) for thread in threading.enumerate())


@pytest.mark.medium
def test_a_model_is_measured_by_batch_size_and_executions_at_once(server):
    # An instance has a response thread from the first time that a batch waits behind another.
    nt.perf(server, "sleeps", concurrency=16, request_count=64)
    threads = thread_names()
    seen = []
    found = nt.profile(server, "sleeps", duration_s=0.5, at_once=2, observer=seen.append)
    measured = found.models["sleeps"]
    assert {point.rows for point in measured.points if point.at_once == 1} >= {1, 2, 4}
    # Of 1, 4 and 16 ms those that it had: a sender that is late leaves no idle time.
    assert len(measured.idle_us) <= 3
    assert all(idle_us > 0 and min(adds) >= 0 for idle_us, adds in measured.idle_us)
    # On a busy machine too few executions may be beside another one.
    assert {1} <= set(measured.levels) <= {1, 2}
    assert any("2 at once" in progress.what for progress in seen)
    # It cannot have slept for less.
    assert min(point.times_us[0] for point in measured.points) >= 3000
    assert measured.place == "thread"
    assert measured.output_bytes == 8
    assert measured.lookup_us > 0
    assert found.costs.wake_us > 0
    assert found.costs.wait_us == 0 or sys.platform == "linux"
    assert [progress.level for progress in seen] == list(range(1, len(seen) + 1))
    # The instances are its own again, and no thread is left.
    assert server.config("sleeps").instance_group[0].count == 1
    assert until(lambda: not thread_names() - threads)
    report = nt.whatif(found, "sleeps", concurrency=[1, 8], instances=2)
    assert all(point.latency_p50_us >= 3000 for point in report.points)
    assert all(point.infer_per_s <= 2 * 4 / 0.003 for point in report.points)


@pytest.mark.medium
def test_the_steps_of_an_ensemble_get_what_they_get_in_it(server):
    found = nt.profile(server, "both", duration_s=0.3, at_once=1, batch_sizes=[4])
    assert {name: model.rows for name, model in found.models.items()} == {
        "sleeps": (1, 4), "halve": (1, 4)
    }  # fmt: skip
    report = nt.whatif(found, "both", concurrency=4)
    assert report.points[0].latency_p50_us >= 3000
    assert [step.model for step in report.points[0].composing] == ["sleeps", "halve"]
    assert "sleeps" in found._repr_mimebundle_()["text/html"]


def test_a_server_at_a_url_is_profiled_by_its_statistics(server):
    with server.serve(http_port=0, grpc_port=None, metrics_port=None) as opened:
        url = f"127.0.0.1:{opened.http_port}"
        found = nt.profile(None, "sleeps", url=url, duration_s=0.2, batch_sizes=[1, 4])
        with pytest.raises(UnsupportedError, match="what its steps get is not seen there"):
            nt.profile(None, "both", url=url)
    assert found.models["sleeps"].place == "remote"
    assert found.models["sleeps"].points[0].mean_us >= 3000
    # Of what the client saw only the means are the server's.
    (measured,) = found.models.values()
    means = tuple(replace(point, times_us=(point.mean_us,)) for point in measured.points)
    found = replace(found, models={"sleeps": replace(measured, points=means)})
    assert nt.whatif(found, concurrency=1).points[0].latency_p50_us >= 3000


def test_an_interrupt_before_each_model_is_measured_is_raised(server):
    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nt.profile(server, "sleeps", duration_s=0.2, observer=stop)
    assert server.config("sleeps").instance_group[0].count == 1


def test_an_interrupt_later_keeps_what_was_measured(server):
    def stop(progress):
        if progress.level == 3:
            raise KeyboardInterrupt

    found = nt.profile(server, "sleeps", duration_s=0.2, observer=stop)
    assert found.interrupted
    assert found.models["sleeps"].rows == (1, 2)


def test_an_error_later_keeps_what_was_measured(server, tmp_path):
    def fail(progress):
        if progress.level == least:
            raise OSError("no room")

    least = 1
    with pytest.raises(OSError, match="no room"):
        nt.profile(server, "sleeps", duration_s=0.2, observer=fail)
    least = 3
    found = nt.profile(server, "sleeps", duration_s=0.2, observer=fail)
    assert found.models["sleeps"].rows == (1, 2)
    assert found.failure == "ended before all levels were measured: OSError: no room"
    assert found.headline.endswith(", ended by an error")
    assert f"note: {found.failure}" in found._repr_mimebundle_()["text/plain"]
    assert server.config("sleeps").instance_group[0].count == 1
    found.save(tmp_path / "found.json")
    assert nt.types.Profile.load(tmp_path / "found.json").failure == found.failure


@pytest.mark.medium
def test_executions_are_measured_where_answers_are_cached_and_requests_refused(server):
    """A profile sends the same request again and again, many at a time."""
    more = "dynamic_batching { default_queue_policy { max_queue_size: 1 } } response_cache { enable: true }"
    server.load(SLEEPS.replace("sleeps", "keeps").replace("dynamic_batching {}", more))
    found = nt.profile(server, "keeps", duration_s=0.2, at_once=1)
    assert found.models["keeps"].rows[-1] == 4
    assert found.models["keeps"].points[0].times_us[0] >= 3000
    # The predictions, and the model itself, have the cache and the limit.
    for config in (found.config("keeps"), server.config("keeps")):
        assert config.response_cache.enable
        assert config.dynamic_batching.default_queue_policy.max_queue_size == 1
    server.unload("keeps", timeout_s=None)


def test_a_remote_model_that_answers_from_its_cache_is_refused(server):
    more = "dynamic_batching {} response_cache { enable: true }"
    server.load(SLEEPS.replace("sleeps", "keeps").replace("dynamic_batching {}", more))
    with server.serve(http_port=0, grpc_port=None, metrics_port=None) as opened:
        url = f"127.0.0.1:{opened.http_port}"
        with pytest.raises(UnsupportedError, match="answers from its response cache"):
            nt.profile(None, "keeps", url=url, duration_s=0.1)
    server.unload("keeps", timeout_s=None)


@pytest.mark.medium
def test_a_time_that_is_too_short_gives_one_turn_of_few_executions(server):
    server.load(SLEEPS.replace("sleeps", "slow").replace('"3"', '"40"'))
    seen = []
    found = nt.profile(server, "slow", duration_s=0.1, at_once=2, observer=seen.append)
    # 3 sizes, 4 steps around them, the interpreter, 3 of the work of many requests; then 2 sizes at once, and that work.
    assert [progress.levels for progress in seen[-3:]] == [seen[-1].levels] * 3
    assert len({progress.what for progress in seen}) == len(seen)
    # Where this thread is stopped while it waits for a few, the load goes on.
    executions = sorted(point.executions for point in found.models["slow"].points)
    assert executions[len(executions) // 2] < 30
    assert seen[0].eta_s <= 0.1
    # Then it knows better: each step takes longer than was planned.
    assert seen[5].eta_s > 0.1
    server.unload("slow", timeout_s=None)


class Visited(nt.Server):
    """Somebody asks its model whenever its statistics are read: several times in each measurement."""

    def statistics(self, *args, **options):
        self.infer("sleeps", {"INPUT0": np.ones((4, 2), np.float32)})
        return super().statistics(*args, **options)


def test_own_requests_that_fail_are_not_those_of_others(server):
    numbers = itertools.count()

    def flaky(IN: "FP32[2]") -> {"OUT": "FP32[2]"}:
        if next(numbers) % 2:
            raise ValueError("every other time")
        return {"OUT": IN}

    server.load("max_batch_size: 1", model=flaky, name="flaky")
    traffic = Repeated([{"IN": np.ones((1, 2), np.float32)}])
    spec = LoadSpec(server, "flaky", Concurrency(2), traffic)
    sample = measure_sample(spec, ("flaky",), seconds=0.01, least=20, longest_s=60)
    server.unload("flaky")
    assert sample.errors > 0
    assert sample.foreign <= 0


@pytest.mark.medium
def test_what_others_do_meanwhile_is_counted():
    with Visited() as server:
        server.load(SLEEPS)
        found = nt.profile(server, "sleeps", duration_s=0.3, at_once=1, batch_sizes=[4])
    assert found.foreign > 0
    assert not found.is_usable
    assert f"the models got {found.foreign} requests of others" in found.disturbance
    report = nt.whatif(found, concurrency=4)
    (point,) = report.points
    assert point.outcome == "beyond the profile"
    assert any(note.startswith("not to be trusted: ") for note in point.notes)
    assert found.disturbance in report.notes


@pytest.mark.medium
def test_sequences_are_profiled_and_predicted(server):
    sequences = "sequence_batching { max_sequence_idle_microseconds: 60000000 }"
    server.load(SLEEPS.replace("sleeps", "talks").replace("dynamic_batching {}", sequences))
    found = nt.profile(server, "talks", duration_s=0.2, at_once=1, batch_sizes=[2])
    assert 1 in found.models["talks"].rows
    report = nt.whatif(found, concurrency=2, sequence_length=5)
    assert report.points[0].sequence_count > 0
    server.unload("talks", timeout_s=None)


def test_what_cannot_be_profiled_is_refused(server):
    with pytest.raises(NotFoundError):
        nt.profile(server, "nobody")
    with pytest.raises(
        InvalidArgumentError, match="batch_sizes must be from 1 to max_batch_size, 4"
    ):
        nt.profile(server, "sleeps", batch_sizes=[8])
    with pytest.raises(InvalidArgumentError, match="give a server or a url"):
        nt.profile(None, "sleeps")
    with pytest.raises(InvalidArgumentError, match="duration_s must be a number above 0"):
        nt.profile(server, "sleeps", duration_s=0)

    class Picky:
        def model_batch_include_request(self, request, batch):
            return True

        def model_batch_initialize(self, batcher):
            return None

        def model_batch_finalize(self, batch):
            pass

        def model_batcher_initialize(self, model):
            return None

        def model_batcher_finalize(self, batcher):
            pass

    server.load(
        "max_batch_size: 4 dynamic_batching {}", model=halve, name="picky", batching=Picky()
    )
    with pytest.raises(
        UnsupportedError, match="custom batching strategy, which reads its requests"
    ):
        nt.profile(server, "picky")
    server.unload("picky", timeout_s=None)

    def fails(IN: "FP32[2]") -> {"OUT": "FP32[2]"}:
        raise ValueError("no")

    server.load("max_batch_size: 4", model=fails, name="fails")
    with pytest.raises(TritonError, match="every request to 'fails' failed"):
        nt.profile(server, "fails", duration_s=0.1)
    server.unload("fails", timeout_s=None)


@pytest.mark.medium
def test_what_is_sent_may_be_given(server):
    rows = np.ones((1, 2), np.float32)
    found = nt.profile(
        server, "sleeps", duration_s=0.1, at_once=1, inputs={"INPUT0": rows}, batch_sizes=[2]
    )
    assert found.models["sleeps"].rows == (1, 2)


@pytest.mark.medium
def test_processor_time_of_a_model_in_a_process_is_its_own(server, tmp_path):
    path = tmp_path / "times"

    def spin(IN: "FP32[2]") -> {"OUT": "FP32[2]"}:
        start_s, used_s, total = time.perf_counter(), time.thread_time(), 0
        for number in range(400_000):
            total += number * number % 7
        with path.open("a") as file:
            print(time.thread_time() - used_s, time.perf_counter() - start_s, file=file)
        return {"OUT": IN + np.float32(total % 2)}

    server.load(
        """max_batch_size: 2 parameters { key: "INSTANCE_ISOLATION" value { string_value: "process" } }""",
        model=spin, name="spins",
    )  # fmt: skip
    measured = nt.profile(server, "spins", duration_s=0.1, at_once=1, batch_sizes=[1]).models[
        "spins"
    ]
    server.unload("spins", timeout_s=None)
    assert measured.place == "process"
    # This process only waits for it. (A busy machine gives an execution a part of a core, and wakes up
    # this process milliseconds later: few beside 20 ms.)
    used_s, took_s = np.loadtxt(path).T
    assert measured.cores > 0.5 * (used_s / took_s).min()
    assert measured.interpreter_share == 0


def record(start_us, end_us, requests=(1,), rows=1, queue_us=0):
    return BatchRecord(
        "m", 1, "m_0", requests, rows, "batch_full",
        queue_us * 1000, start_us * 1000, end_us * 1000, failed=False,
    )  # fmt: skip


def test_gaps_are_known_by_rows_where_the_recorder_has_forgotten_the_requests():
    found = gaps_of(
        [record(0, 100, (1,), 4), record(150, 250, (5, 6, 7, 8), 4), record(310, 400, (9,), 4)]
    )
    assert found == {4: [50_000, 60_000]}


def test_an_idle_time_is_known_by_the_executions_that_found_the_instance_idle():
    measured = ModelMeasurements()
    measured.alone[1].append([100_000] * 8)
    for idle_us, execution_us in ((1000, 110), (4000, 130), (16000, 170)):
        executions, end_us = [record(0, 100)], 100
        for _ in range(8):
            start_us = end_us + idle_us
            end_us = start_us + execution_us
            executions.append(record(start_us, end_us, queue_us=5))
            # What waits behind another execution, or for more rows, says nothing of an idle instance.
            executions.append(record(end_us, end_us + 900, queue_us=50))
            executions.append(record(end_us + 950, end_us + 1900, rows=2, queue_us=5))
            end_us += 1900
        measured.add_after_idle(idle_us, executions, rows=1)
    # The instance took 5 us to wake up each time.
    assert measured.wake_ns == 5000
    assert [(idle_us, set(adds)) for idle_us, adds in measured.idle_us(1)] == [
        (1000, {10}), (4000, {30}), (16000, {70})
    ]  # fmt: skip


def test_gathering_takes_no_longer_than_full_batches_of_many_requests_show():
    measured = ModelMeasurements()
    measured.alone[1].append([400_000] * 8)
    # Of four turns two were disturbed between an execution alone and the batches compared with it.
    measured.gathered += [300_000, 200_000, 10_000, 0]
    assert measured.gather_ns(4) == 105_000
    measured.plain[1] += [[1_000_000] * 8, [1_200_000] * 8]
    measured.crowded[1] += [[1_030_000] * 8, [1_250_000] * 8]
    assert measured.gather_ns(4) == pytest.approx(40_000 / 3)
    # Many requests that took less than one: nothing is to be seen of their number.
    measured.crowded[1][:] = [[900_000] * 8] * 2
    assert measured.gather_ns(4) == 0
    measured.plain[1].append([1_000_000] * 8)  # and then it was interrupted
    assert measured.gather_ns(4) == 0


def test_an_idle_time_after_which_no_request_came_has_no_entry():
    measured = ModelMeasurements()
    measured.alone[1].append([100_000] * 8)
    # A sender that is late: the second request waits for the end of the first.
    measured.add_after_idle(1000, [record(0, 100), record(100, 200, queue_us=90)], rows=1)
    measured.add_after_idle(4000, [record(0, 100), record(4100, 4250)], rows=1)
    assert [idle_us for idle_us, _ in measured.idle_us(1)] == [4000]


@pytest.mark.medium
def test_processor_time_of_children_counts():
    code = """import sys, time
while time.process_time() < 0.3: pass
print("done", flush=True)
sys.stdin.read()"""
    before = descendants_s()
    if before != before:
        assert sys.platform != "linux"
        return
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "done\n"
        assert descendants_s() - before >= 0.25
        child.stdin.close()
    assert descendants_s() - before >= 0.25  # nor does it become another program's when it ends


def test_what_others_use_is_of_the_cores_that_this_process_may_use(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_PROC", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {1}, raising=False)
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "stat").touch()

    def used(*seconds: int) -> float:
        ticks = [second * os.sysconf("SC_CLK_TCK") for second in seconds]
        rows = [f"cpu{at} {each} 0 0 900 100 0 0 0 0 0" for at, each in enumerate(ticks)]
        whole = f"cpu {sum(ticks)} 0 0 1800 200 0 0 0 0 0"
        (tmp_path / "stat").write_text("\n".join([whole, *rows[: len(ticks)], "intr 5"]) + "\n")
        return machine.others_s()

    before = used(1000, 2000)
    assert used(9000, 2100) - before == pytest.approx(100, abs=20)  # less what this test took
    (tmp_path / "stat").write_text("cpu 5 0 0 1 1 0 0 0 0 0\n")
    assert math.isnan(machine.others_s())
