"""What stays in a notebook when a live view has ended: HTML, SVG and text, no script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from nbtriton.drawing import (
    Graph,
    Series,
    Shape,
    curve_finding,
    curve_svg,
    curve_text,
    dag_scene,
    dag_text,
    details_of,
    table_html,
    table_text,
    to_svg,
    topological,
    traffic_line,
)

__all__ = [
    "StaticView",
    "curve_view",
    "dag_scenes",
    "dag_view",
    "fitting",
    "frame_view",
]


@dataclass(frozen=True, slots=True)
class StaticView:
    """One thing to see in every form that a host may want.

    Attributes
    ----------
    html, text, svg : str
        `svg` is empty where the thing is more than a picture.
    widget : mapping
        What a host needs that shows the live form in its stead.
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
        """Write it to a file: ``.svg``, ``.html`` or text, by the file's ending."""
        path = Path(path)
        forms = {".svg": self.svg or self.html, ".html": f"<!doctype html>{self.html}"}
        path.write_text(forms.get(path.suffix, self.text), encoding="utf-8")
        return path


# What is drawn for a page of 600 pixels, a notebook beside its files, and a wide screen.
_WIDTHS = (540.0, 800.0, 1080.0)


def dag_scenes(graph: Graph) -> list[Shape]:
    """Return the picture of a graph for pages of different widths, narrowest first."""
    scenes: list[Shape] = []
    for width in _WIDTHS:
        scene = dag_scene(graph, width)
        if not scenes or scene != scenes[-1]:
            scenes.append(scene)
    return scenes


def dag_view(graph: Graph) -> StaticView:
    """Return the static form of a graph: its picture, and what is known of each model."""
    scenes = dag_scenes(graph)
    html = f'<div class="nbt-dag nbt-static">{fitting(scenes)}{_models(graph)}</div>'
    return StaticView(html, dag_text(graph), to_svg(scenes[-1]))


def fitting(scenes: Sequence[Shape]) -> str:
    """Return pictures of which a page shows the widest one that fits, and all of its text.

    Where there is no style sheet it is the first, narrowest one.
    """
    if len(scenes) == 1:
        return f'<div style="overflow-x:auto">{to_svg(scenes[0])}</div>'
    widths = [math.ceil(float(dict(scene.attrs)["width"])) for scene in scenes]
    rules, parts = [".nbt-fit{container-type:inline-size;overflow-x:auto}"], []
    # The classes have the widths in their names, as figures of one page share their style sheets.
    for at, (scene, width) in enumerate(zip(scenes, widths, strict=True)):
        following = widths[at + 1] if at + 1 < len(widths) else None
        name = f"nbt-fit-{width if at else 0}-{following or 'up'}"
        least = f"(min-width:{width}px)" if at else ""
        most = f"(max-width:{following - 0.02}px)" if following else ""
        shown = " and ".join(filter(None, (least, most)))
        rules.append(f".{name}{{display:none}}@container {shown}{{.{name}{{display:block}}}}")
        hidden = " hidden" if at else ""
        parts.append(f'<div class="{name}"{hidden}>{to_svg(scene)}</div>')
    return f'<div class="nbt-fit"><style>{"".join(rules)}</style>{"".join(parts)}</div>'


def _models(graph: Graph) -> str:
    """Return what is known of each model, to be opened without a script."""
    parts = []
    for node in topological(graph):
        rows = details_of(node) if node.is_model else ()
        if not rows:
            continue
        line = traffic_line(node.traffic) if node.traffic is not None else node.sublabel
        head = " ".join(filter(None, (f"<b>{escape(node.label)}</b>", escape(line))))
        parts.append(f"<details><summary>{head}</summary>{table_html(('', ' '), rows)}</details>")
    return f'<div class="nbt-dag-models" style="margin-top:4px">{"".join(parts)}</div>'


def curve_view(series: Sequence[Series], *, title: str = "") -> StaticView:
    """Return the static form of latency/throughput curves, the numbers in a table one click away."""
    svg = curve_svg(series, title=title)
    percentiles = sorted({p for one in series for point in one.points for p in point.latency_ms})
    columns = ["configuration", "load", "infer_per_s", *(f"p{p}_ms" for p in percentiles)]
    rows = [
        [
            one.name,
            int(point.load) if point.load == int(point.load) else point.load,
            float(point.throughput),
            *(point.latency_ms.get(p) for p in percentiles),
        ]
        for one in series
        for point in one.points
    ]
    table = table_html(columns, rows, cls="nbt-curve-table")
    html = (
        f'<div class="nbt-curve nbt-static">{svg}'
        f"<details><summary>the numbers as a table</summary>{table}</details></div>"
    )
    text = curve_text(series, title=title)
    return StaticView(html, f"{text}\n{curve_finding(series)}", svg)


def frame_view(
    frame: Any, *, caption: str = "", formats: Mapping[str, str] | None = None
) -> StaticView:
    """Return a pandas DataFrame as a table; a named index becomes the first column."""
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    columns = [str(name) for name in frame.columns]
    rows = [list(row) for row in frame.itertuples(index=False, name=None)]
    return StaticView(
        table_html(columns, rows, formats, caption=caption),
        table_text(columns, rows, formats, caption=caption),
    )
