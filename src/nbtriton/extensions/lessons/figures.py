"""A figure of a scenario or of recorded requests, and its drawing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbtriton.common.packages import data_frame
from nbtriton.extensions.lessons import sentences
from nbtriton.extensions.lessons.running import ScenarioRun
from nbtriton.extensions.lessons.stage import (
    FigureBatch,
    FigureModel,
    FigureMoment,
    FigurePicture,
    FigureRequest,
)
from nbtriton.lab.explain.timeline import SlotLife, mark_of, slots_per_instance
from nbtriton.model.config import is_ensemble
from nbtriton.runtime.engine import BatchRecord, RequestRecord

if TYPE_CHECKING:
    import pandas as pd


def picture_of(scenario_run: ScenarioRun, *, hidden: bool = False) -> FigurePicture:
    """Return the picture of a run; `hidden` shows the arrivals only, for a prediction."""
    moments = sentences.moments_of(scenario_run)
    labels = sentences.labels_of(scenario_run)
    slots = sentences.slots_of(scenario_run)
    if hidden:
        moments, slots = sentences.Moments((), (), {}, {}, {}), {}
    requests = tuple(
        _request(scenario_run, index, one, labels, slots, moments)
        for index, records in enumerate(scenario_run.records)
        for one in records.requests
        if not (hidden and one.caller)
    )
    batches = [] if hidden else [
        _batch(index, records.instances, one, scenario_run, labels, moments)
        for index, records in enumerate(scenario_run.records)
        for one in records.batches
    ]  # fmt: skip
    models = []
    for model, records in zip(scenario_run.scenario.models, scenario_run.records, strict=True):
        slots_each, ensemble = slots_per_instance(model.config), is_ensemble(model.config)
        models.append(FigureModel(model.name, records.instances, slots_each, ensemble))
    if hidden:
        # The true length would reveal the answer; this one depends on the arrivals only.
        span = max(one.arrival_ms for one in requests) * 1.2 or 10.0
        finding = f"{len(requests)} requests come. Which batches leave?"
    else:
        span, finding = scenario_run.span_ms, sentences.finding_of(scenario_run)
    said = tuple(map(FigureMoment, moments.at_ms, moments.words))
    title = scenario_run.scenario.title
    return FigurePicture(
        title, finding, tuple(models), requests, tuple(batches), said, span, hidden
    )


def _request(
    scenario_run: ScenarioRun,
    index: int,
    one: RequestRecord,
    labels: dict[tuple[str, int], str],
    slots: dict[int | str, SlotLife],
    moments: sentences.Moments,
) -> FigureRequest:
    batch, key, ms = one.batch, (one.model, one.number), scenario_run.ms
    left_ns = batch.start_ns if batch is not None else one.answered_ns
    instances = scenario_run.records[index].instances
    life = slots.get(one.sequence) if one.sequence and batch is not None else None
    slot, slot_ms = (life.slot, ms(life.begin_ns)) if life is not None else (-1, 0.0)
    lane = instances.index(batch.instance) if batch is not None else -1
    wait_ms, latency_ms = (left_ns - one.arrival_ns) / 1e6, (one.answered_ns - one.arrival_ns) / 1e6
    title = f"request {labels[key]}, rows {one.size}: came at {sentences.ms(ms(one.arrival_ns))} ms"
    if moments.words:
        title += f", waited {sentences.ms(wait_ms)} ms" if batch is not None else ""
        title += f", {one.error or 'answered'} after {sentences.ms(latency_ms)} ms"
    if is_ensemble(scenario_run.scenario.models[index].config):
        left_ns = one.arrival_ns
    arrive, end = moments.arrive.get(key, 0), moments.end.get(key, 0)
    leave, client = moments.leave.get(key, end), one.number - 1 if not one.caller else -1
    return FigureRequest(
        labels[key],
        index,
        lane,
        ms(one.arrival_ns),
        ms(left_ns),
        ms(one.answered_ns),
        title,
        bool(one.status),
        slot,
        slot_ms,
        arrive,
        leave,
        end,
        client,
    )


def _batch(
    index: int,
    instances: tuple[str, ...],
    one: BatchRecord,
    scenario_run: ScenarioRun,
    labels: dict[tuple[str, int], str],
    moments: sentences.Moments,
) -> FigureBatch:
    key, lane = (one.model, one.requests[0]), instances.index(one.instance)
    begin_ms, end_ms = scenario_run.ms(one.start_ns), scenario_run.ms(one.end_ns)
    who = tuple(labels[one.model, number] for number in one.requests)
    leave, end = moments.leave[key], moments.end[key]
    return FigureBatch(index, lane, begin_ms, end_ms, one.batch_size, who, mark_of(one), leave, end)


_COLUMNS = (
    "model", "instance", "at_ms", "end_ms", "rows", "requests", "waited_ms", "reason", "why",
)  # fmt: skip


def batch_rows(scenario_run: ScenarioRun) -> list[dict[str, Any]]:
    """Return a row for each batch, in the order in which they left."""
    labels, ms_of = sentences.labels_of(scenario_run), scenario_run.ms
    found = (
        (
            one.model, one.instance, ms_of(one.start_ns), ms_of(one.end_ns), one.batch_size,
            [labels[one.model, number] for number in one.requests],
            one.queue_ns / 1e6, one.reason, mark_of(one).words,
        )
        for one in scenario_run.batches
    )  # fmt: skip
    return [dict(zip(_COLUMNS, row, strict=True)) for row in found]


def batch_frame(scenario_run: ScenarioRun) -> pd.DataFrame:
    """Return `batch_rows` as a DataFrame."""
    return data_frame("a figure's table of batches", batch_rows(scenario_run), list(_COLUMNS))
