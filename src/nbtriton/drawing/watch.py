"""The activity of a server over the last seconds: models as cards, with queues, instances and batch sizes.

The picture is also the skeleton of the live view, which fills in the parts that have a ``data-role``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from nbtriton.drawing.activity import ModelActivity
from nbtriton.drawing.numbers import MISSING, count, counted, measure, nice_ceiling, sparkline
from nbtriton.drawing.scene import (
    TEXT,
    TITLE,
    WIDTHS,
    Attr,
    Shape,
    figure,
    fitting,
    ink,
    rect,
    shape,
    shortened,
    stroke,
    text,
    text_width,
    to_svg,
    wrapped,
)
from nbtriton.drawing.table import table_html, table_text


@dataclass(frozen=True, slots=True)
class _Layout:
    """Positions in a card: its parts in pixels from its left, the bars from its top."""

    width: float
    plot_x: float
    plot_w: float
    bars_x: float
    bars_w: float
    bars_below: bool

    @property
    def right(self) -> float:
        return self.plot_x + self.plot_w

    def place(self, top: float, tall: float) -> str:
        """Return the place of a strip, for the live view that redraws it."""
        return f"{self.plot_x:g} {top:g} {self.plot_w:g} {tall:g}"


# For a page of 600 pixels, and for a notebook with its file browser open: a wider picture would have to be scrolled.
_NARROW = _Layout(WIDTHS[0], 235.0, 165.0, 24.0, 492.0, bars_below=True)
_WIDE = _Layout(WIDTHS[1], 250.0, 270.0, 654.0, 130.0, bars_below=False)
_WIDEST = _Layout(WIDTHS[2], 270.0, 492.0, 896.0, 200.0, bars_below=False)
_STRIP_H, _LANE_H, _LANE_STEP = 46.0, 13.0, 19.0
# With more lanes a card would be longer than a screen; the others are only counted.
_MAX_LANES = 8
# More cards would be longer than a screen: then each model is one line.
_MAX_CARDS = 8
_LINE_H = 30.0
# A line about what changed, above the ends of the axis.
_CHANGE_H = 14.0
_MAX_SHARES = 4
_BARS_H = 104.0  # below a narrow card


STATE_ROLES = {"READY": "s2", "LOADING": "s0", "UNLOADING": "s4", "UNAVAILABLE": "s1"}


def watch_scenes(models: Sequence[ModelActivity], *, span_s: float = 30.0) -> list[Shape]:
    """Return the picture of the models for pages of different widths, narrowest first.

    Each card is a group with ``data-model``.
    """
    return [_scene(models, span_s, layout) for layout in (_NARROW, _WIDE, _WIDEST)]


def _scene(models: Sequence[ModelActivity], span_s: float, at: _Layout) -> Shape:
    y = 12.0
    cards = []
    # One scale for all: equal heights are equal values.
    high = nice_ceiling(max((max(model.depths, default=0) for model in models), default=0))
    compact = not has_cards(models)
    idle = [model for model in models if compact and is_idle(model)]
    for model in models:
        if model in idle:
            continue
        height = _LINE_H if compact else _card_height(model, span_s, at)
        draw = _line if compact else _card
        cards.append(draw(model, y, height, span_s, high, at))
        y += height + (4 if compact else 10)
    if idle:
        names = f"{counted(len(idle), 'idle model')}: {', '.join(model.name for model in idle)}"
        cards.append(text(22, y + 14, shortened(names, at.width - 44, 12), 12, "muted"))
        y += 22
    if compact:
        cards += _time_axis((), y + 12, span_s, at)
        y += 22
    if not models:
        cards.append(text(24, 40, "no models are loaded", TEXT, "muted"))
        y = 66.0
    summary = "; ".join(
        f"{model.name} {model.state}, {measure(model.infer_per_s)} infer/s, {model.queued} queued"
        for model in models
    )
    return figure(
        at.width,
        y + 2,
        *cards,
        label=f"Server activity over the last {span_s:.0f} s: {summary or 'no models'}",
        title="Server activity",
        cls="nbt-watch-svg",
    )


def has_cards(models: Sequence[object]) -> bool:
    """Return True for so few models that each has a card."""
    return len(models) <= _MAX_CARDS


def is_idle(model: ModelActivity) -> bool:
    """Return True for a model that can serve and had nothing to do in what is drawn."""
    inside = model.queued + model.executing
    return model.state == "READY" and not (inside or model.drawn_inferences)


def busy_first(models: Sequence[ModelActivity]) -> tuple[ModelActivity, ...]:
    """Return the models as they stand: more than have cards by their share of busy time, those at rest last."""
    if has_cards(models):
        return tuple(models)
    # In tenths: what is about equally busy keeps its place.
    return tuple(sorted(models, key=lambda one: (is_idle(one), -round(one.busy, 1))))


def _main_height(model: ModelActivity, span_s: float, at: _Layout) -> float:
    lanes = min(len(model.lanes), _MAX_LANES) + (len(model.lanes) > _MAX_LANES)
    changes = len(_change_lines(model.changes, span_s, at)) * _CHANGE_H
    return max(144.0, 26 + _STRIP_H + 10 + lanes * _LANE_STEP + 26 + changes)


def _change_lines(
    changes: Sequence[tuple[float, str]], span_s: float, at: _Layout
) -> tuple[str, ...]:
    """Return the text of the newest change, in two lines at most."""
    newest = next((summary for age, summary in reversed(changes) if age <= span_s), "")
    if not newest:
        return ()
    # Up to the bars, or to the right end of the card.
    room = (at.width - 24 if at.bars_below else at.bars_x - 10) - at.plot_x
    first, *rest = wrapped(newest, room, 11, bold=False)
    return (first, *([shortened(" ".join(rest), room, 11)] if rest else ()))


def _card_height(model: ModelActivity, span_s: float, at: _Layout) -> float:
    if not at.bars_below:
        return _main_height(model, span_s, at)
    steps = len(model.shares[:_MAX_SHARES]) + (len(model.shares) > _MAX_SHARES)
    return _main_height(model, span_s, at) + (
        38 + 26 * steps if model.platform == "ensemble" else _BARS_H
    )


def _card(
    model: ModelActivity, y: float, height: float, span_s: float, high: float, at: _Layout
) -> Shape:
    main = _main_height(model, span_s, at)
    parts = [rect(10, y, at.width - 20, height, rx=6, **ink("panel"))]
    parts += _counters(model, y, at)
    parts += _queue(model, y, span_s, high, at)
    parts += _lanes(model, y + 26 + _STRIP_H + 10, span_s, at)
    parts += _time_axis(model.changes, y + main - 10, span_s, at)
    top, tall = (y + main, height - main) if at.bars_below else (y, height)
    draw = _shares if model.platform == "ensemble" else _histogram
    parts += draw(model, top, tall, at)
    return shape("g", *parts, class_="nbt-model", data_model=model.name, data_version=model.version)


def _line(
    model: ModelActivity, y: float, height: float, span_s: float, high: float, at: _Layout
) -> Shape:
    """Return a model as a line: name, rate, queue over time, share of busy time, counts."""
    base = y + height - 9
    tall = height - 12
    now = model.depths[-1] if model.depths else 0
    plot, right = at.plot_x, at.right
    waiting = "in flight" if model.platform == "ensemble" else "waiting"
    parts = [
        rect(10, y, at.width - 20, height, rx=4, **ink("panel")),
        shape("title", " ".join(filter(None, (model.name, model.platform, model.reason)))),
        shape("circle", cx=22, cy=base - 4, r=4.5, **ink(STATE_ROLES.get(model.state, "muted"))),
        text(33, base, shortened(model.name, plot - 130, 12, bold=True), 12, "fg", bold=True),
        text(plot - 50, base, measure(model.infer_per_s), 12, "fg", "end", data_role="rate"),
        text(plot - 47, base, "infer/s", 11, "muted"),
        *_depths(model, high, (base - tall, tall), span_s, at),
        stroke(f"M{plot:g} {base:.1f}h{at.plot_w:g}", "line"),
        text(right + 46, base, count(now), 12, "fg", "end", data_role="queue-now"),
        text(right + 50, base, waiting, 11, "muted"),
    ]  # fmt: skip
    if not at.bars_below:  # else there is only room for what changes
        busy, done = f"busy {model.busy * 100:.0f}%", f"{count(model.inference_count)} done"
        parts += [
            text(right + 165, base, busy, 11, "muted", "end", data_role="busy"),
            text(at.width - 20, base, done, 11, "muted", "end", data_role="done"),
        ]
    return shape("g", *parts, class_="nbt-model", data_model=model.name, data_version=model.version)


def _depths(
    model: ModelActivity, high: float, strip: tuple[float, float], span_s: float, at: _Layout
) -> list[Shape]:
    """Return the queue over time, with a mark at each time at which the configuration changed."""
    top, tall = strip
    place = at.place(top, tall)
    line, area = _steps(model.ages_s, model.depths, high, strip, span_s, at)
    changes = [(age, summary) for age, summary in model.changes if age <= span_s]
    marks = "".join(
        f"M{at.plot_x + (1 - age / span_s) * at.plot_w:.1f} {top:.1f}v{tall:.1f}"
        for age, _ in changes
    )
    title = shape("title", "; ".join(f"{measure(age)} s ago {summary}" for age, summary in changes))
    return [
        shape("path", d=area, opacity=0.25, data_role="queue-area", data_plot=place, **ink("s0")),
        stroke(line, "s0", stroke_width=1.5, data_role="queue-line"),
        shape(
            "path", title, d=marks, stroke_width=2, stroke_dasharray="3 2",
            data_role="changes", data_plot=place, **ink(None, "s1"),
        ),
    ]  # fmt: skip


def _shares(model: ModelActivity, y: float, _height: float, at: _Layout) -> list[Shape]:
    """Return the steps of an ensemble with their shares of its requests' time."""
    left, wide = at.bars_x, at.bars_w
    parts = [text(left, y + 18, "of the requests' time", 11, "muted")]
    shown = model.shares[:_MAX_SHARES]
    for row, (name, share) in enumerate(shown):
        top = y + 32 + row * 26
        known = 0.0 if math.isnan(share) else share
        words = MISSING if math.isnan(share) else f"{share:.0%}"
        parts += [
            text(left, top + 6, shortened(name, wide - 44, 11), 11, "fg"),
            text(left + wide, top + 6, words, 11, "fg", "end", data_role="share-text"),
            rect(left, top + 10, wide, 7, **ink("bg", "line")),
            rect(left, top + 10, wide * known, 7, data_role="share", data_room=wide, **ink("s3")),
        ]  # fmt: skip
    if len(model.shares) > len(shown):
        more = f"and {counted(len(model.shares) - len(shown), 'more step')}"
        parts.append(text(left, y + 36 + _MAX_SHARES * 26, more, 11, "muted"))
    return parts


