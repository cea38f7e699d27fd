"""From a model configuration to the graph that is drawn, and its traffic from the recorder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nbtriton.drawing.activity import ModelActivity
from nbtriton.drawing.graph import Edge, Graph, Node, Traffic
from nbtriton.lab.explain.traffic import PipelineTraffic, read_traffic
from nbtriton.model.config import (
    ModelConfig,
    TensorSpec,
    enum_name,
    input_specs,
    is_ensemble,
    output_specs,
    stand_in_reason,
)
from nbtriton.runtime.engine.status import config_of, nodes_of
from nbtriton.widgets.activity import activities
from nbtriton.widgets.publisher import most_read


def graph_of(config: ModelConfig, members: Mapping[str, ModelConfig] | None = None) -> Graph:
    """Return the graph of a model: its steps if it is an ensemble, else one node.

    Parameters
    ----------
    config : ModelConfig
        The model's own configuration.
    members : mapping of str to ModelConfig, optional
        Configurations of the composing models by name; a step whose model is not among them is
        drawn with what the ensemble's configuration says about it.
    """
    if not is_ensemble(config):
        inputs, outputs = input_specs(config).values(), output_specs(config).values()
        return Graph((_node("0", config, map(_tensor, inputs), map(_tensor, outputs)),))
    return _ensemble(config, members or {})


def _node(key: str, config: ModelConfig, inputs: Iterable[str], outputs: Iterable[str]) -> Node:
    labels = _sublabel(config), _details(config)
    return Node(f"step:{key}", config.name, "model", *labels, tuple(inputs), tuple(outputs))


def _ensemble(config: ModelConfig, members: Mapping[str, ModelConfig]) -> Graph:
    inputs, outputs = input_specs(config), output_specs(config)
    flow = _Dataflow(members)
    for spec in inputs.values():
        flow.nodes.append(Node(f"input:{spec.name}", spec.name, "input", _type(spec)))
        flow.made["", spec.name] = _Made(f"input:{spec.name}", "", _tensor(spec), row_bytes(spec))
    flow.add_steps(config, "", "")
    edges = [
        flow.edge(key, step, port) for key, step, port in flow.wanted if flow.found(key) is not None
    ]
    for name, spec in outputs.items():
        flow.nodes.append(Node(f"output:{name}", name, "output", _type(spec)))
        if flow.found(("", name)) is not None:
            edges.append(flow.edge(("", name), f"output:{name}", ""))
    return Graph(tuple(flow.nodes), tuple(edges), config.name)


# A tensor of an ensemble: the ensemble's place ("" is the whole, "1." its second step), and the
# tensor's name.
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Made:
    """The source of a tensor."""

    node: str
    port: str
    label: str
    row_bytes: float | None


class _Dataflow:
    """The steps of an ensemble; nested ensembles are replaced by their steps.

    Parameters
    ----------
    members : mapping of str to ModelConfig
    """

    def __init__(self, members: Mapping[str, ModelConfig]) -> None:
        self._members = members
        self.nodes: list[Node] = []
        self.made: dict[_Key, _Made] = {}
        self.wanted: list[tuple[_Key, str, str]] = []
        # A tensor of a nested ensemble is a tensor of the outer ensemble under another name.
        self._same: dict[_Key, _Key] = {}

    def add_steps(self, config: ModelConfig, place: str, group: str) -> None:
        """Add the steps of an ensemble; the step ``i`` of the whole is the node ``step:i``."""
        for i, step in enumerate(config.ensemble_scheduling.step):
            # (A protobuf map has a different order in each process.)
            takes = dict(sorted(step.input_map.items()))
            gives = dict(sorted(step.output_map.items()))
            member = self._members.get(step.model_name)
            if member is not None and is_ensemble(member):
                inside = f"{place}{i}."
                self._same |= {(inside, port): (place, tensor) for port, tensor in takes.items()}
                self._same |= {(place, tensor): (inside, port) for port, tensor in gives.items()}
                self.add_steps(member, inside, step.model_name)
                continue
            key = f"{place}{i}"
            node = _step(key, step.model_name, member, takes, gives)
            self.nodes.append(replace(node, group=group))
            specs = output_specs(member) if member is not None else {}
            for port, tensor in gives.items():
                spec = specs.get(port)
                label = f"{tensor} {_type(spec)}" if spec is not None else tensor
                size = row_bytes(spec) if spec is not None else None
                self.made[place, tensor] = _Made(node.id, port, label, size)
            self.wanted += [((place, tensor), node.id, port) for port, tensor in takes.items()]

    def found(self, key: _Key) -> _Made | None:
        """Return where a tensor comes from; None if nothing makes it."""
        while key not in self.made and key in self._same:
            key = self._same[key]
        return self.made.get(key)

    def edge(self, key: _Key, target: str, port: str) -> Edge:
        """Return the edge of a tensor to a node."""
        made = self.found(key)
        assert made is not None
        return Edge(made.node, target, made.label, made.port, port, row_bytes=made.row_bytes)


def _step(
    key: str,
    name: str,
    member: ModelConfig | None,
    input_map: Mapping[str, str],
    output_map: Mapping[str, str],
) -> Node:
    if member is None:
        details: tuple[tuple[str, str], ...] = (("state", "not loaded"),)
        return Node(
            f"step:{key}", name, "model", "not loaded", details, tuple(input_map), tuple(output_map)
        )
    # In the order of the model's own configuration; a map has no order.
    ins = [tensor for tensor in input_specs(member) if tensor in input_map]
    outs = [tensor for tensor in output_specs(member) if tensor in output_map]
    return _node(
        key, member, dict.fromkeys((*ins, *input_map)), dict.fromkeys((*outs, *output_map))
    )


def with_calls(
    graph: Graph, calls: Mapping[tuple[str, str], int], configs: Mapping[str, ModelConfig]
) -> Graph:
    """Return the graph with the calls between models (BLS) that were seen.

    Parameters
    ----------
    graph : Graph
    calls : mapping of (str, str) to int
        How often a model called another one, by their names.
    configs : mapping of str to ModelConfig
        Of the called models, where they are loaded.

    Notes
    -----
    A model that is called by a later one is drawn again. In a cycle of calls the last call has no
    line: it is named in the details of its caller.
    """
    nodes = {node.id: node for node in graph.nodes}
    edges = list(graph.edges)
    front = [node for node in graph.nodes if node.is_model]
    done: set[tuple[str, str]] = set()
    while front:
        caller = front.pop(0)
        for (name, callee), times in sorted(calls.items()):
            if name != caller.label or (caller.id, callee) in done:
                continue
            done.add((caller.id, callee))
            named = (one for one in nodes.values() if one.is_model and one.label == callee)
            target = next((one for one in named if not _leads(edges, one.id, caller.id)), None)
            if target is None and f"call:{callee}" in nodes:  # a cycle
                row = ("calls", f"{callee}, {times} \u00d7")
                nodes[caller.id] = caller = replace(caller, details=(*caller.details, row))
                continue
            if target is None:
                config = configs.get(callee)
                target = Node(
                    f"call:{callee}", callee, "called",
                    _sublabel(config) if config is not None else "not loaded",
                    _details(config) if config is not None else (),
                )  # fmt: skip
                nodes[target.id] = target
                front.append(target)
            edges.append(Edge(caller.id, target.id, "calls", kind="call", calls=times))
    return replace(graph, nodes=tuple(nodes.values()), edges=tuple(edges))


def _leads(edges: Iterable[Edge], start: str, end: str) -> bool:
    """Return True if edges lead from one node to another."""
    front, seen = [start], {start}
    while front:
        here = front.pop()
        if here == end:
            return True
        after = {edge.target for edge in edges if edge.source == here} - seen
        seen |= after
        front += after
    return False


def _sublabel(config: ModelConfig) -> str:
    kind = "ensemble" if is_ensemble(config) else config.backend or config.platform
    parts = [kind] if kind else []
    if stand_in_reason(config):
        parts.insert(0, "stand-in")
    if config.max_batch_size > 0:
        parts.append(f"batch ≤ {config.max_batch_size}")
    if config.instance_group:
        parts.append(_instances(config))
    return " · ".join(parts)


def _instances(config: ModelConfig) -> str:
    totals: dict[str, int] = {}
    for group in config.instance_group:
        kind = enum_name(group, "kind").removeprefix("KIND_")
        totals[kind] = totals.get(kind, 0) + max(1, group.count) * max(1, len(group.gpus))
    return " + ".join(f"{count} \u00d7 {kind}" for kind, count in totals.items())


def _details(config: ModelConfig) -> tuple[tuple[str, str], ...]:
    rows = [
        ("backend", config.backend),
        ("platform", config.platform),
        ("stand-in", stand_in_reason(config)),
        ("max_batch_size", str(config.max_batch_size)),
        ("inputs", ", ".join(_tensor(spec) for spec in input_specs(config).values())),
        ("outputs", ", ".join(_tensor(spec) for spec in output_specs(config).values())),
        ("instances", _instances(config)),
    ]
    if config.HasField("dynamic_batching"):
        batching = config.dynamic_batching
        preferred = ", ".join(str(size) for size in batching.preferred_batch_size)
        delay = f"delay {batching.max_queue_delay_microseconds} µs"
        rows.append(("dynamic_batching", f"{delay}, preferred {preferred}" if preferred else delay))
    return tuple((name, value) for name, value in rows if value)


def _type(spec: TensorSpec) -> str:
    return f"{spec.datatype}[{','.join(str(dim) for dim in spec.dims)}]"


def row_bytes(spec: TensorSpec) -> float | None:
    """Return the size of a tensor for one row; None if it varies."""
    bits = spec.datatype.lstrip("UINTFPB")
    size = 1 if spec.datatype == "BOOL" else int(bits) // 8 if bits.isdecimal() else 0
    if not size or any(dim < 0 for dim in spec.dims):
        return None
    return float(size * math.prod(spec.dims))


def _tensor(spec: TensorSpec) -> str:
    return f"{spec.name} {_type(spec)}"


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
        Rates over the whole time in which a model worked, rather than the last two seconds, and everything recorded.
    """
    found = read_traffic(server, name, most=None if whole else most_read(len(server.models())))
    called = {callee: config_of(server, callee) for _, callee in found.calls}
    graph = with_calls(
        graph, found.calls, {callee: one for callee, one in called.items() if one is not None}
    )
    history = server.history()
    done = {one.name: one for one in activities(history, whole=whole)}
    sizes = {one.model.name: one.model.batch_sizes for one in history.models}
    sizes |= {one.model.name: one.moments[-1].sizes for one in history.models if one.moments}
    placed = {one.model.name: nodes_of(one.model) for one in history.models}
    nodes = list(graph.nodes)
    for at, node in enumerate(nodes):
        if node.is_model:
            traffic = _traffic(node, found, done.get(node.label), sizes.get(node.label, {}))
            where = placed.get(node.label)
            details = (*node.details, ("nodes", where)) if where else node.details
            nodes[at] = replace(node, traffic=traffic, details=details)
    whole_rate = done[name].infer_per_s if name in done else 0.0
    edges = tuple(_with_rate(edge, whole_rate) for edge in graph.edges)
    return replace(graph, nodes=tuple(nodes), edges=edges, finding=found.finding)


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
