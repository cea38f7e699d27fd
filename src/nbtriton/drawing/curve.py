"""Throughput and latency against load: the points, their axes and the sentence that sums them up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from nbtriton.drawing.numbers import log_ticks, measure, nice_ticks, plain, sparkline

NOTHING = "nothing measured yet"
# Beyond this ratio of the highest to the lowest latency a linear axis hides the low end.
_LOG_FROM = 12.0
# Throughputs that differ by less are the same.
_SAME = 0.01
# Room left above a point that extends an axis while a sweep runs.
_HEADROOM = 1.6

_Candidate = TypeVar("_Candidate")


@dataclass(frozen=True, slots=True)
class Point:
    """One measured load.

    Attributes
    ----------
    load : float
        Concurrency, or requests per second offered.
    throughput : float
        Inferences per second.
    latency_ms : mapping of int to float
        Percentile to milliseconds: ``{50: 3.1, 90: 4.0, 99: 8.2}``.
    outcome : str
        ``"stable"``, or why the figures may not hold: ``"unstable"``, ``"not judged"``, ``"interrupted"``, …
    throughputs : tuple of float
        Of each window that counts.
    details : tuple of (str, str)
        Its configuration.
    key : str
        Links it to its row of a table; by default its series and load do.
    """

    load: float
    throughput: float
    latency_ms: Mapping[int, float] = field(default_factory=dict)
    outcome: str = "stable"
    throughputs: tuple[float, ...] = ()
    details: tuple[tuple[str, str], ...] = ()
    key: str = ""

    @property
    def stable(self) -> bool:
        """False if the point is drawn hollow."""
        return self.outcome in ("stable", "predicted")

    @property
    def low_ms(self) -> float:
        """The latency of its lowest percentile; it has one."""
        return self.latency_ms[min(self.latency_ms)]

    @property
    def high_ms(self) -> float:
        """The latency of its highest percentile; it has one."""
        return self.latency_ms[max(self.latency_ms)]


@dataclass(frozen=True, slots=True)
class Series:
    """The loads of one configuration, measured or predicted; ``quick`` in windows too short to judge by."""

    name: str
    points: tuple[Point, ...] = ()
    load_name: str = "concurrency"
    predicted: bool = False
    quick: bool = False

    @property
    def label(self) -> str:
        """Its name, marked if it is predicted."""
        return f"{self.name} (predicted)" if self.predicted else self.name

    @property
    def drawn(self) -> tuple[Point, ...]:
        """The points with a latency, by load."""
        return tuple(sorted((p for p in self.points if p.latency_ms), key=lambda p: p.load))

    def key(self, point: Point) -> str:
        """What the marks of a point and its rows of tables have in common."""
        return point.key or f"{self.label} {point.load:g}"


def highest(
    candidates: Iterable[_Candidate],
    throughput: Callable[[_Candidate], float],
    latency: Callable[[_Candidate], float],
) -> _Candidate:
    """Return the candidate with the highest throughput; of those within 1% of it, the one with the lowest latency.

    Under an open loop every configuration that keeps up has the same throughput, up to noise.
    """
    known = list(candidates)
    least = max(map(throughput, known)) * (1 - _SAME)
    return min((each for each in known if throughput(each) >= least), key=latency)


# A point and its configuration.
_Pair = tuple[Series, Point]


@dataclass(frozen=True, slots=True)
class Top:
    """The point with the highest throughput, and what can be said about it.

    Attributes
    ----------
    series : Series
    point : Point
    rivals : tuple of (Series, Point)
        The highest point of each other configuration whose throughput is not measurably lower: the
        ranges of the windows overlap, or are not known.
    peers : tuple of Point
        The same for its own configuration at other loads.
    """

    series: Series
    point: Point
    rivals: tuple[_Pair, ...] = ()
    peers: tuple[Point, ...] = ()

    @property
    def judged(self) -> bool:
        """Whether its own measurement is stable."""
        return self.point.stable and not self.series.quick

    @property
    def level(self) -> bool:
        """Whether another configuration has its throughput, within 1%."""
        least = self.point.throughput * (1 - _SAME)
        return any(point.throughput >= least for _, point in self.rivals)

    @property
    def best(self) -> bool:
        """Whether it is the best of all: its range overlaps with no other."""
        return self.judged and not self.rivals and not self.peers


def top_of(series: Sequence[Series], target_ms: float | None = None) -> Top | None:
    """Return the point with the highest throughput whose highest percentile meets the target, by `highest`.

    A predicted point counts only if none was measured.
    """
    fit = _within([(one, point) for one in series for point in one.drawn], target_ms)
    pairs = [pair for pair in fit if not pair[0].predicted] or fit
    if not pairs:
        return None
    one, point = highest(pairs, lambda pair: pair[1].throughput, lambda pair: pair[1].high_ms)
    alike = [pair for pair in pairs if pair[1] is not point and not _differs(pair, (one, point))]
    others = [
        max((pair for pair in alike if pair[0] is other), key=lambda pair: pair[1].throughput)
        for other in series
        if other is not one and any(pair[0] is other for pair in alike)
    ]
    return Top(one, point, tuple(others), tuple(p for each, p in alike if each is one))


def _differs(lower: _Pair, higher: _Pair) -> bool:
    """Return whether the windows of two points have no throughput in common, and lie more than 1% apart."""
    low, high = _range(*lower), _range(*higher)
    apart = lower[1].throughput < higher[1].throughput * (1 - _SAME)
    return apart and low is not None and high is not None and low[1] < high[0]


def _range(series: Series, point: Point) -> tuple[float, float] | None:
    """Return the range of a point's windows: exact if it is predicted, None for a single window."""
    if len(point.throughputs) > 1:
        return min(point.throughputs), max(point.throughputs)
    return (point.throughput, point.throughput) if series.predicted else None