def _counters(model: ModelActivity, y: float, at: _Layout) -> list[Shape]:
    role = STATE_ROLES.get(model.state, "muted")
    name = shortened(model.name, at.plot_x - 40, 14, bold=True)
    compute = f"compute {measure(model.compute_ms)} ms"
    failed, fails = f"{count(model.fail_count)} failed", bool(model.fail_count)
    return [
        shape("title", " ".join(filter(None, (model.name, model.platform, model.reason)))),
        text(24, y + 24, name, 14, "fg", bold=True),
        shape("circle", cx=28.5, cy=y + 38, r=4.5, **ink(role)),
        text(39, y + 42, f"{model.state} · version {model.version}", 11, "muted"),
        text(24, y + 72, measure(model.infer_per_s), 22, "fg", bold=True, data_role="rate"),
        text(24, y + 87, model.rate_over, 11, "muted", data_role="rate-over"),
        text(24, y + 104, _waited(model), 11, "muted", data_role="wait"),
        text(24, y + 118, compute, 11, "muted", data_role="compute"),
        text(24, y + 134, f"{count(model.inference_count)} done", 11, "muted", data_role="done"),
        text(115, y + 134, failed, 11, "t1" if fails else "muted", data_role="failed", bold=fails),
    ]


def _waited(model: ModelActivity) -> str:
    # An ensemble has no queue; its steps do.
    return "" if model.platform == "ensemble" else f"wait {measure(model.queue_ms)} ms"


