"""The activity of a server over the last seconds: queues, instances and batch sizes of models.

The picture is also the skeleton of the live view, which fills the parts with a ``data-role``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nbtriton.drawing.numbers import count, measure, nice_ceiling, sparkline
from nbtriton.drawing.scene import Shape, figure, ink, shape, text, text_width, to_svg
from nbtriton.drawing.table import table_html, table_text

__all__ = [
    "Lane",
    "ModelActivity",
    "batch_bins",
    "bin_counts",
    "watch_html",
    "watch_scene",
    "watch_svg",
    "watch_table",
    "watch_text",
]

# As wide as a notebook beside its files: what is wider would be moved sideways.
_WIDTH = 800.0
_PLOT_X, _PLOT_W = 250.0, 270.0
_BARS_X, _BARS_W = 654.0, 130.0
_STRIP_H, _LANE_H, _LANE_STEP = 46.0, 13.0, 19.0
# More lanes make a card longer than a screen; the others are only counted.
_MAX_LANES = 8
# More cards are longer than a screen: each model is a line then.
_MAX_CARDS = 8
_LINE_H = 30.0
_MAX_SHARES = 4

STATE_ROLES = {"READY": "s2", "LOADING": "s0", "UNLOADING": "s4", "UNAVAILABLE": "s1"}


@dataclass(frozen=True, slots=True)
class Lane:
    """One instance: its share of busy time around each sample, and the batch that it runs now."""

    name: str
    busy: tuple[float, ...]
    batch_size: int = 0
    executions: int = 0

    @property
    def share(self) -> float:
        """The share of busy time in the whole span, 0 to 1."""
        return sum(self.busy) / len(self.busy) if self.busy else 0.0


@dataclass(frozen=True, slots=True)
class ModelActivity:
    """One model over a span of time.

    Attributes
    ----------
    ages_s : tuple of float
        The age of each sample, oldest first.
    queued, executing : int
        Requests that wait, and that run, now.
    depths : tuple of float
        Most waiting requests since the sample before; for an ensemble, which has no queue, those in flight.
    bins : tuple of (str, int)
        Batch sizes and their executions.
    bins_since : str
        The span of those executions, in words.
    infer_per_s, queue_ms, compute_ms : float
        Over the span; the latter two are means per request.
    changes : tuple of (float, str)
        How many seconds ago its configuration changed, and to what.
    shares : tuple of (str, float)
        Of an ensemble: its steps, and their shares of the time that all of them took, 0 to 1.
    """

    name: str
    version: int = 1
    state: str = "READY"
    reason: str = ""
    platform: str = ""
    ages_s: tuple[float, ...] = ()
    depths: tuple[float, ...] = ()
    queued: int = 0
    executing: int = 0
    lanes: tuple[Lane, ...] = ()
    bins: tuple[tuple[str, int], ...] = ()
    bins_since: str = "since load"
    infer_per_s: float = 0.0
    queue_ms: float = 0.0
    compute_ms: float = 0.0
    inference_count: int = 0
    execution_count: int = 0
    fail_count: int = 0
    changes: tuple[tuple[float, str], ...] = ()
    shares: tuple[tuple[str, float], ...] = ()

    @property
    def busy(self) -> float:
        """The share of their time in which its instances worked, 0 to 1."""
        return sum(lane.share for lane in self.lanes) / len(self.lanes) if self.lanes else 0.0


def batch_bins(max_batch_size: int) -> tuple[tuple[int, int], ...]:
    """Return the first and last batch size of each bar: single sizes up to 12, else doubling."""
    top = max(1, max_batch_size)
    if top <= 12:
        return tuple((size, size) for size in range(1, top + 1))
    bins, first = [(1, 1)], 2
    while first <= top:
        last = min(top, 2 * (first - 1))
        bins.append((first, last))
        first = last + 1
    return tuple(bins)


def bin_counts(
    bins: Sequence[tuple[int, int]], sizes: Mapping[int, int]
) -> tuple[tuple[str, int], ...]:
    """Sum executions per bar; sizes beyond the last bar count in it."""
    totals = [0] * len(bins)
    for size, executions in sizes.items():
        at = next((i for i, (_, last) in enumerate(bins) if size <= last), len(bins) - 1)
        totals[at] += executions
    names = (str(a) if a == b else f"{a}\u2013{b}" for a, b in bins)
    return tuple(zip(names, totals, strict=True))


def watch_svg(models: Sequence[ModelActivity], *, span_s: float = 30.0) -> str:
    """Draw one card per model: counters, queue depth and instances over time, batch sizes."""
    return to_svg(watch_scene(models, span_s=span_s))


def watch_html(models: Sequence[ModelActivity], *, span_s: float = 30.0) -> str:
    """Return the picture of `watch_svg` with the same numbers as a table beneath it."""
    columns, rows = watch_table(models)
    table = table_html(columns, rows, cls="nbt-watch-table")
    return (
        f'<div class="nbt-watch nbt-static"><div style="overflow-x:auto">'
        f"{watch_svg(models, span_s=span_s)}</div>"
        f"<details><summary>the numbers as a table</summary>{table}</details></div>"
    )


def watch_text(models: Sequence[ModelActivity]) -> str:
    """Write the counters as an aligned table with a sparkline of each queue."""
    columns, rows = watch_table(models)
    if not rows:
        return "no models are loaded"
    sparks = [sparkline(_thin(model.depths, 24)) for model in models]
    return table_text(
        [*columns, "queue"], [[*row, spark] for row, spark in zip(rows, sparks, strict=True)]
    )


def watch_table(models: Sequence[ModelActivity]) -> tuple[list[str], list[list[object]]]:
    """Return the counters as the names of columns and rows."""
    columns = list(_row(ModelActivity("")))
    return columns, [list(_row(model).values()) for model in models]


def _row(model: ModelActivity) -> dict[str, object]:
    batches = model.execution_count
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
        "executions": batches,
        "failed": model.fail_count,
        "mean batch": model.inference_count / batches if batches else None,
    }


def watch_scene(models: Sequence[ModelActivity], *, span_s: float = 30.0) -> Shape:
    """Return the picture of some models as shapes; each card is a group with ``data-model``."""
    y = 12.0
    cards = []
    # One scale for all: what looks alike is alike.
    high = nice_ceiling(max((max(model.depths, default=0) for model in models), default=0))
    compact = len(models) > _MAX_CARDS
    for model in models:
        height = _LINE_H if compact else _card_height(model)
        draw = _line if compact else _card
        cards.append(draw(model, y, height, span_s, high))
        y += height + (4 if compact else 10)
    if compact:
        cards += _time_axis((), y + 12, span_s)
        y += 22
    if not models:
        cards.append(text(24, 40, "no models are loaded", 13, "muted"))
        y = 66.0
    summary = "; ".join(
        f"{model.name} {model.state}, {measure(model.infer_per_s)} infer/s, {model.queued} queued"
        for model in models
    )
    return figure(
        _WIDTH,
        y + 2,
        *cards,
        label=f"Server activity over the last {span_s:.0f} s: {summary or 'no models'}",
        title="Server activity",
        cls="nbt-watch-svg",
        scales=False,
    )


def _card_height(model: ModelActivity) -> float:
    lanes = min(len(model.lanes), _MAX_LANES) + (len(model.lanes) > _MAX_LANES)
    return max(144.0, 26 + _STRIP_H + 10 + lanes * _LANE_STEP + 26)


def _card(model: ModelActivity, y: float, height: float, span_s: float, high: float) -> Shape:
    parts = [shape("rect", x=10, y=y, width=_WIDTH - 20, height=height, rx=6, **ink("panel"))]
    parts += _counters(model, y)
    parts += _queue(model, y, span_s, high)
    parts += _lanes(model, y + 26 + _STRIP_H + 10, span_s)
    parts += _time_axis(model.changes, y + height - 10, span_s)
    parts += _shares(model, y) if model.platform == "ensemble" else _histogram(model, y, height)
    return shape("g", *parts, class_="nbt-model", data_model=model.name, data_version=model.version)


def _line(model: ModelActivity, y: float, height: float, span_s: float, high: float) -> Shape:
    """Return a model as a line: name, rate, queue over time, share of busy time, counts."""
    base = y + height - 9
    tall = height - 12
    line, area = _steps(model.ages_s, model.depths, high, base - tall, tall, span_s)
    now = model.depths[-1] if model.depths else 0
    right = _PLOT_X + _PLOT_W
    parts = [
        shape("rect", x=10, y=y, width=_WIDTH - 20, height=height, rx=4, **ink("panel")),
        shape("title", " ".join(filter(None, (model.name, model.platform, model.reason)))),
        shape("circle", cx=22, cy=base - 4, r=4.5, **ink(STATE_ROLES.get(model.state, "muted"))),
        text(33, base, _short(model.name, 120), 12, "fg", bold=True),
        text(_PLOT_X - 50, base, measure(model.infer_per_s), 12, "fg", "end", data_role="rate"),
        text(_PLOT_X - 47, base, "infer/s", 11, "muted"),
        shape(
            "path",
            d=area,
            opacity=0.25,
            data_role="queue-area",
            data_plot=_plot(base - tall, tall),
            **ink("s0"),
        ),
        shape("path", d=line, stroke_width=1.5, data_role="queue-line", **ink(None, "s0")),
        _change_marks(model.changes, base - tall, tall, span_s),
        shape("path", d=f"M{_PLOT_X} {base:.1f}h{_PLOT_W}", **ink(None, "line")),
        text(right + 46, base, count(now), 12, "fg", "end", data_role="queue-now"),
        text(
            right + 50,
            base,
            "in flight" if model.platform == "ensemble" else "waiting",
            11,
            "muted",
        ),
        text(right + 165, base, _busy_text(model.busy), 11, "muted", "end", data_role="busy"),
        text(
            _WIDTH - 20,
            base,
            f"{count(model.inference_count)} done",
            11,
            "muted",
            "end",
            data_role="done",
        ),
    ]
    return shape("g", *parts, class_="nbt-model", data_model=model.name, data_version=model.version)


def _busy_text(share: float) -> str:
    return f"busy {share * 100:.0f} %"


def _change_marks(
    changes: Sequence[tuple[float, str]], top: float, tall: float, span_s: float
) -> Shape:
    """Return a mark at each time at which the configuration changed."""
    marks = "".join(
        f"M{_PLOT_X + (1 - age / span_s) * _PLOT_W:.1f} {top:.1f}v{tall:.1f}"
        for age, _ in changes
        if age <= span_s
    )
    words = "; ".join(
        f"{measure(age)} s ago {summary}" for age, summary in changes if age <= span_s
    )
    return shape(
        "path", shape("title", words), d=marks, stroke_width=2, stroke_dasharray="3 2",
        data_role="changes", data_plot=_plot(top, tall), **ink(None, "s1"),
    )  # fmt: skip


def _shares(model: ModelActivity, y: float) -> list[Shape]:
    """Return the steps of an ensemble with their shares of the time of all of them."""
    parts = [text(_BARS_X, y + 18, "time in its steps", 11, "muted")]
    shown = model.shares[:_MAX_SHARES]
    for at, (name, share) in enumerate(shown):
        top = y + 32 + at * 26
        parts += [
            text(_BARS_X, top + 6, _short(name, _BARS_W - 44, 11, bold=False), 11, "fg"),
            text(_BARS_X + _BARS_W, top + 6, f"{share * 100:.0f} %", 11, "fg", "end", data_role="share-text"),
            shape("rect", x=_BARS_X, y=top + 10, width=_BARS_W, height=7, rx=2, **ink("bg", "line")),
            shape(
                "rect", x=_BARS_X, y=top + 10, width=_BARS_W * share, height=7, rx=2,
                data_role="share", data_room=_BARS_W, **ink("s3"),
            ),
        ]  # fmt: skip
    if len(model.shares) > len(shown):
        more = f"and {len(model.shares) - len(shown)} more steps"
        parts.append(text(_BARS_X, y + 36 + _MAX_SHARES * 26, more, 11, "muted"))
    return parts


def _short(name: str, room: float, size: float = 12, *, bold: bool = True) -> str:
    while text_width(name, size, bold=bold) > room and len(name) > 4:
        name = name[:-2] + "…"
    return name


def _counters(model: ModelActivity, y: float) -> list[Shape]:
    role = STATE_ROLES.get(model.state, "muted")
    name = _short(model.name, 210, 14)
    failed = f"{count(model.fail_count)} failed"
    return [
        shape("title", " ".join(filter(None, (model.name, model.platform, model.reason)))),
        text(24, y + 24, name, 14, "fg", bold=True),
        shape("circle", cx=28.5, cy=y + 38, r=4.5, **ink(role)),
        text(39, y + 42, f"{model.state} · version {model.version}", 11, "muted"),
        text(24, y + 72, measure(model.infer_per_s), 22, "fg", bold=True, data_role="rate"),
        text(24, y + 87, "inferences per second", 11, "muted"),
        text(24, y + 104, _waited(model), 11, "muted", data_role="wait"),
        text(
            24, y + 118, f"compute {measure(model.compute_ms)} ms", 11, "muted", data_role="compute"
        ),
        text(24, y + 134, f"{count(model.inference_count)} done", 11, "muted", data_role="done"),
        text(
            115,
            y + 134,
            failed,
            11,
            "t1" if model.fail_count else "muted",
            data_role="failed",
            bold=bool(model.fail_count),
        ),
    ]


def _waited(model: ModelActivity) -> str:
    # An ensemble has no queue: its steps have.
    return "" if model.platform == "ensemble" else f"wait {measure(model.queue_ms)} ms"


def _queue(model: ModelActivity, y: float, span_s: float, high: float) -> list[Shape]:
    top, base = y + 26, y + 26 + _STRIP_H
    ensemble = model.platform == "ensemble"
    now = model.depths[-1] if model.depths else 0
    line, area = _steps(model.ages_s, model.depths, high, top, _STRIP_H, span_s)
    right = _PLOT_X + _PLOT_W
    return [
        text(
            _PLOT_X,
            y + 18,
            "requests in flight, most" if ensemble else "requests that wait, most",
            11,
            "muted",
        ),
        text(right, y + 18, f"0 to {count(high)}", 11, "muted", "end", data_role="queue-top"),
        shape("path", d=f"M{_PLOT_X} {top:.1f}h{_PLOT_W}", **ink(None, "line")),
        shape(
            "path",
            d=area,
            opacity=0.25,
            data_role="queue-area",
            data_plot=_plot(top, _STRIP_H),
            **ink("s0"),
        ),
        shape("path", d=line, stroke_width=1.5, data_role="queue-line", **ink(None, "s0")),
        _change_marks(model.changes, top, _STRIP_H, span_s),
        shape("path", d=f"M{_PLOT_X} {base:.1f}h{_PLOT_W}", **ink(None, "muted")),
        text(right + 10, base - 16, count(now), 16, "fg", bold=True, data_role="queue-now"),
        text(right + 10, base - 2, "in flight now" if ensemble else "waiting now", 11, "muted"),
    ]


def _lanes(model: ModelActivity, y: float, span_s: float) -> list[Shape]:
    parts: list[Shape] = []
    for i, lane in enumerate(model.lanes[:_MAX_LANES]):
        top = y + i * _LANE_STEP
        _, area = _steps(model.ages_s, lane.busy, 1.0, top, _LANE_H, span_s)
        parts += [
            shape("title", lane.name),
            shape(
                "rect", x=_PLOT_X, y=top, width=_PLOT_W, height=_LANE_H, rx=2, **ink("bg", "line")
            ),
            shape(
                "path",
                d=area,
                data_role="lane",
                data_lane=i,
                data_plot=_plot(top, _LANE_H),
                **ink("s2"),
            ),
            text(
                _PLOT_X + _PLOT_W + 10,
                top + 10.5,
                lane_text(lane.share, lane.batch_size),
                11,
                "fg",
                data_role="lane-text",
                data_lane=i,
            ),
            text(_PLOT_X - 7, top + 10.5, f"instance {i}", 11, "muted", "end"),
        ]
    if len(model.lanes) > _MAX_LANES:
        more = len(model.lanes) - _MAX_LANES
        top = y + _MAX_LANES * _LANE_STEP
        parts.append(text(_PLOT_X, top + 10.5, f"and {more} more instances", 11, "muted"))
    return parts


def lane_text(share: float, batch_size: int) -> str:
    """Return an instance's share of busy time and its batch in words."""
    doing = f"batch {batch_size}" if batch_size else "idle"
    return f"{share * 100:.0f} % · {doing}"


