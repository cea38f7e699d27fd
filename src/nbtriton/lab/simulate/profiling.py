"""``nbtriton.profile``: a measurement of a model in some seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Unpack

from nbtriton.common.checks import CALL, NAME, SERVER, check, optional
from nbtriton.common.errors import InvalidArgumentError, TritonError, UnsupportedError
from nbtriton.lab.perf.data import Request
from nbtriton.lab.perf.driver import LoadSpec
from nbtriton.lab.perf.loads import Concurrency
from nbtriton.lab.perf.machine import Others
from nbtriton.lab.perf.prepare import Data
from nbtriton.lab.perf.progress import Observer, PerfProgress
from nbtriton.lab.perf.remote import Target, remote_server
from nbtriton.lab.perf.run import environment_of, server_options
from nbtriton.lab.perf.sample import Sample, measure_sample
from nbtriton.lab.perf.session import Ending
from nbtriton.lab.perf.sweep import Configurator
from nbtriton.lab.perf.traffic import Repeated, SequenceData, Sequences, Traffic
from nbtriton.lab.simulate.calibration import TURNS, Calibration
from nbtriton.lab.simulate.measurements import executions_of, points_of, without_executions
from nbtriton.lab.simulate.model_profile import Profile, ServicePoint
from nbtriton.lab.simulate.profile_plan import ProfilePlan, profile_plan
from nbtriton.lab.simulate.settings import PROFILE, ProfileSettings
from nbtriton.model.config import format_pbtxt
from nbtriton.options.table import read_settings, signed

if TYPE_CHECKING:
    from nbtriton.serving.server import Server

# A size between two others is measured too if its time is off their line by more than this share, up to this
# number of sizes: matrix products take longer for sizes that do not fill a block.
_OFF_LINE = 0.08
_MOST_POINTS = 20
# Number of executions of a point that a sample of the first turn waits for, within the time that all turns have
# for it, and for at least so long; shortest time of a sample.
_LEAST = 8
_PATIENCE_S = 0.25
_SHORTEST_S = 0.01
# Requests to a whole ensemble in a turn, of which the median counts: a stall is longer than all that its steps cost.
_WHOLE = 30

# Steps of the work of many requests: three loads, whose differences are small.
_CROWD_STEPS = 3

_KINDS = {"server": optional(SERVER), "model": NAME, "observer": optional(CALL)}


@signed(PROFILE)
def profile(
    server: Server | None,
    model: str,
    *,
    observer: Observer | None = None,
    **options: Unpack[ProfileSettings],
) -> Profile:
    """Measure a model once, so that `nbtriton.whatif` can predict its behaviour under any load.

    A profile has execution times by batch size and by number of concurrent executions, in the place where the
    instances run, and the times of the engine and the client per request and per batch. Each composing model
    of an ensemble is measured with its tensors in the ensemble. During the measurement the models have one
    instance for each concurrent execution, no response cache and no limits of their queues, so that each request is
    executed; at the end they have their own configuration again.

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
    duration_s : float
        Time of the whole measurement, beside loading the models. It takes longer only where a few executions of each
        batch size, alone and beside others, take longer: the progress says so.
    seed : int
        Of generated data.
    observer : callable, optional
        Called with a `PerfProgress` before each point, with the time that is left.
    url, protocol : str, optional
        A remote server with Triton's protocol, as for `nbtriton.perf`. Its instances stay as they are, and
        its statistics give the execution times.

    Returns
    -------
    Profile
        After a KeyboardInterrupt: the measurements until then, with ``interrupted=True``; after an error once each
        model has a point with that in ``failure``.

    Raises
    ------
    InvalidArgumentError
        Invalid options.
    NotFoundError
        No such model.
    UnsupportedError
        A decoupled model, or a remote one that answers from its response cache.
    UnavailableError
        A model has no execution of its own: others sent so many requests meanwhile that no batch was without them.
    KeyboardInterrupt
        Before each model has one point.

    Examples
    --------
    >>> profile = nt.profile(server, "double", batch_sizes=[1, 8], at_once=1, duration_s=0.05)
    >>> profile.models["double"].rows
    (1, 8)
    """
    given = read_settings("profile", PROFILE, options)
    url, seconds = given["url"], given["duration_s"]
    if (server is None) == (url is None):
        raise InvalidArgumentError("give a server or a url, not both and not neither")
    check({"server": server, "model": model, "observer": observer}, _KINDS)
    started_s, others = time.monotonic(), Others()
    with ExitStack() as stack:
        target: Target = (
            server
            if server is not None
            else stack.enter_context(remote_server(url or "", given["protocol"]))
        )
        data = Data(given["inputs"], given["shapes"], given["input_data"], seed=given["seed"])
        plan = profile_plan(target, model, data, given["at_once"], given["batch_sizes"])
        work = _Work(target, server, plan, seconds, observer)
        ending = work.run()
        for name, points in work.points.items():
            if not points and ending.interrupted:
                raise KeyboardInterrupt
            if not points:
                raise without_executions(name)
        elapsed_s = time.monotonic() - started_s
        return replace(
            # A server elsewhere, even on this machine, is one of the others.
            work.result(None if server is None else others.cores),
            environment=environment_of(target),
            elapsed_s=elapsed_s,
            interrupted=ending.interrupted,
            failure=ending.failure,
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
        self._until_s = self._started_s + seconds
        # Steps of a turn: points alone and the calibration of each model (several requests at a time, three idle
        # times, the work of many requests, which takes three steps), then points of concurrent executions and,
        # beside them, the work of many requests again. The interpreter is measured once.
        count = len(plan.others) - len(plan.sequences) if server is not None else 0
        self._first = (
            sum(map(len, plan.sizes.values())) + (4 + _CROWD_STEPS) * count + bool(plan.ensembles)
        )
        self._second = sum(
            2 if len(plan.sizes[name]) > 1 else 1 for name in plan.others for _ in plan.levels[1:]
        )
        self._second += _CROWD_STEPS * count * (len(plan.levels) > 1)
        self._total = TURNS * (self._first + self._second) + count
        self._done = 0
        self._turn = 0
        # Steps that are certainly done: up to this number, and so many later.
        self._turn_ends = self._later = 0
        self._seconds = seconds
        # By model: the requests of all sizes that are measured alone, by rows.
        self._alone_of = {name: dict(plan.requests[name]) for name in plan.others}
        self._calibration = Calibration(target, server, plan.others)

    def run(self) -> Ending:
        """Measure everything."""
        plan = self._plan
        server = self._server
        points = self.points.values()
        if server is None:
            with Ending(points) as ending:
                for turn in self._turns(self._first + self._second, 0):
                    for name in plan.others:
                        self._alone(name, turn)
                        self._concurrent(name)
            return ending
        steps: list[dict[str, Any]] = [
            {"instances": count, "executes_all": True} for count in (1, plan.levels[-1])
        ]
        configurator = Configurator(server, plan.model, steps)
        with Ending(points, configurator.restore) as ending:
            configurator.apply(steps[0])
            for turn in self._turns(self._first, self._second):
                for name in plan.others:
                    self._alone(name, turn)
                self._calibrate(first=turn == 0)
            if plan.levels[-1] > 1:
                configurator.apply(steps[1])
                for _ in self._turns(self._second, 0):
                    for name in plan.others:
                        self._concurrent(name)
        return ending

    def result(self, others: float | None) -> Profile:
        """Return the profile, where other programs used so many cores meanwhile, None if unknown."""
        plan = self._plan
        server = self._server
        calibration = self._calibration
        profile = Profile(
            model=plan.model,
            models={
                name: calibration.model_profile(
                    name, format_pbtxt(config), self.points[name], plan.sizes[name], others
                )
                for name, config in plan.others.items()
            },
            ensembles={name: format_pbtxt(config) for name, config in plan.ensembles.items()},
            costs=calibration.costs(),
            shared_interpreter=calibration.shared_interpreter,
            server=server_options(server),
            others=others,
            foreign=max(0, calibration.foreign),
        )
        return calibration.fitted(profile)

    def _turns(self, steps: int, later: int) -> Iterator[int]:
        """Yield the numbers of turns, as many as the time allows; the first one is always made.

        Parameters
        ----------
        steps, later : int
            Steps of such a turn, and of a turn that follows after all of these.
        """
        took_s = 0.0
        for turn in range(TURNS):
            began_s = time.monotonic()
            if turn and began_s + took_s * (1 + later / steps) > self._until_s:
                self._total -= (TURNS - turn) * steps
                return
            self._turn, self._later, self._turn_ends = turn, later, self._done + steps
            yield turn
            took_s = time.monotonic() - began_s

    @property
    def _share_s(self) -> float:
        """Time of a step: what is left, for all steps that are left."""
        left = max(1, self._total - self._done + 1)
        return max(_SHORTEST_S, (self._until_s - time.monotonic()) / left)

    @property
    def _longest_s(self) -> float:
        """Time of a step that waits for executions: in the first turn that of all turns."""
        return max(_PATIENCE_S, TURNS * self._share_s) if self._turn == 0 else self._share_s

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
            self._first += 1
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
        served = sample.servers[0]
        # (The configuration of a remote server may enable a cache that the server does not have.)
        if self._server is None and (
            served is None or 2 * served.execution_count < served.success_count
        ):
            raise UnsupportedError(
                f"model '{name}' answers from its response cache: its executions cannot be measured",
                hint="profile it on a server without the cache",
            )
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

        def step(what: str) -> None:
            self._step(f"{name}: {_rows(rows)} {what}, {level} at once")

        self._calibration.contention(
            name,
            rows,
            plan.requests[name],
            level,
            self._share_s,
            self._longest_s / _CROWD_STEPS,
            step,
        )

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
                measure(self._share_s, self._longest_s)
            self._crowd(name, 1)
        if plan.ensembles:
            self._step(f"{plan.model}: the whole ensemble")
            rows = min(plan.roots)
            load = LoadSpec(self._target, plan.model, Concurrency(1), Repeated([plan.roots[rows]]))
            sample = measure_sample(
                load,
                (plan.model,),
                seconds=self._share_s,
                least=_WHOLE,
                longest_s=self._longest_s,
                warm_up=2,
            )
            self._calibration.foreign += sample.foreign
            self._calibration.whole(plan.model, rows, sample)

    def _sample(self, name: str, request: Request, concurrency: int) -> Sample:
        plan = self._plan
        traffic: Traffic = Repeated([request])
        if name in plan.sequences:
            data = SequenceData(plan.sequences[name], [[request]], given=False)
            traffic = Sequences(data, lanes=concurrency, seed=0)
        load = LoadSpec(self._target, name, Concurrency(concurrency), traffic, lanes=concurrency)
        sample = measure_sample(
            load, (name,), seconds=self._share_s, least=_LEAST, longest_s=self._longest_s, warm_up=2
        )
        self._calibration.foreign += sample.foreign
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
            left_s = self._until_s - time.monotonic()
            if self._done:  # slow executions take more than their share
                certain = max(0, self._turn_ends - self._done) + self._later * (self._turn == 0)
                left_s = max(left_s, elapsed_s / self._done * certain)
            self._observer(PerfProgress.step(self._done, self._total, what, elapsed_s, left_s))
        self._done += 1


def _rows(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"
