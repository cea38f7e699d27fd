"""The times around executions: the engine's, the client's, and how executions share the machine."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from nbtriton.config import ModelConfig, isolation_of
from nbtriton.engine.core.cache import ResponseCache
from nbtriton.perf.data import Request
from nbtriton.perf.driver import LoadSpec
from nbtriton.perf.loads import Concurrency, RequestRate
from nbtriton.perf.remote import Target
from nbtriton.perf.sample import Sample, measure_sample
from nbtriton.perf.traffic import Repeated
from nbtriton.simulate.executions import executions_of, gaps_of, thinned, times_of
from nbtriton.simulate.model_profile import EngineCosts, ModelProfile, Profile, ServicePoint
from nbtriton.tensors import nbytes_of

if TYPE_CHECKING:
    from nbtriton.api import Server

__all__ = ["Calibration"]

_LEAST = 30
_FEWEST = 8
_LONGEST_S = 1.0
# Idle times after which executions are measured: caches and the processor cool down meanwhile.
_IDLE_US = (1000, 4000, 16000)
# The cache is asked so often to know what that takes.
_LOOK_UPS = 20
# A sender is measured at this share of what a model can do, at most at so many requests a second. A thread
# that wakes up on an idle core takes twice as long, and takes it from nobody.
_SENT = 0.8
_MOST_SENT = 8000.0
# Two loads are compared in so many turns.
_TURNS = 2
# A difference counts from so many standard errors.
_ERRORS = 2.0
# So many factors say how unevenly.
_PARTS = 100
# Executions lose at most so many times the work beside them: the rest is another program's.
_MOST_LOST = 8.0


class Calibration:
    """What is measured around the executions of some models.

    Parameters
    ----------
    target : Server or RemoteServer
    server : Server or None
        The same one, if it is in this process.
    configs : mapping of str to ModelConfig
        Of the models.

    Attributes
    ----------
    shared_interpreter : bool
    notes : list of str
    """

    def __init__(
        self, target: Target, server: Server | None, configs: Mapping[str, ModelConfig]
    ) -> None:
        self.notes: list[str] = []
        enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
        self.shared_interpreter = server is not None and enabled()
        self._target = target
        self._server = server
        self._configs = configs
        # Of each model: means in ns of the parts around an execution.
        self._around: list[float] = []
        self._inline: list[float] = []
        self._loop: list[float] = []
        self._wake: list[float] = []
        self._gaps: dict[int, list[int]] = {}
        self._sending: list[float] = []
        self._yields: dict[str, dict[int, float]] = {name: {} for name in configs}
        self._alone: dict[tuple[str, int], float] = {}
        self._details: dict[str, dict[str, Any]] = {name: {} for name in configs}
        self._whole: tuple[str, int, float] | None = None

    # -- samples ---------------------------------------------------------------------------------

    def alone(self, name: str, rows: int, sample: Sample) -> None:
        """Learn from one request at a time."""
        count = len(sample.latencies_ns)
        if not count:
            return
        # Medians: what other programs take from the machine is in the execution times, and once only.
        latency_ns = float(np.median(sample.latencies_ns))
        mean_ns = float(sample.latencies_ns.mean())
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
        took = _middle([record.end_ns - record.start_ns for record in executions])
        queued = _middle([record.queue_ns for record in executions])
        self._alone[name, rows] = took
        around_ns = max(0.0, latency_ns - took - queued)
        delays = executions[0].reason == "max_queue_delay"
        self._around.append(around_ns)
        if not delays:
            self._inline.append(queued)
        busy_s = took * len(executions) / 1e9
        if busy_s:
            own_s = (around_ns + queued + self._loop[-1]) * len(executions) / 1e9
            used_s = sample.cpu_s
            if self._place(name) == "process" and not math.isnan(sample.workers_s):
                used_s += sample.workers_s
            # The last one, of the largest batch, counts.
            kept_busy = max(0.0, (used_s - own_s) / busy_s)
            self._details[name]["cores"] = min(kept_busy, float(os.cpu_count() or 1))
        if served is not None and served.accounted_us:
            compute_us = served.accounted_us - served.queue_us
            self._details[name]["input_share"] = served.compute_input_us / compute_us
            self._details[name]["output_share"] = served.compute_output_us / compute_us

    def loads(
        self, name: str, sizes: Sequence[int], requests: Mapping[int, Request], serial: bool
    ) -> Iterator[tuple[str, Callable[[float], None]]]:
        """Yield what else to measure of a model: words, and a function of the seconds to take."""
        if self._server is None or serial:
            return
        config = self._configs[name]
        first = requests[sizes[0]]
        delay_us = config.dynamic_batching.max_queue_delay_microseconds
        at_once = config.max_batch_size and config.HasField("dynamic_batching")
        largest = sizes[-1] // sizes[0] if at_once else 2
        yield (
            f"{largest} requests at a time",
            lambda s: self._together(name, first, sizes[0], largest, s),
        )
        full = requests[sizes[-1]]
        # A full batch waits for no delay.
        rows = sizes[-1] if delay_us else sizes[0]
        yield "an idle instance", lambda s: self._idle(name, requests[rows], rows, s)
        self._caching(name, full, sizes[-1])
        yield "the interpreter", lambda s: self._holding(name, full, sizes[-1], s)

    def whole(self, name: str, rows: int, sample: Sample) -> None:
        """Learn from an ensemble, one request at a time."""
        if len(sample.latencies_ns):
            self._whole = (name, rows, float(sample.latencies_ns.mean()))

    def remote_point(self, sample: Sample, rows: int, at_once: int) -> list[ServicePoint]:
        """Return the point of a server elsewhere: the mean of its statistics, the client's spread."""
        served = sample.servers[0]
        if served is None or not len(sample.latencies_ns):
            return []
        mean_ns = (served.accounted_us - served.queue_us) * 1000
        spread = [
            max(mean_ns / 4, mean_ns + int(latency) - float(sample.latencies_ns.mean()))
            for latency in sample.latencies_ns
        ]
        if at_once > 1:  # there the client's latency is mostly that of waiting
            spread = [mean_ns]
        times = thinned([round(each) for each in spread])
        return [ServicePoint(rows, at_once, times, served.execution_count)]

    # -- what follows ----------------------------------------------------------------------------

    def costs(self) -> EngineCosts:
        """Return the engine's times, as far as they were measured."""
        around, loop = _middle(self._around), _middle(self._loop)
        inline, wake = _middle(self._inline), _middle(self._wake)
        if self._server is None:
            half = around / 2000
            return EngineCosts(
                submit_us=half, answer_us=half, loop_us=loop / 1000, wake_us=wake / 1000
            )
        request_ns, batch_ns = _line(self._gaps)
        if not self._gaps:
            request_ns, batch_ns = around + loop, inline
        else:
            loop = min(loop, request_ns)
        # A request from one execution to the next: answered, the client's turn, submitted.
        settle = min(batch_ns / 2, around / 2)
        submit = max(0.0, request_ns - loop) / 2
        answer = max(0.0, request_ns - loop) - submit
        # The latency of a single request has the same parts; it was measured itself.
        submit += (around - submit - answer - settle) if not self._gaps else 0.0
        return EngineCosts(
            submit_us=submit / 1000,
            inline_us=max(0.0, inline + around - submit - answer - settle) / 1000,
            start_us=max(0.0, batch_ns - settle) / 1000,
            wake_us=wake / 1000,
            settle_us=settle / 1000,
            answer_us=answer / 1000,
            loop_us=loop / 1000,
            timer_us=_timer_late_ns() / 1000,
            wait_us=max(0.0, _middle(self._sending) - submit) / 1000,
        )

    def model_profile(self, name: str, config: str, points: Sequence[ServicePoint]) -> ModelProfile:
        """Return the profile of one model."""
        ordered = sorted(points, key=lambda point: (point.at_once, point.rows))
        gives_way = tuple(sorted(self._yields[name].items()))
        details = self._details[name]
        return ModelProfile(
            config, self._place(name), tuple(ordered), gives_way=gives_way, **details
        )

    def _place(self, name: str) -> str:
        if self._server is None:
            return "remote"
        return "process" if isolation_of(self._configs[name]) == "process" else "thread"

    def fitted(self, profile: Profile) -> Profile:
        """Return the profile with what an ensemble needs beside its steps."""
        if self._whole is None:
            return profile
        from nbtriton.simulate.prediction import whatif

        name, rows, latency_ns = self._whole
        count = sum(
            len(profile.config(each).ensemble_scheduling.step) for each in profile.ensembles
        )
        found = whatif(profile, name, batch_size=rows, request_count=2000).points[0]
        missing_us = latency_ns / 1000 - found.latency_avg_us
        step_us = max(0.0, missing_us / count)
        return replace(profile, costs=replace(profile.costs, step_us=step_us))

    # -- loads -----------------------------------------------------------------------------------

    def _together(
        self, name: str, request: Request, rows: int, concurrency: int, seconds: float
    ) -> None:
        """Learn from batches of several requests: the time between them, and to gather them."""
        sample = self._sample(name, request, Concurrency(concurrency), seconds)
        assert self._server is not None
        executions = executions_of(self._server, name, sample)
        # By rows: of a batch that is not among the latest the recorder has forgotten the requests.
        for size, gaps in gaps_of(executions).items():
            self._gaps.setdefault(max(1, size // rows), []).extend(gaps)
        gathered = [
            (record.end_ns - record.start_ns - self._alone[name, record.batch_size])
            / (record.batch_size // rows - 1)
            for record in executions
            if record.batch_size > rows and (name, record.batch_size) in self._alone
        ]
        if gathered:
            # To gather a request takes no longer than to execute it alone.
            alone = min(took for (model, _), took in self._alone.items() if model == name)
            self._details[name]["gather_us"] = min(max(0.0, _middle(gathered)), alone) / 1000
        # The smallest batches too: a line needs two points.
        if concurrency > 2:
            sample = self._sample(name, request, Concurrency(2), seconds / 2)
            for size, gaps in gaps_of(executions_of(self._server, name, sample)).items():
                self._gaps.setdefault(max(1, size // rows), []).extend(gaps)

    def beside(
        self, name: str, rows: int, requests: Mapping[int, Request], level: int, seconds: float
    ) -> None:
        """Learn by how much executions are put off by the engine's work beside them.

        Full batches of many requests keep the engine and the clients busy while the next ones execute;
        those of one request each do not. Both are measured in turns.

        Parameters
        ----------
        rows : int
            Of a full batch.
        requests : mapping of int to Request
            Of one row, and of a full batch.
        level : int
            Executions at once: all instances.
        """
        request_ns, batch_ns = _line(self._gaps)
        batches = rows > 1 and self._configs[name].HasField("dynamic_batching")
        if self._server is None or not batches or 1 not in requests:
            return
        plain: list[int] = []
        crowded: list[int] = []
        gaps: list[int] = []
        for _ in range(_TURNS):
            # One more batch is ready for each instance.
            sample = self._sample(name, requests[rows], Concurrency(2 * level), seconds / 2)
            plain += times_of(executions_of(self._server, name, sample), rows)
            sample = self._sample(name, requests[1], Concurrency(2 * level * rows), seconds / 2)
            executions = executions_of(self._server, name, sample)
            crowded += times_of(executions, rows)
            gaps += gaps_of(executions).get(rows, [])
        if min(len(plain), len(crowded), len(gaps)) < _FEWEST:
            return
        # Means: a thread that waits for the interpreter now and then waits for long.
        took_ns = _mean(_trimmed(plain))
        # Requests that are answered between two executions of an instance are not beside its own.
        own_ns = min(max(0.0, _middle(gaps) - batch_ns), rows * request_ns)
        work_ns = level * rows * request_ns - own_ns
        gather_ns = self._details[name].get("gather_us", 0.0) * 1000 * (rows - 1)
        crowded_ns = _mean(_trimmed(crowded))
        lost_ns = crowded_ns - took_ns - gather_ns
        rate = _SENT * level * rows * 1e9 / crowded_ns
        self._waiting(name, requests[1], min(rate, _MOST_SENT), seconds)
        # What might be chance is nothing, and so is what little is done beside executions that answer
        # before the next one begins.
        certain = lost_ns > _ERRORS * math.hypot(_error(plain), _error(crowded))
        counts = certain and work_ns > rows * request_ns / 2
        share = lost_ns / work_ns if counts else 0.0
        self._yields[name][level] = round(min(share, _MOST_LOST), 3)
        if share:
            self._details[name]["uneven"] = _uneven(plain, crowded, gather_ns)

    def _waiting(self, name: str, request: Request, rate: float, seconds: float) -> None:
        """Learn what it takes an open loop's sender to wait for the next request, on a busy machine."""
        sample = self._sample(name, request, RequestRate(rate), seconds)
        if len(sample.latencies_ns) and not math.isnan(sample.sender_s):
            self._sending.append(sample.sender_s * 1e9 / len(sample.latencies_ns))

    def _idle(self, name: str, request: Request, rows: int, seconds: float) -> None:
        """Learn how long a sleeping instance takes to begin, and how much longer to execute."""
        assert self._server is not None
        took_ns = self._alone.get((name, rows), 1e6)
        found: list[tuple[float, float]] = []
        wake_ns = 0.0
        for idle_us in _IDLE_US:
            rate = 1e9 / (took_ns + idle_us * 1000)
            sample = self._sample(name, request, RequestRate(rate), max(seconds / 2, 10 / rate))
            last_ns = 0
            queued, idle, whole = [], [], []
            for record in executions_of(self._server, name, sample):
                began_ns = record.start_ns - record.queue_ns
                if last_ns and began_ns > last_ns and record.batch_size == rows:
                    queued.append(record.queue_ns)
                    idle.append(record.start_ns - last_ns)
                    whole.append(record.end_ns - began_ns)
                last_ns = max(last_ns, record.end_ns)
            if not queued:
                continue
            if not wake_ns:
                # The quicker ones: on a busy machine the others waited for a core, as executions do.
                quick = sorted(queued)[len(queued) // 4]
                wake_ns = min(float(quick), sys.getswitchinterval() * 1e9)
                self._wake.append(wake_ns)
            # The quicker ones too, and no more than what a cold cache explains.
            quick_ns = sorted(whole)[len(whole) // 4]
            longer_ns = min(max(0.0, quick_ns - wake_ns - took_ns), 2 * took_ns)
            found.append((_middle(idle) / 1000, longer_ns / 1000))
        self._details[name]["idle_us"] = tuple(found)

    def _holding(self, name: str, request: Request, rows: int, seconds: float) -> None:
        """Learn whether executions keep the interpreter from other threads."""
        details = self._details[name]
        took_ns = self._alone.get((name, rows), 0.0)
        # Shorter ones keep nobody waiting, and what needs no core needs no interpreter.
        apart = not self.shared_interpreter or self._place(name) != "thread"
        if apart or details.get("cores", 0.0) < 0.2 or took_ns < 100_000:
            details["interpreter_share"] = 0.0
            return
        idle_ns = _lateness_ns(max(0.05, seconds / 3))
        with _Beside(seconds) as beside:
            self._sample(name, request, Concurrency(1), seconds)
        late_ns = beside.lateness_ns - idle_ns
        longest_ns = min(sys.getswitchinterval() * 1e9, took_ns)
        details["interpreter_share"] = round(min(1.0, max(0.0, late_ns / longest_ns)), 3)

    def _caching(self, name: str, request: Request, rows: int) -> None:
        """Measure what the response cache takes for a request and its response."""
        assert self._server is not None
        result = self._server.infer(name, request)
        outputs = {output: result[output] for output in result}
        details = self._details[name]
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
        self, name: str, request: Request, load: Concurrency | RequestRate, seconds: float
    ) -> Sample:
        spec = LoadSpec(self._target, name, load, Repeated([request]))
        return measure_sample(spec, (name,), seconds=seconds, least=_LEAST, longest_s=_LONGEST_S)


class _Beside:
    """A thread that sleeps and notes how late it wakes up, beside something else."""

    def __init__(self, seconds: float) -> None:
        self.lateness_ns = 0.0
        self._seconds = seconds
        self._thread = threading.Thread(target=self._run, name="nbtriton-profile", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _run(self) -> None:
        self.lateness_ns = _lateness_ns(self._seconds)


def _lateness_ns(seconds: float) -> float:
    """Return by how much a thread that sleeps for a millisecond wakes up late, on average."""
    late = []
    end_ns = perf_counter_ns() + seconds * 1e9
    while (now_ns := perf_counter_ns()) < end_ns:
        time.sleep(0.001)
        late.append(perf_counter_ns() - now_ns - 1_000_000)
    return _mean(_trimmed(late))


def _timer_late_ns() -> float:
    event = threading.Event()
    late = []
    for _ in range(20):
        start_ns = perf_counter_ns()
        event.wait(0.001)
        late.append(perf_counter_ns() - start_ns - 1_000_000)
    return _middle(late)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def _trimmed(values: Sequence[float]) -> list[float]:
    """Leave out the highest hundredth: what other programs of the machine did."""
    ordered = sorted(values)
    return ordered[: max(1, len(ordered) - len(ordered) // 100)]


def _error(values: Sequence[int]) -> float:
    """Return the standard error of a mean."""
    return stdev(values) / math.sqrt(len(values))


def _uneven(plain: Sequence[int], crowded: Sequence[int], gather_ns: float) -> tuple[float, ...]:
    """Return equally likely factors, 1 on average, of what the crowded ones lost against the plain ones."""
    at = (np.arange(_PARTS) + 0.5) / _PARTS
    lost = np.quantile(crowded, at) - np.quantile(plain, at) - gather_ns
    lost = np.maximum(lost, 0.0)
    mean = float(lost.mean())
    if not mean:
        return (1.0,)
    return tuple(round(float(each) / mean, 3) for each in np.sort(lost))


def _line(gaps: Mapping[int, Sequence[int]]) -> tuple[float, float]:
    """Return the slope and the height of a line through gaps by their number of requests."""
    points = [(count, _middle(found), len(found)) for count, found in gaps.items()]
    weight = sum(each for _, _, each in points)
    if not weight:
        return 0.0, 0.0
    x = sum(count * each for count, _, each in points) / weight
    y = sum(gap * each for _, gap, each in points) / weight
    spread = sum((count - x) ** 2 * each for count, _, each in points)
    if not spread:
        return y / (x + 1), y / (x + 1)
    slope = sum((count - x) * (gap - y) * each for count, gap, each in points) / spread
    slope = min(max(slope, 0.0), y / x)
    return slope, y - slope * x
