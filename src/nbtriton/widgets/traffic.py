"""A graph with its traffic, from the server's recorder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nbtriton.drawing import Edge, Graph, ModelActivity, Node, Traffic
from nbtriton.lab.explain import PipelineTraffic, read_traffic
from nbtriton.widgets.activity import activities
from nbtriton.widgets.graphs import with_calls


def with_traffic(server: Any, name: str, graph: Graph, *, whole: bool) -> Graph:
    """Return a graph with the traffic of each model, the recorded calls, and a finding.

    Parameters
    ----------
    server : Server
    name : str
        The model or ensemble that the graph shows.
    graph : Graph
        As `server_graph` returns it.
    whole : bool
        Rates over the whole time in which a model worked, rather than the last two seconds.
    """
    found = read_traffic(server, name)
    loaded = {model.name for model in server.models()}
    called = {callee for _, callee in found.calls if callee in loaded}
    graph = with_calls(graph, found.calls, {model: server.config(model) for model in called})
    history = server.history()
    done = {one.name: one for one in activities(history, whole=whole)}
    sizes = {one.model.name: one.model.batch_sizes for one in history.models}
    sizes |= {one.model.name: one.moments[-1].sizes for one in history.models if one.moments}
    nodes = tuple(
        replace(
            node, traffic=_traffic(node, found, done.get(node.label), sizes.get(node.label, {}))
        )
        if node.is_model
        else node
        for node in graph.nodes
    )
    whole_rate = done[name].infer_per_s if name in done else 0.0
    edges = tuple(_with_rate(edge, whole_rate) for edge in graph.edges)
    return replace(graph, nodes=nodes, edges=edges, finding=found.finding)


def _traffic(
    node: Node, found: PipelineTraffic, done: ModelActivity | None, sizes: dict[int, int]
) -> Traffic:
    shares = found.called if node.kind == "called" else found.shares
    share = shares.get(node.id.partition(":")[2], 0.0)
    errors = found.errors.get(node.label, ())
    if done is None:
        return Traffic(share=share, errors=errors)
    return Traffic(
        share, done.infer_per_s, done.inference_count, done.execution_count, done.fail_count,
        tuple(sorted(sizes.items())), errors, done.executing, done.queued,
    )  # fmt: skip


def _with_rate(edge: Edge, infer_per_s: float) -> Edge:
    """Every tensor of an ensemble passes once for each of its inferences."""
    if edge.row_bytes is None or edge.kind == "call":
        return edge
    return replace(edge, bytes_per_s=edge.row_bytes * infer_per_s)
