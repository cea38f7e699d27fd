"""Measurement of the times around executions: the engine's, the client's, and the effects of contention."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Self

from nbtriton.lab.perf.data import Request
from nbtriton.lab.perf.driver import LoadSpec
from nbtriton.lab.perf.loads import Concurrency, RequestRate
from nbtriton.lab.perf.machine import disturbed
from nbtriton.lab.perf.remote import Target
from nbtriton.lab.perf.sample import Sample, measure_sample
from nbtriton.lab.perf.traffic import Repeated
from nbtriton.lab.simulate.core.world import COMPUTES_FROM, HOLDS_FROM
from nbtriton.lab.simulate.measurements import (
    ModelMeasurements,
    beyond_chance,
    executions_of,
    fitted_line,
    gaps_of,
    mean,
    merged,
    relative_losses,
    thinned,
    times_of,
    trimmed,
    upper_median,
)
from nbtriton.lab.simulate.model_profile import EngineCosts, ModelProfile, Profile, ServicePoint
from nbtriton.model.config import ModelConfig, isolation_of
from nbtriton.model.tensors import nbytes_of
from nbtriton.runtime.engine.core.cache import ResponseCache
from nbtriton.runtime.engine.core.snapshot import BatchRecord

if TYPE_CHECKING:
    from nbtriton.serving.server import Server

# Turns in which each model is measured. On a virtual machine a core may run at half speed for seconds while
# other guests use the host. Turns spread a slow second over all measurements.
TURNS = 4
_LEAST = 30 // TURNS
_FEWEST = 8
# Idle times in seconds before measured executions: caches and the processor cool down meanwhile.
_IDLE_US = (1000, 4000, 16000)
_IDLE_COUNT = 100 // TURNS
# Longest wait for idle instances, as a multiple of the time of the other measurements.
_IDLE_SHARES = 2
# Cache look-ups in one measurement of their mean time.
_LOOK_UPS = 20
# Load of the open-loop sender: a share of the model's capacity, and the highest rate in requests per second.
# A thread that wakes up on an idle core takes twice as long, but delays no other thread.
_SENT = 0.8
_MOST_SENT = 8000.0
# The largest loss of executions, as a multiple of the work beside them: other programs cause the rest.
_MOST_LOST = 8.0


class Calibration:
    """Measurements around the executions of some models.

    Parameters
    ----------
    target : Server or RemoteServer
    server : Server or None
        `target`, if it runs in this process.
    configs : mapping of str to ModelConfig
        Configurations of the models.

    Attributes
    ----------
    shared_interpreter : bool
    foreign : int
        Requests of other clients that the models got meanwhile.
    """

    def __init__(
        self, target: Target, server: Server | None, configs: Mapping[str, ModelConfig]
    ) -> None:
        self.foreign = 0
        enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
        self.shared_interpreter = enabled()  # of a remote server: the client's
        self._target = target
        self._server = server
        self._configs = configs
        # Times in ns around an execution, one of each sample.
        self._around: list[float] = []
        self._inline: list[float] = []
        self._loop: list[float] = []
        self._wake: list[float] = []
        self._gaps: dict[int, list[int]] = {}
        self._sending: list[float] = []
        # Delays of a thread that wakes up beside executions.
        self._late: list[float] = []
        self._measurements = {name: ModelMeasurements() for name in configs}
        # By ensemble: its name, the rows of a request, and its latency in each turn.
        self._whole: list[tuple[str, int, float]] = []

    # -- samples ---------------------------------------------------------------------------------

    def alone(self, name: str, rows: int, sample: Sample) -> None:
        """Record the times of one request at a time."""
        count = len(sample.latencies_ns)
        if not count:
            return
        # Medians: the execution times already contain the time taken by other programs, which counts once
        # only.
        latency_ns = median(sample.latencies_ns)
        mean_ns = fmean(sample.latencies_ns)
        self._loop.append(max(0.0, 1e9 / sample.requests_per_s - mean_ns))
        served = sample.servers[0]
        if self._server is None:
            if served is not None:
                self._around.append(max(0.0, mean_ns - served.accounted_us * 1000))
                self._wake.append(served.queue_us * 1000)
            return
        executions = executions_of(self._server, name, sample)
        if not executions:
            return
        times_ns = [record.end_ns - record.start_ns for record in executions]
        execution_ns = upper_median(times_ns)
        queued = upper_median([record.queue_ns for record in executions])
        measured = self._measurements[name]
        measured.alone[rows].append(times_ns)
        around_ns = max(0.0, latency_ns - execution_ns - queued)
        delays = executions[0].reason == "max_queue_delay"
        self._around.append(around_ns)
        if not delays:
            self._inline.append(queued)
        busy_s = execution_ns * len(executions) / 1e9
        if busy_s:
            used_s = sample.workers_s
            if self._place(name) != "process" or math.isnan(used_s):
                own_ns = around_ns + queued + self._loop[-1]
                used_s = sample.cpu_s - own_ns * len(executions) / 1e9
            measured.busy[rows].append((busy_s, used_s))
        if served is not None and served.accounted_us:
            compute_us = served.accounted_us - served.queue_us
            measured.details["input_share"] = served.compute_input_us / compute_us
            measured.details["output_share"] = served.compute_output_us / compute_us

    def loads(
        self, name: str, sizes: Sequence[int], requests: Mapping[int, Request], *, first: bool
    ) -> Iterator[tuple[str, Callable[[float, float], None]]]:
        """Yield the other measurements of a model: a description, and a function that makes one.

        Its arguments are the seconds to spend, and the most for as many requests as are wanted. The first turn
        includes the measurements that are made only once.
        """
        if self._server is None:
            return
        config = self._configs[name]
        least = requests[sizes[0]]
        at_once = config.max_batch_size and config.HasField("dynamic_batching")
        largest = sizes[-1] // sizes[0] if at_once else 2
        yield (
            f"{largest} requests at a time",
            lambda s, most: self._together(name, least, sizes[0], largest, s, most),
        )
        full = requests[sizes[-1]]
        rows = self._idle_rows(name, sizes)
        for idle_us in _IDLE_US:
            yield (
                f"an instance that was idle for {idle_us // 1000} ms",
                partial(self._idle, name, requests[rows], rows, idle_us),
            )
        if first:
            self._caching(name, full, sizes[-1])
            yield "the interpreter", lambda _, most: self._holding(name, full, sizes[-1], most)

    def _idle_rows(self, name: str, sizes: Sequence[int]) -> int:
        """Return the rows of the batches that are measured after an idle time."""
        # A full batch waits for no queue delay.
        delay_us = self._configs[name].dynamic_batching.max_queue_delay_microseconds
        return sizes[-1] if delay_us else sizes[0]

    def whole(self, name: str, rows: int, sample: Sample) -> None:
        """Record the latency of an ensemble, one request at a time."""
        if len(sample.latencies_ns):
            self._whole.append((name, rows, median(sample.latencies_ns)))

    def remote_point(self, sample: Sample, rows: int, at_once: int) -> list[ServicePoint]:
        """Return the point of a remote server: the mean of its statistics, with the client's spread."""
        served = sample.servers[0]
        if served is None or not len(sample.latencies_ns):
            return []
        mean_ns = (served.accounted_us - served.queue_us) * 1000
        spread = [
            max(mean_ns / 4, mean_ns + int(latency) - fmean(sample.latencies_ns))
            for latency in sample.latencies_ns
        ]
        if at_once > 1:  # the client's latency is mostly queueing
            spread = [mean_ns]
        times = thinned([round(each) for each in spread])
        return [ServicePoint(rows, at_once, times, served.execution_count)]

    # -- results -----------------------------------------------------------------------------------

    def costs(self) -> EngineCosts:
        """Return the engine's times; unmeasured ones are 0."""
        around, loop = upper_median(self._around), upper_median(self._loop)
        inline = upper_median(self._inline)
        wakes = [measured.wake_ns for measured in self._measurements.values()]
        wake = upper_median([*self._wake, *(each for each in wakes if each is not None)])
        if self._server is None:
            return EngineCosts(way_us=(around / 2000,), loop_us=loop / 1000, wake_us=wake / 1000)
        request_ns, batch_ns = fitted_line(self._gaps)
        if not self._gaps:
            request_ns, batch_ns = around + loop, inline
        else:
            loop = min(loop, request_ns)
        # The time from one execution to the next: response, the client's own time, submission.
        settle = min(batch_ns / 2, around / 2)
        submit = max(0.0, request_ns - loop) / 2
        answer = max(0.0, request_ns - loop) - submit
        # The latency of a single request has the same parts, and was measured directly.
        submit += (around - submit - answer - settle) if not self._gaps else 0.0
        usual = upper_median(self._late)
        return EngineCosts(
            submit_us=submit / 1000,
            inline_us=max(0.0, inline + around - submit - answer - settle) / 1000,
            start_us=max(0.0, batch_ns - settle) / 1000,
            wake_us=wake / 1000,
            settle_us=settle / 1000,
            answer_us=answer / 1000,
            loop_us=loop / 1000,
            timer_us=_timer_late_ns() / 1000,
            late_us=thinned([max(0.0, late - usual) for late in self._late]),
            wait_us=max(0.0, upper_median(self._sending) - submit) / 1000,
        )

    def model_profile(
        self,
        name: str,
        config: str,
        points: Sequence[ServicePoint],
        sizes: Sequence[int],
        others: float | None,
    ) -> ModelProfile:
        """Return the profile of one model, measured beside other programs that used so many cores."""
        measured = self._measurements[name]
        is_disturbed = bool(disturbed(others, os.cpu_count() or 1))
        if is_disturbed:
            measured.clean()
        return ModelProfile(
            config,
            self._place(name),
            merged(points, disturbed=is_disturbed, client=self._server is None),
            drift=measured.drift,
            gather_us=measured.gather_ns(sizes[-1]) / 1000,
            idle_us=measured.idle_us(self._idle_rows(name, sizes)),
            cores=measured.cores,
            **measured.details,
            **self._lost(name, sizes[-1]),
        )

    def _lost(self, name: str, rows: int) -> dict[str, Any]:
        """Return how much the engine's work delays executions, and how this varies between executions."""
        measured = self._measurements[name]
        request_ns, batch_ns = fitted_line(self._gaps)
        gather_ns = measured.gather_ns(rows) * (rows - 1)
        gives_way = []
        details: dict[str, Any] = {}
        for level in sorted(measured.crowded):
            turns = list(zip(measured.plain[level], measured.crowded[level], strict=False))
            plain, crowded = (
                [ns for turn in found for ns in turn] for found in zip(*turns, strict=True)
            )
            gaps = measured.gaps[level]
            if min(len(plain), len(crowded), len(gaps)) < _FEWEST:
                continue
            # Requests that are answered between two executions of an instance do not delay its own.
            own_ns = min(max(0.0, upper_median(gaps) - batch_ns), rows * request_ns)
            work_ns = level * rows * request_ns - own_ns
            # Means: a thread that waits for the interpreter rarely waits, but long.
            lost_ns = beyond_chance(
                [
                    mean(trimmed(beside)) - mean(trimmed(without)) - gather_ns
                    for without, beside in turns
                    if without and beside
                ]
            )
            # Little work beside executions that answer before the next one begins counts as none.
            counts = work_ns > rows * request_ns / 2
            share = round(min(lost_ns / work_ns, _MOST_LOST), 3) if counts else 0.0
            gives_way.append((level, share))
            if share:
                details["uneven"] = relative_losses(plain, crowded, gather_ns)
        return {"gives_way": tuple(gives_way), **details}

    def _place(self, name: str) -> str:
        if self._server is None:
            return "remote"
        return "process" if isolation_of(self._configs[name]) == "process" else "thread"

    def fitted(self, profile: Profile) -> Profile:
        """Return the profile with the cost of each further step of an ensemble."""
        if not self._whole:
            return profile
        from nbtriton.lab.simulate.prediction import predicted_point

        name, rows, _ = self._whole[0]
        latency_ns = median(latency_ns for _, _, latency_ns in self._whole)
        count = sum(
            len(profile.config(each).ensemble_scheduling.step) for each in profile.ensembles
        )
        predicted = predicted_point(profile, name, batch_size=rows, request_count=2000)
        missing_us = latency_ns / 1000 - predicted.latency_p50_us
        # A further step does less than a request, which is submitted and answered too: the machine took the rest.
        step_us = min(max(0.0, missing_us / count), upper_median(self._around) / 1000)
        return replace(profile, costs=replace(profile.costs, step_us=step_us))

    # -- loads -----------------------------------------------------------------------------------

    def _together(
        self,
        name: str,
        request: Request,
        rows: int,
        concurrency: int,
        seconds: float,
        longest_s: float,
    ) -> None:
        """Record the times between batches of several requests, and the time to gather such a batch."""
        sample = self._sample(name, request, Concurrency(concurrency), seconds / 2, longest_s / 2)
        assert self._server is not None
        executions = executions_of(self._server, name, sample)
        # By rows: the recorder may have forgotten the requests of older batches.
        for size, gaps in gaps_of(executions).items():
            self._gaps.setdefault(max(1, size // rows), []).extend(gaps)
        measured = self._measurements[name]
        # Compared with the executions of the same turn.
        alone_ns = {size: upper_median(turns[-1]) for size, turns in measured.alone.items()}
        gathered = [
            (record.end_ns - record.start_ns - alone_ns[record.batch_size])
            / (record.batch_size // rows - 1)
            for record in executions
            if record.batch_size > rows and record.batch_size in alone_ns
        ]
        if gathered:
            measured.gathered.append(max(0.0, upper_median(gathered)))
        # Include the smallest batches: a line needs two points.
        if concurrency > 2:
            sample = self._sample(name, request, Concurrency(2), seconds / 2, longest_s / 2)
            for size, gaps in gaps_of(executions_of(self._server, name, sample)).items():
                self._gaps.setdefault(max(1, size // rows), []).extend(gaps)

    def contention(
        self,
        name: str,
        rows: int,
        requests: Mapping[int, Request],
        level: int,
        seconds: float,
        longest_s: float,
        step: Callable[[str], None],
    ) -> None:
        """Record how much the engine's work beside executions delays them.

        Full batches of many requests keep the engine and the clients busy during the next executions; full
        batches of one request do not.

        Parameters
        ----------
        rows : int
            Rows of a full batch.
        requests : mapping of int to Request
            A request of one row, and one of a full batch.
        level : int
            Concurrent executions: all instances.
        seconds, longest_s : float
            Of each of the three loads: the least and, for as many requests as are wanted, the most.
        step : callable
            Called with what is next before each.
        """
        step("of one request")
        batches = rows > 1 and self._configs[name].HasField("dynamic_batching")
        if self._server is None or not batches or 1 not in requests:
            return
        server, measured = self._server, self._measurements[name]

        def executions(
            request: Request, concurrency: int, least_s: float, most_s: float
        ) -> list[BatchRecord]:
            sample = self._sample(name, request, Concurrency(concurrency), least_s, most_s)
            return executions_of(server, name, sample)

        # One more batch is ready for each instance. Plain ones before and after the others, as the machine's speed drifts.
        plain = requests[rows], 2 * level, seconds / 2, longest_s / 2
        before = executions(*plain)
        step("of as many requests")
        beside = executions(requests[1], 2 * level * rows, seconds, longest_s)
        after = executions(*plain)
        step("at a rate")
        crowd = times_of(beside, rows)
        measured.plain[level].append(times_of(before, rows) + times_of(after, rows))
        measured.crowded[level].append(crowd)
        measured.gaps[level] += gaps_of(beside).get(rows, [])
        if crowd:
            rate = _SENT * level * rows * 1e9 / mean(crowd)
            self._waiting(name, requests[1], min(rate, _MOST_SENT), seconds, longest_s)

    def _waiting(
        self, name: str, request: Request, rate: float, seconds: float, longest_s: float
    ) -> None:
        """Record what waiting costs on a busy machine: a thread's delay, and an open-loop sender's processor time."""
        measured = self._measurements[name]
        held = measured.details.get("interpreter_share", 0.0)
        # How long a thread waits for the interpreter is simulated (`World.resume`).
        computes = measured.cores >= COMPUTES_FROM and held < HOLDS_FROM
        with _WakeUpDelays(seconds if computes else 0.0) as delays:
            sample = self._sample(name, request, RequestRate(rate), seconds, longest_s)
        self._late += delays.late_ns
        if len(sample.latencies_ns) and not math.isnan(sample.sender_s):
            self._sending.append(sample.sender_s * 1e9 / len(sample.latencies_ns))

    def _idle(
        self, name: str, request: Request, rows: int, idle_us: int, seconds: float, longest_s: float
    ) -> None:
        """Record the start latency of an instance that was idle for a time, and the longer execution after it."""
        assert self._server is not None
        measured = self._measurements[name]
        plain_ns = measured.all_alone(rows)
        if not plain_ns:
            return
        execution_ns = upper_median(plain_ns)
        rate = 1e9 / (execution_ns + idle_us * 1000)
        # In all turns together enough for a 99th percentile, where the time allows.
        enough_s = min(_IDLE_COUNT / rate, max(_IDLE_SHARES * seconds, longest_s))
        load = RequestRate(rate)
        sample = self._sample(name, request, load, max(seconds / 2, enough_s), longest_s)
        measured.add_after_idle(idle_us, executions_of(self._server, name, sample), rows)

    def _holding(self, name: str, request: Request, rows: int, seconds: float) -> None:
        """Record whether executions keep the interpreter from other threads."""
        measured = self._measurements[name]
        execution_ns = upper_median(measured.all_alone(rows))
        # Shorter executions delay no other thread, and one that needs no core needs no interpreter.
        separate = not self.shared_interpreter or self._place(name) != "thread"
        if separate or measured.cores < 0.2 or execution_ns < 100_000:
            return
        idle_ns = mean(trimmed(_late_ns(max(0.05, seconds / 3))))
        with _WakeUpDelays(seconds) as delays:
            self._sample(name, request, Concurrency(1), seconds, seconds)
        late_ns = mean(trimmed(delays.late_ns)) - idle_ns
        longest_ns = min(sys.getswitchinterval() * 1e9, execution_ns)
        measured.details["interpreter_share"] = round(min(1.0, max(0.0, late_ns / longest_ns)), 3)

    def _caching(self, name: str, request: Request, rows: int) -> None:
        """Measure the response cache's times for a request and its response."""
        assert self._server is not None
        result = self._server.infer(name, request)
        outputs = {output: result[output] for output in result}
        details = self._measurements[name].details
        details["output_bytes"] = math.ceil(sum(map(nbytes_of, outputs.values())) / rows)
        cache = ResponseCache(1 << 40)
        wanted = frozenset(outputs)
        started_ns = perf_counter_ns()
        for number in range(_LOOK_UPS):
            cache.insert(ResponseCache.key(name, number, request, wanted), outputs)
        inserted_ns = perf_counter_ns()
        for number in range(_LOOK_UPS):
            cache.look_up(ResponseCache.key(name, number, request, wanted))
        details["lookup_us"] = (perf_counter_ns() - inserted_ns) / _LOOK_UPS / 1000
        keyed_ns = perf_counter_ns()
        for number in range(_LOOK_UPS):
            ResponseCache.key(name, number, request, wanted)
        keyed_ns = perf_counter_ns() - keyed_ns
        took_ns = max(0, inserted_ns - started_ns - keyed_ns)
        details["insert_us"] = took_ns / _LOOK_UPS / 1000

    def _sample(
        self,
        name: str,
        request: Request,
        load: Concurrency | RequestRate,
        seconds: float,
        longest_s: float,
    ) -> Sample:
        spec = LoadSpec(self._target, name, load, Repeated([request]))
        sample = measure_sample(spec, (name,), seconds=seconds, least=_LEAST, longest_s=longest_s)
        self.foreign += sample.foreign
        return sample


class _WakeUpDelays:
    """A thread that sleeps repeatedly and records its wake-up delays, beside other work."""

    def __init__(self, seconds: float) -> None:
        self.late_ns: list[int] = []
        self._seconds = seconds
        self._thread = threading.Thread(target=self._run, name="nbtriton-profile", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _run(self) -> None:
        self.late_ns = _late_ns(self._seconds)


def _late_ns(seconds: float) -> list[int]:
    """Return the delays of a thread that sleeps for a millisecond at a time, in ns."""
    late = []
    end_ns = perf_counter_ns() + seconds * 1e9
    while (now_ns := perf_counter_ns()) < end_ns:
        time.sleep(0.001)
        late.append(perf_counter_ns() - now_ns - 1_000_000)
    return late


def _timer_late_ns() -> float:
    event = threading.Event()
    late = []
    for _ in range(20):
        start_ns = perf_counter_ns()
        event.wait(0.001)
        late.append(perf_counter_ns() - start_ns - 1_000_000)
    return upper_median(late)
