"""What is known of instances on other machines: their nodes, the bytes that travel, and the time of the way."""

from __future__ import annotations

from collections import Counter

from nbtriton.drawing.numbers import byte_size, count, measure
from nbtriton.runtime.engine.core.snapshot import ModelSnapshot

# Fewer executions mean nothing: the first ones are slower.
_ENOUGH = 20


def nodes_of(model: ModelSnapshot) -> str:
    """Return the nodes of a model's instances and the bytes that went there and came back; empty if they are here."""
    found = [one.placement for one in model.instances if one.placement is not None]
    if not found:
        return ""
    nodes = Counter(one.node for one in found)
    sent, received = sum(one.sent_bytes for one in found), sum(one.received_bytes for one in found)
    names = ", ".join(f"{number} \u00d7 {node}" for node, number in sorted(nodes.items()))
    return f"{names}; {byte_size(sent)} there, {byte_size(received)} back"


def way_sentence(model: ModelSnapshot) -> str:
    """Return what part of a request's time the way to the nodes takes; empty for a model that is here."""
    nodes = nodes_of(model)
    if not nodes or model.execution_count < _ENOUGH or not model.success_count:
        return ""
    way_ms, model_ms = (
        ns / model.success_count / 1e6 for ns in (_way_ns(model), model.compute_infer_ns)
    )
    return (
        f"the instances of '{model.name}' are elsewhere ({nodes}, since they started): of {count(model.success_count)} requests the "
        f"way took {measure(way_ms)} ms each, and the model {measure(model_ms)} ms"
    )


def too_small(model: ModelSnapshot) -> str:
    """Return that sentence if the way takes longer than the model; else an empty text."""
    return way_sentence(model) if _way_ns(model) > model.compute_infer_ns else ""


def _way_ns(model: ModelSnapshot) -> int:
    """Return the time of executions outside the model: inputs there and outputs back, with their conversion."""
    return model.compute_input_ns + model.compute_output_ns
