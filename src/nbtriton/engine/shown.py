"""How results, handles and options look in a notebook: the bodies of their ``_repr_mimebundle_``.

Any notebook asks for that one, with the extension loaded or not. Imported when the first one is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from nbtriton.config import input_specs, output_specs, scheduling_choice, stand_in_reason
from nbtriton.devices import checked_gpus
from nbtriton.drawing import count, measure, table_html, table_text

if TYPE_CHECKING:
    from nbtriton.config import ModelConfig
    from nbtriton.engine.core.result import InferenceResult, RequestTiming
    from nbtriton.engine.lifecycle.options import ServerOptions
    from nbtriton.engine.server import ModelHandle

__all__ = ["preview", "show_handle", "show_options", "show_result"]

# Okabe-Ito, readable on white and on black.
_PHASES = (
    ("queue", "#E69F00", "queue_ns"),
    ("compute input", "#56B4E9", "compute_input_ns"),
    ("compute infer", "#0072B2", "compute_infer_ns"),
    ("compute output", "#009E73", "compute_output_ns"),
)
_REST = ("elsewhere", "#999999")
_SIDE_BY_SIDE = " (steps ran side by side)"
_PREVIEWED = 4
_MS_FROM_NS = 1_000_000


def show_result(result: InferenceResult) -> dict[str, str]:
    """Show the outputs of a request, and where its time went."""
    timing = result.timing
    # One unit for the whole and its parts.
    time = partial(_time, "ms" if timing.total_ns >= _MS_FROM_NS else "µs")
    head = (
        f"{result.model_name} v{result.model_version}: {time(timing.total_ns / 1000)}, "
        f"batch of {timing.batch_size}"
    )
    columns = ("output", "datatype", "shape", "place", "values")
    rows = [
        (name, datatype, shape, place, preview(result.raw(name), place))
        for name, datatype, shape, place in result.describe()
    ]
    spent = _spent(timing)
    words = ", ".join(f"{name} {time(us)}" for name, _, us in spent)
    # Only steps that ran side by side add up to more than the whole took.
    note = _SIDE_BY_SIDE if sum(us for _, _, us in spent) > timing.total_ns / 1000 + 1 else ""
    return {
        "text/plain": f"{head}\n{table_text(columns, rows)}\n{words}{note}",
        "text/html": (
            f'<div class="nbt-result"><div style="font-weight:600;margin:.3em 0">{escape(head)}'
            f"</div>{_bar(spent, note, time)}{table_html(columns, rows)}</div>"
        ),
    }


def show_handle(handle: ModelHandle) -> dict[str, str]:
    """Show what a model takes and gives, and how it is scheduled."""
    if not handle.server.is_ready(handle.name):
        return {"text/plain": repr(handle)}
    config = handle.config
    columns = ("", "tensor", "datatype", "dims")
    rows = [
        (way, spec.name, spec.datatype, f"[{','.join(map(str, spec.dims))}]")
        for way, specs in (("in", input_specs(config)), ("out", output_specs(config)))
        for spec in specs.values()
    ]
    traits = " · ".join(_traits(config))
    return {
        "text/plain": f"{handle.name}: {traits}\n{table_text(columns, rows)}",
        "text/html": (
            '<div class="nbt-model"><div style="margin:.3em 0">'
            f"<b>{escape(handle.name)}</b> {escape(traits)}</div>{table_html(columns, rows)}</div>"
        ),
    }


def show_options(options: ServerOptions) -> dict[str, str]:
    """Show what is set for a server, under the names of `nbtriton.Server`."""
    size = options.cache_bytes
    settings = [
        f"{backend or 'all backends'}: {key}={value}"
        for backend, values in (options.backend_config or {}).items()
        for key, value in values.items()
    ]
    limit = options.worker_timeout_s
    policies = [
        f"{name}: {key}={value}"
        for name, values in (options.host_policies or {}).items()
        for key, value in values.items()
    ]
    devices = checked_gpus(options.gpus)
    gpus = (
        ", ".join(map(str, devices)) or "none"
        if isinstance(devices, tuple)
        else str(devices or "all")
    )
    resources = ", ".join(options.rate_limit_resources) or "as large as the largest need"
    rows = [
        ("rate_limit", options.rate_limit),
        ("rate_limit_resources", "not used" if options.rate_limit == "off" else resources),
        ("cache_bytes", "no response cache" if size is None else f"{count(size)} bytes"),
        ("gpus", gpus),
        ("backend_config", ", ".join(settings) or "none"),
        ("summaries", "on" if options.summaries else "off"),
        ("recorder", f"{count(options.recorder)} requests a model" if options.recorder else "off"),
        ("isolation", options.isolation),
        ("worker_timeout_s", "any time" if limit is None else measure(limit)),
        ("host_policies", ", ".join(policies) or "none"),
        ("stand_in", "on" if options.stand_in else "off"),
    ]
    columns = ("option", "value")
    return {"text/plain": table_text(columns, rows), "text/html": table_html(columns, rows)}


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
        traits.append(f"{instances} instance{'s' if instances > 1 else ''}")
    return traits


def _spent(timing: RequestTiming) -> list[tuple[str, str, float]]:
    """Return (phase, colour, microseconds); an ensemble's steps may add up to more than the total."""
    spent = [(name, colour, getattr(timing, field) / 1000) for name, colour, field in _PHASES]
    rest = timing.total_ns / 1000 - sum(us for _, _, us in spent)
    if rest > 0:
        spent.append((*_REST, rest))
    return spent


def _time(unit: str, us: float) -> str:
    return f"{measure(us / 1000 if unit == 'ms' else us)} {unit}"


def _bar(spent: list[tuple[str, str, float]], note: str, time: Callable[[float], str]) -> str:
    whole = sum(us for _, _, us in spent) or 1.0
    x, bars, words = 0.0, [], []
    for name, colour, us in spent:
        width = 460 * us / whole
        bars.append(f'<rect x="{x:.1f}" y="0" width="{width:.1f}" height="10" fill="{colour}"/>')
        words.append(
            # A square that keeps its colour where a host strips styles.
            '<span style="white-space:nowrap"><svg aria-hidden="true" width="9" height="9">'
            f'<rect width="9" height="9" fill="{colour}"/></svg> {name} {time(us)}</span>'
        )
        x += width
    label = ", ".join(f"{name} {time(us)}" for name, _, us in spent)
    return (
        f'<svg role="img" aria-label="{escape(label)}" width="460" height="10" '
        f'style="display:block;margin:.3em 0">{"".join(bars)}</svg>'
        f'<div style="font-size:.9em;margin-bottom:.4em">{" &nbsp; ".join(words)}{note}</div>'
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
