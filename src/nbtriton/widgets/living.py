"""The charts of reports on a page: one script brings all of them to life."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import cache
from typing import Any

import traitlets

from nbtriton.drawing.scene import to_json
from nbtriton.drawing.timeline import timeline_scenes
from nbtriton.lab.explain.timeline import Timeline
from nbtriton.widgets.show import KeptViews
from nbtriton.widgets.view import LiveView, asset

# Reports whose batches are kept.
_REPORTS = 8


class LivingCharts(LiveView):
    """What a kernel has once, however many charts it shows: the page's script, and the batches of their points.

    The charts themselves are the static HTML of reports, which is what a notebook keeps. A host that runs a script
    only where a widget is shown, as VS Code and marimo do, gets one for each chart, with its HTML.
    """

    _esm = asset("living.js", "chart.js")
    _css = asset("chart.css")

    html = traitlets.Unicode().tag(sync=True)

    def __init__(self, **options: Any) -> None:
        self._batches: deque[tuple[str, object, Mapping[int, Timeline]]] = deque(maxlen=_REPORTS)
        self._kept = 0
        super().__init__(**options)

    def keep(self, report: object, batches: Mapping[int, Timeline]) -> None:
        """Keep the batches that were recorded at points of a report, by their places in it."""
        self._kept += 1
        self._batches.append((f"{self.place}/{self._kept}", report, batches))

    def marked(self, report: object, html: str) -> str:
        """Return the HTML of a report, with the mark under which its batches are kept."""
        for mark, one, _ in tuple(self._batches):  # another thread may keep some
            if one is report:
                return f'<div data-batches="{mark}">{html}</div>'
        return html

    def _handle_command(self, content: dict[str, Any]) -> None:
        if content.get("kind") != "batches":
            return
        chart, point = str(content.get("chart")), str(content.get("point"))
        for mark, _, batches in tuple(self._batches):
            if mark == chart and point.isdecimal() and int(point) in batches:
                shown = batches[int(point)]
                scene, *_ = timeline_scenes(
                    shown.models, span_ms=shown.span_ms, finding=shown.finding
                )
                self.send({**content, "scene": to_json(scene)})


_charts = KeptViews(_REPORTS)


def living_chart(html: str) -> LivingCharts:
    """Return one chart as a widget, for a host that runs a script only where one is shown."""
    chart = LivingCharts(html=html)
    _charts.keep(chart)
    return chart


@cache
def living_charts() -> LivingCharts:
    """Return the one of this kernel."""
    return LivingCharts()
