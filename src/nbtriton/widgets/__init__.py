"""Live views in a notebook, each with a static form that stays.

A live view imports anywidget, a static form does not; the rest of nbtriton imports it only on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.common.packages import on_first_use

if TYPE_CHECKING:
    from nbtriton.widgets.curve import CurveView as CurveView
    from nbtriton.widgets.dag import DagView as DagView
    from nbtriton.widgets.dag import server_graph as server_graph
    from nbtriton.widgets.graphs import graph_of as graph_of
    from nbtriton.widgets.publisher import Hub as Hub
    from nbtriton.widgets.publisher import Publisher as Publisher
    from nbtriton.widgets.publisher import hub as hub
    from nbtriton.widgets.show import Shown as Shown
    from nbtriton.widgets.show import show_live as show_live
    from nbtriton.widgets.static import StaticView as StaticView
    from nbtriton.widgets.static import curve_view as curve_view
    from nbtriton.widgets.static import dag_view as dag_view
    from nbtriton.widgets.static import frame_view as frame_view
    from nbtriton.widgets.table import TableView as TableView
    from nbtriton.widgets.timeline import LiveTimeline as LiveTimeline
    from nbtriton.widgets.timeline import TimelineView as TimelineView
    from nbtriton.widgets.view import LiveView as LiveView
    from nbtriton.widgets.watch import WatchView as WatchView

# The module of each public name.
_PLACES = {
    "CurveView": "curve",
    "DagView": "dag",
    "Hub": "publisher",
    "LiveTimeline": "timeline",
    "LiveView": "view",
    "Publisher": "publisher",
    "Shown": "show",
    "StaticView": "static",
    "TableView": "table",
    "TimelineView": "timeline",
    "WatchView": "watch",
    "curve_view": "static",
    "dag_view": "static",
    "frame_view": "static",
    "graph_of": "graphs",
    "hub": "publisher",
    "server_graph": "dag",
    "show_live": "show",
}

__all__ = list(_PLACES)
if not TYPE_CHECKING:  # with it mypy would accept any attribute
    __getattr__ = on_first_use(__name__, _PLACES)