def _queue(model: ModelActivity, y: float, span_s: float, high: float, at: _Layout) -> list[Shape]:
    top, base = y + 26, y + 26 + _STRIP_H
    ensemble = model.platform == "ensemble"
    what = "in flight, most" if ensemble else "waiting, most"
    now = model.depths[-1] if model.depths else 0
    left, right = at.plot_x, at.right
    return [
        text(left, y + 18, what if at.bars_below else f"requests {what}", 11, "muted"),
        text(right, y + 18, f"0 to {count(high)}", 11, "muted", "end", data_role="queue-top"),
        stroke(f"M{left:g} {top:.1f}h{at.plot_w:g}", "line"),
        *_depths(model, high, (top, _STRIP_H), span_s, at),
        stroke(f"M{left:g} {base:.1f}h{at.plot_w:g}", "muted"),
        text(right + 10, base - 16, count(now), TITLE, "fg", bold=True, data_role="queue-now"),
        text(right + 10, base - 2, "in flight now" if ensemble else "waiting now", 11, "muted"),
    ]  # fmt: skip


def _lanes(model: ModelActivity, y: float, span_s: float, at: _Layout) -> list[Shape]:
    parts: list[Shape] = []
    for i, lane in enumerate(model.lanes[:_MAX_LANES]):
        top = y + i * _LANE_STEP
        _, area = _steps(model.ages_s, lane.busy, 1.0, (top, _LANE_H), span_s, at)
        parts += [
            shape("title", lane.name),
            rect(at.plot_x, top, at.plot_w, _LANE_H, **ink("bg", "line")),
            shape(
                "path", d=area, data_role="lane", data_lane=i, data_plot=at.place(top, _LANE_H), **ink("s2")
            ),
            text(
                at.right + 10, top + 10.5, _lane_text(lane.share, lane.batch_size), 11, "fg",
                data_role="lane-text", data_lane=i,
            ),
            text(at.plot_x - 7, top + 10.5, f"instance {i}", 11, "muted", "end"),
        ]  # fmt: skip
    if len(model.lanes) > _MAX_LANES:
        more = counted(len(model.lanes) - _MAX_LANES, "more instance")
        top = y + _MAX_LANES * _LANE_STEP
        parts.append(text(at.plot_x, top + 10.5, f"and {more}", 11, "muted"))
    return parts


