"""The live view of a server: queues, instances, batch sizes and counters of its models."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import traitlets

from nbtriton.common.packages import needed
from nbtriton.drawing.activity import ModelActivity
from nbtriton.drawing.scene import to_json
from nbtriton.drawing.watch import (
    busy_first,
    has_cards,
    is_idle,
    leading,
    watch_finding,
    watch_html,
    watch_scenes,
    watch_svg,
    watch_table,
    watch_text,
)
from nbtriton.lab.explain.traffic import PipelineTraffic, read_traffic
from nbtriton.options.reading import quoted
from nbtriton.runtime.engine import RequestRecord, ServerHistory
from nbtriton.runtime.engine.status import Pipeline, pipelines, steps_of
from nbtriton.widgets.activity import activities, covered_s, encode
from nbtriton.widgets.publisher import most_read, reading_gap_for
from nbtriton.widgets.selection import SelectingView, recorded
from nbtriton.widgets.static import StaticView
from nbtriton.widgets.view import asset, movement_of

# How often what is busy moves to the top, where there are more models than cards.
_PLACED_S = 5.0


class WatchView(SelectingView):
    """Queue depth over the last half minute, instances, batch sizes and a table, live.

    Parameters
    ----------
    server : Server
        Anything whose ``history()`` returns a `ServerHistory`.
    names : sequence of str, optional
        The models to show; empty for all of them.
    """

    _esm = asset("watch.js")
    _css = asset("watch.css")

    scenes: Any = traitlets.List().tag(sync=True)
    models: Any = traitlets.List().tag(sync=True)
    finding = traitlets.Unicode().tag(sync=True)

    def __init__(self, server: Any, names: Sequence[str] = (), **options: Any) -> None:
        self._server = server
        self._names = tuple(names)
        self._structure: object = None
        self._known: object = None
        self._order: Pipeline = ()
        # Where models stand: nothing jumps from frame to frame.
        self._places: dict[tuple[str, int], int] = {}
        self._idle: frozenset[str] = frozenset()
        self._placed_s = -float("inf")
        self._traffic: dict[str, PipelineTraffic] = {}
        self._traffic_due_s = -float("inf")
        super().__init__(**options)
        self.refresh()

    def _recorded(self) -> list[RequestRecord]:
        return recorded(self._server, self._names or [one.name for one in self._server.models()])

    def movement(self) -> Hashable:
        """Return a value that changes with every request and every load."""
        return movement_of(self._server, self._clock(), self._names)

    def _observe(self) -> ServerHistory:
        history: ServerHistory = self._server.history()
        return history

    def _send_state(self, state: ServerHistory) -> None:
        # At rest the numbers cover everything drawn, as in the saved file.
        models = self._activities(state, whole=self.resting)
        covered = covered_s(state, self._names)
        structure = [_structure(model) for model in models]
        self.frames_sent += 1
        with self.hold_sync():
            if structure != self._structure:
                self._structure = structure
                self.scenes = [to_json(one) for one in watch_scenes(models, span_s=covered)]
                self.models = structure
            self.finding = watch_finding(models, self._sentence(models), span_s=covered)
            self.frame = encode(self.frames_sent, models, covered, state.now_ns)

    def _activities(self, state: ServerHistory, *, whole: bool) -> tuple[ModelActivity, ...]:
        found = busy_first(
            activities(state, self._names, pipeline=self._pipeline(state), whole=whole)
        )
        now = self._clock()
        idle = frozenset(one.name for one in found if is_idle(one))
        if idle == self._idle and now - self._placed_s < _PLACED_S:
            found = tuple(
                sorted(found, key=lambda one: self._places.get((one.name, one.version), 0))
            )
        else:
            self._idle, self._placed_s = idle, now
            self._places = {(one.name, one.version): at for at, one in enumerate(found)}
        return self._with_shares(found)

    def _with_shares(self, models: tuple[ModelActivity, ...]) -> tuple[ModelActivity, ...]:
        """Return the models with their steps' shares of the requests' time; records are read seldom."""
        now, top = self._clock(), leading(models)
        if self.resting or now >= self._traffic_due_s:
            begin_s = time.thread_time()
            names = {one.name for one in models if one.shares and has_cards(models)}
            names |= {top.name} if top else set()
            most = most_read(len(models))
            self._traffic = {
                name: read_traffic(self._server, name, calls=False, most=most) for name in names
            }
            self._traffic_due_s = now + reading_gap_for(time.thread_time() - begin_s)
        read = {name: found.steps for name, found in self._traffic.items() if found.steps}
        return tuple(
            replace(
                one, shares=tuple((name, read[one.name].get(name, 0.0)) for name, _ in one.shares)
            )
            if one.name in read
            else one
            for one in models
        )

    def _sentence(self, models: Sequence[ModelActivity]) -> str:
        """Return where the time of the recorded requests goes."""
        top = leading(models)
        found = self._traffic.get(top.name) if top else None
        if not top or not found:
            return ""
        said = found.finding if found.bottleneck else f"{top.name}: {found.finding}"
        advice = f"; %triton_why {quoted(found.waits_for)} says what to change"
        return said + (advice if found.waits_for else "")

    def _pipeline(self, history: ServerHistory) -> Pipeline:
        """Return the order of the models; configurations are read only when models are loaded or unloaded."""
        models = [one.model for one in history.models]
        known = tuple((one.name, one.version, one.state) for one in models)
        if known != self._known:
            self._known, self._order = known, pipelines(models, partial(steps_of, self._server))
        return self._order

    def to_frame(self) -> Any:
        """Return the table as it is now, as a DataFrame."""
        with needed("a DataFrame"):
            import pandas as pd

        history = self._observe()
        columns, rows = watch_table(self._activities(history, whole=False))
        return pd.DataFrame(rows, columns=columns)

    def static(self) -> StaticView:
        """Return at most the last half minute; rates are means over the time with requests."""
        history = self._observe()
        models = self._activities(history, whole=True)
        span = covered_s(history, self._names)
        said = self._sentence(models)
        return StaticView(
            watch_html(models, said, span_s=span),
            watch_text(models, said, span_s=span),
            watch_svg(models, span_s=span),
        )


def _structure(model: ModelActivity) -> dict[str, Any]:
    """Return the part that is sent only when it changes: names, not numbers."""
    return {
        "name": model.name,
        "version": model.version,
        "state": model.state,
        "reason": model.reason,
        "lanes": [lane.name for lane in model.lanes],
        "bins": [name for name, _ in model.bins],
        "changes": [summary for _, summary in model.changes],
        "steps": [name for name, _ in model.shares],
    }
