"""How many nodes of which machine meet a load within a p99 latency, what they cost, and what the loss of one does."""

# Annotations are evaluated: the table of options is read from them.
import math
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from nbtriton.common.checks import (
    CALL,
    MAPPING,
    NAME,
    Kind,
    check,
    is_list,
    is_number,
    number,
    optional,
    whole,
)
from nbtriton.common.errors import InvalidArgumentError, nearest
from nbtriton.common.packages import data_frame
from nbtriton.drawing.curve import Point, Series
from nbtriton.drawing.numbers import count, counted, measure
from nbtriton.drawing.panels import frontier_scenes
from nbtriton.drawing.scene import fitting
from nbtriton.drawing.table import Column, compact_html, notes_html, table_text
from nbtriton.lab.perf.point import PerfPoint, ended
from nbtriton.lab.perf.progress import Observer, PerfProgress
from nbtriton.lab.perf.session import Ending
from nbtriton.lab.perf.settings import Seed
from nbtriton.lab.perf.sweep import model_tree
from nbtriton.lab.simulate.model_profile import Profile
from nbtriton.lab.simulate.prediction import predicted_point
from nbtriton.options.reading import milliseconds
from nbtriton.options.table import Option, read_settings, signed, table_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Capacity", "Fleet", "capacity"]

_COLUMNS = "machine", "nodes", "instances", "price_per_hour", "utilization", "p99_ms", "outcome"


@dataclass(frozen=True, slots=True)
class Fleet:
    """So many nodes of one machine, under their share of the load each.

    Parameters
    ----------
    machine : str
    nodes : int
    instances : int
        Of the model, on each node.
    price_per_hour : float
        Of all nodes.
    requests_per_s : float
        The share of a node.
    utilization : float
        It, as a share of what a node serves at most.
    p99_ms : float
        With the network; infinite if the nodes are overloaded, as it then grows for as long as the load lasts.
    p99_range_ms : (float, float) or None
        Where a measurement should lie, if the profile says it.
    outcome : {"predicted", "beyond the profile", "unstable", "overloaded", "failed"}
        The last two: more came than were served, or requests had errors.
    holds : bool
        Whether all requests are answered within the limit.
    """

    machine: str
    nodes: int
    instances: int
    price_per_hour: float
    requests_per_s: float
    utilization: float
    p99_ms: float
    p99_range_ms: tuple[float, float] | None
    outcome: str
    holds: bool

    @property
    def name(self) -> str:
        """Its nodes and instances, in words."""
        words = f"{counted(self.nodes, 'node')} of {self.machine}, {counted(self.instances, 'instance')}"
        return words if self.nodes == 1 else f"{words} each"


@dataclass(frozen=True, slots=True, repr=False)
class Capacity:
    """The result of `nbtriton.capacity`: plain data with a display in notebooks.

    Parameters
    ----------
    model : str
    request_rate : float
        Requests per second to all nodes together.
    p99_ms : float
        The limit.
    fleets : tuple of Fleet
        All that were simulated, by price.
    chosen : Fleet or None
        The cheapest that holds the limit, also after the losses that were asked for; None if no fleet does.
    after_loss : Fleet or None
        What is left of it after these losses, or after the loss of one node; None if nothing is left.
    notes : tuple of str
    elapsed_s : float
    interrupted : bool
        The user stopped it: a cheaper fleet may exist.
    failure : str
        The error that ended it after the first fleet, in a sentence; empty without. Likewise.
    """

    model: str
    request_rate: float
    p99_ms: float
    fleets: tuple[Fleet, ...]
    chosen: Fleet | None
    after_loss: Fleet | None
    notes: tuple[str, ...]
    elapsed_s: float
    interrupted: bool = False
    failure: str = ""

    @property
    def frame(self) -> "pd.DataFrame":
        """One row a fleet as a pandas DataFrame, by price; units are in the column names."""
        return data_frame("a capacity plan's frame", map(asdict, self.fleets))

    @property
    def headline(self) -> str:
        """The choice with its price and p99, and what the loss of a node does, in a sentence."""
        load = f"{measure(self.request_rate)} requests/s within p99 {measure(self.p99_ms)} ms"
        ends = ended(self.interrupted, self.failure)
        one = self.chosen
        if one is None:
            known = [
                each.p99_ms for each in self.fleets if each.outcome not in ("overloaded", "failed")
            ]
            lowest = f": the lowest p99 is {measure(min(known))} ms" if known else ""
            none = "none of the fleets that were simulated serves" if ends else "no fleet serves"
            return f"{self.model}: {none} {load}{lowest}{ends}"
        sure = "" if one.outcome == "predicted" else f" ({one.outcome})"
        return (
            f"{self.model}: {one.name} ({count(one.nodes * one.instances)} in all) serve {load}: p99 {measure(one.p99_ms)} ms, "
            f"{one.price_per_hour:,.2f} an hour{sure}; {_loss(one, self.after_loss)}{ends}"
        )

    def _picture(self) -> str:
        """Draw p99 against price: the fleets, the limit, the choice with a ring, and what is left of it."""
        special = {self.after_loss: "after the loss", self.chosen: "the choice"}
        groups: dict[str, list[Point]] = {}
        for one in self.fleets:
            if math.isfinite(one.p99_ms):
                groups.setdefault(special.get(one, one.machine), []).append(_point(one))
        series = [Series(name, tuple(points), "nodes", name != "the choice") for name, points in groups.items()]  # fmt: skip
        if not series:
            return f"<p>{escape(self.headline)}</p>"
        scenes = frontier_scenes(
            series, title=self.model, finding=self.headline, target_ms=self.p99_ms,
            across=("price", "an hour"), key="ring: the choice",
        )  # fmt: skip
        return fitting(scenes)

    def __repr__(self) -> str:
        return f"<Capacity {self.headline}>"

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        rows = [one for one in self.fleets if one.holds or one == self.after_loss]
        cells = [[getattr(one, name) for name in _COLUMNS] for one in rows]
        columns = list(map(Column.of, _COLUMNS))
        summary = f"{counted(len(self.fleets), 'fleet')} simulated in {measure(self.elapsed_s)} s"
        text = [self.headline, summary, *([table_text(columns, cells)] if cells else [])]
        table = compact_html(columns, cells, ()) if cells else ""
        html = (
            f'<div class="nbt-perf">{self._picture()}{notes_html(self.notes)}'
            f"<details><summary>{summary}</summary>{table}</details></div>"
        )
        text += [f"note: {note}" for note in self.notes]
        return {"text/plain": "\n".join(text), "text/html": html}


