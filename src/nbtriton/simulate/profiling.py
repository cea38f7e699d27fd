"""``nbtriton.profile``: a measurement of a model in a few seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtriton.checks import (
    CALL,
    MAPPING,
    NAME,
    PATH,
    SEED,
    SERVER,
    Kind,
    check,
    listed,
    number,
    optional,
    whole,
)
from nbtriton.config import format_pbtxt
from nbtriton.errors import InvalidArgumentError, TritonError
from nbtriton.perf.data import Inputs, Request
from nbtriton.perf.driver import LoadSpec
from nbtriton.perf.loads import Concurrency
from nbtriton.perf.options import PROTOCOLS, check_choice
from nbtriton.perf.prepare import Data
from nbtriton.perf.progress import Observer, PerfProgress
from nbtriton.perf.remote import Target, remote_server
from nbtriton.perf.run import environment_of
from nbtriton.perf.sample import Sample, measure_sample
from nbtriton.perf.sweep import Configurator
from nbtriton.perf.traffic import Repeated, SequenceData, Sequences, Traffic
from nbtriton.simulate.calibration import TURNS, Calibration
from nbtriton.simulate.executions import executions_of, points_of
from nbtriton.simulate.model_profile import Profile, ServicePoint
from nbtriton.simulate.profile_plan import ProfilePlan, profile_plan

if TYPE_CHECKING:
    from nbtriton.api import Server
    from nbtriton.clients.base import Protocol

__all__ = ["profile"]

# A size between two others is measured too if its time is off their line by more than this share, up to this
# number of sizes: matrix products take longer for sizes that do not fill a block.
_OFF_LINE = 0.08
_MOST_POINTS = 20
# Least number of executions of a point in each turn, unless they take too long.
_LEAST = 8
_LONGEST_S = 1.0
_SHORTEST_S = 0.06
# No further turn begins after this multiple of the requested seconds: slow models get one turn.
_MOST_SECONDS = 3


def profile(
    server: Server | None,
    model: str,
    *,
    inputs: Inputs | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    input_data: str | Path = "random",
    at_once: int | Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    seconds: float = 4.0,
    seed: int = 0,
    observer: Observer | None = None,
    url: str | None = None,
    protocol: Protocol | None = None,
) -> Profile:
    """Measure a model once, so that `nbtriton.whatif` can predict its behaviour under any load.

    A profile has execution times by batch size and by number of concurrent executions, in the place where the
    instances run, and the times of the engine and the client per request and per batch. Each composing model
    of an ensemble is measured with its tensors in the ensemble. During the measurement the models have one
    instance for each concurrent execution; at the end they have their own again.

    Parameters
    ----------
    server : Server
        The server in this process; None with a `url`.
    model : str
        A loaded model or ensemble.
    inputs, shapes, input_data
        What to send, as for `nbtriton.perf`.
    at_once : int or sequence of int, optional
        The largest number of concurrent executions of a model, or the numbers to measure; by default 1, 2, 4
        and the number of instances. Each execution needs an instance, with its memory.
    batch_sizes : sequence of int, optional
        Rows of the batches to measure; by default 1, 2, 4 and so on up to ``max_batch_size``, at most 8
        sizes, and more between them where the times are not linear.
    seconds : float
        Approximate time of the whole measurement; more where executions are slow.
    seed : int
        Of generated data.
    observer : callable, optional
        Called with a `PerfProgress` before each point.
    url, protocol : str, optional
        A remote server with Triton's protocol, as for `nbtriton.perf`. Its instances stay as they are, and
        its statistics give the execution times.

    Returns
    -------
    Profile
        After a KeyboardInterrupt: the measurements until then, with ``interrupted=True``.

    Raises
    ------
    InvalidArgumentError
        Invalid options.
    NotFoundError
        No such model.
    UnsupportedError
        A decoupled model.
    KeyboardInterrupt
        Before each model has one point.

    Examples
    --------
    >>> profile = nt.profile(server, "double", batch_sizes=[1, 8], at_once=1, seconds=0.05)
    >>> profile.models["double"].rows
    (1, 8)
    """
    if (server is None) == (url is None):
        raise InvalidArgumentError("give a server or a url, not both and not neither")
    numbers = optional(
        Kind(
            lambda given: whole(1).accepts(given) or listed(whole(1)).accepts(given),
            "a whole number from 1 on, or a list of them",
        )
    )
    check(
        {
            "server": server, "model": model, "shapes": shapes, "input_data": input_data,
            "at_once": at_once, "batch_sizes": batch_sizes, "seconds": seconds, "seed": seed,
            "observer": observer, "url": url,
        },
        {
            "server": optional(SERVER), "model": NAME, "shapes": optional(MAPPING), "input_data": PATH,
            "at_once": numbers, "batch_sizes": optional(listed(whole(1))),
            "seconds": number(above=0), "seed": SEED, "observer": optional(CALL), "url": optional(NAME),
        },
    )  # fmt: skip
    check_choice("protocol", protocol, (None, *PROTOCOLS))
    started_s = time.monotonic()
    with ExitStack() as stack:
        target: Target = (
            server
            if server is not None
            else stack.enter_context(remote_server(url or "", protocol))
        )
        data = Data(inputs, shapes, input_data, seed=seed)
        plan = profile_plan(target, model, data, at_once, batch_sizes)
        work = _Work(target, server, plan, seconds, observer)
        interrupted = False
        try:
            work.run()
        except KeyboardInterrupt:
            interrupted = True
        if not all(work.points.values()):
            raise KeyboardInterrupt
        return replace(
            work.result(),
            environment=environment_of(target),
            elapsed_s=time.monotonic() - started_s,
            interrupted=interrupted,
        )


class _Work:
    """The measurements of a profile, one after the other."""

    def __init__(
        self,
        target: Target,
        server: Server | None,
        plan: ProfilePlan,
        seconds: float,
        observer: Observer | None,
    ) -> None:
        self.points: dict[str, list[ServicePoint]] = {name: [] for name in plan.others}
        self._target = target
        self._server = server
        self._plan = plan
        self._observer = observer
        self._started_s = time.monotonic()
        higher = sum(
            2 if len(plan.sizes[name]) > 1 else 1 for name in plan.others for _ in plan.levels[1:]
        )
        # Units of progress: points alone, points of concurrent executions, and the calibration of each model
        # (several requests at a time, an idle instance, the interpreter, and twice the work of many
        # requests).
        total = sum(map(len, plan.sizes.values())) + higher + 5 * len(plan.others) + 1
        self._total = TURNS * total
        self._done = 0
        self._seconds = seconds
        self._share_s = max(_SHORTEST_S, seconds / total) / TURNS
        # By model: the requests of all sizes that are measured alone, by rows.
        self._alone_of = {name: dict(plan.requests[name]) for name in plan.others}
        self._calibration = Calibration(target, server, plan.others)

    def run(self) -> None:
        """Measure everything."""
        plan = self._plan
        server = self._server
        if server is None:
            for turn in self._turns():
                for name in plan.others:
                    self._alone(name, turn)
                    self._concurrent(name)
            return
        steps: list[dict[str, Any]] = [{"instances": 1}, {"instances": plan.levels[-1]}]
        configurator = Configurator(server, plan.model, steps)
        try:
            configurator.apply(steps[0])
            for turn in self._turns():
                for name in plan.others:
                    self._alone(name, turn)
                self._calibrate(first=turn == 0)
            if plan.levels[-1] > 1:
                configurator.apply(steps[1])
                for _ in self._turns():
                    for name in plan.others:
                        self._concurrent(name)
        finally:
            configurator.restore()

    def result(self) -> Profile:
        """Return the profile."""
        plan = self._plan
        server = self._server
        calibration = self._calibration
        options: dict[str, Any] = {}
        if server is not None:
            found = server.options
            options = {
                "cache_bytes": found.cache_bytes,
                "rate_limit": found.rate_limit,
                "rate_limit_resources": list(found.rate_limit_resources),
            }
        profile = Profile(
            model=plan.model,
            models={
                name: calibration.model_profile(
                    name, format_pbtxt(config), self.points[name], plan.sizes[name]
                )
                for name, config in plan.others.items()
            },
            ensembles={name: format_pbtxt(config) for name, config in plan.ensembles.items()},
            costs=calibration.costs(),
            shared_interpreter=calibration.shared_interpreter,
            server=options,
            notes=tuple(calibration.notes),
        )
        return calibration.fitted(profile)

    def _turns(self) -> Iterator[int]:
        """Yield the numbers of turns, as many as the time allows."""
        until_s = time.monotonic() + _MOST_SECONDS * self._seconds
        for turn in range(TURNS):
            if turn == 0 or time.monotonic() < until_s:
                yield turn

    def _alone(self, name: str, turn: int) -> None:
        for rows, request in sorted(self._alone_of[name].items()):
            self._measure_alone(name, rows, request)
        request_of = self._plan.request_of
        if turn == 0 and request_of is not None:
            self._between(name, request_of)

    def _between(self, name: str, request_of: Callable[[int], Request]) -> None:
        """Measure sizes between two others until the times are linear."""
        requests = self._alone_of[name]
        until_s = time.monotonic() + self._seconds / 2 / TURNS
        intervals = deque(pairwise(sorted(requests)))
        while intervals and time.monotonic() < until_s and len(requests) < _MOST_POINTS:
            low, high = intervals.popleft()
            rows = (low + high) // 2
            if rows == low:
                continue
            self._total += TURNS
            requests[rows] = request_of(rows)
            self._measure_alone(name, rows, requests[rows])
            times_us = {p.rows: p.percentile_us(50) for p in self.points[name] if p.at_once == 1}
            if not {low, rows, high} <= set(times_us):
                continue
            share = (rows - low) / (high - low)
            line_us = times_us[low] + share * (times_us[high] - times_us[low])
            if abs(times_us[rows] / line_us - 1) > _OFF_LINE:
                intervals += [(low, rows), (rows, high)]

    def _measure_alone(self, name: str, rows: int, request: Request) -> None:
        self._step(f"{name}: {_rows(rows)}")
        sample = self._sample(name, request, rows if name in self._plan.sequences else 1)
        self._keep(name, sample, rows, 1)
        self._calibration.alone(name, rows, sample)

    def _concurrent(self, name: str) -> None:
        sizes = self._plan.sizes[name]
        serial = name in self._plan.sequences
        for level in self._plan.levels[1:]:
            for rows in sorted({sizes[0], sizes[-1]}):
                self._step(f"{name}: {_rows(rows)}, {level} at once")
                # One more of the largest batches is ready for each instance; smaller ones would be merged.
                waiting = 2 if rows == sizes[-1] and not serial else 1
                request = self._plan.requests[name][rows]
                sample = self._sample(name, request, level * (rows if serial else waiting))
                self._keep(name, sample, rows, level)
        self._crowd(name, self._plan.levels[-1])

    def _crowd(self, name: str, level: int) -> None:
        """Measure executions on all instances beside the work of many requests."""
        plan = self._plan
        if self._server is None or name in plan.sequences:
            return
        rows = plan.sizes[name][-1]
        self._step(f"{name}: {_rows(rows)} of as many requests, {level} at once")
        self._calibration.contention(name, rows, plan.requests[name], level, self._share_s)

    def _calibrate(self, *, first: bool) -> None:
        """Measure the times around executions; in the first turn also those that are measured only once."""
        plan = self._plan
        for name in plan.others:
            if name in plan.sequences:
                continue
            for what, measure in self._calibration.loads(
                name, plan.sizes[name], plan.requests[name], first=first
            ):
                self._step(f"{name}: {what}")
                measure(self._share_s)
            self._crowd(name, 1)
        if plan.ensembles:
            self._step(f"{plan.model}: the whole ensemble")
            rows = min(plan.roots)
            load = LoadSpec(self._target, plan.model, Concurrency(1), Repeated([plan.roots[rows]]))
            sample = measure_sample(
                load, (plan.model,), seconds=self._share_s, least=_LEAST, longest_s=_LONGEST_S
            )
            self._calibration.whole(plan.model, rows, sample)

    def _sample(self, name: str, request: Request, concurrency: int) -> Sample:
        plan = self._plan
        traffic: Traffic = Repeated([request])
        if name in plan.sequences:
            data = SequenceData(plan.sequences[name], [[request]], given=False)
            traffic = Sequences(data, lanes=concurrency, seed=0)
        load = LoadSpec(self._target, name, Concurrency(concurrency), traffic, lanes=concurrency)
        sample = measure_sample(
            load, (name,), seconds=self._share_s, least=_LEAST, longest_s=_LONGEST_S, warm_up=2
        )
        if sample.errors and not len(sample.latencies_ns):
            raise TritonError(f"every request to '{name}' failed: {sample.first_error}")
        return sample

    def _keep(self, name: str, sample: Sample, rows: int, at_once: int) -> None:
        """Keep the points of a sample."""
        if self._server is not None:
            found = points_of(executions_of(self._server, name, sample), rows, at_once)
        else:
            found = self._calibration.remote_point(sample, rows, at_once)
        self.points[name] += found

    def _step(self, what: str) -> None:
        if self._observer is not None:
            elapsed_s = time.monotonic() - self._started_s
            self._observer(
                PerfProgress(
                    level=min(self._done + 1, self._total),
                    levels=self._total,
                    what=what,
                    window=0,
                    max_windows=0,
                    requests=0,
                    max_requests=0,
                    elapsed_s=elapsed_s,
                    eta_s=max(0.0, (self._total - self._done) * self._share_s),
                    infer_per_s=0.0,
                    points=(),
                )
            )
        self._done += 1


def _rows(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"
