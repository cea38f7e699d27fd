"""Requests and batches over time: a lane for each instance, and the requests that go into its batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nbtriton.drawing.numbers import counted, lasting, measure, nice_ticks, plain
from nbtriton.drawing.scene import (
    TITLE,
    WIDTHS,
    Shape,
    figure,
    ink,
    rect,
    shape,
    shortened,
    stroke,
    text,
    text_width,
    wrapped,
)
from nbtriton.drawing.table import table_text

# The least room for names in each of the widths.
_GUTTERS = (120.0, 150.0, 190.0)
_RIGHT = 16.0
_LANE_H, _SLOT_H, _STRIP_H = 24.0, 6.0, 16.0
# With more requests at once a picture would be longer than a screen; the others are only counted.
_MOST_SLOTS = 24
_READABLE = 120.0  # from this width on, the begin of a label says something
_COLUMNS = 64  # of a lane in the text form


Pattern = tuple[tuple[float, float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of a reason: a letter, a colour and a pattern, so that nobody depends on the colour.

    Each line of the pattern goes along the bar: its middle and its width as shares of the bar's height, then the
    lengths of its dashes and gaps in pixels (0 and 0: it is solid).
    """

    letter: str
    role: str
    words: str
    pattern: Pattern = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """One batch on one instance; times in milliseconds since the picture's origin.

    One that is ``open`` is still running: it ends at the time of the picture.
    """

    lane: int
    begin_ms: float
    end_ms: float
    rows: int
    requests: int
    mark: Mark
    wait_ms: float = 0.0
    failed: bool = False
    open: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """One request that waited from its arrival until its batch left, on a lane; -1 for none.

    One that is ``open`` is still waiting.
    """

    begin_ms: float
    end_ms: float
    lane: int
    title: str = ""
    failed: bool = False
    open: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A section of a strip: its contents, and how full it is, from 0 to 1."""

    begin_ms: float
    end_ms: float
    label: str
    level: float = 1.0


@dataclass(frozen=True, slots=True)
class Strip:
    """The contents of something over time: the sequences of a slot, the users of a resource."""

    name: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class TimelineLanes:
    """One model: its instances, their batches, and its requests, with strips below them.

    ``instances`` are those of the lanes as records name them, for a view that adds records.
    """

    name: str
    lanes: tuple[str, ...]
    bars: tuple[Bar, ...]
    waits: tuple[Wait, ...]
    strips: tuple[Strip, ...] = ()
    instances: tuple[str, ...] = ()


def timeline_scenes(
    models: Sequence[TimelineLanes], *, span_ms: float, finding: str
) -> list[Shape]:
    """Draw requests and batches, for pages of different widths, narrowest first.

    Each batch has the letter of why it left, and its rows. Each model is a group with ``data-model``.
    """
    names = [*(lane for model in models for lane in model.lanes)]
    names += [strip.name for model in models for strip in model.strips]
    needed = max((text_width(name, 11) for name in names), default=0.0) + 30
    return [
        _scene(models, _Axis(span_ms, width, max(least, min(needed, 0.3 * width))), finding)
        for width, least in zip(WIDTHS, _GUTTERS, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Axis:
    """The time axis of a picture: its span and its position."""

    span_ms: float
    width: float
    left: float

    @property
    def plot(self) -> float:
        return self.width - self.left - _RIGHT

    def x(self, ms: float) -> float:
        share = ms / self.span_ms if self.span_ms else 0.0
        return self.left + min(max(share, 0.0), 1.0) * self.plot


def _scene(models: Sequence[TimelineLanes], axis: _Axis, finding: str) -> Shape:
    parts: list[Shape] = []
    y = 20.0
    for line in wrapped(finding, axis.width - 40, TITLE):
        parts.append(text(20, y + 6, line, TITLE, "fg", bold=True))
        y += 18
    marks = {bar.mark.letter: bar.mark for model in models for bar in model.bars}
    legend, y = _legend(list(marks.values()), y + 8, axis.width)
    parts += legend
    top = y + 4
    for model in models:
        group, y = _model(model, y + 12, axis)
        parts.append(group)
    if not any(model.bars or model.waits for model in models):
        parts.append(text(20, y + 20, "nothing is recorded", 12, "muted"))
        y += 28
    parts += _ticks(top, y + 6, axis)
    return figure(
        axis.width,
        y + 42,
        *parts,
        label=f"Timeline: {finding}",
        title="Timeline",
        cls="nbt-timeline-svg",
    )


def _model(model: TimelineLanes, y: float, axis: _Axis) -> tuple[Shape, float]:
    # On a separate line: model names often differ only at their ends.
    parts = [
        text(20, y + 12, shortened(model.name, axis.width - 40, 12, bold=True), 12, "fg", bold=True)
    ]
    parts.append(shape("title", model.name))
    slots, beyond = _slots(model.waits)
    shown = max((slot for _, slot in slots), default=-1) + 1
    top = y + 20
    lanes_top = top + (shown * _SLOT_H + 6 if shown else 0) + (16 if beyond else 0)
    for wait, slot in slots:
        parts += _wait(wait, top + slot * _SLOT_H, lanes_top, axis)
    if beyond:
        words = f"and {counted(beyond, 'more request')} at the same time"
        parts.append(text(axis.left, lanes_top - 5, words, 11, "muted"))
    for at, lane in enumerate(model.lanes):
        top = lanes_top + at * (_LANE_H + 4)
        label = shortened(lane, axis.left - 30, 11, keep_end=True)  # instances differ by it
        parts += [
            text(axis.left - 8, top + 16, label, 11, "muted", "end"),
            rect(axis.left, top, axis.plot, _LANE_H, **ink("panel", "line")),
        ]
    for bar, place in zip(model.bars, _rows(model.bars), strict=True):
        parts += _bar(bar, lanes_top + bar.lane * (_LANE_H + 4), place, axis)
    bottom = lanes_top + len(model.lanes) * (_LANE_H + 4)
    for strip in model.strips:
        parts += _strip(strip, bottom, axis)
        bottom += _STRIP_H + 4
    return shape("g", *parts, class_="nbt-model", data_model=model.name), bottom


def _wait(wait: Wait, y: float, lanes_top: float, axis: _Axis) -> list[Shape]:
    begin, end = axis.x(wait.begin_ms), axis.x(wait.end_ms)
    role = "s1" if wait.failed else "s0"
    width = max(1.5, end - begin)
    title = shape("title", wait.title)
    found = [rect(begin, y, width, 3.5, title, rx=None, data_role="wait", **ink(role))]
    if wait.open:
        found.append(_ragged(begin + width, y, 3.5, role))
    if wait.lane >= 0 and 0 <= wait.end_ms <= axis.span_ms:
        drop = lanes_top + wait.lane * (_LANE_H + 4)
        d = f"M{begin + width:.1f} {y + 1.75:.1f}V{drop:.1f}"
        found.append(stroke(d, role, opacity=0.35, data_role="drop"))
    return found


def _rows(bars: Sequence[Bar]) -> list[tuple[int, int]]:
    """Return the row of each batch in its lane, and of how many: the instances of a model may share a lane."""
    found: list[tuple[int, list[float]]] = [(0, [])] * len(bars)
    lane, ends = -1, [0.0]  # of the batches that are, one after the other, at the same time
    for at in sorted(range(len(bars)), key=lambda at: (bars[at].lane, bars[at].begin_ms)):
        bar = bars[at]
        if bar.lane != lane or bar.begin_ms >= max(ends):
            lane, ends = bar.lane, []
        row = first_free(ends, bar.begin_ms)
        ends[row : row + 1] = [bar.end_ms]
        found[at] = row, ends
    return [(row, len(ends)) for row, ends in found]


def _bar(bar: Bar, top: float, place: tuple[int, int], axis: _Axis) -> list[Shape]:
    begin, end = axis.x(bar.begin_ms), axis.x(bar.end_ms)
    width = max(1.5, end - begin)
    row, rows = place
    tall = (_LANE_H - 4) / rows
    y = top + 2 + row * tall
    took = f"{measure(bar.end_ms - bar.begin_ms)} ms"
    if bar.open:
        took = f"running for {lasting(bar.end_ms - bar.begin_ms)}"
    title = (
        f"{bar.mark.letter}: {bar.mark.words}. {counted(bar.rows, 'row')} of "
        f"{counted(bar.requests, 'request')}, "
        f"{took}, "
        f"the oldest waited {measure(bar.wait_ms)} ms" + (", failed" if bar.failed else "")
    )
    paint = ink(bar.mark.role, "s1" if bar.failed else bar.mark.role)
    live = {"data_role": "batch", "data_reason": bar.mark.letter}
    found = [rect(begin, y, width, tall, shape("title", title), opacity=0.4, **live, **paint)]
    found += pattern_of(bar.mark, begin, y, width, tall)
    texts = [f"{bar.mark.letter} {bar.rows}", bar.mark.letter]
    if bar.open:
        found.append(_ragged(begin + width, y, tall, bar.mark.role))
        texts.insert(0, f"{texts[0]} · running {lasting(bar.end_ms - bar.begin_ms)}")
    return [*found, *words_on(bar.mark, texts if rows == 1 else (), begin, top, width)]


def words_on(mark: Mark, texts: Sequence[str], x: float, top: float, width: float) -> list[Shape]:
    """Write the first text that fits on a batch of a lane, legible on the pattern of its mark."""
    words = next((one for one in texts if text_width(one, 11, bold=True) + 4 <= width), "")
    if not words:
        return []
    middle, wide = x + width / 2, text_width(words, 11, bold=True)
    label = text(middle, top + 16, words, 11, "fg", "middle", bold=True)
    if not mark.pattern:
        return [label]
    ground = rect(middle - wide / 2, top + 6, wide, 12, rx=None, opacity=0.7, **ink("bg"))
    return [ground, label]


def swatch(mark: Mark, x: float, y: float) -> list[Shape]:
    """Return a sample of a mark for a legend, 18 by 12 pixels."""
    filled = rect(x, y, 18, 12, opacity=0.4, **ink(mark.role, mark.role))
    return [filled, *pattern_of(mark, x, y, 18, 12)]


def pattern_of(mark: Mark, x: float, y: float, width: float, height: float) -> list[Shape]:
    """Return the lines of a mark's pattern over a bar."""
    return [
        stroke(
            f"M{x:.1f} {y + height * at:.1f}h{width:.1f}", mark.role, stroke_width=height * thick,
            stroke_dasharray=f"{on:g} {off:g}" if off else None, opacity=0.8,
        )
        for at, thick, on, off in mark.pattern
    ]  # fmt: skip


