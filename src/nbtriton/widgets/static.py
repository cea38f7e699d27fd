"""The static form of a view, which stays in the notebook: HTML, SVG and text, no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from nbtriton.drawing.curve import Series, curve_finding, curve_text
from nbtriton.drawing.dag import dag_scene, dag_text, details_of, traffic_line
from nbtriton.drawing.graph import Graph, topological
from nbtriton.drawing.panels import curve_scenes
from nbtriton.drawing.scene import WIDTHS, Shape, fitting, to_svg
from nbtriton.drawing.table import table_html, table_text


@dataclass(frozen=True, slots=True)
class StaticView:
    """One view in every form that a host may want.

    Attributes
    ----------
    html, text, svg : str
        `svg` is empty if the view is more than a picture.
    widget : mapping
        What a host needs to show the live form instead.
    """

    html: str
    text: str
    svg: str = ""
    widget: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **_options: object) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": self.text, "text/html": self.html}
        if self.svg:
            bundle["image/svg+xml"] = self.svg
        return {**bundle, **self.widget}

    def save(self, path: str | Path) -> Path:
        """Write it to a file: SVG, HTML or text, depending on the file's suffix."""
        path = Path(path)
        forms = {".svg": self.svg or self.html, ".html": f"<!doctype html>{self.html}"}
        path.write_text(forms.get(path.suffix, self.text), encoding="utf-8")
        return path


def marked(place: str, html: str) -> str:
    """Return a static form at which a page shows the live view of that place instead."""
    return f'<div class="nbt-place {place}">{html}</div>'


def dag_scenes(graph: Graph) -> list[Shape]:
    """Return the picture of a graph for pages of different widths, narrowest first."""
    scenes: list[Shape] = []
    for width in WIDTHS:
        scene = dag_scene(graph, width)
        if not scenes or scene != scenes[-1]:
            scenes.append(scene)
    return scenes


def dag_view(graph: Graph) -> StaticView:
    """Return the static form of a graph: its picture, and the details of each model."""
    scenes = dag_scenes(graph)
    html = f'<div class="nbt-dag nbt-static">{fitting(scenes)}{_models(graph)}</div>'
    return StaticView(html, dag_text(graph), to_svg(scenes[-1]))


def _models(graph: Graph) -> str:
    """Return the details of each model, which open without a script."""
    parts = []
    for node in topological(graph):
        rows = details_of(node) if node.is_model else ()
        if not rows:
            continue
        line = traffic_line(node.traffic) if node.traffic is not None else node.sublabel
        head = " ".join(filter(None, (f"<b>{escape(node.label)}</b>", escape(line))))
        parts.append(f"<details><summary>{head}</summary>{table_html(('', ' '), rows)}</details>")
    return f'<div class="nbt-dag-models" style="margin-top:4px">{"".join(parts)}</div>'


def curve_view(
    series: Sequence[Series], *, title: str = "", target_ms: float | None = None, finding: str = ""
) -> StaticView:
    """Return the static form of curves, the numbers in a table one click away; `finding` as `curve_scene` has it."""
    scenes = curve_scenes(series, title=title, target_ms=target_ms, finding=finding)
    finding = finding or curve_finding(series, target_ms)
    words = "\n".join(dict.fromkeys((finding, curve_text(series, title=title))))
    if not any(one.drawn for one in series):
        return StaticView(f'<p class="nbt-curve nbt-static">{escape(finding)}</p>', finding)
    keys = [one.key(point) for one in series for point in one.points]
    table = table_html(*curve_rows(series), cls="nbt-curve-table", keys=keys)
    html = (
        f'<div class="nbt-curve nbt-static nbt-chart" data-name="{escape(title)}">{fitting(scenes)}'
        f"<details><summary>the numbers as a table</summary>{table}</details></div>"
    )
    return StaticView(html, words, to_svg(scenes[1]))


def curve_rows(series: Sequence[Series]) -> tuple[list[str], list[list[object]]]:
    """Return the points as a table: its columns, and a row for each point."""
    percentiles = sorted({p for one in series for point in one.points for p in point.latency_ms})
    columns = [
        "configuration",
        series[0].load_name if series else "load",
        "infer_per_s",
        *(f"p{p}_ms" for p in percentiles),
        "outcome",
    ]
    rows: list[list[object]] = [
        [
            one.label,
            int(point.load) if point.load == int(point.load) else point.load,
            float(point.throughput),
            *(point.latency_ms.get(p) for p in percentiles),
            point.outcome,
        ]
        for one in series
        for point in one.points
    ]
    return columns, rows


def frame_view(frame: Any, *, rest: bool = True) -> StaticView:
    """Return a pandas DataFrame as a table; a named index becomes the first column.

    A `TableFrame` is shown as a compact table; `rest` is whether all columns follow it.
    """
    compact = getattr(frame, "compact_view", None)
    if compact is not None:
        html, text = compact(rest=rest)
        return StaticView(html, text)
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    columns = [str(name) for name in frame.columns]
    rows = [list(row) for row in frame.itertuples(index=False, name=None)]
    return StaticView(table_html(columns, rows), table_text(columns, rows))
