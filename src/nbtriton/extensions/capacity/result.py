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
from nbtriton.drawing.table import Column, compact_html, notes_html, table_text

if TYPE_CHECKING:
    import pandas as pd

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
        one = self.chosen
        if one is None:
            lowest = min((each.p99_ms for each in self.fleets), default=math.inf)
            return f"{self.model}: no fleet serves {load}: the lowest p99 is {measure(lowest)} ms{ends}"  # fmt: skip
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