def _within(pairs: Sequence[_Pair], target_ms: float | None) -> list[_Pair]:
    """Return the points whose highest percentile meets the target."""
    return [(one, point) for one, point in pairs if target_ms is None or point.high_ms <= target_ms]


def curve_finding(series: Sequence[Series], target_ms: float | None = None) -> str:
    """Return a summary of the curves: the highest point, what it costs, and how it compares.

    A configuration is called the best only where the ranges of the windows do not overlap.
    """
    everything = [(one, point) for one in series for point in one.drawn]
    if not everything:
        return NOTHING
    top = top_of(series, target_ms)
    if top is None:
        one, low = min(everything, key=lambda pair: pair[1].high_ms)
        return (
            f"no level keeps p{max(low.latency_ms)} within {_ms(target_ms or 0.0)}: the lowest is "
            f"{_ms(low.high_ms)} at {one.load_name} {plain(low.load)}"
        )
    one, point = top.series, top.point
    several = len({each.label for each in series if each.drawn}) > 1
    sentence = f"up to {measure(point.throughput)} infer/s at {one.load_name} {plain(point.load)}"
    if not point.stable:
        sentence += f", {point.outcome}" + _range_text(one, point)
    sentence += f", p{max(point.latency_ms)} {_ms(point.high_ms)}"
    if target_ms is not None:
        sentence += f", within the target of {_ms(target_ms)}"
    if several and top.judged and not top.rivals:
        sentence = f"{one.label} is best: {sentence}" + _times(series, top)
    elif several and (top.judged or top.level):
        sentence = f"{_no_difference(top)}; {sentence} with {one.label}"
    elif several:
        sentence = (
            f"{one.label} is the highest: {sentence}; no winner is named, as it is {_unjudged(top)}"
        )
    else:
        sentence += _cost(top)
    if top.peers and top.judged and not top.rivals:
        loads = " and ".join(plain(peer.load) for peer in top.peers[:2])
        sentence += f"; no difference to be seen to {one.load_name} {loads}"
    unstable = sum(
        not (each.quick or p.stable) and p.outcome not in ("not judged", "beyond the profile")
        for each, p in everything
    )
    if unstable:
        sentence += f"; {unstable} of {len(everything)} levels not stable"
    return sentence


def _unjudged(top: Top) -> str:
    if not top.point.stable:
        return "one window" if top.point.outcome == "not judged" else top.point.outcome
    return "a quick measurement"


def _range_text(one: Series, point: Point) -> str:
    ends = _range(one, point)
    return f" ({_span(ends)})" if ends and ends[0] < ends[1] else ""


def _span(ends: tuple[float, float]) -> str:
    low, high = map(measure, ends)
    return low if low == high else f"{low} to {high}"


def _no_difference(top: Top) -> str:
    """Name the configurations that cannot be told apart, with the ranges of their windows."""
    pairs = [(top.series, top.point), *top.rivals[:2]]
    names = " and ".join(one.label for one, _ in pairs)
    ranges = [_range(one, point) for one, point in pairs]
    if None in ranges:
        return f"no difference in throughput to be seen between {names}"
    words = " and ".join(_span(ends) for ends in ranges if ends)
    return f"no difference in throughput to be seen between {names} ({words} infer/s)"


