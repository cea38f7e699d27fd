"""Controls and states: tensors of sequence models besides their inputs and outputs."""

from __future__ import annotations

from nbtriton.model.config._proto import ModelConfig, enum_name, protocol_name
from nbtriton.model.config.signature import output_specs

# Of a control's values for false and true, which also say its data type.
_KINDS = ("int32", "fp32", "bool")

__all__ = ["control_types", "output_types", "state_inputs", "state_outputs"]


def control_types(config: ModelConfig) -> dict[str, str]:
    """Return the data type of each control tensor, such as ``TYPE_INT32``, by its name."""
    return {
        tensor.name: next(
            (f"TYPE_{kind.upper()}" for kind in _KINDS if getattr(control, f"{kind}_false_true")),
            enum_name(control, "data_type"),
        )
        for tensor in config.sequence_batching.control_input
        for control in tensor.control
    }


def state_inputs(config: ModelConfig) -> dict[str, str]:
    """Return the data type of each implicit state, by the name of its input."""
    states = config.sequence_batching.state
    return {state.input_name: enum_name(state, "data_type") for state in states}


def state_outputs(config: ModelConfig) -> dict[str, str]:
    """Return the data type of each implicit state, by the name of its output."""
    states = config.sequence_batching.state
    return {state.output_name: enum_name(state, "data_type") for state in states}


def output_types(config: ModelConfig) -> dict[str, str]:
    """Return the protocol's datatype of each output, then of each state that is no output, by name."""
    types = {name: spec.datatype for name, spec in output_specs(config).items()}
    for state in config.sequence_batching.state:
        types.setdefault(state.output_name, protocol_name(state.data_type))
    return types
