"""From a model configuration to the graph that is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nbtriton.config import (
    ModelConfig,
    TensorSpec,
    input_specs,
    is_ensemble,
    output_specs,
    stand_in_reason,
)
from nbtriton.drawing import Edge, Graph, Node

__all__ = ["graph_of"]


def graph_of(config: ModelConfig, members: Mapping[str, ModelConfig] | None = None) -> Graph:
    """Return the graph of a model: its steps if it is an ensemble, else one node.

    Parameters
    ----------
    config : ModelConfig
        Of the model itself.
    members : mapping of str to ModelConfig, optional
        Configurations of the composing models by name; a step whose model is not among them is
        drawn with what the ensemble says of it.
    """
    if not is_ensemble(config):
        inputs, outputs = input_specs(config).values(), output_specs(config).values()
        return Graph((_node(0, config, map(_tensor, inputs), map(_tensor, outputs)),))
    return _ensemble(config, members or {})


def _node(i: int, config: ModelConfig, inputs: Iterable[str], outputs: Iterable[str]) -> Node:
    labels = _sublabel(config), _details(config)
    return Node(f"step:{i}", config.name, "model", *labels, tuple(inputs), tuple(outputs))


def _ensemble(config: ModelConfig, members: Mapping[str, ModelConfig]) -> Graph:
    inputs, outputs = input_specs(config), output_specs(config)
    nodes = [Node(f"input:{s.name}", s.name, "input", _type(s)) for s in inputs.values()]
    edges: list[Edge] = []
    # tensor of the ensemble -> (node, port, "NAME DTYPE[SHAPE]")
    made = {name: (f"input:{name}", "", _tensor(spec)) for name, spec in inputs.items()}
    steps = list(config.ensemble_scheduling.step)
    for i, step in enumerate(steps):
        member = members.get(step.model_name)
        specs = output_specs(member) if member is not None else {}
        # (A map of protobuf has another order in each process.)
        taken, given = dict(sorted(step.input_map.items())), dict(sorted(step.output_map.items()))
        nodes.append(_step(i, step.model_name, member, taken, given))
        for port, tensor in given.items():
            label = f"{tensor} {_type(specs[port])}" if port in specs else tensor
            made[tensor] = (f"step:{i}", port, label)
    for i, step in enumerate(steps):
        for port, tensor in sorted(step.input_map.items()):
            if tensor in made:
                source, source_port, label = made[tensor]
                edges.append(Edge(source, f"step:{i}", label, source_port, port))
    for name, spec in outputs.items():
        nodes.append(Node(f"output:{name}", name, "output", _type(spec)))
        if name in made:
            source, source_port, label = made[name]
            edges.append(Edge(source, f"output:{name}", label, source_port))
    return Graph(tuple(nodes), tuple(edges), config.name)


def _step(
    i: int,
    name: str,
    member: ModelConfig | None,
    input_map: Mapping[str, str],
    output_map: Mapping[str, str],
) -> Node:
    if member is None:
        details: tuple[tuple[str, str], ...] = (("state", "not loaded"),)
        return Node(
            f"step:{i}", name, "model", "not loaded", details, tuple(input_map), tuple(output_map)
        )
    # In the order of the model's own configuration; a map has none.
    ins = [tensor for tensor in input_specs(member) if tensor in input_map]
    outs = [tensor for tensor in output_specs(member) if tensor in output_map]
    return _node(i, member, dict.fromkeys((*ins, *input_map)), dict.fromkeys((*outs, *output_map)))


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
        kinds = group.DESCRIPTOR.fields_by_name["kind"].enum_type
        assert kinds is not None
        kind = kinds.values_by_number[group.kind].name.removeprefix("KIND_")
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


def _tensor(spec: TensorSpec) -> str:
    return f"{spec.name} {_type(spec)}"
