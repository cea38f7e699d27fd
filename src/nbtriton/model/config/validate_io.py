"""Triton's checks of inputs and outputs (class I) and of what loading adds to them (class L).

``ValidateModelIOConfig`` and ``ValidateBatchIO`` of core's model_config_utils.cc,
``GenerateWarmupData`` of backend_model_instance.cc.
"""

from __future__ import annotations

from itertools import groupby
from math import prod
from typing import TYPE_CHECKING

from nbtriton.common.errors import ConfigError, nearest
from nbtriton.common.foreign import SHAPE_TENSOR
from nbtriton.model.config._proto import DATA_TYPES, ModelConfig, enum_name
from nbtriton.model.config.validate import validate_initial_states

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbtriton.model.config._messages import BatchInput, BatchOutput, ModelInput, ModelOutput

# The parameter that names a library of custom batching.
STRATEGY_PATH = "TRITON_BATCH_STRATEGY_PATH"
_WILDCARD = -1
# Flags of a tensor that other platforms refuse, and how Triton begins to say so.
_ONLY_TENSORRT = {
    "is_shape_tensor": "shape tensors are only supported for",
    "is_non_linear_format_io": "Non-linear IO format is only supported for the",
}


def validate_io(config: ModelConfig) -> None:
    """Check inputs, outputs, batch inputs and batch outputs (class I).

    Triton does so when a model is loaded, after auto-complete.

    Raises
    ------
    ConfigError
        With Triton's text, the field at fault and what would be right.
    """
    tail = f" for {config.name}"
    for index, tensor in enumerate(config.input):
        field = f"input[{index}]"
        _validate_shape(tensor, config.max_batch_size, "model input ", tail, field)
        if enum_name(tensor, "format") != "FORMAT_NONE" and len(tensor.dims) != 3:
            raise ConfigError(
                "model input NHWC/NCHW require 3 dims" + tail,
                field=f"{field}.dims",
                hint=f"dims are {list(tensor.dims)}, without the batch dimension",
            )
        _validate_only_tensorrt(tensor, config.platform, tail, field)
    for index, output in enumerate(config.output):
        field = f"output[{index}]"
        _validate_shape(output, config.max_batch_size, "model output ", tail, field)
        _validate_only_tensorrt(output, config.platform, tail, field)
    _validate_batch_inputs(config, tail)
    _validate_batch_outputs(config, tail)


def _validate_shape(
    tensor: ModelInput | ModelOutput, max_batch_size: int, prefix: str, tail: str, field: str
) -> None:
    if not tensor.name:
        raise ConfigError(
            f"{prefix}must specify 'name'{tail}", field=f"{field}.name", hint='add name: "…"'
        )
    who = f"{prefix}'{tensor.name}' "
    if tensor.data_type == DATA_TYPES["TYPE_INVALID"]:
        raise ConfigError(
            f"{who}must specify 'data_type'{tail}",
            field=f"{field}.data_type",
            hint="for example data_type: TYPE_FP32",
        )
    if not tensor.dims:
        raise ConfigError(
            f"{who}must specify 'dims'{tail}",
            field=f"{field}.dims",
            hint="one value per request is dims: [ 1 ]; the batch dimension is not written",
        )
    shape = tensor.reshape.shape
    if tensor.HasField("reshape") and not shape and max_batch_size == 0:
        raise ConfigError(
            f"{who}cannot have empty reshape for non-batching model as scalar tensors are not "
            f"supported{tail}",
            field=f"{field}.reshape",
            hint="give the shape at least one dimension, or set max_batch_size",
        )
    if any(dim < 1 and dim != _WILDCARD for dim in tensor.dims):
        raise ConfigError(
            f"{who}dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
            f"{tail}",
            field=f"{field}.dims",
            hint=f"dims are {list(tensor.dims)}",
        )
    if any(dim < 1 and dim != _WILDCARD for dim in shape):
        raise ConfigError(
            f"{who}reshape dimensions must be integer >= 1, or -1 to indicate a variable-size "
            f"dimension{tail}",
            field=f"{field}.reshape.shape",
            hint=f"the shape is {list(shape)}",
        )
    if tensor.HasField("reshape"):
        _validate_reshape(tensor.dims, shape, who, tail, f"{field}.reshape.shape")


def _validate_reshape(
    dims: Sequence[int], shape: Sequence[int], who: str, tail: str, field: str
) -> None:
    """Check that both shapes hold the same elements, between variable dimensions too."""
    wanted, got = _element_count(dims), _element_count(shape)
    chunks, other = _chunks(dims), _chunks(shape)
    if wanted != got and (got != 0 or wanted != 1):
        reason, hint = (
            "has different size for dims and reshape",
            "both need the same number of elements",
        )
    elif wanted != _WILDCARD or chunks == other:
        return
    elif len(chunks) != len(other):
        reason = "has different number of variable-size dimensions for dims and reshape"
        hint = "write as many -1 in reshape as in dims"
    else:
        reason = "has different size for dims and reshape"
        hint = "the sizes between two variable dimensions must have equal products"
    raise ConfigError(
        f"{who}{reason}{tail}", field=field, hint=f"{hint}: {list(dims)} and {list(shape)}"
    )


