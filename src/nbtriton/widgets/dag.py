"""The graph of a model, live: how many requests wait and run at each step."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from typing import Any

import traitlets

from nbtriton.config import ModelConfig, is_ensemble
from nbtriton.drawing import Graph, dag_scene, to_json, topological
from nbtriton.widgets.activity import little_endian
from nbtriton.widgets.graphs import graph_of
from nbtriton.widgets.static import StaticView, dag_view
from nbtriton.widgets.view import LiveView, asset

__all__ = ["DagView"]

_STATES = ("READY", "LOADING", "UNLOADING", "UNAVAILABLE")


class DagView(LiveView):
    """A graph whose nodes can be walked through by keyboard; Enter opens a node's details.

    Parameters
    ----------
    graph : Graph
        As `graph_of` makes it.
    server : Server, optional
        Adds the numbers of requests that wait and run to each model.

    Examples
    --------
    >>> view = DagView.of(server, "ensemble_model")  # doctest: +SKIP
    """

    _esm = asset("dag.js")
    _css = asset("dag.css")

    scene: Any = traitlets.List().tag(sync=True)
    nodes: Any = traitlets.List().tag(sync=True)

    def __init__(self, graph: Graph, server: Any = None, **options: Any) -> None:
        self.graph = graph
        self._server = server
        self._models = [node for node in topological(graph) if node.kind == "model"]
        nodes = [
            {
                "id": node.id,
                "label": node.label,
                "kind": node.kind,
                "sublabel": node.sublabel,
                "details": [list(row) for row in node.details],
                "next": [edge.target for edge in graph.edges if edge.source == node.id],
                "live": self._models.index(node) if node in self._models else -1,
            }
            for node in topological(graph)
        ]
        super().__init__(scene=to_json(dag_scene(graph)), nodes=nodes, **options)

    @classmethod
    def of(cls, server: Any, name: str, **options: Any) -> DagView:
        """Make the live graph of a model that a server has loaded."""
        return cls(server_graph(server, name), server, **options)

    def movement(self) -> Hashable:
        """Return what changes with every request of one of its models; it rests without a server."""
        if self._server is None:
            return ()
        names = {node.label for node in self._models}
        return tuple(
            (one.name, one.state, one.queued, one.executing, one.success_count, one.fail_count)
            for one in self._server.models()
            if one.name in names
        )

    def _observe(self) -> bytes | None:
        if self._server is None:
            return None
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
        """Return the graph without its live numbers."""
        return dag_view(self.graph)


def server_graph(server: Any, name: str) -> Graph:
    """Return the graph of a loaded model, with what is loaded of its steps."""
    config = server.config(name)
    members: dict[str, ModelConfig] = {}
    if is_ensemble(config):
        loaded = {model.name for model in server.models()}
        for step in config.ensemble_scheduling.step:
            if step.model_name in loaded:
                members[step.model_name] = server.config(step.model_name)
    return graph_of(config, members)
