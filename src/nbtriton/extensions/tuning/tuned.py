"""The result of a tuning: its finalists, its display, its application to a server."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from html import escape
from typing import TYPE_CHECKING, Any, Self

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.common.packages import data_frame
from nbtriton.drawing.curve import Point, Series
from nbtriton.drawing.living import advice_html, advice_text
from nbtriton.drawing.numbers import counted, measure
from nbtriton.drawing.panels import frontier_scenes
from nbtriton.drawing.scene import beside, fitting
from nbtriton.drawing.table import Column, compact_html, in_units, notes_html, table_text
from nbtriton.extensions.tuning.search import Candidate
from nbtriton.lab.perf.point import (
    AppliedConfiguration,
    PerfPoint,
    config_cells,
    describe,
    ended,
    option_text,
)
from nbtriton.lab.perf.sweep import Configurator
from nbtriton.model.config import ModelConfig, format_pbtxt

if TYPE_CHECKING:
    import pandas as pd

    from nbtriton.serving.server import Server

# Points of a picture; a search of half a minute finds a few hundred.
_MOST_DRAWN = 150
_PRE = '<pre style="font-family:monospace;overflow-x:auto">'
_MEASURED = ("infer_per_s", "latency_p50_us", "latency_p99_us")


@dataclass(frozen=True, slots=True, repr=False)
class Tuning:
    """The result of `nbtriton.tune`: has a display in notebooks, and can be applied.

    Parameters
    ----------
    model : str
    finalists : tuple of Candidate
        Measured, the best first.
    candidates : tuple of Candidate
        All predicted configurations, the best first.
    configs : mapping of str to ModelConfig
        The best configuration: of each model that it changes.
    simulated : int
        Number of simulated loads.
    notes : tuple of str
    elapsed_s : float
    interrupted : bool
    p99_ms : float or None
        The limit of the p99 latency.
    today : PerfPoint or None
        The best predicted point of the configuration that the models had.
    originals : mapping of str to ModelConfig
        That configuration, of each model of `configs`.
    failure : str
        The error that ended it, in a sentence; empty without.

    Examples
    --------
    >>> choices = {"instances": [1, 2], "max_batch_size": [8], "max_queue_delay_us": [0]}
    >>> profile = nt.types.Profile.declared({"double": {1: 2, 8: 4}})
    >>> best = nt.tune(server, "double", **choices, profile=profile, finalists=1, duration_s=20)
    >>> len(best.candidates), best.interrupted
    (2, False)
    >>> applied = best.apply()
    >>> server.config("double").instance_group[0].count == best.models["double"]["instances"]
    True
    """

    model: str
    finalists: tuple[Candidate, ...]
    candidates: tuple[Candidate, ...]
    configs: Mapping[str, ModelConfig]
    simulated: int = 0
    notes: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    interrupted: bool = False
    server: Server | None = field(default=None, compare=False)
    p99_ms: float | None = None
    today: PerfPoint | None = None
    originals: Mapping[str, ModelConfig] = field(default_factory=dict)
    failure: str = ""

    @property
    def best(self) -> PerfPoint:
        """The best point: measured, or predicted if an interrupt or an error came before."""
        return self.finalists[0].result

    @property
    def models(self) -> Mapping[str, Mapping[str, Any]]:
        """The options of the best configuration, by model."""
        return self.finalists[0].options

    @property
    def configuration(self) -> dict[str, Any]:
        """The best configuration and its load, as options of `nbtriton.perf`.

        Of an ensemble whose models have options of their own only the load: `apply` sets the rest.
        """
        options = list(self.models.values())
        if all("placement" in each for each in options):
            devices = {name: each["placement"] for name, each in self.models.items()}
            return {"placement": devices, str(self.best.mode): self.best.value}
        same = all(each == options[0] for each in options)
        return {**(options[0] if same else {}), str(self.best.mode): self.best.value}

    @property
    def config_pbtxt(self) -> str:
        """The text of ``config.pbtxt`` of each model, under a comment with its path."""
        return AppliedConfiguration(self.configs).config_pbtxt

    @property
    def frontier(self) -> pd.DataFrame:
        """The predicted candidates that none beats in both throughput and p99 latency."""
        best, lowest = [], float("inf")
        for one in sorted(self.candidates, key=lambda each: -each.predicted.infer_per_s):
            if one.predicted.latency_p99_us < lowest:
                lowest = one.predicted.latency_p99_us
                best.append(one)
        return data_frame("a frontier", [_row(one, one.predicted) for one in reversed(best)])

    def apply(self, server: Server | None = None) -> AppliedConfiguration:
        """Load the models with the best configuration.

        Returns
        -------
        AppliedConfiguration
            Displayed as their ``config.pbtxt``.
        """
        target = server or self.server
        if target is None:
            raise InvalidArgumentError("no server", hint="give one: tuning.apply(server)")
        configurator = Configurator(target, self.model, [])
        configurator.apply_each(self.models)
        return AppliedConfiguration({name: target.config(name) for name in configurator.models})

    def __copy__(self) -> Self:
        return replace(self)

    # A deep copy, or one from a pickle, is plain data: without the server.
    def __reduce__(self) -> tuple[Any, ...]:
        given = (getattr(self, one.name) for one in fields(self))
        return type(self), tuple(None if value is self.server else value for value in given)

    @property
    def headline(self) -> str:
        """A one-line summary of the search."""
        words = (
            f"{self.model}: {simulated_text(len(self.candidates))}, "
            f"{sum(one.measured is not None for one in self.finalists)} measured in {measure(self.elapsed_s)} s"
        )
        return words + ended(self.interrupted, self.failure)

    @property
    def finding(self) -> str:
        """The chosen configuration with its load and result, the limit, and what today's is predicted to do, in a sentence."""
        chosen = self.finalists[0]
        load = f"{str(self.best.mode).replace('_', ' ')} {self.best.value:g}"
        how = "predicted" if chosen.measured is None else "measured"
        p99_ms = self.best.latency_p99_us / 1000
        words = (
            f"chosen: {describe(load, flat_options(chosen.options), 1)}; {how} {measure(self.best.infer_per_s)} infer/s, "
            f"p50 {measure(self.best.latency_p50_us / 1000)} ms, p99 {measure(p99_ms)} ms"
        )
        if self.p99_ms is not None and p99_ms > self.p99_ms:
            words += (
                f", {measure(p99_ms - self.p99_ms)} ms over the limit of {measure(self.p99_ms)} ms"
            )
        elif self.p99_ms is not None and self.best.request_count:
            words += f", within the limit of {measure(self.p99_ms)} ms"
        if self.today is not None:
            # Both predicted: a measurement beside a prediction would compare two methods.
            before, after = (
                (measure(one.infer_per_s), measure(one.latency_p99_us / 1000))
                for one in (self.today, chosen.predicted)
            )
            if before != after:
                words += f"; predicted from {before[0]} to {after[0]} infer/s, p99 from {before[1]} to {after[1]} ms"
        return words

    @property
    def difference(self) -> str:
        """What `apply` changes, as a unified difference of each model's ``config.pbtxt``."""
        lines: list[str] = []
        for name, config in self.configs.items():
            before, after = (
                format_pbtxt(one).splitlines(keepends=True) for one in (self.originals.get(name, config), config)
            )  # fmt: skip
            file = f"{name}/config.pbtxt"
            lines += difflib.unified_diff(before, after, file, file, n=2)
        return "".join(lines)

    def _picture(self) -> str:
        """Draw p99 against throughput: what was simulated and measured, today's, and the limit."""
        drawn = self.candidates[:_MOST_DRAWN]
        simulated = [_point(f"s{at}", one.predicted, one.options) for at, one in enumerate(drawn)]
        measured = [
            _point(str(at), one.measured, one.options)
            for at, one in enumerate(self.finalists)
            if one.measured is not None
        ]
        series = [Series(f"{len(drawn)} configurations", tuple(simulated), predicted=True)]
        if measured:
            series.append(Series("measured", tuple(measured)))
        if self.today is not None:
            today = _point("today", self.today, {})
            series.append(Series("as it is today", (today,), predicted=True))
        return fitting(
            frontier_scenes(series, title=self.model, finding=self.finding, target_ms=self.p99_ms)
        )

    def __repr__(self) -> str:
        return f"<Tuning {self.headline}>"

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        rows = [
            {
                **_row(one, one.result),
                **({} if one.measured else dict.fromkeys(_MEASURED)),
                "predicted": one.predicted.infer_per_s,
                "predicted_p99_us": one.predicted.latency_p99_us,
            }
            for one in self.finalists
        ]
        titles = {
            "memory_mb": Column("memory", "MB"),
            "infer_per_s": Column("measured", "infer/s"),
            "latency_p50_us": Column("p50", "µs"),
            "latency_p99_us": Column("p99", "µs"),
            "predicted": Column("predicted", "infer/s"),
            "predicted_p99_us": Column("predicted p99", "µs"),
        }
        names = list(rows[0])
        columns = [titles.get(name) or Column.of(name) for name in names]
        columns, cells = in_units(columns, [[row[name] for name in names] for row in rows])
        apply = "best.apply()", "it is applied so, where best is what the search returned"
        text = [self.finding, self.headline, table_text(columns, cells)]
        text += [*(f"note: {note}" for note in self.notes)]
        if self.difference:
            text += [self.difference, *advice_text(*apply)]
        text.append(self.config_pbtxt)
        # The options that differ between the finalists, and their results.
        differ = [name for name in names if any(row[name] != rows[0][name] for row in rows)]
        results = ("infer_per_s", "latency_p99_us", "predicted", "predicted_p99_us")
        important = [*(name for name in differ if name not in titles), *results]
        first = [names.index(name) for name in important if name in names]
        changed = {
            name: one for name, one in self.configs.items() if one != self.originals.get(name)
        }
        data = json.dumps({"0": config_cells(changed)} if changed else {})
        keys = [str(at) for at in range(len(rows))]
        change = "<p>It is the configuration of today.</p>"
        if self.difference:
            change = f"{_PRE}{escape(self.difference)}</pre>{advice_html(*apply)}"
        rest = (
            f"{notes_html(self.notes)}{change}<details><summary>{escape(self.headline)}</summary>"
            f"{compact_html(columns, cells, first, keys=keys)}</details>"
            f"<details><summary>its config.pbtxt</summary>{_PRE}{escape(self.config_pbtxt)}</pre></details>"
        )
        html = (
            f'<div class="nbt-perf nbt-chart" data-name="{escape(self.model)}" data-cells="{escape(data)}">'
            f"{beside(self._picture(), rest)}</div>"
        )
        return {"text/plain": "\n".join(text), "text/html": html}


def _point(key: str, point: PerfPoint, options: Mapping[str, Mapping[str, Any]]) -> Point:
    details = [(name, str(option_text(value))) for name, value in flat_options(options).items()]
    p99_ms = {99: point.latency_p99_us / 1000} if point.request_count else {}  # it is drawn nowhere
    return Point(point.value, point.infer_per_s, p99_ms, "stable", (), tuple(details), key)


def simulated_text(count: int) -> str:
    """Return how many configurations were simulated, in words."""
    return f"{counted(count, 'configuration')} simulated"


def flat_options(options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the options of one model as they are, of several with the model's name as prefix."""
    if len(options) == 1:
        return dict(next(iter(options.values())))
    return {
        f"{model}.{name}": value for model, each in options.items() for name, value in each.items()
    }


def _row(one: Candidate, point: PerfPoint) -> dict[str, Any]:
    return {
        **flat_options(one.options),
        **({"memory_mb": one.memory_mb} if one.memory_mb else {}),
        point.mode: point.value,
        "infer_per_s": point.infer_per_s,
        "latency_p50_us": point.latency_p50_us,
        "latency_p99_us": point.latency_p99_us,
    }
