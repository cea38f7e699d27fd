"""Inputs and outputs as plain values, read from a configuration or from annotations."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nbtriton.common.errors import ConfigError, nearest
from nbtriton.model.config._proto import (
    PROTOCOL_TYPES,
    ModelConfig,
    enum_name,
    known_data_type,
    protocol_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbtriton.model.config._messages import ModelInput, ModelOutput

_ANNOTATION = re.compile(r"\s*(?P<datatype>\w+)\s*(?:\[(?P<dims>[^\[\]]*)\])?\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model.

    Parameters
    ----------
    name : str
        The tensor's name; empty for an annotation, which belongs to a parameter.
    datatype : str
        The inference protocol's name: ``"FP32"``, ``"BYTES"``, …
    dims : tuple of int
        Without the batch dimension; -1 for a variable one.
    optional, allow_ragged_batch : bool
        As in ``ModelInput``; False for outputs.
    reshape : tuple of int, optional
        The shape that the model itself sees, if it differs from `dims`.
    label_filename : str
        File of class labels of an output; may be empty.
    is_shape_tensor : bool
        Its values are the shape of another tensor; it has no batch dimension (TensorRT).

    Examples
    --------
    >>> TensorSpec("IN", "FP32", (4,)).dims
    (4,)
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool = False
    allow_ragged_batch: bool = False
    reshape: tuple[int, ...] | None = None
    label_filename: str = ""
    is_shape_tensor: bool = False


def input_specs(config: ModelConfig) -> dict[str, TensorSpec]:
    """Return the inputs by name, in the order of the configuration; the first of a name counts.

    Examples
    --------
    >>> input_specs(as_config("input { name: 'IN' data_type: TYPE_FP32 dims: 4 }"))["IN"].datatype
    'FP32'
    """
    return _by_name(all_input_specs(config))


def output_specs(config: ModelConfig) -> dict[str, TensorSpec]:
    """Return the outputs by name, in the order of the configuration; the first of a name counts.

    Examples
    --------
    >>> output_specs(as_config("output { name: 'OUT' data_type: TYPE_STRING }"))["OUT"].datatype
    'BYTES'
    """
    return _by_name(all_output_specs(config))


def all_input_specs(config: ModelConfig) -> list[TensorSpec]:
    """Return the inputs as the configuration lists them."""
    return [
        replace(_spec(one), optional=one.optional, allow_ragged_batch=one.allow_ragged_batch)
        for one in config.input
    ]


def all_output_specs(config: ModelConfig) -> list[TensorSpec]:
    """Return the outputs as the configuration lists them."""
    return [replace(_spec(one), label_filename=one.label_filename) for one in config.output]


def _spec(tensor: ModelInput | ModelOutput) -> TensorSpec:
    reshape = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None
    datatype = protocol_name(tensor.data_type)
    return TensorSpec(
        tensor.name,
        datatype,
        tuple(tensor.dims),
        reshape=reshape,
        is_shape_tensor=tensor.is_shape_tensor,
    )


def _by_name(listed: Iterable[TensorSpec]) -> dict[str, TensorSpec]:
    specs: dict[str, TensorSpec] = {}
    for spec in listed:
        specs.setdefault(spec.name, spec)
    return specs


def parse_annotation(annotation: str | TensorSpec) -> TensorSpec:
    """Read a tensor's type and shape from an annotation.

    Parameters
    ----------
    annotation : str or TensorSpec
        ``"FP32[4]"``, ``"FP32[-1,3]"``, ``"BYTES[1]"``; without brackets, dims are ``(1,)``.
        Names of data types are the protocol's (``FP32``, ``BYTES``) or the configuration's
        (``TYPE_FP32``, ``TYPE_STRING``, also without its ``TYPE_``). A `TensorSpec` is returned as it is.

    Returns
    -------
    TensorSpec
        With an empty name.

    Raises
    ------
    ConfigError
        It has another form, an unknown data type, or a dimension that is neither positive nor -1.

    Examples
    --------
    >>> parse_annotation("FP32[-1,3]").dims
    (-1, 3)
    """
    if isinstance(annotation, TensorSpec):
        return annotation
    match = _ANNOTATION.fullmatch(annotation) if isinstance(annotation, str) else None
    if match is None:
        raise ConfigError(
            f"annotation {annotation!r} does not name a tensor",
            hint="write a data type and dims without the batch dimension, such as 'FP32[4]'",
        )
    written = match["datatype"]
    datatype = written.removeprefix("TYPE_")
    datatype = "BYTES" if datatype == "STRING" else datatype
    if datatype not in PROTOCOL_TYPES:
        known = known_data_type(written)
        short = "BYTES" if known == "TYPE_STRING" else known.removeprefix("TYPE_")
        raise ConfigError(
            f"annotation {annotation!r} has an unknown data type '{written}'",
            hint=f"did you mean '{short}'?" if short else nearest(datatype.upper(), PROTOCOL_TYPES),
        )
    return TensorSpec(name="", datatype=datatype, dims=_dims(annotation, match["dims"]))


def add_input(config: ModelConfig, spec: TensorSpec) -> None:
    """Append an input to a configuration."""
    tensor = config.input.add(optional=spec.optional, allow_ragged_batch=spec.allow_ragged_batch)
    _describe(tensor, spec)


def add_output(config: ModelConfig, spec: TensorSpec) -> None:
    """Append an output to a configuration."""
    _describe(config.output.add(label_filename=spec.label_filename), spec)


def _describe(tensor: ModelInput | ModelOutput, spec: TensorSpec) -> None:
    tensor.name = spec.name
    tensor.data_type = PROTOCOL_TYPES[spec.datatype]
    tensor.dims.extend(spec.dims)
    tensor.is_shape_tensor = spec.is_shape_tensor
    if spec.reshape is not None:
        tensor.reshape.SetInParent()
        tensor.reshape.shape.extend(spec.reshape)


def _dims(annotation: str, text: str | None) -> tuple[int, ...]:
    if text is None:
        return (1,)
    try:
        dims = tuple(int(dim) for dim in text.split(","))
    except ValueError:
        dims = ()
    if not dims or any(dim < 1 and dim != -1 for dim in dims):
        raise ConfigError(
            f"annotation {annotation!r}: dimension must be integer >= 1, or -1 to indicate a "
            "variable-size dimension",
            hint="one value per request is [1], a sequence of any length is [-1]",
        )
    return dims


# Fields of a control's values for false and true, which also determine its data type.
_KINDS = ("int32", "fp32", "bool")


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
    """Return the protocol's datatype of each output, then of each state that is not an output, by name."""
    types = {name: spec.datatype for name, spec in output_specs(config).items()}
    for state in config.sequence_batching.state:
        types.setdefault(state.output_name, protocol_name(state.data_type))
    return types
