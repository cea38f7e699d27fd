"""``nbtriton.capacity``: the search for the cheapest fleet, of which one node is simulated."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from nbtriton.common.checks import CALL, MAPPING, NAME, Kind, check, number, optional, whole
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

_PROFILE = Kind(
    lambda value: isinstance(value, Profile),
    "a profile of nt.profile or nt.twin, or Profile.declared",
)
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
    check(
        {"profile": profile, "model": model, "observer": observer},
        {"profile": _PROFILE, "model": optional(NAME), "observer": optional(CALL)},
    )
    name = model or profile.model
    search = _Search(name, given, observer)
    machines = _machines(name, profile, given["machines"])
    interrupted = False
    try:
        for machine in sorted(machines, key=lambda one: one.price_per_hour / one.instances):
            search.of(machine)
    except KeyboardInterrupt:
        if not search.fleets:
            raise
        interrupted = True
    chosen, left = search.chosen or (None, None)
    notes = [_SPLIT, *search.beyond]
    if len(machines) > 1:
        notes += [
            f"{one.name} has no profile of its own: it is taken to be as fast as the profiled machine"
            for one in machines
            if "profile" not in given["machines"][one.name]
        ]
    return Capacity(
        name, given["request_rate"], given["p99_ms"],
        tuple(sorted(search.fleets.values(), key=lambda one: (one.price_per_hour, one.p99_ms))),
        chosen, left, tuple(notes), search.elapsed_s, interrupted,
    )  # fmt: skip


@dataclass(slots=True)
class _Search:
    """The fleets that were simulated, and the cheapest that holds."""

    model: str
    given: Mapping[str, Any]
    observer: Observer | None
    fleets: dict[tuple[str, int, int], Fleet] = field(default_factory=dict)
    chosen: tuple[Fleet, Fleet | None] | None = None
    beyond: dict[str, None] = field(default_factory=dict)
    started_s: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    def of(self, machine: _Machine) -> None:
        """Find the fewest nodes with the most instances, and with fewer instances where that may be cheaper."""
        for instances in _doublings(machine.instances):
            peak = self._peak(machine, instances)
            if not peak:  # every request fails
                continue
            least = max(1, math.ceil(self.given["request_rate"] / peak))
            nodes = self._fewest(machine, instances, peak, least)
            if nodes is None:
                continue
            whole_fleet = self._fleet(machine, instances, peak, nodes + self.given["losses"])
            left = whole_fleet.nodes - max(1, self.given["losses"])
            after = self._fleet(machine, instances, peak, left) if left else None
            if self.chosen is None or whole_fleet.price_per_hour < self.chosen[0].price_per_hour:
                self.chosen = whole_fleet, after

    def _fewest(self, machine: _Machine, instances: int, peak: float, least: int) -> int | None:
        """Return the fewest nodes that hold the limit, if there are so many."""
        most = machine.nodes - self.given["losses"]
        if self.chosen is not None and instances < machine.instances:  # only a cheaper one counts
            price = self.chosen[0].price_per_hour
            most = min(most, math.ceil(price / machine.price_per_hour) - 1 - self.given["losses"])
        most = math.floor(min(most, max(least, self.given["request_rate"] / peak / _IDLE)))
        low, high, step = least, least, 1
        while high <= most and not self._fleet(machine, instances, peak, high).holds:
            low, high, step = (
                high + 1,
                high + 1 if high == most else min(high + step, most),
                step * 2,
            )
        if high > most:
            return None
        while low < high:
            middle = (low + high) // 2
            if self._fleet(machine, instances, peak, middle).holds:
                high = middle
            else:
                low = middle + 1
        return high

    def _peak(self, machine: _Machine, instances: int) -> float:
        """Return the requests per second that a node serves at most: with all instances and the largest batches busy."""
        rows = self.given["batch_size"]
        largest = max(1, machine.profile.config(self.model).max_batch_size // rows)
        point = self._point(
            machine, instances, f"{machine.name}, at most", _PEAK_REQUESTS, concurrency=2 * instances * largest
        )  # fmt: skip
        rate: float = point.infer_per_s / rows
        return rate

    def _fleet(self, machine: _Machine, instances: int, peak: float, nodes: int) -> Fleet:
        key = machine.name, instances, nodes
        if key not in self.fleets:
            rate, rows = self.given["request_rate"] / nodes, self.given["batch_size"]
            point = self._point(
                machine, instances, f"{nodes} of {machine.name}", _REQUESTS,
                request_rate=rate, request_distribution="poisson",
            )  # fmt: skip
            outcome = str(point.outcome)
            if point.error_count:
                outcome = "failed"
            elif point.infer_per_s < _SERVED * rate * rows:
                outcome = "overloaded"
            network_ms = self.given["network_ms"]
            p99_ms = (
                math.inf if outcome == "overloaded" else point.latency_p99_us / 1000 + network_ms
            )
            spread_us = point.latency_p99_range_us if outcome == "predicted" else None
            self.fleets[key] = Fleet(
                machine.name, nodes, instances, nodes * machine.price_per_hour, rate, rate / peak, p99_ms,
                spread_us and (spread_us[0] / 1000 + network_ms, spread_us[1] / 1000 + network_ms), outcome,
                outcome in ("predicted", "beyond the profile") and p99_ms <= self.given["p99_ms"],
            )  # fmt: skip
            if outcome == "beyond the profile":
                self.beyond |= dict.fromkeys(f"{machine.name}: {note}" for note in point.notes)
        return self.fleets[key]

    def _point(self, machine: _Machine, instances: int, what: str, requests: int, **load: Any) -> PerfPoint:  # fmt: skip
        if self.observer is not None:
            words = f"{what}, instances={instances}"
            self.observer(PerfProgress.step(len(self.fleets), None, words, self.elapsed_s, None))
        report = whatif(
            machine.profile, self.model, instances=instances, batch_size=self.given["batch_size"],
            measurement_mode="count_windows", measurement_request_count=requests, seed=self.given["seed"], **load,
        )  # fmt: skip
        if report.interrupted:
            raise KeyboardInterrupt
        return report.points[0]


def _doublings(most: int) -> Iterator[int]:
    """Return the largest number and the powers of two below it, descending: many instances are seldom worse than few."""
    yield most
    yield from (1 << bit for bit in reversed(range((most - 1).bit_length())))


def _machines(model: str, profile: Profile, given: Mapping[str, Any]) -> list[_Machine]:
    if not given:
        raise InvalidArgumentError(
            "machines is empty",
            hint='such as {"small": {"cpus": 4, "price_per_hour": 0.2}}',
        )
    found = []
    for name, one in given.items():
        check({f"machines[{name!r}]": one}, {f"machines[{name!r}]": MAPPING})
        for key in one:
            if key not in _MACHINE:
                raise InvalidArgumentError(
                    f"machine '{name}' has no '{key}'", hint=nearest(key, _MACHINE)
                )
            label = f"{key} of machine '{name}'"
            check({label: one[key]}, {label: _MACHINE[key]})
        if "price_per_hour" not in one or ("instances" in one) == ("cpus" in one):
            raise InvalidArgumentError(
                f"machine '{name}' needs a price_per_hour, and either instances or cpus; found {', '.join(one) or 'nothing'}"
            )
        own = one.get("profile", profile)
        instances = one.get("instances")
        if instances is None:
            # An instance has at least a core, and those that it was seen to keep busy.
            _, others = model_tree(own, model)
            cores = sum(max(1.0, own.models[each].cores) for each in others)
            instances = math.floor(one["cpus"] / cores)
            if not instances:
                raise InvalidArgumentError(
                    f"machine '{name}' has {measure(one['cpus'])} cpus, and an instance keeps {measure(cores)} busy"
                )
            # What others used there, as a share of the cores, stays as it was.
            busy = None if own.others is None else own.busy * one["cpus"]
            own = replace(own, environment={**own.environment, "cpus": int(one["cpus"])}, others=busy)  # fmt: skip
        found.append(
            _Machine(name, own, instances, one["price_per_hour"], one.get("nodes", math.inf))
        )
    return found
