"""A figure of the scheduler: requests that wait in queues, leave in batches and run on instances.

Two pictures of the same data. `figure_scenes` is the finished one: every request has a row of time, every
batch a bar with the reason why it left. `stage_scenes` is for the page: above that timeline stands the
stage, with a token for each request and the places that it takes from moment to moment.
"""

from __future__ import annotations

from collections.abc import Callable

from nbtriton.drawing.numbers import measure, nice_ticks, plain
from nbtriton.drawing.scene import (
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
from nbtriton.drawing.timeline import pattern_of, swatch, words_on
from nbtriton.extensions.lessons.stage import (
    FigureBatch,
    FigurePicture,
    FigureRequest,
    Stage,
    stage_floor,
)

_Scale = Callable[[float], float]
# A page of 600 pixels, a notebook beside its files, and a wide screen.
_WIDTHS = (540.0, 760.0, 960.0)
_ROW_H, _LANE_H = 16.0, 24.0
_RIGHT = 16.0


def figure_scenes(picture: FigurePicture) -> list[Shape]:
    """Return the finished picture for pages of different widths, narrowest first."""
    scenes = []
    for width in _WIDTHS:
        head, y = _head(picture, width)
        body, bottom, _ = _timeline(picture, width, y)
        scenes.append(_card(picture, width, bottom, [*head, *body]))
    return scenes


def stage_scenes(picture: FigurePicture) -> list[Stage]:
    """Return the picture that moves, for pages of different widths, narrowest first."""
    found = []
    for width in _WIDTHS:
        floor, places, y = stage_floor(picture, width, 8.0) if picture.moments else ([], [], 4.0)
        body, bottom, plot = _timeline(picture, width, y + 4)
        found.append(Stage(_card(picture, width, bottom, [*body, *floor]), places, plot))
    return found


def _card(picture: FigurePicture, width: float, height: float, parts: list[Shape]) -> Shape:
    return figure(
        width, height, *parts, label=f"{picture.title}: {picture.finding}", title=picture.title,
        cls="nbt-figure-svg",
    )  # fmt: skip


def _head(picture: FigurePicture, width: float) -> tuple[list[Shape], float]:
    parts, y = [], 24.0
    for line in wrapped(picture.title, width - 32, 14):
        parts.append(text(16, y, line, 14, "fg", bold=True))
        y += 18
    for line in wrapped(picture.finding, width - 32, 12, bold=False):
        parts.append(text(16, y, line, 12, "fg"))
        y += 16
    return parts, y


def _timeline(
    picture: FigurePicture, width: float, top: float
) -> tuple[list[Shape], float, tuple[float, float, float, float]]:
    left = _names_width(picture, width)
    room = width - left - _RIGHT
    span = picture.span_ms or 1.0

    def x(ms: float) -> float:
        return left + min(max(ms / span, 0.0), 1.0) * room

    lines: list[Shape] = []
    parts: list[Shape] = []
    y = top + 8
    for at, model in enumerate(picture.models):
        own = [one for one in picture.requests if one.model == at]
        if picture.predicted:
            own = [one for one in own if one.client >= 0]
        # Up to the number of the request in its row.
        end = x(own[0].arrival_ms) - text_width(own[0].label, 11) - 7 if own else left
        name = shortened(model.name, end - 22, 12, bold=True)
        parts.append(text(16, y + 12, name, 12, "fg", bold=True))
        for row, one in enumerate(own):
            parts.append(_life(one, x, y + row * _ROW_H, open_=picture.predicted))
        y += max(len(own) * _ROW_H, _ROW_H) + 4
        for lane, name in enumerate(model.instances):
            label = shortened(name, left - 20, 11, keep_end=True)  # instances differ by it
            parts.append(text(left - 8, y + 16, label, 11, "muted", "end"))
            parts.append(rect(left, y, room, _LANE_H, **ink("panel", "line")))
            for batch in picture.batches:
                if batch.model == at and batch.lane == lane:
                    parts += _bar(batch, x, y)
            y += _LANE_H + 4
            for slot in range(model.slots):
                parts += _slot(picture, at, lane, slot, x, y, left)
                y += _ROW_H + 2
        y += 10
    for tick in nice_ticks(0.0, span, 6 if width > 600 else 4):
        if tick <= span * 1.0001:
            lines.append(stroke(f"M{x(tick):.1f} {top:.1f}V{y:.1f}", "line", opacity=0.6))
            parts.append(text(x(tick), y + 14, plain(tick), 11, "muted", "middle"))
    lines.append(stroke(f"M{left} {y:.1f}h{room:.1f}", "muted"))
    parts.append(text(16, y + 14, "milliseconds", 11, "muted"))
    legend, bottom = _legend(picture, width, y + 30)
    return [*lines, *parts, *legend], bottom, (left, room, top, y)


def _names_width(picture: FigurePicture, width: float) -> float:
    """Return the room of the names: what they need, as far as the picture has it."""
    needs = [
        max(text_width(name, 11) for name in (model.name, *model.instances)) + 44
        for model in picture.models
    ]
    return min(width * 0.3, max(96.0, width * 0.18, *needs))


def _life(one: FigureRequest, x: _Scale, y: float, *, open_: bool) -> Shape:
    """Draw the row of a request: from its arrival until it leaves, and on until its answer."""
    begin, left, end = x(one.arrival_ms), x(one.left_ms), x(one.answered_ms)
    role = "s1" if one.failed else "s0"
    parts: list[Shape] = [shape("title", one.title)]
    if not open_:
        ran = max(0.0, end - left)
        parts.append(rect(left, y + 6, ran, 3, rx=None, opacity=0.5, **ink(role)))
        if left - begin > 1:
            waited = left - begin
            parts.append(
                rect(begin, y + 4, waited, 7, rx=None, data_role="wait", **ink("bg", role))
            )
    # The number stands before the arrival, and after it where a prediction has no room before.
    after = open_ and begin - text_width(one.label, 11) <= 118
    parts.append(shape("circle", cx=begin, cy=y + 7.5, r=4, data_role="arrival", **ink(role, role)))
    spot = (begin + 7, "") if after else (begin - 7, "end")
    parts.append(text(spot[0], y + 11.5, one.label, 11, "fg", spot[1]))
    if one.client < 0:
        return shape("g", *parts, class_="nbt-life")
    return shape(
        "g", *parts, class_="nbt-life", data_client=one.client, data_at=f"{one.arrival_ms:g}",
        data_label=one.label,
    )  # fmt: skip


def _bar(batch: FigureBatch, x: _Scale, y: float) -> list[Shape]:
    begin, end = x(batch.begin_ms), x(batch.end_ms)
    width = max(2.0, end - begin)
    who = ", ".join(batch.labels)
    title = (
        f"{batch.mark.letter}: {batch.mark.words}. Requests {who}: rows {batch.rows}, from "
        f"{measure(batch.begin_ms)} to {measure(batch.end_ms)} ms"
    )
    parts = [
        rect(
            begin, y + 2, width, _LANE_H - 4, shape("title", title), opacity=0.4, data_role="batch",
            data_reason=batch.mark.letter, **ink(batch.mark.role, batch.mark.role),
        ),
        *pattern_of(batch.mark, begin, y + 2, width, _LANE_H - 4),
    ]  # fmt: skip
    words = (f"{batch.mark.letter}  {who}", f"{batch.mark.letter} {batch.rows}", batch.mark.letter)
    return [*parts, *words_on(batch.mark, words, begin, y, width)]


def _slot(
    picture: FigurePicture, model: int, lane: int, slot: int, x: _Scale, y: float, left: float
) -> list[Shape]:
    parts = [text(left - 8, y + 12, f"slot {slot}", 11, "muted", "end")]
    spans: dict[str, list[float]] = {}
    for one in picture.requests:
        if one.model == model and one.lane == lane and one.slot == slot:
            who = one.label.rstrip("0123456789") or one.label
            span = spans.setdefault(who, [one.slot_ms, one.answered_ms])
            span[1] = max(span[1], one.answered_ms)
    for who, (first, last) in spans.items():
        begin, end = x(first), x(last)
        title = shape("title", f"slot {slot}: sequence {who}")
        parts.append(
            rect(begin, y, end - begin, _ROW_H - 1, title, rx=None, opacity=0.3, data_role="slot", **ink("s5", "s5"))
        )  # fmt: skip
        if text_width(who, 11) + 4 <= end - begin:
            parts.append(text((begin + end) / 2, y + 12, who, 11, "fg", "middle"))
    return parts


def _legend(picture: FigurePicture, width: float, y: float) -> tuple[list[Shape], float]:
    parts: list[Shape] = []
    marks = {batch.mark.letter: batch.mark for batch in picture.batches}
    for mark in sorted(marks.values(), key=lambda one: one.letter):
        for at, line in enumerate(wrapped(mark.words, width - 78, 11, bold=False)):
            if not at:
                parts += swatch(mark, 16, y)
                parts.append(text(40, y + 10, mark.letter, 11, "fg", bold=True))
            parts.append(text(58, y + 10, line, 11, "fg"))
            y += 18
    return parts, y + 6
