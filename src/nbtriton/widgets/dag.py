"""The graph of a model, live: how many requests wait and run at each step."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import traitlets

from nbtriton.drawing.dag import details_of, edge_width, traffic_line
from nbtriton.drawing.graph import Graph, folded, topological
from nbtriton.drawing.scene import to_json
from nbtriton.model.config import ModelConfig
from nbtriton.runtime.engine import RequestRecord
from nbtriton.runtime.engine.status import config_of
from nbtriton.widgets.activity import little_endian
from nbtriton.widgets.graphs import graph_of, with_traffic
from nbtriton.widgets.publisher import reading_gap_for
from nbtriton.widgets.selection import SelectingView, recorded
from nbtriton.widgets.static import StaticView, dag_scenes, dag_view
from nbtriton.widgets.view import asset, movement_of

_STATES = ("READY", "LOADING", "UNLOADING", "UNAVAILABLE")


class DagView(SelectingView):
    """A graph whose nodes can be walked through by keyboard; Enter opens a node's details.

    Parameters
    ----------
    graph : Graph
        As `graph_of` makes it.
    server : Server, optional
        Adds the numbers of requests that wait and run to each model.
    read : callable, optional
        Returns the graph with its traffic: the current one, or with ``whole=True`` all of it.

    Examples
    --------
    >>> view = DagView.of(server, "ensemble_model")  # doctest: +SKIP
    """

    _esm = asset("dag.js")
    _css = asset("dag.css")

    scenes: Any = traitlets.List().tag(sync=True)
    nodes: Any = traitlets.List().tag(sync=True)
    traffic: Any = traitlets.List().tag(sync=True)
    widths: Any = traitlets.List().tag(sync=True)
    finding = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self,
        graph: Graph,
        server: Any = None,
        *,
        read: Callable[..., Graph] | None = None,
        **options: Any,
    ) -> None:
        self._server = server
        self._read = read
        self._read_due_s = -float("inf")
        self.graph = read() if read is not None else graph
        super().__init__(**self._structure(), **self._figures(), **options)

    @classmethod
    def of(cls, server: Any, name: str, **options: Any) -> DagView:
        """Make the live graph of a loaded model."""
        graph = server_graph(server, name)

        def read(*, whole: bool = False) -> Graph:
            return with_traffic(server, name, graph, whole=whole)

        return cls(graph, server, read=read, **options)

    def _structure(self) -> dict[str, Any]:
        """Return what changes only when a call between models is seen for the first time."""
        order = topological(self.graph)
        self._models = [node for node in order if node.is_model]
        self._shape = _shape(self.graph)
        # The page writes the finding above the figure, where its length may change.
        scenes = [to_json(scene) for scene in dag_scenes(replace(self.graph, finding=""))]
        nodes = [
            {
                "id": node.id,
                "label": node.label,
                "kind": node.kind,
                "sublabel": node.sublabel,
                "details": [list(row) for row in details_of(node)],
                "next": [edge.target for edge in self.graph.edges if edge.source == node.id],
                "live": self._models.index(node) if node in self._models else -1,
            }
            for node in order
        ]
        return {"scenes": scenes, "nodes": nodes}

    def _figures(self) -> dict[str, Any]:
        """Return the values that are read less often: each model's share, line and details."""
        watched = {node.id: node for node in self.graph.nodes}
        traffic = [
            [
                node.traffic.share,
                traffic_line(node.traffic),
                [list(row) for row in details_of(node)],
            ]
            for node in (watched[model.id] for model in self._models)
            if node.traffic is not None
        ]
        most = max((edge.bytes_per_s or 0.0 for edge in self.graph.edges), default=0.0)
        widths = [round(edge_width(e.bytes_per_s, most), 2) for e in folded(self.graph).edges]
        return {"traffic": traffic, "widths": widths, "finding": self.graph.finding}

    def _recorded(self) -> list[RequestRecord]:
        names = {node.label for node in self._models}
        return recorded(self._server, names) if self._server is not None else []

    def movement(self) -> Hashable:
        """Return a value that changes with every request to one of its models; without a server the view rests."""
        if self._server is None:
            return ()
        return movement_of(self._server, self._clock(), {node.label for node in self._models})

    def _observe(self) -> bytes | None:
        if self._server is None:
            return None
        now = self._clock()
        # Shares, rates and batch sizes are read less often; queues and instances change with each frame.
        if self._read is not None and now >= self._read_due_s:
            begin_s = time.thread_time()
            self.graph = self._read()
            changes = self._structure() if _shape(self.graph) != self._shape else {}
            with self.hold_sync():
                for trait, value in (changes | self._figures()).items():
                    setattr(self, trait, value)
            self._read_due_s = now + reading_gap_for(time.thread_time() - begin_s)
        found = {model.name: model for model in self._server.snapshot().models}
        self.frames_sent += 1
        numbers = array("d", (self.frames_sent, len(self._models)))
        for node in self._models:
            model = found.get(node.label)
            if model is None:
                numbers.extend((0, 0, _STATES.index("UNAVAILABLE")))
            else:
                numbers.extend((model.queued, model.executing, _STATES.index(model.state)))
        return little_endian(numbers)

    def _send_state(self, state: bytes) -> None:
        self.frame = state

    def static(self) -> StaticView:
        """Return the graph with its totals."""
        return dag_view(self._read(whole=True) if self._read is not None else self.graph)


def _shape(graph: Graph) -> tuple[object, ...]:
    """Return the values that the picture's structure depends on."""
    return tuple(node.id for node in graph.nodes), tuple((e.source, e.target) for e in graph.edges)


def server_graph(server: Any, name: str) -> Graph:
    """Return the graph of a loaded model, with those of its steps and nested steps that are loaded."""
    config = server.config(name)
    members: dict[str, ModelConfig] = {}
    front = [config]
    while front:
        for step in front.pop().ensemble_scheduling.step:
            found = config_of(server, step.model_name)
            if found is not None and step.model_name not in members:
                members[step.model_name] = found
                front.append(found)
    return graph_of(config, members)
