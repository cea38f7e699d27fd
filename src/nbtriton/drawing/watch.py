"""The activity of a server over the last seconds: queues, instances and batch sizes of models."""

from __future__ import annotations

from collections.abc import Sequence

from nbtriton.drawing.activity import ModelActivity
from nbtriton.drawing.cards import watch_scenes
from nbtriton.drawing.numbers import sparkline
from nbtriton.drawing.pages import fitting
from nbtriton.drawing.scene import to_svg
from nbtriton.drawing.table import table_html, table_text

__all__ = ["watch_html", "watch_svg", "watch_table", "watch_text"]


def watch_svg(models: Sequence[ModelActivity], *, span_s: float = 30.0) -> str:
    """Draw one card per model: counters, queue depth and instances over time, batch sizes."""
    return to_svg(watch_scenes(models, span_s=span_s)[-1])


def watch_html(models: Sequence[ModelActivity], *, span_s: float = 30.0) -> str:
    """Return the picture of `watch_svg` with the same numbers as a table beneath it."""
    columns, rows = watch_table(models)
    table = f'<div style="overflow-x:auto">{table_html(columns, rows, cls="nbt-watch-table")}</div>'
    return (
        f'<div class="nbt-watch nbt-static">{fitting(watch_scenes(models, span_s=span_s))}'
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


def _thin(values: Sequence[float], most: int) -> list[float]:
    """Keep at most ``most`` values, each the highest of its stretch."""
    if len(values) <= most:
        return list(values)
    return [
        max(values[i * len(values) // most : (i + 1) * len(values) // most]) for i in range(most)
    ]
