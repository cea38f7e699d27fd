"""The search for a configuration on the simulated server, by steps to better neighbours."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbtriton.common.errors import InvalidArgumentError, TritonError
from nbtriton.lab.perf.loads import Concurrency, RequestRate, send_times_ns
from nbtriton.lab.perf.measure import Level, WindowPlan
from nbtriton.lab.perf.point import PerfPoint
from nbtriton.lab.perf.prepare import Workload
from nbtriton.lab.perf.sweep import SweepPlan
from nbtriton.lab.perf.windows import STABLE_WINDOWS, StabilityRule
from nbtriton.lab.simulate.experiment import Experiment
from nbtriton.lab.simulate.model_profile import Profile
from nbtriton.lab.simulate.server import DeviceUse
from nbtriton.model.config import ModelConfig, normalize, validate

# Requests of a window; more where more are outstanding.
_REQUESTS = 100
_GENERATIONS = 4
# Longest virtual time until a load is steady.
LONGEST_S = 60.0
# A rate counts as served from this share of the due requests.
_SERVED = 0.95
# More load is not tried after a relative gain below this.
_GAIN = 0.02
_MOST_OUTSTANDING = 512


@dataclass(frozen=True, slots=True)
class InstanceMemory:
    """The memory of one model's instances.

    Parameters
    ----------
    each_mb : float
        Megabytes of each instance: resident memory of this process and its workers, and device memory.
        0 where it is too small to measure.
    shared_mb : float
        Megabytes of device memory that all instances share, such as weights, as the devices report it.
    """

    each_mb: float
    shared_mb: float = 0.0

    def of(self, instances: int) -> float:
        """Return the megabytes of a number of instances.

        Examples
        --------
        >>> InstanceMemory(10.0, 25.0).of(3)
        55.0
        """
        return self.shared_mb + instances * self.each_mb


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration with its best predicted point, and with its measured one where there is one.

    Parameters
    ----------
    options : mapping of str to mapping
        By model.
    predicted : PerfPoint
    rank : tuple of float
    memory_mb : float
        Megabytes of all instances, by the measurement of one; 0 where not asked for.
    due : float or None
        Requests of a rate that were due in the windows of the prediction, where known.
    measured : PerfPoint or None
    """

    options: Mapping[str, Mapping[str, Any]]
    predicted: PerfPoint
    rank: tuple[float, ...]
    memory_mb: float = 0.0
    due: float | None = None
    measured: PerfPoint | None = None

    @property
    def result(self) -> PerfPoint:
        """The point that ranks it."""
        return self.predicted if self.measured is None else self.measured

    @property
    def instances(self) -> int:
        """Instances of all models, where they are part of the search."""
        return sum(options.get("instances", 0) for options in self.options.values())


@dataclass(frozen=True, slots=True)
class Goal:
    """The objective of a search, and its limits.

    Parameters
    ----------
    objective : {"throughput", "latency", "instances", "memory", "cost"}
        The highest throughput, the lowest p99 latency, the fewest instances, the least memory, or of
        placements the lowest cost.
    p99_ms : float or None
        Upper limit of the p99 latency.
    min_throughput : float or None
        Lower limit of the throughput, in inferences per second.
    concurrency : int or None
    request_rate : float or None
        The load; without one the search includes the best concurrency.
    """

    objective: str = "throughput"
    p99_ms: float | None = None
    min_throughput: float | None = None
    concurrency: int | None = None
    request_rate: float | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.request_rate is not None:
            raise InvalidArgumentError("give a concurrency or a request_rate, not both")
        given = (self.concurrency, self.request_rate, self.min_throughput)
        if self.objective == "latency" and given == (None, None, None):
            raise InvalidArgumentError(
                "the lowest latency is that of no load",
                hint="give a concurrency, a request_rate or min_throughput",
            )

    def misses(self, point: PerfPoint, due: float | None = None) -> float:
        """Return the relative distance of a point from the limits; 0 within them.

        Parameters
        ----------
        point : PerfPoint
        due : float, optional
            Requests of a `request_rate` that were due in its windows. By default a lower bound, as
            random gaps vary.
        """
        missed = 0.0
        if not point.request_count:
            return math.inf
        if self.p99_ms is not None:
            missed += max(0.0, point.latency_p99_us / 1000 / self.p99_ms - 1)
        if self.min_throughput is not None:
            missed += max(0.0, 1 - point.infer_per_s / self.min_throughput)
        if self.request_rate is not None:  # the queue of an overloaded open loop grows without end
            if due is None:
                mean = self.request_rate * point.window_s
                due = mean - 2 * math.sqrt(mean)
            missed += max(0.0, _SERVED - point.request_count / max(1.0, due))
        return missed + point.error_count / (point.error_count + point.request_count)

    def rank(
        self, point: PerfPoint, instances: int, memory_mb: float = 0.0, due: float | None = None
    ) -> tuple[float, ...]:
        """Return a sort key, the lowest first."""
        missed = self.misses(point, due)
        p99_us, rate = point.latency_p99_us, point.infer_per_s
        if self.objective == "latency":
            return (missed, p99_us, float(instances))
        if self.objective == "instances":
            return (missed, float(instances), -rate)
        if self.objective == "memory":  # unmeasurable memory ranks no higher than small memory
            return (missed, memory_mb, float(instances), -rate)
        return (missed, -rate, float(instances), p99_us)

    def ordered(self, found: Sequence[Candidate]) -> list[Candidate]:
        """Return the results, the best first.

        Results within a fiftieth of the highest throughput, the error of a prediction, are ordered by the
        number of instances and then by latency.
        """
        ranked = sorted(
            found, key=lambda one: self.rank(one.result, one.instances, one.memory_mb, one.due)
        )
        if self.objective != "throughput" or not ranked:
            return ranked
        first = ranked[0].result
        least = first.infer_per_s * (1 - _GAIN)
        missed = self.misses(first, ranked[0].due)
        near = [
            one
            for one in ranked
            if self.misses(one.result, one.due) <= missed and one.result.infer_per_s >= least
        ]
        near.sort(key=lambda one: (one.instances, one.result.latency_p99_us))
        return [*near, *(one for one in ranked if one not in near)]


