"""The activity of a server over the last seconds: queues, instances and batch sizes of models."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nbtriton.drawing.activity import ModelActivity
from nbtriton.drawing.cards import watch_scenes
from nbtriton.drawing.numbers import measure, sparkline
from nbtriton.drawing.pages import fitting
from nbtriton.drawing.scene import to_svg
from nbtriton.drawing.table import table_html, table_text
from nbtriton.quoting import quoted

__all__ = ["watch_finding", "watch_html", "watch_svg", "watch_table", "watch_text"]


def watch_svg(models: Sequence[ModelActivity], *, span_s: float = 30.0) -> str:
    """Draw one card per model: counters, queue depth and instances over time, batch sizes."""
    return to_svg(watch_scenes(models, span_s=span_s)[-1])


def watch_finding(models: Sequence[ModelActivity]) -> str:
    """Return one sentence on what stands out: where requests wait, or that they hardly do."""
    moving = [one for one in models if one.platform != "ensemble" and one.infer_per_s > 0]
    if not moving:
        return "no request in this time" if models else ""
    # As many requests wait on average, by Little's law.
    worst = max(moving, key=lambda one: one.queue_ms * one.infer_per_s)
    if worst.queue_ms > worst.compute_ms:
        return (
            f"requests wait for {worst.name}: {measure(worst.queue_ms)} ms for {measure(worst.compute_ms)} ms of work, "
            f"while its instances are busy {worst.busy:.0%} of the time; %triton_why {quoted(worst.name)} says what to change"
        )
    busiest = max(moving, key=lambda one: one.busy)
    return (
        f"requests wait less than they are worked on; {busiest.name} is the busiest, "
        f"{busiest.busy:.0%} of the time"
    )


def watch_html(models: Sequence[ModelActivity], *, span_s: float = 30.0) -> str:
    """Return the picture of `watch_svg` with the same numbers as a table beneath it."""
    columns, rows = watch_table(models)
    table = f'<div style="overflow-x:auto">{table_html(columns, rows, cls="nbt-watch-table")}</div>'
    finding = f'<p style="margin:2px 0 6px">{escape(watch_finding(models))}</p>' if models else ""
    return (
        f'<div class="nbt-watch nbt-static">{finding}{fitting(watch_scenes(models, span_s=span_s))}'
        f"<details><summary>the numbers as a table</summary>{table}</details></div>"
    )


def watch_text(models: Sequence[ModelActivity]) -> str:
    """Write the finding, and the counters as an aligned table with a sparkline of each queue."""
    columns, rows = watch_table(models)
    if not rows:
        return "no models are loaded"
    sparks = [sparkline(_thin(model.depths, 24)) for model in models]
    table = table_text(
        [*columns, "queue"], [[*row, spark] for row, spark in zip(rows, sparks, strict=True)]
    )
    return f"{watch_finding(models)}\n{table}"


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
