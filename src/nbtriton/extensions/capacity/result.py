"""The result of a capacity plan: the fleets that were simulated, the chosen one, and what is left of it after a loss."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING

from nbtriton.common.packages import needed
from nbtriton.drawing.curve import Point, Series
from nbtriton.drawing.numbers import count, counted, measure
from nbtriton.drawing.panels import frontier_scenes
from nbtriton.drawing.scene import fitting
from nbtriton.drawing.table import Column, compact_html, table_text

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = {
    "machine": Column("machine"),
    "nodes": Column("nodes"),
    "instances": Column("instances a node"),
    "price_per_hour": Column("price", "an hour"),
    "utilization": Column("utilization"),
    "p99_ms": Column("p99", "ms"),
    "outcome": Column("outcome"),
}


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

    @property
    def frame(self) -> pd.DataFrame:
        """One row a fleet as a pandas DataFrame, by price; units are in the column names."""
        with needed("a capacity plan's frame"):
            import pandas as pd

        return pd.DataFrame([asdict(fleet) for fleet in self.fleets])

    @property
    def headline(self) -> str:
        """The choice with its price and p99, and what the loss of a node does, in a sentence."""
        load = f"{measure(self.request_rate)} requests/s within p99 {measure(self.p99_ms)} ms"
        ends = ", interrupted" if self.interrupted else ""
        if self.chosen is None:
            lowest = min((one.p99_ms for one in self.fleets), default=math.inf)
            return f"{self.model}: no fleet serves {load}: the lowest p99 is {measure(lowest)} ms{ends}"  # fmt: skip
        total = self.chosen.nodes * self.chosen.instances
        words = (
            f"{self.model}: {self.chosen.name} ({count(total)} in all) serve {load}: p99 {measure(self.chosen.p99_ms)} ms, "
            f"{self.chosen.price_per_hour:,.2f} an hour"
        )
        if self.chosen.outcome != "predicted":
            words += f" ({self.chosen.outcome})"
        return f"{words}; {self._loss()}{ends}"

    def _loss(self) -> str:
        assert self.chosen is not None
        left = self.after_loss
        if left is None:
            return "the loss of its node leaves nothing"
        lost = self.chosen.nodes - left.nodes
        words = f"without {'one' if lost == 1 else lost} of them {measure(left.requests_per_s)} requests/s a node"
        if left.outcome == "overloaded":
            return f"{words}, which are overloaded"
        if left.holds:
            return f"{words} and p99 {measure(left.p99_ms)} ms, still within the limit"
        return f"{words} and p99 {measure(left.p99_ms)} ms, over the limit"

    def _picture(self) -> str:
        """Draw p99 against price: the fleets, the limit, the choice with a ring, and what is left of it."""
        rest = [one for one in self.fleets if one not in (self.chosen, self.after_loss)]
        groups = [
            (name, [one for one in rest if one.machine == name], True)
            for name in dict.fromkeys(one.machine for one in rest)
        ]
        if self.chosen is not None:
            groups.append(("the choice", [self.chosen], False))
        if self.after_loss is not None:
            groups.append(("after the loss", [self.after_loss], True))
        series = [
            Series(name, tuple(map(_point, fleets)), load_name="nodes", predicted=predicted)
            for name, fleets, predicted in groups
        ]
        series = [one for one in series if one.drawn]
        if not series:
            return f"<p>{escape(self.headline)}</p>"
        return fitting(
            frontier_scenes(
                series, title=self.model, finding=self.headline, target_ms=self.p99_ms,
                across=("price", "an hour"), key="ring: the choice",
            )
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<Capacity {self.headline}>"

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        chosen = [one for one in (self.chosen, self.after_loss) if one is not None]
        others = [one for one in self.fleets if one.holds and one not in chosen]
        cells = [[getattr(one, name) for name in _COLUMNS] for one in (*chosen, *others)]
        columns = list(_COLUMNS.values())
        summary = f"{counted(len(self.fleets), 'fleet')} simulated in {measure(self.elapsed_s)} s"
        text = [self.headline, summary, *([table_text(columns, cells)] if cells else [])]
        items = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        table = compact_html(columns, cells, ()) if cells else ""
        html = (
            f'<div class="nbt-perf">{self._picture()}<ul>{items}</ul>'
            f"<details><summary>{summary}</summary>{table}</details></div>"
        )
        return {
            "text/plain": "\n".join([*text, *(f"note: {note}" for note in self.notes)]),
            "text/html": html,
        }


def _point(one: Fleet) -> Point:
    details = ("machine", one.machine), ("instances of a node", str(one.instances))
    latency_ms = {99: one.p99_ms} if math.isfinite(one.p99_ms) else {}
    key = f"{one.machine} {one.instances} {one.nodes}"
    return Point(one.nodes, one.price_per_hour, latency_ms, "stable", (), details, key)
