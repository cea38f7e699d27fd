"""Latency against throughput, one curve per configuration and percentile."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from nbtriton.drawing.numbers import log_ticks, measure, nice_ticks, plain, sparkline
from nbtriton.drawing.scene import SERIES_ROLES, Shape, figure, ink, shape, text, text_width, to_svg

__all__ = ["Point", "Series", "curve_finding", "curve_scene", "curve_svg", "curve_text"]

_WIDTH, _HEIGHT = 860.0, 440.0
_LEFT, _RIGHT, _BOTTOM = 66.0, 78.0, 52.0
# Percentiles differ by dash and marker, never by colour alone: lowest solid, highest finest.
_DASHES = ("", "7 4", "2 3", "9 3 2 3")
# Beyond this ratio of the highest to the lowest latency a linear axis hides the low end.
_LOG_FROM = 12.0


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
    """

    load: float
    throughput: float
    latency_ms: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Series:
    """The measured loads of one configuration, in the order of measurement."""

    name: str
    points: tuple[Point, ...] = ()
    load_name: str = "concurrency"


def curve_svg(series: Sequence[Series], *, title: str = "") -> str:
    """Draw latency against throughput as one SVG element.

    Each configuration has a colour, each percentile a dash and a marker; every load is written
    beside its highest percentile.
    """
    return to_svg(curve_scene(series, title=title))


def curve_finding(series: Sequence[Series]) -> str:
    """Return the best throughput of each configuration in a sentence."""
    sentences = []
    for one in series:
        points = [point for point in one.points if point.latency_ms]
        if not points:
            continue
        best = max(points, key=lambda point: point.throughput)
        top = max(best.latency_ms)
        first = points[0]
        sentence = (
            f"{one.name}: up to {measure(best.throughput)} infer/s at {one.load_name} "
            f"{plain(best.load)}, p{top} {measure(best.latency_ms[top])} ms"
        )
        if best is not first and top in first.latency_ms:
            sentence += (
                f" (at {plain(first.load)}: {measure(first.throughput)} infer/s, "
                f"{measure(first.latency_ms[top])} ms)"
            )
        sentences.append(sentence)
    return "; ".join(sentences) or "nothing measured yet"


def curve_text(series: Sequence[Series], *, title: str = "") -> str:
    """Write the measured loads as aligned columns, with a sparkline for each configuration."""
    lines = [title] if title else []
    for one in series:
        percentiles = _percentiles([one])
        head = [one.load_name, "infer/s", *(f"p{p} ms" for p in percentiles)]
        body = [
            [
                plain(point.load),
                measure(point.throughput),
                *(measure(point.latency_ms.get(p, math.nan)) for p in percentiles),
            ]
            for point in one.points
        ]
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        lines.append(
            f"{one.name}  {sparkline([point.throughput for point in one.points])}".rstrip()
        )
        for row in (head, *body):
            cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            lines.append("  " + "  ".join(cells))
    return "\n".join(lines) if lines else "nothing measured yet"


@dataclass(slots=True)
class _Axes:
    """The scales of the axes, and the rectangles that are already written on."""

    x: Callable[[float], float]
    y: Callable[[float], float]
    top: float
    taken: list[tuple[float, float, float, float]] = field(default_factory=list)

    def place(self, x: float, y: float, width: float, height: float) -> tuple[float, float] | None:
        """Find room for a text near a point: its left and baseline, or None without room."""
        gap = 8.0
        for left, low in (
            (x - width / 2, y - gap),
            (x + gap, y - gap / 2),
            (x - width - gap, y - gap / 2),
            (x - width / 2, y + gap + height),
            (x + gap, y + gap + height / 2),
            (x - width - gap, y + gap + height / 2),
        ):
            box = (left - 1, low - height, left + width + 1, low)
            inside = left > _LEFT + 2 and low - height > self.top and low < _HEIGHT - _BOTTOM - 2
            if inside and not any(_overlap(box, other) for other in self.taken):
                self.taken.append(box)
                return left, low
        return None


