"""Pictures of plain data: SVG, HTML and text, without servers, notebooks or scripts."""

from __future__ import annotations

from nbtriton.drawing.activity import Lane, ModelActivity, batch_bins, bin_counts
from nbtriton.drawing.advice import advice_html, advice_text
from nbtriton.drawing.curve import (
    Limits,
    Point,
    Series,
    curve_finding,
    curve_limits,
    curve_text,
    highest,
    top_of,
)
from nbtriton.drawing.dag import (
    dag_scene,
    dag_text,
    details_of,
    edge_width,
    traffic_line,
)
from nbtriton.drawing.graph import Edge, Graph, Node, Traffic, folded, topological
from nbtriton.drawing.layering import Layout, layout
from nbtriton.drawing.numbers import count, counted, lasting, measure, percentile, sparkline
from nbtriton.drawing.panels import curve_scene, curve_scenes
from nbtriton.drawing.scene import Shape, fitting, to_json, to_svg
from nbtriton.drawing.table import (
    Column,
    TableView,
    compact_html,
    compact_text,
    in_units,
    table_html,
    table_text,
)
from nbtriton.drawing.timeline import (
    Bar,
    Mark,
    Span,
    Strip,
    TimelineLanes,
    Wait,
    timeline_scenes,
    timeline_text,
)
from nbtriton.drawing.watch import (
    leading,
    watch_finding,
    watch_html,
    watch_scenes,
    watch_svg,
    watch_table,
    watch_text,
)

__all__ = [
    "Bar",
    "Column",
    "Edge",
    "Graph",
    "Lane",
    "Layout",
    "Limits",
    "Mark",
    "ModelActivity",
    "Node",
    "Point",
    "Series",
    "Shape",
    "Span",
    "Strip",
    "TableView",
    "TimelineLanes",
    "Traffic",
    "Wait",
    "advice_html",
    "advice_text",
    "batch_bins",
    "bin_counts",
    "compact_html",
    "compact_text",
    "count",
    "counted",
    "curve_finding",
    "curve_limits",
    "curve_scene",
    "curve_scenes",
    "curve_text",
    "dag_scene",
    "dag_text",
    "details_of",
    "edge_width",
    "fitting",
    "folded",
    "highest",
    "in_units",
    "lasting",
    "layout",
    "leading",
    "measure",
    "percentile",
    "sparkline",
    "table_html",
    "table_text",
    "timeline_scenes",
    "timeline_text",
    "to_json",
    "to_svg",
    "top_of",
    "topological",
    "traffic_line",
    "watch_finding",
    "watch_html",
    "watch_scenes",
    "watch_svg",
    "watch_table",
    "watch_text",
]
