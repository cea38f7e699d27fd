"""Throughput above latency, both against load, as an SVG picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from nbtriton.drawing.curve import (
    NOTHING,
    Limits,
    Point,
    Series,
    Top,
    curve_finding,
    curve_limits,
    latency_unit,
    top_of,
)
from nbtriton.drawing.numbers import measure, nice_ticks, plain
from nbtriton.drawing.scene import (
    SERIES_ROLES,
    TEXT,
    TITLE,
    WIDTHS,
    Area,
    Shape,
    figure,
    ink,
    overlap,
    rect,
    shape,
    shortened,
    stroke,
    text,
    text_width,
    wrapped,
)

# With more configurations than this, each has its own pair of panels.
_TOGETHER = 4
# For a page of 600 pixels, and for wider ones: on a wide screen the numbers stand beside it.
_WIDTHS = WIDTHS[:2]
_LEFT, _RIGHT = 58.0, 14.0
_CAPTION, _AXIS = 22.0, 20.0
_LINE = 15.0
_DODGE = 7.0
_ROW = 34.0
_SMALL = 11.0
_THROUGHPUT = "throughput", "infer/s"


def curve_scenes(
    series: Sequence[Series], *, title: str = "", target_ms: float | None = None,
    limits: Limits | None = None, finding: str = "",
) -> list[Shape]:  # fmt: skip
    """Return the picture for pages of different widths, narrowest first; see `curve_scene`."""
    return [
        curve_scene(
            series, title=title, width=width, target_ms=target_ms, limits=limits, finding=finding
        )
        for width in _WIDTHS
    ]


def curve_scene(
    series: Sequence[Series],
    *,
    title: str = "",
    width: float = _WIDTHS[1],
    target_ms: float | None = None,
    limits: Limits | None = None,
    finding: str = "",
) -> Shape:
    """Return the picture as shapes; its text size does not depend on the page.

    The latency is a line through the lowest percentile and a whisker to the highest one. Unstable
    points are hollow, with the range of their windows; predictions are dashed. Up to
    four configurations share a pair of panels, more have one each, all with the same axes.
    A single load has no curve: each configuration is a row of figures.

    Parameters
    ----------
    series : sequence of Series
    title : str, optional
    width : float, optional
        In pixels.
    target_ms : float, optional
        A limit of the latency, drawn as a line.
    limits : Limits, optional
        The ends of the axes; by default they follow from the points.
    finding : str, optional
        The caller's sentence: no point is then ringed as the best.
    """
    best = None if finding else top_of(series, target_ms)
    finding = finding or curve_finding(series, target_ms)
    parts, y = _heading(title, finding, width)
    shown = [one for one in series if one.drawn]
    limits = limits or curve_limits(shown, target_ms=target_ms)
    roles = _roles(series)
    if len(limits.loads) == 1 and all(len(one.drawn) == 1 for one in shown):
        picture = _Picture(limits, roles, target_ms, None, latency_unit(shown))
        rows, y = picture.rows(shown, y + 4, width)
        key = _key(shown, picture, y + 10, width)
        parts += [*rows, *key]
        y += 8 + 14 * len(key)
    elif shown:
        groups = _groups(shown)
        picture = _Picture(limits, roles, target_ms, best, latency_unit(shown))
        if len(groups) == 1 and len(shown) > 1:
            legend, y = _legend(shown, roles, y, width)
            parts += legend
        columns = 1 if len(groups) == 1 else 2 if width < 700 else 3
        wide = (width - 24 - (columns - 1) * 10) / columns
        if columns > 1:
            lines = max(len(_title_lines(group[0].name, wide)) for group in groups)
            picture.titles = 4 + _LINE * lines
        tall = (130.0, 190.0) if columns == 1 else (70.0, 100.0)
        high = sum(tall) + 2 * (_CAPTION + _AXIS) + picture.titles
        for at, group in enumerate(groups):
            x = 12 + at % columns * (wide + 10)
            top = y + at // columns * (high + 8)
            parts.append(picture.pair(group, x, top, wide, tall, titled=columns > 1))
        y += -(-len(groups) // columns) * (high + 8)
        key = _key(shown, picture, y + 4, width)
        parts += key
        y += 2 + 14 * len(key)
    name = title or "Throughput and latency against load"
    return figure(
        width, y + 10, *parts, label=f"{name}. {finding}", title=name, cls="nbt-curve-svg",
    )  # fmt: skip


def frontier_scenes(
    series: Sequence[Series], *, title: str, finding: str, target_ms: float | None = None,
    across: tuple[str, str] = _THROUGHPUT, key: str = "ring: measured · hollow: predicted",
) -> list[Shape]:  # fmt: skip
    """Return the latency against the throughput, or a price, for pages of different widths, narrowest first.

    Predictions are hollow, measurements (or what is chosen) have a ring.

    Parameters
    ----------
    series : sequence of Series
        Points with one percentile, the same in all.
    title, finding : str
    target_ms : float, optional
        A limit of the latency, drawn as a line.
    across : (str, str)
        What a point's `throughput` is, and its unit.
    key : str
        What rings and hollow points mean.
    """
    limits = curve_limits(series, target_ms=target_ms)
    # A rate of 0 keeps the axis linear, where loads would be on a log scale.
    limits = replace(limits, loads=nice_ticks(0, limits.throughput, 5))
    scenes = []
    for width in _WIDTHS:
        parts, y = _heading(title, finding, width)
        roles = _roles(series)
        legend, y = _legend(series, roles, y, width)
        picture = _Picture(limits, roles, target_ms, None, latency_unit(series))
        top = y + _CAPTION
        panel = _Panel(series, True, 12 + _LEFT, width - 12 - _RIGHT, top, top + 220.0)
        scale = ", log scale" if limits.log else ""
        percentile = max((max(p.latency_ms) for one in series for p in one.drawn), default=99)
        caption = f"p{percentile}, {picture.unit[0]}{scale}, against {', '.join(across)}"
        drawn = [text(20, y + 11, caption, _SMALL, "muted"), *picture.axes(panel, few=False)]
        drawn += [picture.scatter(panel, one, across) for one in series if one.drawn]
        box = f"{panel.left:.1f} {panel.top:.1f} {panel.right:.1f} {panel.bottom:.1f}"
        parts += [*legend, shape("g", *drawn, class_="nbt-panel", data_box=box)]
        parts.append(text(20, panel.bottom + 38, key, _SMALL, "muted"))
        scenes.append(
            figure(width, panel.bottom + 50, *parts, label=f"{title}. {finding}", title=title,
                   cls="nbt-curve-svg")
        )  # fmt: skip
    return scenes


def _heading(title: str, finding: str, width: float) -> tuple[list[Shape], float]:
    parts, y = [], 26.0
    if title:
        parts.append(text(20, y, title, TEXT, "fg", bold=True))
        y += 19
    role = "muted" if finding == NOTHING else "fg"
    for line in wrapped(finding, width - 40, TITLE):
        parts.append(text(20, y, line, TITLE, role, bold=True))
        y += 18
    return parts, y


def _roles(series: Sequence[Series]) -> dict[str, int]:
    """Return the place of each configuration: a prediction has the colour of its measurement."""
    names = dict.fromkeys(one.name for one in series)
    return {name: at for at, name in enumerate(names)}


def _groups(series: Sequence[Series]) -> list[list[Series]]:
    names = dict.fromkeys(one.name for one in series)
    if len(names) <= _TOGETHER:
        return [list(series)]
    return [[one for one in series if one.name == name] for name in names]


def _legend(
    series: Sequence[Series], roles: dict[str, int], y: float, width: float
) -> tuple[list[Shape], float]:
    parts: list[Shape] = []
    x, y = 20.0, y + 4
    for one in series:
        at = roles[one.name]
        label = shortened(one.label, width - 70, 12, keep_end=True)
        wide = 26 + text_width(label, 12)
        if x > 20 and x + wide > width - 20:
            x, y = 20.0, y + 19
        role = SERIES_ROLES[at % len(SERIES_ROLES)]
        dash = "4 3" if one.predicted else None
        entry = (
            # Where a pointer may be: also between the letters.
            rect(x - 4, y - 13, wide + 8, 18, rx=4, fill="transparent"),
            stroke(f"M{x} {y - 4}h18", role, stroke_width=2, stroke_dasharray=dash),
            _marker(at, x + 9, y - 4, role, hollow=one.predicted),
            text(x + 24, y, label, 12, "fg"),
        )  # fmt: skip
        parts.append(shape("g", *entry, class_="nbt-legend", data_series=one.label))
        x += wide + 20
    return parts, y + 14


def _title_lines(name: str, width: float) -> list[str]:
    return wrapped(name, width - 24, 12)[:3]


@dataclass(slots=True, frozen=True)
class _Panel:
    """One panel: the configurations and the quantity that it shows, and its place in pixels."""

    group: Sequence[Series]
    latency: bool
    left: float
    right: float
    top: float
    bottom: float


@dataclass(slots=True)
class _Picture:
    """The common part of all panels."""

    limits: Limits
    roles: dict[str, int]
    target_ms: float | None
    top: Top | None
    unit: tuple[str, float]
    # The height of the titles of panels.
    titles: float = 0.0
    # The places taken by texts.
    taken: list[Area] = field(default_factory=list)
    # Whether the loads are on a logarithmic scale.
    log_loads: bool = field(init=False)

    def __post_init__(self) -> None:
        loads = self.limits.loads
        uneven = len({round(b - a, 9) for a, b in pairwise(loads)}) > 1
        self.log_loads = uneven and loads[0] > 0 and loads[-1] / loads[0] >= 4

    def pair(
        self, group: Sequence[Series], x: float, y: float, width: float,
        tall: tuple[float, float], *, titled: bool,
    ) -> Shape:  # fmt: skip
        """Draw the two panels of the given configurations."""
        parts: list[Shape] = []
        if titled:
            at = self.roles[group[0].name] % len(SERIES_ROLES)
            title = [
                rect(x - 4, y - 2, width, self.titles, rx=4, fill="transparent"),
                _marker(at, x + 5, y + 8, SERIES_ROLES[at], hollow=False),
            ]  # fmt: skip
            for row, words in enumerate(_title_lines(group[0].name, width)):
                line = shortened(words, width - 24, 12, bold=True, keep_end=True)
                title.append(text(x + 16, y + 12 + 15 * row, line, 12, "fg", bold=True))
            parts.append(shape("g", *title, class_="nbt-legend", data_series=group[0].name))
            y += self.titles
        for latency, height in zip((False, True), tall, strict=True):
            top = y + _CAPTION
            panel = _Panel(group, latency, x + _LEFT, x + width - _RIGHT, top, top + height)
            drawn = [
                self._caption(panel, x + (2 if titled else 8), y + 11, width - 10, small=titled),
                *self.axes(panel, few=titled),
                *(self._line(panel, one) for one in group),
                *self._winner(panel),
            ]
            box = " ".join(
                f"{end:.1f}" for end in (panel.left, top, panel.right, panel.bottom)
            )  # where the crosshair is
            parts.append(shape("g", *drawn, class_="nbt-panel", data_box=box))
            y += height + _CAPTION + _AXIS
        return shape("g", *parts, class_="nbt-panels")

    def rows(self, series: Sequence[Series], y: float, width: float) -> tuple[list[Shape], float]:
        """Draw the only point of each configuration as a row: a bar of its throughput, and one of its latency."""
        unit, per_ms = self.unit
        wide = (width - 64) / 2
        bottom = y + _CAPTION + _ROW * len(series)
        panels = []
        for latency in (False, True):
            left = 20 + latency * (wide + 24)
            most = self.limits.throughput
            if latency:  # bars begin at 0, whatever the scale of an axis
                each = [ms for one in series for ms in one.drawn[0].latency_ms.values()]
                most = max(self.target_ms or 0.0, *each)
            per_unit = wide / (most or 1.0)
            caption = f"latency, {unit}" if latency else "throughput, infer/s"
            drawn = []
            if latency and self.target_ms:
                caption += f", target {measure(self.target_ms * per_ms)}"
                d = f"M{left + self.target_ms * per_unit:.1f} {y + _CAPTION:.1f}V{bottom:.1f}"
                drawn = [stroke(d, "s1", "nbt-target", stroke_width=1.5, stroke_dasharray="6 4")]
            drawn.append(text(left, y + 11, caption, _SMALL, "muted"))
            for at, one in enumerate(series):
                top = y + _CAPTION + at * _ROW
                words = measure(one.drawn[0].throughput)
                if latency:
                    pairs = sorted(one.drawn[0].latency_ms.items())
                    words = " · ".join(f"p{p} {measure(ms * per_ms)}" for p, ms in pairs)
                room = wide
                if not latency and len(series) > 1:
                    room = wide - text_width(words, TEXT, bold=True) - 12
                    drawn.append(self._name(one, left, top, room))
                    drawn.append(text(left + wide, top + 12, words, TEXT, "fg", "end", bold=True))
                else:
                    drawn.append(text(left, top + 12, words, TEXT, "fg", bold=True))
                drawn.append(self._bar(one, left, top + 22, per_unit, latency=latency))
            box = f"{left:.1f} {y + _CAPTION:.1f} {left + wide:.1f} {bottom:.1f}"
            panels.append(shape("g", *drawn, class_="nbt-panel", data_box=box))
        return panels, bottom

    def _name(self, one: Series, x: float, y: float, room: float) -> Shape:
        """Write the name of a row, which is its entry of a legend."""
        number = self.roles[one.name]
        role = SERIES_ROLES[number % len(SERIES_ROLES)]
        return shape(
            "g", rect(x - 4, y - 1, room, 18, rx=4, fill="transparent"),
            _marker(number, x + 5, y + 8, role, hollow=one.predicted),
            text(x + 16, y + 12, shortened(one.label, room - 24, TEXT, keep_end=True), TEXT, "fg"),
            class_="nbt-legend", data_series=one.label,
        )  # fmt: skip

    def _bar(self, one: Series, left: float, y: float, per_unit: float, *, latency: bool) -> Shape:
        number, point = self.roles[one.name], one.drawn[0]
        role = SERIES_ROLES[number % len(SERIES_ROLES)]
        value, ends = point.throughput, point.throughputs if not point.stable else ()
        if latency:
            value, ends = point.low_ms, (point.low_ms, point.high_ms)
        x = left + value * per_unit
        parts = [
            shape("title", _tooltip(one, point)),
            stroke(f"M{left:.1f} {y:.1f}H{x:.1f}", role, "nbt-line", stroke_width=8, opacity=0.35),
        ]  # fmt: skip
        if ends and min(ends) < max(ends):
            low, high = left + min(ends) * per_unit, left + max(ends) * per_unit
            d = f"M{low:.1f} {y:.1f}H{high:.1f}m0 -4v8"
            parts.append(stroke(d, role, "nbt-whisker", stroke_width=1.4))
        parts.append(_marker(number, x, y, role, hollow=one.predicted or not point.stable))
        at, key = f"{x:.1f} {y:.1f}", one.key(point)
        mark = shape("g", *parts, class_="nbt-point", data_at=at, data_point=key)
        return shape("g", mark, class_="nbt-series", data_series=one.label)

    def _caption(self, panel: _Panel, x: float, y: float, room: float, *, small: bool) -> Shape:
        unit, _ = self.unit
        points = [point for one in panel.group for point in one.drawn]
        low, high = min(min(p.latency_ms) for p in points), max(max(p.latency_ms) for p in points)
        what = f"p{low}" + (f", whisker to p{high}" if high != low else "")
        log = ", log scale" if self.limits.log and not small else ""
        words = f"latency, {unit} ({what}{log})" if panel.latency else "throughput, infer/s"
        words += "" if small else f", against {panel.group[0].load_name}"
        return text(x, y, shortened(words, room, _SMALL), _SMALL, "muted")

    def axes(self, panel: _Panel, *, few: bool) -> list[Shape]:
        unit, per_ms = self.unit
        left, right = panel.left, panel.right
        parts = []
        for tick in self._ticks(panel.latency, few=few):
            at = self._y(tick, panel)
            parts.append(stroke(f"M{left:.1f} {at:.1f}H{right:.1f}", "line"))
            label = plain(tick * per_ms if panel.latency else tick)
            parts.append(text(left - 7, at + 4, label, _SMALL, "muted", "end"))
        parts += self._loads(panel)
        if panel.latency and self.target_ms:
            at = self._y(self.target_ms, panel)
            d = f"M{left:.1f} {at:.1f}H{right:.1f}"
            parts.append(stroke(d, "s1", "nbt-target", stroke_width=1.5, stroke_dasharray="6 4"))
            words = f"target {measure(self.target_ms * per_ms)} {unit}"
            wide = text_width(words, _SMALL)
            above = at - 4 if at - 16 > panel.top else at + 13
            self.taken.append((left, above - 11, left + wide + 4, above + 2))
            parts.append(text(left + 3, above, words, _SMALL, "t1"))
        return parts

    def _ticks(self, latency: bool, *, few: bool) -> tuple[float, ...]:
        if not latency:
            ticks = tuple(t for t in nice_ticks(0, self.limits.throughput, 2 if few else 4))
            return tuple(t for t in ticks if t <= self.limits.throughput * 1.0001)
        ticks = self.limits.latency_ms
        most = 4 if few else 7
        if len(ticks) > most:
            step = -(-(len(ticks) - 1) // (most - 1))
            ticks = ticks[::step]
        return ticks

    def _y(self, value: float, panel: _Panel) -> float:
        if not panel.latency:
            share = value / (self.limits.throughput or 1.0)
        elif self.limits.log:
            first, last = (
                math.log(end) for end in (self.limits.latency_ms[0], self.limits.latency_ms[-1])
            )
            share = (math.log(max(value, self.limits.latency_ms[0])) - first) / (last - first)
        else:
            share = value / self.limits.latency_ms[-1]
        return panel.bottom - min(1.0, share) * (panel.bottom - panel.top)

    def _x(self, load: float, panel: _Panel) -> float:
        loads = self.limits.loads
        left, inside = panel.left + 18, panel.right - panel.left - 36
        if len(loads) < 2:
            return left + inside / 2
        low, high = loads[0], loads[-1]
        if self.log_loads:
            share = (math.log(load) - math.log(low)) / (math.log(high) - math.log(low))
        else:
            share = (load - low) / (high - low)
        return left + share * inside

    def _place(self, panel: _Panel, one: Series, point: Point) -> tuple[float, float]:
        """Return the place of a point; points of one load are drawn side by side, so that no whisker covers another."""
        dodge = (panel.group.index(one) - (len(panel.group) - 1) / 2) * _DODGE
        value = point.low_ms if panel.latency else point.throughput
        return self._x(point.load, panel) + dodge, self._y(value, panel)

    def _loads(self, panel: _Panel) -> list[Shape]:
        """Write the loads that fit below the axis, always including the highest."""
        left, right, bottom = panel.left, panel.right, panel.bottom
        parts: list[Shape] = []
        free = math.inf
        for load in reversed(self.limits.loads):
            at, label = self._x(load, panel), plain(load)
            half = text_width(label, _SMALL) / 2
            if at + half + 5 <= free and at - half >= left - 14:
                parts.append(stroke(f"M{at:.1f} {bottom:.1f}v4", "muted"))
                parts.append(text(at, bottom + 15, label, _SMALL, "muted", "middle"))
                free = at - half
        line = stroke(f"M{left:.1f} {bottom:.1f}H{right:.1f}", "muted")
        return [line, shape("g", *parts, class_="nbt-loads")]

    def _line(self, panel: _Panel, one: Series) -> Shape:
        number = self.roles[one.name]
        role = SERIES_ROLES[number % len(SERIES_ROLES)]
        places = [self._place(panel, one, point) for point in one.drawn]
        for (x0, y0), (x1, y1) in pairwise(places):  # no text is written across a line
            for part in range(1, 12):
                x, y = x0 + (x1 - x0) * part / 12, y0 + (y1 - y0) * part / 12
                self.taken.append((x - 3, y - 3, x + 3, y + 3))
        d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        dash = "5 4" if one.predicted else None
        line = stroke(
            d, role, "nbt-line", stroke_width=2, stroke_linejoin="round", stroke_dasharray=dash
        )
        marks = []
        for (x, y), point in zip(places, one.drawn, strict=True):
            parts = [shape("title", _tooltip(one, point))]
            ends: tuple[float, float] | None = None
            if panel.latency and len(point.latency_ms) > 1:
                ends = y, self._y(point.high_ms, panel)
            elif not panel.latency and not point.stable and point.throughputs:
                low, high = min(point.throughputs), max(point.throughputs)
                ends = self._y(low, panel), self._y(high, panel)
            if ends is not None:
                d = f"M{x:.1f} {ends[0]:.1f}V{ends[1]:.1f}m-4 0h8"
                if not panel.latency:
                    d += f"M{x - 4:.1f} {ends[0]:.1f}h8"
                parts.append(stroke(d, role, "nbt-whisker", stroke_width=1.4))
            parts.append(_marker(number, x, y, role, hollow=one.predicted or not point.stable))
            self.taken.append(
                (x - 6, min(y, *(ends or (y,))) - 6, x + 6, max(y, *(ends or (y,))) + 6)
            )
            cls = "nbt-point" if point.stable else "nbt-point nbt-hollow"
            marks.append(
                shape(
                    "g", *parts, class_=cls, data_load=plain(point.load), data_at=f"{x:.1f} {y:.1f}",
                    data_point=one.key(point),
                )
            )  # fmt: skip
        # The title of panels of their own is the legend of a measurement and its prediction alike.
        series = one.name if self.titles else one.label
        return shape("g", line, *marks, class_="nbt-series", data_series=series)

    def scatter(self, panel: _Panel, one: Series, across: tuple[str, str]) -> Shape:
        """Draw the points of a search, each at its throughput or what it is."""
        number = self.roles[one.name]
        role = SERIES_ROLES[number % len(SERIES_ROLES)]
        marks = []
        for point in one.drawn:
            x, y = self._x(point.throughput, panel), self._y(point.high_ms, panel)
            parts = [shape("title", _tooltip(one, point, across))]
            if not one.predicted:
                ring = shape("circle", cx=round(x, 1), cy=round(y, 1), r=8, **ink(None, "fg"))
                parts.append(ring)
            parts.append(_marker(number, x, y, role, hollow=one.predicted))
            at = f"{x:.1f} {y:.1f}"
            marks.append(
                shape("g", *parts, class_="nbt-point", data_at=at, data_point=one.key(point))
            )
        return shape("g", *marks, class_="nbt-series", data_series=one.label)

    @property
    def ring(self) -> str:
        """A label for the highest point if it stands out, else empty."""
        if self.top is None or not (self.top.best or not self.top.point.stable):
            return ""
        return "best" if self.top.best else f"highest, {_unlike_stable(self.top.point)}"

    def _winner(self, panel: _Panel) -> list[Shape]:
        top = self.top
        if top is None or not self.ring or not any(one is top.series for one in panel.group):
            return []
        one, point = top.series, top.point
        x, y = self._place(panel, one, point)
        dash, cls = (None, "nbt-best") if top.best else ("3 3", "nbt-highest")
        parts = [
            shape(
                "circle",
                cx=round(x, 1),
                cy=round(y, 1),
                r=9,
                stroke_width=1.6,
                stroke_dasharray=dash,
                data_ring=one.key(point),
                **ink(None, "fg", cls),
            )
        ]
        if not panel.latency:
            words = f"{self.ring}: {measure(point.throughput)}"
            above = y - 13
            if not point.stable and len(point.throughputs) > 1:
                low, high = min(point.throughputs), max(point.throughputs)
                words += f" ({measure(low)} to {measure(high)})"
                above = min(above, self._y(high, panel) - 10)  # the whisker's end
            wide = text_width(words, _SMALL)
            for place in (
                (x - wide - 13, y + 4),
                (x + 13, y + 4),
                (x - wide / 2, y + 24),
                (x - wide / 2, above),
                (x - wide + 12, above),
            ):
                box = (place[0] - 2, place[1] - 11, place[0] + wide + 2, place[1] + 3)
                across = panel.left < box[0] and box[2] < panel.right
                inside = across and panel.top - 4 < box[1] and box[3] < panel.bottom
                if inside and not any(overlap(box, other) for other in self.taken):
                    parts.append(text(*place, words, _SMALL, "fg"))
                    break
        return parts


def _key(series: Sequence[Series], picture: _Picture, y: float, width: float) -> list[Shape]:
    """Explain the marks that are used."""
    words = [f"against {series[0].load_name}"] if picture.titles else []
    words += ["latency on a log scale"] if words and picture.limits.log else []
    dashed = picture.top is not None and not picture.top.best
    words += [f"{'dashed ' if dashed else ''}ring: {picture.ring}"] if picture.ring else []
    outcomes = dict.fromkeys(p.outcome for one in series for p in one.drawn if not p.stable)
    if outcomes:
        ranges = any(len(p.throughputs) > 1 for one in series for p in one.drawn if not p.stable)
        what = ", with the range of its windows" if ranges else ""
        words.append(f"hollow: {' or '.join(outcomes)}{what}")
    if any(one.predicted for one in series):
        words.append("dashed and hollow: predicted")
    lines = wrapped(" · ".join(words), width - 40, _SMALL, bold=False)
    return [text(20, y + 14 * at, line, _SMALL, "muted") for at, line in enumerate(lines)]


def _unlike_stable(point: Point) -> str:
    return "not stable" if point.outcome == "unstable" else point.outcome


def _marker(number: int, x: float, y: float, role: str, *, hollow: bool) -> Shape:
    """Draw a mark with one of four outlines."""
    paint = ink("bg" if hollow else role, role)
    if number % 4 == 0:
        return shape("circle", cx=round(x, 1), cy=round(y, 1), r=4, stroke_width=1.6, **paint)
    square, triangle, diamond = "m-3.5 -3.5h7v7h-7z", "m0 -5l4.8 8.4h-9.6z", "m0 -5l5 5l-5 5l-5 -5z"
    outline = (square, triangle, diamond)[number % 4 - 1]
    return shape("path", d=f"M{x:.1f} {y:.1f}{outline}", stroke_width=1.6, **paint)


def _tooltip(one: Series, point: Point, across: tuple[str, str] = _THROUGHPUT) -> str:
    unit, per_ms = latency_unit((one,))
    rows = [f"{one.label}", f"{one.load_name}: {plain(point.load)}"]
    rows += [f"{name}: {value}" for name, value in point.details]
    rows.append(f"{across[0]}: {measure(point.throughput)} {across[1]}")
    if point.throughputs and not point.stable:
        low, high = min(point.throughputs), max(point.throughputs)
        rows.append(f"range of its windows: {measure(low)} to {measure(high)} infer/s")
    rows += [f"p{p}: {measure(ms * per_ms)} {unit}" for p, ms in sorted(point.latency_ms.items())]
    rows.append(f"outcome: {'predicted' if one.predicted and point.stable else point.outcome}")
    return "\n".join(rows)