def _ragged(x: float, y: float, tall: float, role: str) -> Shape:
    """Return the right edge of an open item: teeth, which do not depend on colour."""
    teeth = max(1, round(tall / 4))
    step = tall / teeth
    points = "".join(f"l3 {step / 2:.2f}l-3 {step / 2:.2f}" for _ in range(teeth))
    return shape("path", d=f"M{x:.1f} {y:.1f}{points}z", data_role="open", **ink(role))


def _strip(strip: Strip, top: float, axis: _Axis) -> list[Shape]:
    base = top + _STRIP_H
    name = shortened(strip.name, axis.left - 30, 11, keep_end=True)
    found = [
        text(axis.left - 8, base - 4, name, 11, "muted", "end"),
        stroke(f"M{axis.left:g} {base:.1f}h{axis.plot:g}", "line"),
    ]
    for span in strip.spans:
        if span.end_ms <= 0 or span.begin_ms >= axis.span_ms:
            continue
        begin, end = axis.x(span.begin_ms), axis.x(span.end_ms)
        width, tall = max(1.0, end - begin), _STRIP_H * min(1.0, span.level)
        title, paint = shape("title", f"{strip.name}: {span.label}"), ink("s5", "s5")
        y = base - tall
        found.append(
            rect(begin, y, width, tall, title, rx=None, opacity=0.4, data_role="span", **paint)
        )
        if text_width(span.label, 11) + 4 <= width or width >= _READABLE:
            label = shortened(span.label, width - 4, 11)
            found.append(text(begin + width / 2, base - 4, label, 11, "fg", "middle"))
    return found


