"""``nbtriton.compare``: measurements in turn, and ratios of paired ones with a confidence interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Unpack

from nbtriton.common.checks import check, whole
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.common.packages import data_frame
from nbtriton.drawing.curve import Point, Series
from nbtriton.drawing.table import Column, TableView, compact_html, in_units
from nbtriton.lab.perf.curves import drawn_point
from nbtriton.lab.perf.machine import Others
from nbtriton.lab.perf.options import PerfOptions
from nbtriton.lab.perf.point import PerfPoint, row_of
from nbtriton.lab.perf.progress import Observer, PerfProgress
from nbtriton.lab.perf.report import PerfReport
from nbtriton.lab.perf.run import run
from nbtriton.lab.perf.session import Ending
from nbtriton.lab.perf.settings import PERF, PerfSettings
from nbtriton.options.table import signed
from nbtriton.widgets.static import curve_view

if TYPE_CHECKING:
    import pandas as pd

    from nbtriton.serving.server import Server


Variant = PerfReport | PerfPoint | Mapping[str, Any] | str

# Three windows per measurement: more rounds are more informative than longer ones.
_WINDOWS = 3


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(TableView):
    """Variants measured in turn, displayed as a verdict, a chart of the rounds and a table.

    >>> again = nt.compare("double", "double", server=server, rounds=2, request_count=10)
    >>> again.names, len(again.rounds)
    (('double [1]', 'double [2]'), 2)

    Parameters
    ----------
    names : tuple of str
        One for each variant.
    rounds : tuple of tuple of PerfPoint
        The points of each round, one for each variant.
    interrupted : bool
        Whether the user stopped it; only whole rounds are kept.
    disturbance : str
        What other programs did meanwhile, in a sentence; empty if little or unknown.
    failure : str
        The error that ended it after the first round; empty without.
    """

    names: tuple[str, ...]
    rounds: tuple[tuple[PerfPoint, ...], ...]
    interrupted: bool = False
    disturbance: str = ""
    failure: str = ""

    def ratio(self, variant: int, what: str = "infer_per_s") -> PairedRatio:
        """Return the ratio of a variant's figure to that of the first variant.

        Parameters
        ----------
        variant : int
        what : str
            A figure of `PerfPoint`, such as ``"latency_p99_us"``.

        Examples
        --------
        >>> found = nt.compare(
        ...     {"instances": 1},
        ...     {"instances": 2},
        ...     server=server,
        ...     model="double",
        ...     rounds=1,
        ...     concurrency=1,
        ...     request_count=4,
        ... )
        >>> found.ratio(1).rounds
        1
        """
        first, other = (
            [getattr(points[index], what) for points in self.rounds] for index in (0, variant)
        )
        return paired_ratio(first, other)

    @property
    def verdict(self) -> str:
        """A sentence for each variant after the first."""
        if not self.rounds:
            ended = "ended by an error" if self.failure else "interrupted"
            return f"{ended} before the first round had ended"
        return " ".join(self._sentence(index) for index in range(1, len(self.names)))

    @property
    def frame(self) -> pd.DataFrame:
        """One row per measurement as a pandas DataFrame, with its round and variant."""
        rows = [
            {"round": number, "variant": name, **row_of(point)}
            for number, points in enumerate(self.rounds, 1)
            for name, point in zip(self.names, points, strict=True)
        ]
        return data_frame("a comparison's frame", rows)

    def _sentence(self, index: int) -> str:
        # The throughput of an open loop is its rate, whatever the variant.
        what, words = "infer_per_s", "throughput"
        if self.rounds[0][0].mode != "concurrency":
            what, words = "latency_p99_us", "p99 latency"
        found = self.ratio(index, what)
        first, other = self.names[0], self.names[index]
        if not found.rounds:
            return f"{other} and {first} cannot be compared: no round has requests of both."
        if found.rounds == 1:
            return f"{other} has {found.ratio:.2f}x the {words} of {first} in one round: too few to tell."
        interval = f"(95% confidence: {found.low:.2f} to {found.high:.2f}, {found.rounds} rounds)"
        if found.differs:
            return f"{other} has {found.ratio:.2f}x the {words} of {first} {interval}."
        return f"No difference in {words} can be seen between {other} and {first}: {found.ratio:.2f}x {interval}."

    def _table(self) -> tuple[Sequence[str | Column], Sequence[Sequence[object]], str]:
        columns = [
            Column("variant"), Column("throughput", "infer/s"), Column("p50", "µs"),
            Column("p99", "µs"), Column("throughput by the first"), Column("p50 by the first"),
            Column("p99 by the first"),
        ]  # fmt: skip
        figures = ("infer_per_s", "latency_p50_us", "latency_p99_us")
        rows = []
        for index, name in enumerate(self.names):
            medians = [self._median(index, figure) for figure in figures]
            ratios = [str(self.ratio(index, figure)) if index else "1" for figure in figures]
            rows.append([name, *medians, *ratios])
        caption = self.verdict + (" Interrupted." if self.interrupted and self.rounds else "")
        if self.failure:
            caption += f" Ended by an error: {self.failure}."
        if self.disturbance:
            caption += f" But {self.disturbance}."
        return *in_units(columns, rows), caption

    def _repr_mimebundle_(self, **options: object) -> dict[str, str]:
        bundle = super(Comparison, self)._repr_mimebundle_(**options)

        def drawn(index: int) -> tuple[Point, ...]:
            return tuple(
                replace(drawn_point(f"{index}.{number}", points[index]), load=number)
                for number, points in enumerate(self.rounds, 1)
                if points[index].request_count
            )

        series = [Series(name, drawn(at), "round") for at, name in enumerate(self.names)]
        if any(one.points for one in series):
            columns, rows, verdict = self._table()
            rounds = curve_view(series, title="Comparison", finding=verdict).html
            bundle["text/html"] = rounds + compact_html(columns, rows, (0, 1, 4, 3, 6))
        return bundle

    def _median(self, index: int, figure: str) -> float | None:
        found = (getattr(points[index], figure) for points in self.rounds)
        values = sorted(value for value in found if not math.isnan(value))
        return values[len(values) // 2] if values else None


@signed(PERF)
def compare(
    *variants: Variant,
    server: Server | None = None,
    model: str | None = None,
    rounds: int = 6,
    observer: Observer | None = None,
    **options: Unpack[PerfSettings],
) -> Comparison:
    """Measure variants in turn, so that other load of the machine affects all of them.

    The options are those of `nbtriton.perf` for all variants, with one level of load. A measurement takes three windows
    unless ``max_trials`` is given.

    Parameters
    ----------
    *variants : mapping, str, PerfPoint or PerfReport
        Two or more: options of `nbtriton.perf` by name, the name of a model, a point of a report, which is
        measured again with the same options, or a report, for its best point.
    server : Server, optional
        By default the server of the points.
    model : str, optional
        The model of variants without one.
    rounds : int
        Number of rounds. Each measures every variant once; the order alternates.
    observer : callable, optional
        As for `nbtriton.perf`.
    **options
        See `nbtriton.lab.perf.settings.PerfSettings`.

    Returns
    -------
    Comparison
        After a KeyboardInterrupt: the rounds so far, with ``interrupted=True``; after an error in a later round
        with that in ``failure``.

    Raises
    ------
    InvalidArgumentError
        Fewer than two variants, more than one level, or an unknown or invalid option.

    Examples
    --------
    >>> load = {"server": server, "model": "double", "concurrency": 2, "request_count": 8}
    >>> found = nt.compare({"instances": 1}, {"instances": 2}, rounds=1, **load)
    >>> found.frame["variant"].tolist()
    ['instances=1', 'instances=2']

    Two models, or two points of earlier reports, measured again:

    >>> nt.compare("bert", "bert_quantized", server=server, concurrency=8)  # doctest: +SKIP
    >>> nt.compare(before.points[0], after.points[0])  # doctest: +SKIP
    """
    if len(variants) < 2:
        raise InvalidArgumentError(f"nothing to compare: {len(variants)} variants, not 2 or more")
    check({"rounds": rounds}, {"rounds": whole(1)})
    common = {"max_trials": _WINDOWS, "server": server, "model": model, **options}
    all_options = [_options(variant, common) for variant in variants]
    names = _names(variants, all_options)
    measured: list[tuple[PerfPoint, ...]] = []
    others = Others()
    indices, points = range(len(all_options)), dict[int, PerfPoint]()
    with Ending(measured) as ending:
        for number, turn in product(range(rounds), indices):
            index = turn if number % 2 == 0 else indices[-1 - turn]
            ending.what = what = f"round {number + 1} of {rounds}, {names[index]}"
            report = run(
                all_options[index].observed_by(observer and partial(_renamed, observer, what))
            )
            if report.interrupted:
                raise KeyboardInterrupt
            ending.failure = report.failure
            if ending.failure:
                break
            points[index] = report.points[0]
            if turn == indices[-1]:
                measured.append(tuple(points[index] for index in indices))
    return Comparison(
        names, tuple(measured), ending.interrupted, others.disturbance, ending.failure
    )


def _options(variant: Variant, common: Mapping[str, Any]) -> PerfOptions:
    """Return the options of one measurement."""
    if isinstance(variant, PerfReport):
        variant = variant.best()
    own: dict[str, Any]
    if isinstance(variant, PerfPoint):
        own = _repeated(variant)
    else:
        if not isinstance(variant, str | Mapping):
            raise InvalidArgumentError(
                "a variant is a mapping of options, the name of a model, a point or a report; "
                f"found {variant!r}"
            )
        own = {"model": variant} if isinstance(variant, str) else dict(variant)
    merged = {name: value for name, value in common.items() if value is not None} | own
    if "model" not in merged:
        raise InvalidArgumentError("no model to compare", hint="compare(..., model='name')")
    if merged.get("latency_threshold_ms"):
        raise InvalidArgumentError("a comparison measures every variant, at any latency")
    made = PerfOptions(**merged)
    if made.level_plan().count != 1 or len(made.configurations()) * len(made.batch_sizes()) != 1:
        raise InvalidArgumentError(
            "a variant has one level of load, one configuration and one batch size",
            hint="compare them as variants of their own",
        )
    return made


def _repeated(point: PerfPoint) -> dict[str, Any]:
    """Return the options that measure a point again."""
    if point.source is None:
        raise InvalidArgumentError("this point does not know the model that was measured")
    if point.mode in ("intervals", "periodic", "replay"):
        raise InvalidArgumentError(
            "a point does not keep the intervals of its requests",
            hint="compare mappings with intervals=[...]",
        )
    options: dict[str, Any] = {
        **point.configuration, point.mode: point.value, "batch_size": point.batch_size,
        "model": point.source.model, "model_version": point.source.version, "sweep_models": point.source.sweep_models,
    }  # fmt: skip
    if point.source.server is not None:
        options["server"] = point.source.server
    return options


def _names(variants: Sequence[Variant], all_options: Sequence[PerfOptions]) -> tuple[str, ...]:
    """Name the variants by the options in which they differ."""
    mappings = [each for each in variants if isinstance(each, Mapping)]
    common: set[str] = set()
    if len(mappings) == len(variants):
        first = mappings[0]
        common = {key for key in first if all(_same(each, first, key) for each in mappings)}
    names = []
    for variant, options in zip(variants, all_options, strict=True):
        if isinstance(variant, str):
            names.append(variant)
        elif isinstance(variant, Mapping):
            names.append(
                ", ".join(f"{key}={value}" for key, value in variant.items() if key not in common)
                or "as it is"
            )
        else:
            point = variant.best() if isinstance(variant, PerfReport) else variant
            names.append(", ".join(filter(None, (options.model, point.label))))
    return tuple(
        name if names.count(name) == 1 else f"{name} [{index}]"
        for index, name in enumerate(names, 1)
    )


def _same(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> bool:
    """Return whether an option of two variants is equal: the same object, or equal plain values."""
    if key not in one:
        return False
    value = one[key]
    return value is other[key] or (isinstance(value, str | int | float) and value == other[key])


def _renamed(observer: Observer, what: str, progress: PerfProgress) -> None:
    observer(replace(progress, what=f"{what}: {progress.what}"))


# Student's t for a two-sided interval of 95%, by degrees of freedom; beyond 30 the next lower row.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_T95_BEYOND = ((120, 1.980), (60, 2.000), (40, 2.021), (31, 2.042))


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """The ratio of the second of a pair to the first, over all rounds.

    Parameters
    ----------
    ratio : float
        Geometric mean of the rounds' ratios; nan without a round.
    low, high : float
        Its 95% confidence interval; 0 and infinity below two rounds.
    rounds : int
    """

    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def differs(self) -> bool:
        """Whether 1, no difference, is outside of the interval, to the two decimals that are written."""
        return round(self.low, 2) > 1 or round(self.high, 2) < 1

    def __str__(self) -> str:
        if math.isnan(self.ratio):
            return "\u2013"
        if self.rounds < 2:
            return f"{self.ratio:.2f}x (one round)"
        return f"{self.ratio:.2f}x ({self.low:.2f} to {self.high:.2f})"


def paired_ratio(first: Sequence[float], second: Sequence[float]) -> PairedRatio:
    """Compare two measurements of the same rounds.

    The interval is Student's for the mean of the ratios' logarithms, taken as normal. A drift of the machine
    between rounds cancels out, as it affects both measurements. Rounds with a value that is not positive are
    left out.

    Examples
    --------
    >>> str(paired_ratio([100, 200, 150], [110, 222, 163]))
    '1.10x (1.07 to 1.13)'
    """
    logs = [
        math.log(b / a)
        for a, b in zip(first, second, strict=True)
        if 0 < a < math.inf and 0 < b < math.inf
    ]
    if not logs:
        return PairedRatio(math.nan, 0.0, math.inf, 0)
    middle = statistics.fmean(logs)
    if len(logs) == 1:
        return PairedRatio(math.exp(middle), 0.0, math.inf, 1)
    half = _t95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return PairedRatio(
        math.exp(middle), math.exp(middle - half), math.exp(middle + half), len(logs)
    )


def _t95(degrees: int) -> float:
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    return next(value for least, value in _T95_BEYOND if degrees >= least)
