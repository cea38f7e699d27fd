"""``nbtriton.capacity``: the search for the cheapest fleet, of which one node is simulated."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from nbtriton.common.checks import (
    CALL,
    MAPPING,
    NAME,
    Kind,
    check,
    is_list,
    number,
    optional,
    whole,
)
from nbtriton.common.errors import InvalidArgumentError, nearest
from nbtriton.drawing.numbers import measure
from nbtriton.extensions.capacity.options import CAPACITY, CapacitySettings
from nbtriton.extensions.capacity.result import Capacity, Fleet
from nbtriton.lab.perf.point import PerfPoint
from nbtriton.lab.perf.progress import Observer, PerfProgress
from nbtriton.lab.perf.sweep import model_tree
from nbtriton.lab.simulate.model_profile import Profile
from nbtriton.lab.simulate.prediction import whatif
from nbtriton.options.table import read_settings, signed

# Requests of a window, of which three count: 180 are above their p99. A closed loop needs fewer, for its rate alone.
_REQUESTS, _PEAK_REQUESTS = 6000, 2000
# Nodes that serve less than this share of what comes are overloaded; twelve thousand exponential gaps vary by 1%.
_SERVED = 0.97
# With a load below this share of its capacity a node has no queue: more nodes do not lower the p99.
_IDLE = 0.05

_PROFILE = Kind(lambda value: isinstance(value, Profile), "a profile, of nt.profile or nt.twin or declared")  # fmt: skip
_MACHINE = {
    "price_per_hour": number(above=0), "instances": whole(1), "cpus": number(above=0), "nodes": whole(1), "profile": _PROFILE,
}  # fmt: skip
_SPLIT = (
    "each node gets its requests at random, so that a node's share of a Poisson stream is one as well and one node stands for "
    "all; a dispatcher that goes round, or looks for the shortest queue, makes gaps or queues more even, and p99 lower"
)


@dataclass(frozen=True, slots=True)
class _Machine:
    """What a node may be: its profile and the most instances on it, its price, and how many there are."""

    name: str
    profile: Profile
    instances: int
    price_per_hour: float
    nodes: float


@signed(CAPACITY)
def capacity(
    profile: Profile,
    model: str | None = None,
    *,
    observer: Observer | None = None,
    **options: Unpack[CapacitySettings],
) -> Capacity:
    """Find the cheapest fleet of nodes that serves a load within a p99 latency, and what the loss of a node does to it.

    A node is a server with instances of the model; all nodes of a fleet are alike and behind a dispatcher. One of them is
    simulated under its share of the load, with exponential gaps, for growing numbers of instances and nodes.

    Parameters
    ----------
    profile : Profile
        A result of `nbtriton.profile` or `nbtriton.twin`, or `Profile.declared`.
    model : str, optional
        A model of the profile; by default the profiled one. All models of an ensemble get as many instances.
    observer : callable, optional
        Called with a `PerfProgress` before each simulation.
    **options
        See the table.

    Returns
    -------
    Capacity
        After a KeyboardInterrupt: of what was simulated until then.

    Raises
    ------
    InvalidArgumentError
        Invalid options.
    NotFoundError
        The profile has no such model.
    UnsupportedError
        A decoupled model, which cannot be simulated.

    Notes
    -----
    Nodes of several machines are not mixed. A node's loss is simulated as the remaining nodes under the whole load, without
    the requests that were on it. Numbers of nodes are found by bisection, as more nodes have a lower p99.

    Examples
    --------
    >>> profile = nt.types.Profile.declared(
    ...     {"bert": {1: 10, 8: 24}}, {"bert": "dynamic_batching { }"}
    ... )
    >>> machines = {"small": {"instances": 2, "price_per_hour": 0.2}}
    >>> plan = nt.capacity(profile, request_rate=1000, p99_ms=60, machines=machines, losses=1)
    >>> plan.chosen.nodes - plan.after_loss.nodes, plan.after_loss.holds
    (1, True)
    """
    given = read_settings("capacity", CAPACITY, options)
    kinds = {"profile": _PROFILE, "model": optional(NAME), "observer": optional(CALL)}
    check({"profile": profile, "model": model, "observer": observer}, kinds)
    search = _Search(model or profile.model, given, observer)
    machines = _machines(search.model, profile, given)
    interrupted = False
    try:
        for machine in sorted(machines, key=lambda one: one.price_per_hour / one.instances):
            search.of(machine)
    except KeyboardInterrupt:
        if not search.fleets:
            raise
        interrupted = True
    for one in machines if len(machines) > 1 else ():
        if "profile" not in given["machines"][one.name]:
            search.notes[f"{one.name} has no profile of its own: it is taken to be as fast as the profiled machine"] = None  # fmt: skip
    return Capacity(
        search.model, given["request_rate"], given["p99_ms"],
        tuple(sorted(search.fleets.values(), key=lambda one: (one.price_per_hour, one.p99_ms))),
        *search.chosen, tuple(search.notes), time.monotonic() - search.started_s, interrupted,
    )  # fmt: skip


@dataclass(slots=True)
class _Search:
    """The fleets that were simulated, the cheapest that holds, and what is left of it after a loss."""

    model: str
    given: Mapping[str, Any]
    observer: Observer | None
    fleets: dict[tuple[str, int, int], Fleet] = field(default_factory=dict)
    chosen: tuple[Fleet | None, Fleet | None] = (None, None)
    notes: dict[str, None] = field(default_factory=lambda: {_SPLIT: None})
    started_s: float = field(default_factory=time.monotonic)

    def of(self, machine: _Machine) -> None:
        """Find the fewest nodes with the most instances, and with fewer instances where that may be cheaper."""
        losses = self.given["losses"]
        # Many instances are seldom worse than few.
        fewer = (1 << bit for bit in reversed(range((machine.instances - 1).bit_length())))
        for instances in (machine.instances, *fewer):
            # The load of which all instances and the largest batches are busy.
            rows = self.given["batch_size"]
            largest = max(1, machine.profile.config(self.model).max_batch_size // rows)
            level = 2 * instances * largest
            # So many are to be on the node: those on a long way would be missing there.
            costs = replace(machine.profile.costs, way_us=())
            near = replace(machine, profile=replace(machine.profile, costs=costs))
            peak = self._point(near, instances, _PEAK_REQUESTS, concurrency=level).infer_per_s / rows  # fmt: skip
            most = machine.nodes - losses
            if self.chosen[0] is not None and instances < machine.instances:
                price = self.chosen[0].price_per_hour / machine.price_per_hour
                most = min(most, math.ceil(price) - 1 - losses)
            nodes = self._fewest(machine, instances, peak, most) if peak else None
            if nodes is None:
                continue
            left = nodes + min(losses - 1, 0)
            after = self._fleet(machine, instances, peak, left) if left else None
            fleet = self._fleet(machine, instances, peak, nodes + losses)
            if self.chosen[0] is None or fleet.price_per_hour < self.chosen[0].price_per_hour:
                self.chosen = fleet, after

    def _fewest(self, machine: _Machine, instances: int, peak: float, most: float) -> int | None:
        """Return the fewest nodes that hold the limit, if there are so many."""

        def holds(nodes: int) -> bool:
            return self._fleet(machine, instances, peak, nodes).holds

        low: int = math.ceil(self.given["request_rate"] / peak)
        high = low
        last = math.floor(min(most, max(low, self.given["request_rate"] / peak / _IDLE)))
        if high > last:
            return None
        while not holds(high):
            if high == last:
                return None
            low, high = high + 1, min(2 * high, last)
        return low + bisect_left(range(low, high), True, key=holds)

    def _fleet(self, machine: _Machine, instances: int, peak: float, nodes: int) -> Fleet:
        key = machine.name, instances, nodes
        if key not in self.fleets:
            rate = self.given["request_rate"] / nodes
            load = {"request_rate": rate, "request_distribution": "poisson"}
            point = self._point(machine, instances, _REQUESTS, **load)
            outcome, p99_ms = str(point.outcome), point.latency_p99_us / 1000
            if point.error_count:
                outcome = "failed"
            elif point.infer_per_s < _SERVED * rate * self.given["batch_size"]:
                outcome, p99_ms = "overloaded", math.inf
            elif outcome == "beyond the profile":
                self.notes |= dict.fromkeys(f"{machine.name}: {note}" for note in point.notes)
            ends_us = point.latency_p99_range_us if outcome == "predicted" else None
            self.fleets[key] = Fleet(
                machine.name, nodes, instances, nodes * machine.price_per_hour, rate, rate / peak, p99_ms,
                ends_us and (ends_us[0] / 1000, ends_us[1] / 1000), outcome,
                outcome in ("predicted", "beyond the profile") and p99_ms <= self.given["p99_ms"],
            )  # fmt: skip
        return self.fleets[key]

    def _point(self, machine: _Machine, instances: int, requests: int, **load: Any) -> PerfPoint:
        if self.observer is not None:
            words, elapsed_s = f"{machine.name}, instances={instances}", time.monotonic() - self.started_s  # fmt: skip
            self.observer(PerfProgress.step(len(self.fleets), None, words, elapsed_s, None))
        report = whatif(
            machine.profile, self.model, instances=instances, batch_size=self.given["batch_size"],
            measurement_mode="count_windows", measurement_request_count=requests, seed=self.given["seed"], **load,
        )  # fmt: skip
        if report.interrupted:
            raise KeyboardInterrupt
        return report.points[0]


def _machines(model: str, profile: Profile, options: Mapping[str, Any]) -> list[_Machine]:
    given, network = options["machines"], options["network_ms"]
    ways_us = [ms * 500 for ms in (network if is_list(network) else [network])]
    if not given:
        raise InvalidArgumentError("machines is empty", hint='such as {"small": {"cpus": 4, "price_per_hour": 0.2}}')  # fmt: skip
    found = []
    for name, one in given.items():
        check({f"machine '{name}'": one}, {f"machine '{name}'": MAPPING})
        for key, value in one.items():
            if key not in _MACHINE:
                raise InvalidArgumentError(f"machine '{name}' has no '{key}'", hint=nearest(key, _MACHINE))  # fmt: skip
            check({f"{key} of machine '{name}'": value}, {f"{key} of machine '{name}'": _MACHINE[key]})  # fmt: skip
        if "price_per_hour" not in one or ("instances" in one) == ("cpus" in one):
            raise InvalidArgumentError(
                f"machine '{name}' needs a price_per_hour, and either instances or cpus; found {', '.join(one) or 'nothing'}"
            )
        own, instances = one.get("profile", profile), one.get("instances")
        if instances is None:
            # An instance has at least a core, and those that it was seen to keep busy.
            cores = sum(max(1.0, own.models[each].cores) for each in model_tree(own, model)[1])
            instances = math.floor(one["cpus"] / cores)
            if not instances:
                raise InvalidArgumentError(
                    f"machine '{name}' has {measure(one['cpus'])} cpus, and an instance keeps {measure(cores)} busy"
                )
            # What others used there, as a share of the cores, stays as it was.
            busy = None if own.others is None else own.busy * one["cpus"]
            own = replace(own, environment={**own.environment, "cpus": int(one["cpus"])}, others=busy)  # fmt: skip
        here = own.costs.way_us or (0.0,)  # of a server elsewhere: the way to it from here
        ways = tuple(each + us for each in here for us in ways_us)
        own = replace(own, costs=replace(own.costs, way_us=ways if any(ways) else ()))
        price, nodes = one["price_per_hour"], one.get("nodes", math.inf)
        found.append(_Machine(name, own, instances, price, nodes))
    return found