def first_free(ends: Sequence[float], begin: float) -> int:
    """Return the first row whose last entry has ended by then; the one behind them if none has."""
    return next((row for row, end in enumerate(ends) if end <= begin), len(ends))


def _slots(waits: Sequence[Wait]) -> tuple[list[tuple[Wait, int]], int]:
    """Give each request the first free row; return those of the shown rows, and how many are left."""
    ends: list[float] = []
    found: list[tuple[Wait, int]] = []
    beyond = 0
    for wait in sorted(waits, key=lambda one: one.begin_ms):
        slot = first_free(ends, wait.begin_ms)
        if slot >= _MOST_SLOTS:
            beyond += 1
            continue
        if slot == len(ends):
            ends.append(0.0)
        ends[slot] = wait.end_ms
        found.append((wait, slot))
    return found, beyond


def _legend(marks: Sequence[Mark], y: float, room: float) -> tuple[list[Shape], float]:
    found: list[Shape] = []
    x = 20.0
    for mark in sorted(marks, key=lambda one: one.letter):
        words = f"{mark.letter}  {mark.words}"
        width = text_width(words, 11) + 40
        if x > 20 and x + width > room - 16:
            x, y = 20.0, y + 18
        found += swatch(mark, x, y - 1)
        found.append(text(x + 24, y + 9, words, 11, "fg"))
        x += width
    return found, y + 18 if marks else y


