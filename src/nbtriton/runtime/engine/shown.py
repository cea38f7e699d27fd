"""The display of results, handles and options in a notebook: the bodies of their ``_repr_mimebundle_``.

Any notebook asks for it, with or without the extension. Imported when the first object is displayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

import numpy as np

from nbtriton.drawing.numbers import counted, measure
from nbtriton.drawing.table import table_html, table_text
from nbtriton.model.config import (
    ModelConfig,
    input_specs,
    output_specs,
    scheduling_choice,
    stand_in_reason,
)

# Okabe-Ito, readable on white and on black.
_PHASES = (
    ("queue", "#E69F00", "queue_ns"),
    ("compute input", "#56B4E9", "compute_input_ns"),
    ("compute infer", "#0072B2", "compute_infer_ns"),
    ("compute output", "#009E73", "compute_output_ns"),
)
_REST = ("elsewhere", "#999999")
_SIDE_BY_SIDE = "sums of its steps, some of which ran side by side"
_FIRST = "first execution since the load: the times include warm-up, which model_warmup would do at the load"
_PREVIEWED = 4
_MS_FROM_NS = 1_000_000


def show_result(
    model: str,
    timing: Mapping[str, int],
    outputs: Sequence[tuple[str, str, str, str]],
    values: Sequence[Any],
) -> dict[str, str]:
    """Show the outputs of a request, and how its time was spent.

    Parameters
    ----------
    model : str
        Its name and version.
    timing : mapping of str to int
        The fields of a `RequestTiming`.
    outputs : sequence of tuple
        Name, datatype, shape and place of each output.
    values : sequence of array
        The outputs.
    """
    total_ns = timing["total_ns"]
    # One unit for the whole and its parts.
    time = partial(_time, "ms" if total_ns >= _MS_FROM_NS else "µs")
    head = f"{model}: {time(total_ns / 1000)}, batch of {timing['batch_size']}"
    columns = ("output", "datatype", "shape", "place", "values")
    rows = [
        (*output, preview(value, output[-1])) for output, value in zip(outputs, values, strict=True)
    ]
    spent = _spent(timing)
    words = ", ".join(f"{name} {time(us)}" for name, _, us in spent)
    # Only steps that ran in parallel add up to more than the total.
    side_by_side = sum(us for _, _, us in spent) > total_ns / 1000 + 1
    notes = [*([_SIDE_BY_SIDE] if side_by_side else ()), *([_FIRST] if timing["first"] else ())]
    return {
        "text/plain": "\n".join([head, table_text(columns, rows), words, *notes]),
        "text/html": (
            f'<div class="nbt-result"><div style="font-weight:600;margin:.3em 0">{escape(head)}'
            f"</div>{_bar(spent, notes, time)}{table_html(columns, rows)}</div>"
        ),
    }


def show_model(name: str, config: ModelConfig) -> dict[str, str]:
    """Show the inputs and outputs of a model, and how it is scheduled."""
    columns = ("", "tensor", "datatype", "dims")
    rows = [
        (way, spec.name, spec.datatype, f"[{','.join(map(str, spec.dims))}]")
        for way, specs in (("in", input_specs(config)), ("out", output_specs(config)))
        for spec in specs.values()
    ]
    traits = " · ".join(_traits(config))
    return {
        "text/plain": f"{name}: {traits}\n{table_text(columns, rows)}",
        "text/html": (
            '<div class="nbt-model"><div style="margin:.3em 0">'
            f"<b>{escape(name)}</b> {escape(traits)}</div>{table_html(columns, rows)}</div>"
        ),
    }


def show_options(options: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Show a server's options, under the names of `nbtriton.Server`."""
    columns = ("option", "value")
    return {"text/plain": table_text(columns, options), "text/html": table_html(columns, options)}


def _traits(config: ModelConfig) -> list[str]:
    traits = [config.backend or config.platform, f"max_batch_size {config.max_batch_size}"]
    reason = stand_in_reason(config)
    if reason:
        traits.insert(0, f"stand-in ({reason})")
    if config.HasField("dynamic_batching"):
        batching = config.dynamic_batching
        words = "dynamic batching"
        if batching.preferred_batch_size:
            words += f", preferred {', '.join(map(str, batching.preferred_batch_size))}"
        if batching.max_queue_delay_microseconds:
            words += f", delay {batching.max_queue_delay_microseconds} µs"
        traits.append(words)
    elif not config.HasField("ensemble_scheduling"):
        traits.append(scheduling_choice(config) or "no dynamic batching")
    instances = sum(
        max(1, group.count) * max(1, len(group.gpus)) for group in config.instance_group
    )
    if instances:
        traits.append(counted(instances, "instance"))
    return traits


def _spent(timing: Mapping[str, int]) -> list[tuple[str, str, float]]:
    """Return (phase, colour, microseconds); an ensemble's steps may add up to more than the total."""
    spent = [(name, colour, timing[field] / 1000) for name, colour, field in _PHASES]
    rest = timing["total_ns"] / 1000 - sum(us for _, _, us in spent)
    if rest > 0:
        spent.append((*_REST, rest))
    return spent


def _time(unit: str, us: float) -> str:
    return f"{measure(us / 1000 if unit == 'ms' else us)} {unit}"


def _bar(
    spent: list[tuple[str, str, float]], notes: Sequence[str], time: Callable[[float], str]
) -> str:
    whole = sum(us for _, _, us in spent) or 1.0
    x, bars, words = 0.0, [], []
    for name, colour, us in spent:
        width = 460 * us / whole
        bars.append(f'<rect x="{x:.1f}" y="0" width="{width:.1f}" height="10" fill="{colour}"/>')
        words.append(
            # A square that keeps its colour if a host strips styles.
            '<span style="white-space:nowrap"><svg aria-hidden="true" width="9" height="9" '
            'style="display:inline-block">'  # a host may make a block of it
            f'<rect width="9" height="9" fill="{colour}"/></svg> {name} {time(us)}</span>'
        )
        x += width
    label = ", ".join(f"{name} {time(us)}" for name, _, us in spent)
    below = "".join(f"<div>{note}</div>" for note in notes)
    return (
        f'<svg role="img" aria-label="{escape(label)}" width="460" height="10" '
        f'style="display:block;margin:.3em 0">{"".join(bars)}</svg>'
        f'<div style="font-size:.9em;margin-bottom:.4em">{" &nbsp; ".join(words)}{below}</div>'
    )


def preview(array: Any, place: str) -> str:
    """Write the first values of an array that is on the host: a device is not asked."""
    if place != "cpu":
        return ""
    flat = np.asarray(array).reshape(-1) if isinstance(array, np.ndarray) else array.reshape(-1)
    words = [_value(item) for item in flat[:_PREVIEWED].tolist()]
    return ", ".join(words) + (", …" if len(flat) > _PREVIEWED else "")


def _value(item: object) -> str:
    if isinstance(item, float):
        return f"{item:.4g}"
    text = repr(item)
    return text if len(text) <= 24 else text[:23] + "…"