def curve_scene(series: Sequence[Series], *, title: str = "") -> Shape:
    """Return the picture of the curves as shapes."""
    percentiles = _percentiles(series)
    points = [point for one in series for point in one.points if point.latency_ms]
    values = [value for point in points for value in point.latency_ms.values() if value > 0]
    parts: list[Shape] = []
    top = _header(series, title, parts)
    axes = _axes(points, values, top, parts)
    loads: list[tuple[float, float, str]] = []
    ends: list[tuple[float, float, str, str]] = []
    for i, one in enumerate(series):
        role = SERIES_ROLES[i % len(SERIES_ROLES)]
        parts.extend(_curves(one, role, percentiles, axes, loads, ends))
    parts.extend(_end_labels(ends, axes))
    for x, y, load in loads:
        spot = axes.place(x, y, text_width(load, 10), 10)
        if spot:
            parts.append(text(*spot, load, 10, "muted"))
    if not points:
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        parts.append(
            text(
                middle, (top + _HEIGHT - _BOTTOM) / 2, "nothing measured yet", 13, "muted", "middle"
            )
        )
    name = title or "Latency against throughput"
    return figure(
        _WIDTH,
        _HEIGHT,
        *parts,
        label=f"{name}. {curve_finding(series)}",
        title=name,
        cls="nbt-curve-svg",
    )


def _percentiles(series: Sequence[Series]) -> list[int]:
    return sorted({p for one in series for point in one.points for p in point.latency_ms})


def _header(series: Sequence[Series], title: str, parts: list[Shape]) -> float:
    """Write the title and a legend of the configurations; return the top of the plot."""
    y = 28.0
    if title:
        parts.append(text(20, y, title, 14, "fg", bold=True))
        y += 24
    x = 20.0
    for i, one in enumerate(series):
        role = SERIES_ROLES[i % len(SERIES_ROLES)]
        width = 26 + text_width(one.name, 12, bold=True)
        if x > 20 and x + width > _WIDTH - 20:
            x, y = 20.0, y + 20
        parts.append(shape("rect", x=x, y=y - 9, width=14, height=10, rx=2, **ink(role)))
        parts.append(text(x + 20, y, one.name, 12, "fg", bold=True))
        x += width + 22
    if not series:
        y -= 20
    names = {one.load_name for one in series if one.points}
    if names:
        note = f"numbers at the points: {' / '.join(sorted(names))}"
        parts.append(text(_WIDTH - 20, _HEIGHT - 13, note, 11, "muted", "end"))
    return y + 18


def _axes(
    points: Sequence[Point], values: Sequence[float], top: float, parts: list[Shape]
) -> _Axes:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    x_ticks = nice_ticks(0, max((point.throughput for point in points), default=1) or 1, 7)
    low, high = min(values, default=0.1), max(values, default=1.0)
    # Six decades are more than can be read; lower latencies are drawn on the axis.
    low = max(low, high / 1e6)
    log = high / low > _LOG_FROM
    y_ticks = log_ticks(low, high) if log else nice_ticks(0, high, 6)
    x_top = x_ticks[-1]

    def at_x(value: float) -> float:
        return _LEFT + value / x_top * (right - _LEFT)

    def at_y(value: float) -> float:
        if log:
            first, last = math.log(y_ticks[0]), math.log(y_ticks[-1])
            share = (math.log(max(value, y_ticks[0])) - first) / (last - first)
        else:
            share = value / y_ticks[-1]
        return bottom - share * (bottom - top)

    for tick in y_ticks:
        y = at_y(tick)
        parts.append(shape("path", d=f"M{_LEFT} {y:.1f}H{right}", **ink(None, "line")))
        parts.append(text(_LEFT - 9, y + 4, plain(tick), 11, "muted", "end"))
    for tick in x_ticks:
        x = at_x(tick)
        parts.append(shape("path", d=f"M{x:.1f} {bottom}v5", **ink(None, "muted")))
        parts.append(text(x, bottom + 19, plain(tick), 11, "muted", "middle"))
    parts.append(shape("path", d=f"M{_LEFT} {bottom}H{right}", **ink(None, "muted")))
    middle = (_LEFT + right) / 2
    parts.append(
        text(middle, _HEIGHT - 13, "throughput, inferences per second", 12, "fg", "middle")
    )
    y_name = "latency, ms (log scale)" if log else "latency, ms"
    spot = (top + bottom) / 2
    rotated = f"rotate(-90 20 {spot:.1f})"
    parts.append(text(20, spot, y_name, 12, "fg", "middle", transform=rotated))
    return _Axes(at_x, at_y, top)