def _ticks(top: float, y: float, axis: _Axis) -> list[Shape]:
    found = [stroke(f"M{axis.left:g} {y:.1f}h{axis.plot:.1f}", "muted")]
    for tick in nice_ticks(0.0, axis.span_ms, 6 if axis.width > 600 else 4):
        if tick > axis.span_ms:
            continue
        x = axis.x(tick)
        found.append(stroke(f"M{x:.1f} {top:.1f}V{y:.1f}", "line", opacity=0.5))
        found.append(text(x, y + 15, plain(tick), 11, "muted", "middle"))
    found.append(text(axis.left + axis.plot, y + 30, "milliseconds", 11, "muted", "end"))
    return found


def timeline_text(models: Sequence[TimelineLanes], *, span_ms: float, finding: str) -> str:
    """Write the lanes as lines of letters, and the newest batches as a table."""
    lines = [finding, ""]
    names = [*(lane for model in models for lane in model.lanes)]
    names += [strip.name for model in models for strip in model.strips]
    width = max(map(len, names), default=0)
    for model in models:
        for at, lane in enumerate(model.lanes):
            cells = [" "] * _COLUMNS
            for bar in model.bars:
                if bar.lane == at and span_ms:
                    first = min(_COLUMNS - 1, max(0, int(bar.begin_ms / span_ms * _COLUMNS)))
                    last = min(_COLUMNS - 1, max(first, int(bar.end_ms / span_ms * _COLUMNS - 0.5)))
                    cells[first] = bar.mark.letter
                    cells[first + 1 : last + 1] = "─" * (last - first)
                    if bar.open and last > first:
                        cells[last] = ">"
            lines.append(f"{lane:<{width}} |{''.join(cells)}|")
        for strip in model.strips:
            cells = [" "] * _COLUMNS
            for span in strip.spans:
                if span_ms and span.end_ms > 0 and span.begin_ms < span_ms:
                    first = max(0, int(span.begin_ms / span_ms * _COLUMNS))
                    last = min(_COLUMNS, max(first + 1, int(span.end_ms / span_ms * _COLUMNS)))
                    cells[first:last] = f"{span.label:─<{last - first}}"[: last - first]
            lines.append(f"{strip.name:<{width}} |{''.join(cells)}|")
    lines += [f"{'':<{width}} 0{'':<{_COLUMNS - 6}}{measure(span_ms)} ms", ""]
    bars = sorted(
        ((bar, model.lanes[bar.lane]) for model in models for bar in model.bars),
        key=lambda pair: pair[0].begin_ms,
    )[-_MOST_SLOTS:]
    rows = [
        [bar.begin_ms, lane, bar.rows, bar.requests, bar.wait_ms,
         None if bar.open else bar.end_ms - bar.begin_ms, bar.mark.letter, bar.mark.words]
        for bar, lane in bars
    ]  # fmt: skip
    columns = ("at_ms", "instance", "rows", "requests", "waited_ms", "took_ms", "left", "why")
    return "\n".join([*lines, table_text(columns, rows)])
