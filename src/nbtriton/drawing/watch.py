"""The activity of a server over the last seconds: queues, instances and batch sizes of models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from nbtriton.drawing.activity import ModelActivity
from nbtriton.drawing.cards import watch_scenes
from nbtriton.drawing.numbers import count, counted, measure, sparkline
from nbtriton.drawing.scene import fitting, to_svg
from nbtriton.drawing.table import table_html, table_text

# With no response for longer than this, the finding names the model instead of rates.
_STALLED_S = 1.0
# Rates are those of the last two seconds.
_MOVING_S = 2.0


def watch_svg(models: Sequence[ModelActivity], *, span_s: float = 30.0) -> str:
    """Draw one card per model: counters, queue depth and instances over time, batch sizes."""
    return to_svg(watch_scenes(models, span_s=span_s)[-1])


def leading(models: Sequence[ModelActivity]) -> ModelActivity | None:
    """Return the model whose requests spent the most time, preferring one that is not a step."""
    by_name = {one.name: one for one in models}
    steps = {name for model in models for name, _ in model.shares}

    def spent_ms(one: ModelActivity) -> float:
        # The statistics of an ensemble do not include the queues of its steps.
        inside = [spent_ms(by_name[name]) for name, _ in one.shares if name in by_name]
        return sum(inside) or one.drawn_inferences * (one.queue_ms + one.compute_ms)

    worked = [one for one in models if one.infer_per_s > 0]
    return max(worked, key=lambda one: (one.name not in steps, spent_ms(one)), default=None)


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
    if stalled or (busy and top is None):
        worst = max(stalled or busy, key=lambda one: (one.queued + one.executing, one.stalled_s))
        ended = f"nothing has ended for {count(worst.stalled_s)} s; " if stalled else ""
        return (
            f"{worst.name}: {ended}{count(worst.executing)} running, {count(worst.queued)} waiting"
        )
    quiet_s = min(one.quiet_s for one in models)
    if top is None or math.isinf(quiet_s):
        return f"no request in the last {span_s:.0f} s"
    if quiet_s < _MOVING_S:
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
    finding = f'<p style="margin:2px 0 6px">{escape(said)}</p>' if said else ""
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


def _thin(values: Sequence[float], most: int) -> list[float]:
    """Keep at most ``most`` values, each the highest of its stretch."""
    if len(values) <= most:
        return list(values)
    return [
        max(values[i * len(values) // most : (i + 1) * len(values) // most]) for i in range(most)
    ]
