"""Live views in a notebook, each with a static form that stays.

Importing this package imports anywidget; nothing else of nbtriton imports it before it is used.
"""

from __future__ import annotations

from nbtriton.widgets.curve import CurveView
from nbtriton.widgets.dag import DagView, server_graph
from nbtriton.widgets.graphs import graph_of
from nbtriton.widgets.publisher import Hub, Publisher, hub
from nbtriton.widgets.show import Shown, show_live
from nbtriton.widgets.static import StaticView, curve_view, dag_view, frame_view
from nbtriton.widgets.table import TableView
from nbtriton.widgets.timeline import LiveTimeline, TimelineView
from nbtriton.widgets.view import LiveView
from nbtriton.widgets.watch import WatchView

__all__ = [
    "CurveView",
    "DagView",
    "Hub",
    "LiveTimeline",
    "LiveView",
    "Publisher",
    "Shown",
    "StaticView",
    "TableView",
    "TimelineView",
    "WatchView",
    "curve_view",
    "dag_view",
    "frame_view",
    "graph_of",
    "hub",
    "server_graph",
    "show_live",
]
