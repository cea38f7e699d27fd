"""A figure: a scenario or a recorded stretch, what happened in it, and how it is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbtriton.config import is_ensemble
from nbtriton.drawing.figure import (
    FigureBatch,
    FigureModel,
    FigureMoment,
    FigurePicture,
    FigureRequest,
)
from nbtriton.engine import BatchRecord, RequestRecord
from nbtriton.explain.strips import SlotLife, slots_per_instance
from nbtriton.explain.timeline import mark_of
from nbtriton.packages import needed
from nbtriton.teaching.running import Happened
from nbtriton.teaching.sentences import (
    Moments,
    finding_of,
    labels_of,
    moments_of,
    ms,
    slots_of,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["batch_frame", "batch_rows", "picture_of"]


def picture_of(happened: Happened, *, hidden: bool = False) -> FigurePicture:
    """Return what is drawn of what happened; `hidden` shows only what came, to be predicted."""
    moments = moments_of(happened)
    labels = labels_of(happened)
    slots = slots_of(happened)
    if hidden:
        moments, slots = Moments((), (), {}, {}, {}), {}
    requests = tuple(
        _request(happened, at, one, labels, slots, moments)
        for at, records in enumerate(happened.records)
        for one in records.requests
        if not (hidden and one.caller)
    )
    batches = [] if hidden else [
        _batch(at, records.instances, one, happened, labels, moments)
        for at, records in enumerate(happened.records)
        for one in records.batches
    ]  # fmt: skip
    models = tuple(
        FigureModel(
            model.name,
            records.instances,
            slots_per_instance(model.config),
            is_ensemble(model.config),
        )
        for model, records in zip(happened.scenario.models, happened.records, strict=True)
    )
    span = happened.span_ms
    if hidden:
        # As long as would be given away, so rounded up from the arrivals.
        span = max(one.arrival_ms for one in requests) * 1.2 or 10.0
    return FigurePicture(
        happened.scenario.title,
        f"{len(requests)} requests come. Which batches leave?" if hidden else finding_of(happened),
        models,
        requests,
        tuple(batches),
        tuple(FigureMoment(*each) for each in zip(moments.at_ms, moments.words, strict=True)),
        span,
        hidden,
    )


def _request(
    happened: Happened,
    at: int,
    one: RequestRecord,
    labels: dict[tuple[str, int], str],
    slots: dict[int | str, SlotLife],
    moments: Moments,
) -> FigureRequest:
    batch, key = one.batch, (one.model, one.number)
    left_ns = batch.start_ns if batch is not None else one.answered_ns
    instances = happened.records[at].instances
    life = slots.get(one.sequence) if one.sequence and batch is not None else None
    waited, took = (left_ns - one.arrival_ns) / 1e6, (one.answered_ns - one.arrival_ns) / 1e6
    title = f"request {labels[key]}, rows {one.size}: came at {ms(happened.ms(one.arrival_ns))} ms"
    if moments.words:
        title += f", waited {ms(waited)} ms" if batch is not None else ""
        title += f", {one.error or 'answered'} after {ms(took)} ms"
    end = moments.end.get(key, 0)
    return FigureRequest(
        labels[key],
        at,
        instances.index(batch.instance) if batch is not None else -1,
        happened.ms(one.arrival_ns),
        happened.ms(
            left_ns if not is_ensemble(happened.scenario.models[at].config) else one.arrival_ns
        ),
        happened.ms(one.answered_ns),
        title,
        bool(one.status),
        life.slot if life is not None else -1,
        happened.ms(life.begin_ns) if life is not None else 0.0,
        moments.arrive.get(key, 0),
        moments.leave.get(key, end),
        end,
        one.number - 1 if not one.caller else -1,
    )


def _batch(
    at: int,
    instances: tuple[str, ...],
    one: BatchRecord,
    happened: Happened,
    labels: dict[tuple[str, int], str],
    moments: Moments,
) -> FigureBatch:
    key = (one.model, one.requests[0])
    return FigureBatch(
        at,
        instances.index(one.instance),
        happened.ms(one.start_ns),
        happened.ms(one.end_ns),
        one.batch_size,
        tuple(labels[one.model, number] for number in one.requests),
        mark_of(one),
        moments.leave[key],
        moments.end[key],
    )


def batch_rows(happened: Happened) -> list[dict[str, Any]]:
    """Return a row for each batch, in the order in which they left."""
    labels = labels_of(happened)
    return [
        {
            "model": one.model,
            "instance": one.instance,
            "at_ms": happened.ms(one.start_ns),
            "end_ms": happened.ms(one.end_ns),
            "rows": one.batch_size,
            "requests": [labels[one.model, number] for number in one.requests],
            "waited_ms": one.queue_ns / 1e6,
            "reason": one.reason,
            "why": mark_of(one).words,
        }
        for one in happened.batches
    ]


def batch_frame(happened: Happened) -> pd.DataFrame:
    """Return `batch_rows` as a DataFrame."""
    with needed("a figure's table of batches"):
        import pandas as pd

    columns = (
        "model",
        "instance",
        "at_ms",
        "end_ms",
        "rows",
        "requests",
        "waited_ms",
        "reason",
        "why",
    )
    return pd.DataFrame(batch_rows(happened), columns=list(columns))