def _loss(chosen: Fleet, left: Fleet | None) -> str:
    if left is None:
        return "the loss of its node leaves nothing"
    lost = chosen.nodes - left.nodes
    words = f"without {'one' if lost == 1 else lost} of them {measure(left.requests_per_s)} requests/s a node"
    if left.outcome == "overloaded":
        return f"{words}, which are overloaded"
    return f"{words} and p99 {measure(left.p99_ms)} ms, {'still within' if left.holds else 'over'} the limit"


def _point(one: Fleet) -> Point:
    details = ("machine", one.machine), ("instances of a node", str(one.instances))
    key = f"{one.machine} {one.instances} {one.nodes}"
    return Point(one.nodes, one.price_per_hour, {99: one.p99_ms}, "stable", (), details, key)


def _times(text: str) -> tuple[float, ...]:
    return tuple(map(milliseconds, text.split(",")))


def _is_network(value: Any) -> bool:
    times = value if is_list(value) else [value]
    return bool(times) and all(is_number(each) and each >= 0 for each in times)


_NETWORK = Kind(_is_network, "a number from 0 on, or a list of them")


class CapacitySettings(TypedDict, total=False):
    """The load, its limit and the machines."""

    request_rate: Annotated[float, Option(
        "--request-rate", "requests per second to all nodes together; needed", "N", float, kind=number(above=0))]  # fmt: skip
    p99_ms: Annotated[float, Option(
        "--p99", "the p99 latency is to be at most this, in milliseconds; needed", "50ms", milliseconds, kind=number(above=0))]  # fmt: skip
    machines: Annotated["Mapping[str, Mapping[str, Any]]", Option(
        "--machines", "what a node may be, by name: price_per_hour, and instances (of a node, at most) or cpus; nodes (how many "
        "there are) and a profile of its own where it has them; needed", "EXPR", kind=MAPPING)]  # fmt: skip
    losses: Annotated[int, Option(
        "--losses", "so many nodes may be lost, and the limit still holds (0)", "N", int, 0, kind=whole(0))]  # fmt: skip
    network_ms: Annotated["float | Sequence[float]", Option(
        "--network", "the way to a node and back: a time, or measured ones, of which each request has one (0)", "2ms,…", _times, 0.0,
        kind=_NETWORK)]  # fmt: skip
    batch_size: Annotated[int, Option("-b --batch-size", "rows per request (1)", "N", int, 1, kind=whole(1))]  # fmt: skip
    seed: Seed


CAPACITY = table_of(CapacitySettings)


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
        After a KeyboardInterrupt, or an error once a fleet was simulated: of what was simulated until then.

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
    with Ending(search.fleets) as ending:
        for machine in sorted(machines, key=lambda one: one.price_per_hour / one.instances):
            search.of(machine)
    if ending.interrupted and not search.fleets:
        raise KeyboardInterrupt
    if ending.failure:
        search.notes[ending.failure] = None
    for one in machines if len(machines) > 1 else ():
        if "profile" not in given["machines"][one.name]:
            search.notes[f"{one.name} has no profile of its own: it is taken to be as fast as the profiled machine"] = None  # fmt: skip
    return Capacity(
        search.model, given["request_rate"], given["p99_ms"],
        tuple(sorted(search.fleets.values(), key=lambda one: (one.price_per_hour, one.p99_ms))),
        *search.chosen, tuple(search.notes), time.monotonic() - search.started_s, ending.interrupted, ending.failure,
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
        return predicted_point(
            machine.profile, self.model, instances=instances, batch_size=self.given["batch_size"],
            measurement_mode="count_windows", measurement_request_count=requests, seed=self.given["seed"], **load,
        )  # fmt: skip


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