def _element_count(dims: Sequence[int]) -> int:
    """Count as Triton does: -1 if any dimension is variable, 0 for no dimensions."""
    if _WILDCARD in dims:
        return _WILDCARD
    return prod(dims) if dims else 0


def _chunks(dims: Sequence[int]) -> list[int]:
    """Return the products of the sizes before, between and after variable dimensions."""
    chunks = [1]
    for is_wildcard, run in groupby(dims, lambda dim: dim == _WILDCARD):
        if is_wildcard:
            chunks.extend(1 for _ in run)
        else:
            chunks[-1] *= prod(run)
    return chunks


def _validate_only_tensorrt(
    tensor: ModelInput | ModelOutput, platform: str, tail: str, field: str
) -> None:
    for name, text in _ONLY_TENSORRT.items():
        if getattr(tensor, name) and platform != "tensorrt_plan":
            raise ConfigError(
                f"{text} TensorRT platform{tail}",
                field=f"{field}.{name}",
                hint=str(SHAPE_TENSOR) if name == "is_shape_tensor" else f"remove {name}",
            )


def _validate_batch_inputs(config: ModelConfig, tail: str) -> None:
    for index, batch in enumerate(config.batch_input):
        field = f"batch_input[{index}]"
        _validate_source_count(batch, "input", "whose batch it describes", tail, field)
        if enum_name(batch, "data_type") not in ("TYPE_INT32", "TYPE_FP32"):
            raise ConfigError(
                f"batch input data type must be TYPE_INT32 or TYPE_FP32{tail}",
                field=f"{field}.data_type",
                hint=f"it is {enum_name(batch, 'data_type')}",
            )
        _validate_source(config, batch, tail, field)


def _validate_batch_outputs(config: ModelConfig, tail: str) -> None:
    outputs = [output.name for output in config.output]
    for index, batch in enumerate(config.batch_output):
        field = f"batch_output[{index}]"
        _validate_source_count(batch, "output", "whose shape scatters the output", tail, field)
        _validate_source(config, batch, tail, field)
        for position, target in enumerate(batch.target_name):
            if target not in outputs:
                raise ConfigError(
                    f"unknown target output name '{target}'{tail}",
                    field=f"{field}.target_name",
                    hint=nearest(target, outputs),
                )
            if target in batch.target_name[:position]:
                raise ConfigError(
                    f"target output name '{target}' can only be specified once{tail}",
                    field=f"{field}.target_name",
                    hint=f"remove one '{target}'",
                )


def _validate_source_count(
    batch: BatchInput | BatchOutput, what: str, role: str, tail: str, field: str
) -> None:
    if len(batch.source_input) != 1:
        raise ConfigError(
            f"batch {what} kind '{enum_name(batch, 'kind')}' expects 1 source input, got "
            f"{len(batch.source_input)}{tail}",
            field=f"{field}.source_input",
            hint=f"name the one input {role}",
        )


def _validate_source(
    config: ModelConfig, batch: BatchInput | BatchOutput, tail: str, field: str
) -> None:
    inputs = [tensor.name for tensor in config.input]
    (source,) = batch.source_input
    if source not in inputs:
        raise ConfigError(
            f"unknown source input name '{source}'{tail}",
            field=f"{field}.source_input",
            hint=nearest(source, inputs),
        )


def validate_load(config: ModelConfig) -> None:
    """Check what loading adds, without reading files (part of class L).

    Custom batching, warmup samples, and the initial states of sequences.

    Triton finds these while it creates instances and the scheduler.

    Raises
    ------
    ConfigError
        With Triton's text, the field at fault and what would be right.
    """
    if config.HasField("sequence_batching") and STRATEGY_PATH in config.parameters:
        raise ConfigError(
            f"{STRATEGY_PATH} cannot be specified with sequence batcher, using default batching "
            "strategy",
            field=f"parameters[{STRATEGY_PATH}]",
            hint="custom batching adds to the dynamic batcher: remove the parameter",
        )
    for index, sample in enumerate(config.model_warmup):
        if sample.batch_size == 0:
            continue  # Triton skips such a sample
        for name in sorted(sample.inputs):
            field = f"model_warmup[{index}].inputs[{name}].dims"
            if _WILDCARD in sample.inputs[name].dims:
                raise ConfigError(
                    "warmup setting expects all variable-size dimensions are specified for input "
                    f"'{name}'",
                    field=field,
                    hint="a sample has a fixed size: replace -1",
                )
        for name in sorted(sample.inputs):
            if sample.inputs[name].WhichOneof("input_data_type") is None:
                raise ConfigError(
                    f"[request id: <id_unknown>] warmup setting expects input '{name}' to have "
                    "input_data_type set",
                    field=f"model_warmup[{index}].inputs[{name}]",
                    hint="set zero_data: true, random_data: true or input_data_file",
                )
    validate_initial_states(config)