def _times(series: Sequence[Series], top: Top) -> str:
    """Compare the best point with the best of the weakest configuration: a factor below 1.1 as per cent, with the ranges."""
    others = [
        (each, max(each.drawn, key=lambda p: p.throughput))
        for each in series
        if each.drawn and each is not top.series and not each.predicted
    ]
    weakest, low = min(others, key=lambda pair: pair[1].throughput, default=(None, None))
    if weakest is None or low is None or not 0 < low.throughput < top.point.throughput:
        return ""
    ratio = top.point.throughput / low.throughput
    if ratio >= 1.1:
        return f"; {measure(ratio, 2)} times the throughput of {weakest.label}"
    ranges = [_range(*pair) for pair in ((top.series, top.point), (weakest, low))]
    spans = [_span(ends) for ends in ranges if ends]
    against = f" ({' against '.join(spans)} infer/s)" if all(ranges) else ""
    return f"; {measure(100 * (ratio - 1), 2)}% more than {weakest.label}{against}"


def _cost(top: Top) -> str:
    """Compare the highest point with the lowest load."""
    first, highest_percentile = top.series.drawn[0], max(top.point.latency_ms)
    if first is top.point or highest_percentile not in first.latency_ms:
        return ""
    return (
        f" (at {plain(first.load)}: {measure(first.throughput)} infer/s, "
        f"{_ms(first.latency_ms[highest_percentile])})"
    )


def _ms(value: float) -> str:
    return f"{measure(value)} ms" if value >= 1 else f"{measure(value * 1000)} µs"


def latency_unit(series: Sequence[Series]) -> tuple[str, float]:
    """Return the unit of all latencies, and how many of it make a millisecond."""
    values = [v for one in series for p in one.drawn for v in p.latency_ms.values()]
    return ("ms", 1.0) if max(values, default=1.0) >= 1 else ("µs", 1000.0)


def curve_text(series: Sequence[Series], *, title: str = "") -> str:
    """Write the measured loads as aligned columns, with a sparkline for each configuration."""
    lines = [title] if title else []
    unit, per_ms = latency_unit(series)
    for one in series:
        percentiles = sorted({p for point in one.points for p in point.latency_ms})
        head = [one.load_name, "infer/s", *(f"p{p} {unit}" for p in percentiles)]
        body = [
            [
                plain(point.load) + ("" if point.stable else f" {point.outcome}"),
                measure(point.throughput),
                *(measure(point.latency_ms.get(p, math.nan) * per_ms) for p in percentiles),
            ]
            for point in one.points
        ]
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        lines.append(
            f"{one.label}  {sparkline([point.throughput for point in one.points])}".rstrip()
        )
        for row in (head, *body):
            cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            lines.append("  " + "  ".join(cells))
    return "\n".join(lines) if lines else NOTHING


@dataclass(frozen=True, slots=True)
class Limits:
    """The ends of the axes.

    Attributes
    ----------
    loads : tuple of float
        The loads that are or will be measured.
    throughput : float
        The top of its axis, which begins at 0.
    latency_ms : tuple of float
        The ticks of the latency axis.
    log : bool
        Whether the latency axis is logarithmic.
    """

    loads: tuple[float, ...] = ()
    throughput: float = 0.0
    latency_ms: tuple[float, ...] = ()
    log: bool = False


def curve_limits(
    series: Sequence[Series],
    *,
    target_ms: float | None = None,
    loads: Sequence[float] = (),
    before: Limits | None = None,
) -> Limits:
    """Return axes that show every point.

    Parameters
    ----------
    series : sequence of Series
    target_ms : float, optional
        Also shown.
    loads : sequence of float, optional
        That will be measured.
    before : Limits, optional
        The current axes: they stay as they are while they show every point, and otherwise grow by
        enough to last for a while.
    """
    points = [point for one in series for point in one.drawn]
    values = [value for point in points for value in point.latency_ms.values() if value > 0]
    values += [target_ms] if target_ms else []
    rates = [rate for point in points for rate in (point.throughput, *point.throughputs)]
    grow = _HEADROOM if loads or before is not None else 1.0
    top = max(rates, default=0.0)
    kept = before if before is not None else Limits()
    throughput = kept.throughput
    if top > throughput:
        throughput = nice_ticks(0, top * grow, 4)[-1]
    low, high = min(values, default=0.1), max(values, default=1.0)
    # More than six decades cannot be read; lower latencies are drawn on the axis.
    low = max(low, high / 1e6)
    ticks = kept.latency_ms
    log = kept.log or high / low > _LOG_FROM
    if not ticks or low < ticks[0] or high > ticks[-1] or log != kept.log:
        ticks = log_ticks(low / grow, high * grow) if log else nice_ticks(0, high * grow, 4)
    every = {*loads, *kept.loads, *(point.load for point in points)}
    return Limits(tuple(sorted(every)), throughput, ticks, log)
