"""The search for the best devices of a pipeline's steps: steps are measured, assignments simulated.

The simulated pipeline of an assignment has each step's execution times on its device. Each device computes
one batch at a time, and each of its two copy engines makes one copy at a time. A copy delays the request that
needs it, but no other computation. The cost of a request is the time for which it keeps devices and copy
engines busy.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.extensions.tuning.search import LONGEST_S, Candidate, Goal, simulated_point
from nbtriton.lab.perf.loads import Concurrency, RequestRate
from nbtriton.lab.perf.point import PerfPoint
from nbtriton.lab.perf.sweep import SweepPlan
from nbtriton.lab.simulate.model_profile import ModelProfile, Profile, ServicePoint
from nbtriton.lab.simulate.server import Copied, DeviceUse
from nbtriton.runtime.engine.core.scheduler_settings import ensemble_plan

# The device of callers, and of models on the host.
HOST = "cpu"
# The largest number of assignments in a search.
_MOST = 100_000

Assignment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor that one model writes and another one reads.

    Parameters
    ----------
    writer, reader : str
        Models; empty for the caller.
    output, input : str
        The tensor's name in the writer, and in the reader; empty for the caller.
    """

    writer: str
    output: str
    reader: str
    input: str


def edges_of(ensembles: Mapping[str, Any], model: str) -> tuple[Edge, ...]:
    """Return the edges of an ensemble, including those of the caller and of nested ensembles."""
    edges: list[Edge] = []

    def walk(name: str, writers: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
        plan = ensemble_plan(ensembles[name])
        made = dict(writers)
        waiting = list(plan.steps)
        while waiting:
            ready = [s for s in waiting if set(s.input_map.values()) <= set(made)] or waiting[:1]
            for step in ready:
                waiting.remove(step)
                inputs = {name: made.get(t, ("", t)) for name, t in step.input_map.items()}
                if step.model_name in ensembles:
                    outputs = walk(step.model_name, inputs)
                else:
                    edges.extend(
                        Edge(writer, output if writer else "", step.model_name, name)
                        for name, (writer, output) in inputs.items()
                    )
                    outputs = {output: (step.model_name, output) for output in step.output_map}
                for output, tensor in step.output_map.items():
                    made[tensor] = outputs[output]
        return {output: made[output] for output in plan.outputs}

    inputs = {each.name: ("", each.name) for each in ensembles[model].input}
    for writer, output in walk(model, inputs).values():
        edges.append(Edge(writer, output if writer else "", "", ""))
    return tuple(edges)


@dataclass(frozen=True, slots=True)
class Copies:
    """The copy times of one edge in microseconds, by rows and by source and target."""

    times_us: Mapping[int, Mapping[tuple[str, str], float]]

    def us(self, rows: int, source: str, target: str) -> float:
        """Return the time of a copy between two devices, interpolated and extrapolated linearly."""
        return self.between(self._times(source, target), rows)

    def copied(self, source: str, target: str) -> list[Copied]:
        """Return the simulated copy between two devices; empty where none is needed.

        The source's engine makes a copy between two GPUs.
        """
        times_us = self._times(source, target)
        if not times_us:
            return []
        engine = f"to {target}" if source == HOST else f"from {source}"
        return [Copied(engine, times_us, from_host=source == HOST, to_host=target == HOST)]

    def _times(self, source: str, target: str) -> dict[int, float]:
        if source == target:
            return {}
        return {rows: found.get((source, target), 0.0) for rows, found in self.times_us.items()}

    @staticmethod
    def between(times_us: Mapping[int, float], rows: int) -> float:
        """Return a time by rows, interpolated and extrapolated linearly."""
        points = sorted(times_us.items())
        if len(points) < 2:
            return points[0][1] if points else 0.0
        index = max(0, min(sum(size <= rows for size, _ in points) - 1, len(points) - 2))
        (low, a), (high, b) = points[index], points[index + 1]
        return max(0.0, a + (b - a) * (rows - low) / (high - low))


# For strings, which stay on the host.
_NEVER = Copies({})


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a pipeline.

    Parameters
    ----------
    profiles : mapping of str to Profile
        By device: the profile of all models that run there, with inputs from the host.
    edges : tuple of Edge
    copies : mapping of Edge to Copies
        Without tensors that are never copied, such as strings.
    on_host : set of tuple of str
        Device, model and tensor, of tensors that stay in the host's memory although the model runs on that
        device, such as the tensors of a Python model whose inputs are copied to the host.
    """

    profiles: Mapping[str, Profile]
    edges: tuple[Edge, ...]
    copies: Mapping[Edge, Copies]
    on_host: frozenset[tuple[str, str, str]] = frozenset()

    def devices_of(self, model: str) -> list[str]:
        """Return the devices on which a model was measured."""
        return [device for device, found in self.profiles.items() if model in found.models]

    def memory_of(self, model: str, tensor: str, device: str) -> str:
        """Return the device whose memory has a tensor of a model; the caller's is the host."""
        return HOST if not model or (device, model, tensor) in self.on_host else device

    def copying_us(self, model: str, rows: int, assignment: Assignment) -> float:
        """Return the copy time of a step's execution, including its copies to the caller."""
        use = self.use(model, assignment)
        return sum(Copies.between(copied.times_us, rows) for copied in (*use.before, *use.after))

    def use(self, model: str, assignment: Assignment) -> DeviceUse:
        """Return the use of devices by a step: copy engines to and from each device, and computing."""
        here = assignment[model]
        before, after = [], []
        for edge in self.edges:
            copies = self.copies.get(edge, _NEVER)
            source = self.memory_of(edge.writer, edge.output, assignment.get(edge.writer, HOST))
            if edge.reader == model:
                before += copies.copied(source, self.memory_of(model, edge.input, here))
            elif edge.writer == model and not edge.reader:
                after += copies.copied(source, HOST)
        # A model with all tensors on the host computes there, too.
        tensors = [
            self.memory_of(model, tensor, here)
            for edge in self.copies
            for end, tensor in ((edge.reader, edge.input), (edge.writer, edge.output))
            if end == model
        ]
        computes_here = here != HOST and (not tensors or set(tensors) != {HOST})
        device = here if computes_here else ""
        return DeviceUse(device, tuple(before), tuple(after), here == HOST)

    def model(self, name: str, assignment: Assignment) -> ModelProfile:
        """Return a step's profile on its device, without copies."""
        device = assignment[name]
        profile = self.profiles[device].models[name]
        points = []
        for point in profile.points:
            # It was measured with inputs from the host, and outputs that stayed on the device.
            copying_us = sum(
                copies.us(point.rows, HOST, self.memory_of(name, edge.input, device))
                for edge, copies in self.copies.items()
                if edge.reader == name
            )
            times = tuple(max(1.0, us - copying_us) for us in point.times_us)
            points.append(ServicePoint(point.rows, point.at_once, times, point.executions))
        return replace(profile, points=tuple(points))

    def pipeline(self, assignment: Assignment) -> Profile:
        """Return the profile of the whole pipeline in an assignment, without copies."""
        first = next(iter(self.profiles.values()))
        return replace(first, models={name: self.model(name, assignment) for name in assignment})

    def cost_us(self, assignment: Assignment, rows: int) -> float:
        """Return the microseconds for which a request with these rows keeps devices and copy engines busy."""
        return sum(
            _mean_us(self.model(name, assignment), rows) + self.copying_us(name, rows, assignment)
            for name in assignment
        )


def _mean_us(model: ModelProfile, rows: int) -> float:
    """Return the mean time of an execution alone, interpolated and extrapolated linearly."""
    return Copies.between({p.rows: p.mean_us for p in model.points if p.at_once == 1}, rows)


class PlacementSearch:
    """Simulates assignments, the cheapest first.

    Parameters
    ----------
    measured : Measured
    plan : SweepPlan
    goal : Goal
        Its limits hold; for the objective ``"cost"`` the cheapest assignments within the limits are taken.
    batch_size : int
        Rows per request.
    seed : int

    Attributes
    ----------
    found : list of Candidate
    simulated : int
    """

    def __init__(
        self, measured: Measured, plan: SweepPlan, goal: Goal, *, batch_size: int = 1, seed: int = 0
    ) -> None:
        self.found: list[Candidate] = []
        self.today: PerfPoint | None = None  # is not simulated
        self.simulated = 0
        self._measured = measured
        self._plan = plan
        self._goal = goal
        self._batch_size = batch_size
        self._seed = seed

    def assignments(self) -> list[tuple[float, dict[str, str]]]:
        """Return all assignments with their costs in microseconds, the cheapest first.

        Raises
        ------
        InvalidArgumentError
            There are too many assignments.
        """
        names = list(self._plan.swept)
        choices = [self._measured.devices_of(name) for name in names]
        count = math.prod(map(len, choices))
        if count > _MOST:
            raise InvalidArgumentError(
                f"{len(names)} steps on up to {max(map(len, choices))} devices can be placed in {count} "
                f"ways; up to {_MOST} are looked through",
                hint="place some of them yourself, and tune an ensemble of the others",
            )
        ways = [dict(zip(names, devices, strict=True)) for devices in itertools.product(*choices)]
        costs = [(self._measured.cost_us(where, self._batch_size), where) for where in ways]
        return sorted(costs, key=lambda one: one[0])

    def run(self, seconds: float, on_step: Callable[[Candidate], None], enough: int = 1) -> None:
        """Simulate for a time, or until this number of the cheapest assignments are within the limits."""
        end_s = time.monotonic() + seconds
        within_limits = 0
        for cost_us, assignment in self.assignments():
            candidate = self._simulate(assignment, cost_us)
            self.found.append(candidate)
            on_step(candidate)
            within_limits += candidate.rank[0] == 0.0
            if (
                self._goal.objective == "cost" and within_limits >= enough
            ) or time.monotonic() > end_s:
                return

    def best(self) -> list[Candidate]:
        """Return the candidates, the best first."""
        return sorted(self.found, key=lambda one: one.rank)

    def ordered(self, found: Sequence[Candidate]) -> list[Candidate]:
        """Return the measured assignments, the best first."""

        def rank(one: Candidate) -> tuple[float, ...]:
            where = {name: each["placement"] for name, each in one.options.items()}
            cost_us = self._measured.cost_us(where, self._batch_size)
            return rank_of(self._goal, one.result, cost_us)

        return sorted(found, key=rank)

    def _simulate(self, assignment: Assignment, cost_us: float) -> Candidate:
        goal = self._goal
        options = {name: {"placement": device} for name, device in assignment.items()}
        configs = self._plan.target_of(options)
        load: Concurrency | RequestRate = Concurrency(goal.concurrency or 1)
        if goal.request_rate is not None:
            load = RequestRate(goal.request_rate, "poisson")
        self.simulated += 1
        devices = {name: self._measured.use(name, assignment) for name in assignment}
        point = simulated_point(
            self._measured.pipeline(assignment), self._plan, configs, load, self._batch_size, self._seed, LONGEST_S,
            devices,
        )  # fmt: skip
        return Candidate(options, point, rank_of(goal, point, cost_us))


def rank_of(goal: Goal, point: PerfPoint, cost_us: float) -> tuple[float, ...]:
    """Return a sort key of an assignment, lowest first; equal results are ordered by cost.

    The lowest latency is that of the median: assignments differ in all requests, while a few slow executions
    of a short profile show other work of the machine.
    """
    if goal.objective == "cost":
        return (goal.misses(point), cost_us, point.latency_p99_us)
    if goal.objective == "latency":
        return (goal.misses(point), point.latency_p50_us, cost_us)
    return (*goal.rank(point, 0), cost_us)
