"""What a figure of the scheduler shows, as plain data, and its stage: boxes, and the token of each request at each moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nbtriton.drawing.scene import Shape, ink, rect, shape, shortened, stroke, text, text_width
from nbtriton.drawing.timeline import Mark


@dataclass(frozen=True, slots=True)
class FigureModel:
    """One model: its instances; an ensemble has none. ``slots`` of each instance hold sequences."""

    name: str
    instances: tuple[str, ...]
    slots: int = 0
    ensemble: bool = False


@dataclass(frozen=True, slots=True)
class FigureRequest:
    """One request to one model; times in milliseconds since the begin.

    Attributes
    ----------
    label : str
        Short: it stands in a token.
    lane : int
        The instance that ran it, -1 for none.
    left_ms : float
        When its batch left; of one that never ran, when it was answered.
    slot, slot_ms : int, float
        The slot of its sequence on that instance, and since when; -1 without one.
    arrive, leave, end : int
        The moments from which it waits, from which it runs, and from which it is gone.
    client : int
        Its number among the clients' arrivals, -1 for a step of an ensemble.
    """

    label: str
    model: int
    lane: int
    arrival_ms: float
    left_ms: float
    answered_ms: float
    title: str
    failed: bool = False
    slot: int = -1
    slot_ms: float = 0.0
    arrive: int = 0
    leave: int = 0
    end: int = 0
    client: int = -1


@dataclass(frozen=True, slots=True)
class FigureBatch:
    """One batch on one instance, from the moment ``leave`` until the moment ``end``."""

    model: int
    lane: int
    begin_ms: float
    end_ms: float
    rows: int
    labels: tuple[str, ...]
    mark: Mark
    leave: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class FigureMoment:
    """A time at which something happens, in words."""

    at_ms: float
    words: str


@dataclass(frozen=True, slots=True)
class FigurePicture:
    """All that a figure shows. Without batches only what comes is drawn, not what becomes of it."""

    title: str
    finding: str
    models: tuple[FigureModel, ...]
    requests: tuple[FigureRequest, ...]
    batches: tuple[FigureBatch, ...]
    moments: tuple[FigureMoment, ...]
    span_ms: float
    predicted: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """A picture that moves.

    Attributes
    ----------
    scene : Shape
        Tokens are groups with ``data-token``, reasons with ``data-from`` and ``data-until``.
    places : list
        For each token ``[moment, x, y, state]`` where that changes; state 0 is gone, 1 waits, 2 runs.
    plot : tuple of float
        Left end and width of the time axis, and the top and bottom of what it covers.
    """

    scene: Shape
    places: list[list[list[float]]] = field(default_factory=list)
    plot: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)


_RIGHT = 16.0
_TOKEN, _GAP = 24.0, 4.0
_STAMP_H = 32.0


def stage_floor(
    picture: FigurePicture, width: float, top: float
) -> tuple[list[Shape], list[list[list[float]]], float]:
    """Draw queues and instances, a row of boxes for each model; find the places of the tokens."""
    queue_x, queue_w = 16.0, width * 0.42 - 16
    box_x, box_w = width * 0.46, width * 0.54 - _RIGHT
    parts: list[Shape] = []
    places: list[list[list[float]]] = [[] for _ in picture.requests]
    y = top
    for at, model in enumerate(picture.models):
        own = [(i, one) for i, one in enumerate(picture.requests) if one.model == at]
        slots = max(1, model.slots)
        box_h = _STAMP_H + slots * (_TOKEN + _GAP) + _GAP
        per_row = max(1, int((queue_w - 2 * _GAP) // (_TOKEN + _GAP)))
        deepest = _deepest(picture, own)
        rows = max(1, -(-deepest // per_row))
        boxes = max(1, len(model.instances))
        tall = max(boxes * (box_h + 6) - 6, 20 + rows * (_TOKEN + _GAP) + _GAP)
        if model.ensemble:
            tall = 20 + rows * (_TOKEN + _GAP) + _GAP
            parts += _box(queue_x, y, width - 32, tall, f"{model.name}: ensemble, in flight")
        else:
            parts += _box(queue_x, y, queue_w, tall, f"{model.name}: queue")
            middle = y + tall / 2
            begin, length = queue_x + queue_w + 5, box_x - queue_x - queue_w - 11
            parts.append(stroke(f"M{begin:.1f} {middle:.1f}h{length:.1f}m-5 -4l5 4l-5 4", "muted"))
        for lane, name in enumerate(model.instances):
            box_y = y + lane * (box_h + 6)
            parts += _box(box_x, box_y, box_w, box_h, name)
            for slot in range(model.slots):
                line = box_y + _STAMP_H + slot * (_TOKEN + _GAP)
                parts.append(rect(box_x + 4, line, box_w - 8, _TOKEN + 2, **ink("bg", "line")))
                parts.append(
                    text(box_x + box_w - 10, line + 17, f"slot {slot}", 11, "muted", "end")
                )
            parts += _reason_labels(picture, at, lane, (box_x, box_y, box_w, box_h))
        _place(picture, own, places, (queue_x, y, per_row), (box_x, y, box_w, box_h), model)
        y += tall + 10
    for i, one in enumerate(picture.requests):
        parts.append(_token(one, i))
    return parts, places, y


def _box(x: float, y: float, width: float, height: float, name: str) -> list[Shape]:
    return [
        rect(x, y, width, height, rx=6, **ink("panel", "line")),
        text(x + 8, y + 14, shortened(name, width - 16, 11), 11, "muted"),
    ]


def _token(one: FigureRequest, number: int) -> Shape:
    role = "s1" if one.failed else "s0"
    wide = max(_TOKEN, text_width(one.label, 12, bold=True) + 4)
    return shape(
        "g",
        shape("title", one.title),
        rect(0, 0, wide, _TOKEN, rx=5, **ink("bg", role), stroke_width=2),
        text(wide / 2, 16.5, one.label, 12, "fg", "middle", bold=True),
        class_="nbt-token",
        data_token=number,
    )


def _reason_labels(
    picture: FigurePicture, model: int, lane: int, box: tuple[float, float, float, float]
) -> list[Shape]:
    """Write the reason of each batch above the tokens of its instance, while it runs."""
    x, y, width, height = box
    parts = []
    for batch in picture.batches:
        if batch.model != model or batch.lane != lane:
            continue
        words = shortened(batch.mark.words, width - 30, 11)
        parts.append(
            shape(
                "g",
                rect(x, y, width, height, rx=6, stroke_width=2, **ink(None, batch.mark.role)),
                text(x + 8, y + 28, batch.mark.letter, 11, "fg", bold=True),
                text(x + 24, y + 28, words, 11, "fg"),
                class_="nbt-reason", data_from=batch.leave, data_until=batch.end,
            )
        )  # fmt: skip
    return parts


def _deepest(picture: FigurePicture, own: Sequence[tuple[int, FigureRequest]]) -> int:
    waits = [(one.arrive, _queue_end(picture, one)) for _, one in own]
    depths = (sum(begin <= at < end for begin, end in waits) for at in range(len(picture.moments)))
    return max(depths, default=0)


def _queue_end(picture: FigurePicture, one: FigureRequest) -> int:
    """Return the moment at which a request goes from the queue to its slot, or to the instance."""
    if picture.models[one.model].ensemble or one.lane < 0:
        return one.end
    if one.slot >= 0:
        first = next(
            (k for k, moment in enumerate(picture.moments) if moment.at_ms >= one.slot_ms - 1e-9), 0
        )
        return min(one.leave, max(one.arrive, first))
    return one.leave


def _place(
    picture: FigurePicture,
    own: Sequence[tuple[int, FigureRequest]],
    places: list[list[list[float]]],
    queue: tuple[float, float, int],
    box: tuple[float, float, float, float],
    model: FigureModel,
) -> None:
    """Find where each request of a model is at each moment."""
    queue_x, y, per_row = queue
    box_x, _, _, box_h = box
    step = _TOKEN + _GAP
    for k in range(len(picture.moments)):
        waiting = [i for i, one in own if one.arrive <= k < _queue_end(picture, one)]
        inside: dict[tuple[int, int], int] = {}
        for i, one in sorted(own, key=lambda pair: pair[1].leave):
            state, x, at_y = 0.0, 0.0, 0.0
            if i in waiting:
                rank = waiting.index(i)
                state, x = 1.0, queue_x + 8 + rank % per_row * step
                at_y = y + 20 + rank // per_row * step
            elif not model.ensemble and one.arrive <= k < one.end and one.lane >= 0:
                row = max(0, one.slot)
                rank = inside.get((one.lane, row), 0)
                inside[one.lane, row] = rank + 1
                state = 2.0 if k >= one.leave else 1.0
                x = box_x + 8 + rank * step
                at_y = y + one.lane * (box_h + 6) + _STAMP_H + row * step + 1
            known = places[i]
            if not known and not state:
                continue
            if not state:
                # It goes on to the right, where it was.
                x, at_y = known[-1][1] + 40, known[-1][2]
                if not known[-1][3]:
                    continue
            if not known or known[-1][1:] != [x, at_y, state]:
                known.append([float(k), round(x, 1), round(at_y, 1), state])