def _lane_text(share: float, batch_size: int) -> str:
    """Return an instance's share of busy time and its batch in words."""
    doing = f"batch {batch_size}" if batch_size else "idle"
    return f"{share * 100:.0f}% · {doing}"


def _time_axis(
    changes: Sequence[tuple[float, str]], y: float, span_s: float, at: _Layout
) -> list[Shape]:
    lines = _change_lines(changes, span_s, at)
    first = y - _CHANGE_H * len(lines)
    texts = [
        text(at.plot_x, first + _CHANGE_H * i, line, 11, "muted", data_role="change")
        for i, line in enumerate(lines)
    ]
    return [
        text(at.plot_x, y, f"{span_s:.0f} s ago", 11, "muted", data_role="axis"),
        *texts,
        text(at.right, y, "now", 11, "muted", "end"),
    ]  # fmt: skip


def _histogram(model: ModelActivity, y: float, height: float, at: _Layout) -> list[Shape]:
    bins = model.bins or (("1", 0),)
    top, base = y + 30, y + height - 24
    room, most = base - top - 10, max(n for _, n in bins)
    step = min(at.bars_w / len(bins), 82.0)
    wide, axis_w = step * 0.78, step * len(bins)
    parts = [
        text(
            at.bars_x, y + 18, f"batch sizes {model.bins_since}", 11, "muted", data_role="bar-title"
        ),
        stroke(f"M{at.bars_x:g} {base:.1f}h{axis_w:g}", "muted"),
    ]
    # Labels that would touch their neighbours are left out, but never the first and the last.
    widest = max(text_width(name, 11) for name, _ in bins) + 3
    every = max(1, -(-int(widest) // max(1, int(step))))
    last = len(bins) - 1
    # The last label must not go beyond the axis.
    beyond = (last + 0.5) * step + text_width(bins[last][0], 11) / 2 - axis_w
    inward = max(0.0, beyond) if last else 0.0
    apart = every * step + inward
    labelled = {0, last} | {i for i in range(0, last, every) if (last - i) * step >= apart}
    for i, (name, n) in enumerate(bins):
        bar = room * n / max(1, most)
        x = at.bars_x + i * step + (step - wide) / 2
        title = shape("title", f"batch size {name}: {counted(n, 'execution')}")
        live: dict[str, Attr] = {"data_role": "bar", "data_base": base, "data_room": room}
        parts.append(rect(x, base - bar, wide, bar, title, rx=None, **live, **ink("s3")))
        if i in labelled:
            middle = x + wide / 2 - (inward if i == last else 0.0)
            parts.append(text(middle, base + 13, name, 11, "muted", "middle"))
    # The number of the tallest bar is written at its height.
    full = base - room
    parts += [
        stroke(f"M{at.bars_x:g} {full:.1f}h{axis_w:g}", "line"),
        text(at.bars_x + axis_w, full - 4, count(most), 11, "muted", "end", data_role="bar-top"),
    ]
    return parts


def _steps(
    ages: Sequence[float],
    values: Sequence[float],
    high: float,
    strip: tuple[float, float],
    span: float,
    at: _Layout,
) -> tuple[str, str]:
    """Return the outline and the area of values over time, newest at the right edge.

    A value covers the time since the previous sample, so nothing is drawn across a pause after it.
    """
    pairs = [(a, v) for a, v in zip(ages, values, strict=True) if a <= span]
    if not pairs:
        return "", ""
    top, tall = strip
    base = top + tall
    spots = [
        (at.plot_x + (1 - age / span) * at.plot_w, base - min(value / high, 1.0) * tall)
        for age, value in pairs
    ]
    left = spots[0][0]
    first = spots[min(1, len(spots) - 1)][1]
    on = "".join(f"V{y:.1f}H{x:.1f}" for x, y in spots[1:])
    return f"M{left:.1f} {first:.1f}{on}", f"M{left:.1f} {base:.1f}{on}V{base:.1f}z"


# With no response for longer than this, the finding names the model instead of rates.
_STALLED_S = 1.0
# Rates are those of the last two seconds.
MOVING_S = 2.0


def watch_svg(models: Sequence[ModelActivity], *, span_s: float = 30.0) -> str:
    """Draw one card per model: counters, queue depth and instances over time, batch sizes."""
    return to_svg(watch_scenes(models, span_s=span_s)[1])


def leading(models: Sequence[ModelActivity]) -> ModelActivity | None:
    """Return the model whose requests spent the most time in what is drawn, preferring one that is not a step."""
    by_name = {one.name: one for one in models}
    steps = {name for model in models for name, _ in model.shares}

    def spent_ms(one: ModelActivity) -> float:
        # The statistics of an ensemble do not include the queues of its steps.
        inside = [spent_ms(by_name[name]) for name, _ in one.shares if name in by_name]
        each_ms = one.queue_ms + one.compute_ms
        # Times of the last two seconds are unknown where nothing ended in them.
        return sum(inside) or one.drawn_inferences * (0.0 if math.isnan(each_ms) else each_ms)

    worked = [one for one in models if one.drawn_inferences]
    return max(
        worked,
        key=lambda one: (one.name not in steps, spent_ms(one), one.drawn_inferences),
        default=None,
    )


def watch_finding(
    models: Sequence[ModelActivity], traffic: str = "", *, span_s: float = 30.0
) -> str:
    """Return the most important finding: a model that does not respond, else where the time goes.

    Parameters
    ----------
    models : sequence of ModelActivity
    traffic : str, optional
        The sentence about the recorded requests of the `leading` model, the same as in all views.
    span_s : float, optional
        The span that is drawn.
    """
    if not models:
        return ""
    top = leading(models)
    busy = [one for one in models if one.platform != "ensemble" and one.queued + one.executing]
    stalled = [one for one in busy if one.stalled_s >= _STALLED_S]
    if stalled or (busy and not any(one.infer_per_s for one in models)):
        worst = max(stalled or busy, key=lambda one: (one.queued + one.executing, one.stalled_s))
        ended = f"nothing has ended for {count(worst.stalled_s)} s; " if stalled else ""
        return (
            f"{worst.name}: {ended}{count(worst.executing)} running, {count(worst.queued)} waiting"
        )
    quiet_s = min(one.quiet_s for one in models)
    if top is None or math.isinf(quiet_s):
        return f"no request in the last {span_s:.0f} s"
    if quiet_s < MOVING_S:
        return traffic or f"{top.name}: {measure(top.infer_per_s)} infer/s"
    whole = (
        f"nothing for {count(quiet_s)} s; in the {span_s:.0f} s before now {top.name} had "
        f"{counted(top.drawn_inferences, 'inference')}, up to {measure(top.peak_per_s)}/s"
    )
    return f"{whole}. {traffic}" if traffic else whole


def watch_html(models: Sequence[ModelActivity], traffic: str = "", *, span_s: float = 30.0) -> str:
    """Return the finding, the picture of `watch_svg`, and the same numbers as a table beneath it."""
    columns, rows = watch_table(models)
    table = f'<div style="overflow-x:auto">{table_html(columns, rows, cls="nbt-watch-table")}</div>'
    said = watch_finding(models, traffic, span_s=span_s)
    finding = ""
    if said:
        finding = f'<p style="margin:2px 0 6px;max-width:{WIDTHS[2]:g}px;font-size:14px;font-weight:600">{escape(said)}</p>'
    return (
        f'<div class="nbt-watch nbt-static">{finding}{fitting(watch_scenes(models, span_s=span_s))}'
        f"<details><summary>the numbers as a table</summary>{table}</details></div>"
    )


def watch_text(models: Sequence[ModelActivity], traffic: str = "", *, span_s: float = 30.0) -> str:
    """Write the finding, and the counters as an aligned table with a sparkline of each queue."""
    columns, rows = watch_table(models)
    if not rows:
        return "no models are loaded"
    sparks = [sparkline(_thin(model.depths, 24)) for model in models]
    table = table_text(
        [*columns, "queue"], [[*row, spark] for row, spark in zip(rows, sparks, strict=True)]
    )
    return f"{watch_finding(models, traffic, span_s=span_s)}\n{table}"


def watch_table(models: Sequence[ModelActivity]) -> tuple[list[str], list[list[object]]]:
    """Return the counters: the names of the columns, and rows."""
    columns = list(_row(ModelActivity("")))
    return columns, [list(_row(model).values()) for model in models]


def _row(model: ModelActivity) -> dict[str, object]:
    return {
        "model": model.name,
        "version": model.version,
        "state": model.state,
        "queued": model.queued,
        "executing": model.executing,
        "infer_per_s": float(model.infer_per_s),
        "queue_ms": float(model.queue_ms),
        "compute_ms": float(model.compute_ms),
        "inferences": model.inference_count,
        "executions": model.execution_count,
        "failed": model.fail_count,
        "mean batch": model.mean_batch or None,
    }


def _thin(values: Sequence[float], most: int) -> list[float]:
    """Keep at most ``most`` values, each the highest of its stretch."""
    if len(values) <= most:
        return list(values)
    return [
        max(values[i * len(values) // most : (i + 1) * len(values) // most]) for i in range(most)
    ]