def _time_axis(changes: Sequence[tuple[float, str]], y: float, span_s: float) -> list[Shape]:
    newest = next((summary for age, summary in reversed(changes) if age <= span_s), "")
    return [
        text(_PLOT_X, y, f"{span_s:.0f} s ago", 11, "muted", data_role="axis"),
        text(
            _PLOT_X + _PLOT_W / 2, y, _short(newest, _PLOT_W - 130, 11, bold=False), 11, "muted",
            "middle", data_role="change",
        ),
        text(_PLOT_X + _PLOT_W, y, "now", 11, "muted", "end"),
    ]  # fmt: skip


def _histogram(model: ModelActivity, y: float, height: float) -> list[Shape]:
    bins = model.bins or (("1", 0),)
    top, base = y + 30, y + height - 24
    most = max(n for _, n in bins)
    step = min(_BARS_W / len(bins), 34.0)
    wide = step * 0.78
    parts = [
        text(
            _BARS_X, y + 18, f"batch sizes {model.bins_since}", 11, "muted", data_role="bar-title"
        ),
        shape("path", d=f"M{_BARS_X} {base:.1f}h{_BARS_W}", **ink(None, "muted")),
    ]
    # Labels that would touch their neighbours are left out, but never the first and the last.
    widest = max(text_width(name, 11) for name, _ in bins) + 3
    every = max(1, -(-int(widest) // max(1, int(step))))
    last = len(bins) - 1
    labelled = {0, last} | {i for i in range(0, last, every) if last - i >= every}
    for i, (name, n) in enumerate(bins):
        bar = (base - top - 10) * n / max(1, most)
        x = _BARS_X + i * step + (step - wide) / 2
        parts.append(
            shape(
                "rect",
                shape("title", f"batch size {name}: {count(n)} executions"),
                x=x,
                y=base - bar,
                width=wide,
                height=bar,
                data_role="bar",
                data_base=base,
                data_room=base - top - 10,
                **ink("s3"),
            )
        )
        if i in labelled:
            parts.append(text(x + wide / 2, base + 13, name, 11, "muted", "middle"))
    # The number of the tallest bar is written at its height.
    full = base - (base - top - 10)
    parts += [
        shape("path", d=f"M{_BARS_X} {full:.1f}h{_BARS_W}", **ink(None, "line")),
        text(_BARS_X + _BARS_W, full - 4, count(most), 11, "muted", "end", data_role="bar-top"),
    ]
    return parts


def _steps(
    ages: Sequence[float],
    values: Sequence[float],
    high: float,
    top: float,
    tall: float,
    span: float,
) -> tuple[str, str]:
    """Return the outline and the area of values over time, newest at the right edge.

    A value is that of the time since the sample before it: none is drawn across a pause that follows it.
    """
    pairs = [(a, v) for a, v in zip(ages, values, strict=True) if a <= span]
    if not pairs:
        return "", ""
    base = top + tall
    spots = [
        (_PLOT_X + (1 - age / span) * _PLOT_W, base - min(value / high, 1.0) * tall)
        for age, value in pairs
    ]
    left = spots[0][0]
    first = spots[min(1, len(spots) - 1)][1]
    on = "".join(f"V{y:.1f}H{x:.1f}" for x, y in spots[1:])
    return f"M{left:.1f} {first:.1f}{on}", f"M{left:.1f} {base:.1f}{on}V{base:.1f}z"


def _plot(top: float, tall: float) -> str:
    """Return the place of a strip, for the live view that redraws it."""
    return f"{_PLOT_X:g} {top:g} {_PLOT_W:g} {tall:g}"


def _thin(values: Sequence[float], most: int) -> list[float]:
    """Keep at most ``most`` values, each the highest of its stretch."""
    if len(values) <= most:
        return list(values)
    return [
        max(values[i * len(values) // most : (i + 1) * len(values) // most]) for i in range(most)
    ]