def _curves(
    one: Series,
    role: str,
    percentiles: Sequence[int],
    axes: _Axes,
    loads: list[tuple[float, float, str]],
    ends: list[tuple[float, float, str, str]],
) -> list[Shape]:
    parts: list[Shape] = []
    lines: list[list[tuple[float, float]]] = []
    for k, percentile in enumerate(percentiles):
        line = [
            (axes.x(point.throughput), axes.y(point.latency_ms[percentile]))
            for point in one.points
            if percentile in point.latency_ms
        ]
        if not line:
            continue
        lines.append(line)
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in line)
        dash = _DASHES[k % len(_DASHES)]
        parts.append(
            shape(
                "path",
                d=path,
                stroke_width=2,
                stroke_dasharray=dash,
                stroke_linejoin="round",
                **ink(None, role, f"nbt-line nbt-p{percentile}"),
            )
        )
        parts.extend(
            _marker(k, x, y, role, _tooltip(one, point))
            for (x, y), point in zip(line, one.points, strict=False)
        )
        axes.taken.extend((x - 5, y - 5, x + 5, y + 5) for x, y in line)
        axes.taken.extend(_along(line))
        ends.append((*line[-1], f"p{percentile}", role))
    if lines:
        loads.extend(
            (x, y, plain(point.load)) for (x, y), point in zip(lines[-1], one.points, strict=False)
        )
    if len(lines) > 1:
        around = [*lines[0], *reversed(lines[-1])]
        band = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in around) + "z"
        parts.insert(0, shape("path", d=band, opacity=0.1, **ink(role)))
    return [shape("g", *parts, class_="nbt-series", data_series=one.name)]


def _marker(k: int, x: float, y: float, role: str, tip: str) -> Shape:
    title = shape("title", tip)
    if k == 0:
        return shape("circle", title, cx=x, cy=y, r=4, **ink(role))
    square, triangle, diamond = "m-3.5 -3.5h7v7h-7z", "m0 -5l4.8 8.4h-9.6z", "m0 -5l5 5l-5 5l-5 -5z"
    outline = (diamond, square, triangle)[k % 3]
    return shape("path", title, d=f"M{x:.1f} {y:.1f}{outline}", stroke_width=1.6, **ink("bg", role))


def _end_labels(ends: Sequence[tuple[float, float, str, str]], axes: _Axes) -> list[Shape]:
    """Write each percentile at the end of its line, moved where two would touch."""
    parts = []
    size = 11
    for x, y, name, role in sorted(ends, key=lambda end: (end[0], end[1])):
        width = text_width(name, size, bold=True)
        left = x + 10
        for step in (0, 1, -1, 2, -2, 3, -3):
            low = y + 4 + step * 7
            box = (left - 2, low - size, left + width + 2, low + 1)
            if not any(_overlap(box, other) for other in axes.taken):
                break
        axes.taken.append(box)
        parts.append(text(left, low, name, size, f"t{role[1:]}", bold=True))
    return parts


def _along(line: Sequence[tuple[float, float]]) -> list[tuple[float, float, float, float]]:
    """Cover a line with small boxes, so that no load is written across it."""
    boxes = []
    for (x0, y0), (x1, y1) in pairwise(line):
        steps = max(1, int(math.hypot(x1 - x0, y1 - y0) / 6))
        for i in range(1, steps):
            x, y = x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps
            boxes.append((x - 2, y - 2, x + 2, y + 2))
    return boxes


def _tooltip(one: Series, point: Point) -> str:
    latencies = ", ".join(f"p{p} {measure(ms)} ms" for p, ms in sorted(point.latency_ms.items()))
    return (
        f"{one.name}\n{one.load_name} {plain(point.load)}: "
        f"{measure(point.throughput)} infer/s, {latencies}"
    )


def _overlap(
    one: tuple[float, float, float, float], two: tuple[float, float, float, float]
) -> bool:
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]