# The values of one model's options, each ascending; `instances` is always present.
Space = Mapping[str, Sequence[int]]


# The place of each axis' value among its choices.
_Key = tuple[int, ...]


class Search:
    """Looks for good configurations of a model, or of all steps of an ensemble together.

    Parameters
    ----------
    profile : Profile
    plan : SweepPlan
    spaces : mapping of str to Space
        By model.
    goal : Goal
    batch_size : int
        Rows per request.
    seed : int
    memory : mapping of str to InstanceMemory, optional
        Of the instances of each model.

    Attributes
    ----------
    found : dict
        The candidates, by their values.
    simulated : int
        Number of simulated levels.
    today : PerfPoint or None
        The best predicted point of the configuration that the models have; None before `run`.
    """

    def __init__(
        self,
        profile: Profile,
        plan: SweepPlan,
        spaces: Mapping[str, Space],
        goal: Goal,
        *,
        batch_size: int = 1,
        seed: int = 0,
        memory: Mapping[str, InstanceMemory] | None = None,
    ) -> None:
        self.found: dict[_Key, Candidate] = {}
        self.today: PerfPoint | None = None
        self.simulated = 0
        self._profile = profile
        self._plan = plan
        self._axes = [
            (name, option, values)
            for name, space in spaces.items()
            for option, values in space.items()
        ]
        self._goal = goal
        self._batch_size = batch_size
        self._seed = seed
        self._memory = memory or {}
        self._random = random.Random(seed)  # noqa: S311 - a search, not secrets
        self._refused: set[_Key] = set()

    def ordered(self, found: Sequence[Candidate]) -> list[Candidate]:
        """Return the measured configurations, the best first."""
        return self._goal.ordered(found)

    def run(
        self,
        seconds: float,
        on_step: Callable[[Candidate], None],
        enough: int = 0,  # noqa: ARG002 - a search of placements stops there
    ) -> None:
        """Search for a time, or until every configuration was tried.

        From each start it moves to the best neighbour until none is better.
        """
        self.today = self._as_it_is()
        end_s = time.monotonic() + seconds
        total = math.prod(len(values) for _, _, values in self._axes)
        for start in self._starts():
            current = self._try(start)
            while current is not None and time.monotonic() < end_s:
                best = current
                for key in self._neighbours(self._key_of(current)):
                    candidate = self._try(key)
                    if candidate is not None and candidate.rank < best.rank:
                        best = candidate
                    if time.monotonic() > end_s:
                        break
                if best is current:
                    break
                current = best
                on_step(self.best()[0])
            if time.monotonic() > end_s or len(self.found) + len(self._refused) >= total:
                return

    def best(self) -> list[Candidate]:
        """Return the candidates, the best first."""
        return self._goal.ordered(list(self.found.values()))

    # -- configurations --------------------------------------------------------------------------

    def _starts(self) -> Iterator[_Key]:
        """Yield starting values: the lowest, the highest, and then random ones."""
        counts = [len(values) for _, _, values in self._axes]
        yield tuple(0 for _ in counts)
        yield tuple(count - 1 for count in counts)
        while True:
            yield tuple(map(self._random.randrange, counts))

    def _neighbours(self, key: _Key) -> list[_Key]:
        """Return the neighbours: one step of one option, of one model or of all together."""
        moves = [[at] for at in range(len(key))]
        if len({name for name, _, _ in self._axes}) > 1:
            moves += [
                [at for at, (_, option, _) in enumerate(self._axes) if option == each]
                for each in sorted({option for _, option, _ in self._axes})
            ]
        neighbours: list[_Key] = []
        for axes, step in itertools.product(moves, (-1, 1)):
            moved = list(key)
            for at in axes:
                moved[at] = min(max(moved[at] + step, 0), len(self._axes[at][2]) - 1)
            if tuple(moved) != key:
                neighbours.append(tuple(moved))
        self._random.shuffle(neighbours)
        return neighbours

    def _key_of(self, candidate: Candidate) -> _Key:
        return tuple(
            values.index(candidate.options[name][option]) for name, option, values in self._axes
        )

    def _options(self, key: _Key) -> dict[str, dict[str, Any]]:
        options: dict[str, dict[str, Any]] = {}
        for (name, option, values), at in zip(self._axes, key, strict=True):
            options.setdefault(name, {})[option] = values[at]
        return options

    # -- predictions -----------------------------------------------------------------------------

    def _try(self, key: _Key) -> Candidate | None:
        """Return the result of a configuration; None if it is refused."""
        if key in self.found:
            return self.found[key]
        if key in self._refused:
            return None
        options, goal = self._options(key), self._goal
        try:
            target = self._plan.target_of(options)
            for config in target.values():
                validate(config)
            # As a real load does: a new batcher uses its preferred sizes only after its first request.
            configs = {name: normalize(config, name=name) for name, config in target.items()}
        except TritonError:
            self._refused.add(key)
            return None
        instances = sum(each["instances"] for each in options.values())
        point = self._best_point(configs, options)
        memory_mb = sum(each.of(options[name]["instances"]) for name, each in self._memory.items())
        due = None
        if goal.request_rate is not None:
            load = RequestRate(goal.request_rate, "poisson")
            times_ns, end_ns = send_times_ns(load, seed=self._seed), point.window_s * 1e9
            due = float(
                sum(1 for _ in itertools.takewhile(lambda at_ns: at_ns <= end_ns, times_ns))
            )
        rank = goal.rank(point, instances, memory_mb, due)
        candidate = Candidate(options, point, rank, memory_mb, due)
        self.found[key] = candidate
        return candidate

    def _as_it_is(self) -> PerfPoint:
        """Return the best point of the models' own configuration."""
        configs = {
            name: normalize(config, name=name) for name, config in self._plan.originals.items()
        }
        options = {
            name: {
                "instances": sum(group.count for group in configs[name].instance_group),
                "max_batch_size": configs[name].max_batch_size,
            }
            for name in self._plan.swept
        }
        return self._best_point(configs, options)

    def _best_point(
        self, configs: Mapping[str, ModelConfig], options: Mapping[str, Mapping[str, Any]]
    ) -> PerfPoint:
        """Return the best point of a configuration over the loads to try."""
        goal, instances = self._goal, sum(each["instances"] for each in options.values())
        if goal.request_rate is not None:
            return self._simulate(configs, RequestRate(goal.request_rate, "poisson"))
        if goal.concurrency is not None:
            return self._simulate(configs, Concurrency(goal.concurrency))
        # From the load that fills the largest batches of all instances, down or up as the limit asks.
        level = max(
            each["instances"] * max(1, each.get("max_batch_size", 1)) // self._batch_size
            for each in options.values()
        )
        level = min(max(1, level), _MOST_OUTSTANDING)
        best = self._simulate(configs, Concurrency(level))
        limit_us = math.inf if goal.p99_ms is None else goal.p99_ms * 1000
        down = best.latency_p99_us > limit_us
        while level > 1 if down else level < _MOST_OUTSTANDING:
            level = (
                max(1, level * 2 // 3)
                if down
                else min(max(level + 1, level * 3 // 2), _MOST_OUTSTANDING)
            )
            point = self._simulate(configs, Concurrency(level))
            better = goal.rank(point, instances) < goal.rank(best, instances)
            gained = point.infer_per_s > best.infer_per_s * (1 + _GAIN)
            if better:
                best = point
            if point.latency_p99_us <= limit_us if down else not (better and gained):
                break
        return best

    def _simulate(
        self, configs: Mapping[str, ModelConfig], load: Concurrency | RequestRate
    ) -> PerfPoint:
        self.simulated += 1
        # The windows of a rate begin with its first request, so that the due requests are known.
        warm_up_s = LONGEST_S if isinstance(load, Concurrency) else 0.0
        return simulated_point(
            self._profile, self._plan, configs, load, self._batch_size, self._seed, warm_up_s
        )


def simulated_point(
    profile: Profile,
    plan: SweepPlan,
    configs: Mapping[str, ModelConfig],
    load: Concurrency | RequestRate,
    batch_size: int,
    seed: int,
    warm_up_s: float,
    devices: Mapping[str, DeviceUse] | None = None,
) -> PerfPoint:
    """Return the predicted point of a load, after a warm-up of at most so many virtual seconds."""
    outstanding = load.value if isinstance(load, Concurrency) else 0
    requests = max(_REQUESTS, _GENERATIONS * outstanding)
    windows = WindowPlan("count_windows", request_count=requests, longest_warm_up_s=warm_up_s)
    rule = StabilityRule(max_trials=STABLE_WINDOWS)
    level = Level(load, Workload(({},), batch_size), rule, windows, seed=seed)
    models = (profile.model, *plan.swept) if plan.ensembles else (profile.model,)
    experiment = Experiment(profile, configs, seed=seed, devices=devices)
    point, interrupted = experiment.measure(level, models)
    if interrupted:
        raise KeyboardInterrupt
    assert point is not None
    return point
