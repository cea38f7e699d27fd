"""Completion and checks of a configuration by the tensors that a model's file describes.

The rules and the texts are those of Triton's onnxruntime backend.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from nbtriton.common.errors import (
    ConfigError,
    InternalError,
    InvalidArgumentError,
    TritonError,
    UnsupportedError,
    nearest,
)
from nbtriton.model.config import (
    ModelConfig,
    TensorSpec,
    control_types,
    copy_config,
    enum_name,
    from_dict,
    input_specs,
    output_specs,
    scheduling_choice,
)
from nbtriton.model.tensors import format_shape, to_config, to_protocol


def expect(
    holds: bool, message: str, hint: str = "", error: type[TritonError] = InvalidArgumentError
) -> None:
    """Raise an error with Triton's text unless a condition holds."""
    if not holds:
        raise error(message, hint=hint)


def expect_input_count(
    config: ModelConfig, expected: int, names: Collection[str], least: int, most: int
) -> None:
    """Check that a model with these inputs has as many as its configuration."""
    if not least <= expected <= most:
        raise ConfigError(
            f"unable to load model '{config.name}', configuration expects {expected} inputs, model "
            f"provides {len(names)}",
            hint=f"the model takes {', '.join(names) or 'nothing'}",
            field="input",
        )


def model_dims(spec: TensorSpec) -> tuple[int, ...]:
    """Return the shape for the model itself, without the batch dimension."""
    return spec.dims if spec.reshape is None else spec.reshape


_log = logging.getLogger("nbtriton.onnxruntime")
_Info = TypeVar("_Info")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One input or output of the model.

    Parameters
    ----------
    datatype : str
        The protocol's name; empty for an element type that Triton does not have.
    onnx_type : str
        The name in Triton's messages, such as ``"FLOAT"``.
    dims : tuple of int
        With the batch dimension; -1 for each variable dimension. Empty for a scalar, and for a
        tensor without a rank in the model.
    """

    datatype: str
    onnx_type: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """The inputs and outputs of a model, as its session describes them.

    Parameters
    ----------
    inputs, outputs : mapping of str to TensorInfo
        By name, in the model's order.
    initializers : mapping of str to TensorInfo
        Weights that a request may override: optional inputs.
    """

    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]
    initializers: Mapping[str, TensorInfo]


def check(config: ModelConfig, model: Model) -> None:
    """Compare a completed configuration with the model.

    Raises
    ------
    InvalidArgumentError, InternalError
        With Triton's text; the order of the checks is Triton's.
    UnsupportedError
        The model mixes tensors in a way that ONNX Runtime's Python interface does not accept.
    """
    states = config.sequence_batching.state
    controls = control_types(config)
    specs = input_specs(config)
    expected = sum(not spec.optional for spec in specs.values())
    expected += len(config.batch_input) + len(controls) + len(states)
    for name, data_type in controls.items():
        _check_control(config, model, name, data_type)
    count = len(model.inputs)
    expect_input_count(config, expected, model.inputs, count, count)
    infos = {**model.inputs, **model.initializers}
    for spec in specs.values():
        _check_input(config, spec, infos)
    scattered = {name for batch in config.batch_output for name in batch.target_name}
    for spec in output_specs(config).values():
        info = look_up("output", spec.name, model.outputs)
        _check_datatype(config.name, "output", spec.name, to_config(spec.datatype), info)
        if spec.name not in scattered:
            _check_shape(config, spec, info, exact=True)
    for state in states:
        data_type = enum_name(state, "data_type")
        name = str(state.output_name)
        _check_datatype(
            config.name, "output state", name, data_type, look_up("output", name, model.outputs)
        )
        look_up("input", str(state.input_name), infos)
    _check_mixture(config.name, model)


def _check_control(config: ModelConfig, model: Model, name: str, data_type: str) -> None:
    if name not in model.inputs:
        raise InternalError(
            f"configuration specified sequence control '{name}', but model does not provide that "
            "input",
            hint=nearest(name, model.inputs),
        )
    info = model.inputs[name]
    where = f"unable to load model '{config.name}', sequence control '{name}'"
    dims = info.dims[1 if config.max_batch_size > 0 else 0 :]
    text = f"{where} in model has dims {format_shape(dims)} but dims [1] is expected"
    expect(dims == (1,), text)
    expect(
        info.datatype == to_protocol(data_type),
        f"{where}, the model expects data-type {info.onnx_type} but the model configuration "
        f"specifies data-type {data_type}",
    )


def _check_input(config: ModelConfig, spec: TensorSpec, infos: Mapping[str, TensorInfo]) -> None:
    prefix = f"unable to load model '{config.name}',"
    expect(
        not (spec.optional and config.max_batch_size > 0),
        f"{prefix} optional input '{spec.name}' is not supported for models that support batching",
    )
    info = look_up("input", spec.name, infos)
    _check_datatype(config.name, "input", spec.name, to_config(spec.datatype), info)
    if not spec.allow_ragged_batch:
        _check_shape(config, spec, info, exact=False)
        return
    ragged = f"{prefix} configuration expects model provides input with shape [-1]"
    text = f"{ragged} for ragged input '{spec.name}', which is not supported for optional input"
    expect(not spec.optional, text)
    shape = format_shape(info.dims)
    expect(shape == "[-1]", f"{ragged}  for ragged input '{spec.name}', model provides {shape}")


def look_up(kind: str, name: str, infos: Mapping[str, _Info]) -> _Info:
    """Return what a model knows of one of its tensors, by the name in the configuration."""
    if name not in infos:
        raise InvalidArgumentError(
            f"unexpected inference {kind} '{name}', allowed {kind}s are: "
            f"{', '.join(sorted(infos))}",
            hint=nearest(name, infos),
        )
    return infos[name]


def _check_datatype(model: str, kind: str, name: str, data_type: str, info: TensorInfo) -> None:
    expect(
        info.datatype == to_protocol(data_type),
        f"unable to load model '{model}', configuration expects datatype {data_type} for "
        f"{kind} '{name}', model provides TYPE_{info.datatype or '<invalid>'}",
    )


def _check_shape(config: ModelConfig, spec: TensorSpec, info: TensorInfo, *, exact: bool) -> None:
    """Compare shapes; with ``exact`` also variable dimensions of the model (outputs)."""
    batches = config.max_batch_size > 0
    dims, found = model_dims(spec), format_shape(info.dims)
    if not info.dims:
        expect(
            all(dim == 1 for dim in dims),
            f"unable to load model '{config.name}', scalar tensor '{spec.name}', should only "
            "provide 1 in the model configuration when the model doesn't support batching. "
            f"Model configuration provided: {format_shape(dims)}.",
        )
        return
    prefix = f"model '{config.name}', tensor '{spec.name}':"
    expect(
        not batches or info.dims[0] == -1,
        f"{prefix} for the model to support batching the shape should have at least 1 dimension and "
        f"the first dimension must be -1; but shape expected by the model is {found}",
        hint="export it with a variable first dimension, or set max_batch_size: 0",
    )
    full = (-1, *dims) if batches else dims
    expect_shape(config, spec.name, info.dims, full, _fits(info.dims, full, exact=exact))


def expect_shape(
    config: ModelConfig,
    tensor: str,
    found: Sequence[int],
    full: Sequence[int],
    fits: bool,
    hint: str = "",
) -> None:
    """Raise Triton's error for a tensor whose shape in the configuration does not fit the model's."""
    shape = format_shape(full)
    complete = (
        " (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor "
        f"shape, making complete shape {shape})"
    )
    expect(
        fits,
        f"model '{config.name}', tensor '{tensor}': the model expects {len(found)} dimensions (shape "
        f"{format_shape(found)}) but the model configuration specifies {len(full)} dimensions"
        f"{complete if config.max_batch_size > 0 else f' (shape {shape})'}",
        hint=hint,
    )


def _fits(of_model: Sequence[int], configured: Sequence[int], *, exact: bool) -> bool:
    return len(of_model) == len(configured) and all(
        size == expected or (size == -1 and not exact)
        for size, expected in zip(of_model, configured, strict=True)
    )


def _check_mixture(name: str, model: Model) -> None:
    """Refuse a model that only the C interface could run."""
    brings_bf16 = any(info.datatype == "BF16" for info in model.outputs.values())
    tensors = {**model.inputs, **model.outputs}
    strings = [tensor for tensor, info in tensors.items() if info.datatype == "BYTES"]
    expect(
        not (brings_bf16 and strings),
        f"model '{name}' has BF16 outputs and strings ({', '.join(map(repr, strings[:1]))}), which "
        "ONNX Runtime's Python interface cannot run together",
        hint="cast the outputs to FP32 in the model",
        error=UnsupportedError,
    )


def is_complete(config: ModelConfig) -> bool:
    """Return True for a configuration that needs no completion."""
    return bool((config.input or config.batch_input) and config.output)


def complete(
    config: ModelConfig,
    inputs: Mapping[str, TensorInfo],
    outputs: Mapping[str, TensorInfo],
    default_max_batch_size: int,
) -> ModelConfig:
    """Return an incomplete configuration with inputs, outputs and batching filled in.

    A model whose tensors all have a variable first dimension batches. Without ``max_batch_size`` it gets
    `default_max_batch_size`, and above 1 the dynamic batcher unless another scheduler is chosen.

    Raises
    ------
    InvalidArgumentError
        ``max_batch_size`` is set, but the model does not batch.
    """
    done = copy_config(config)
    fixed = {
        name: info.dims for name, info in {**inputs, **outputs}.items() if info.dims[:1] != (-1,)
    }
    if not fixed:
        if done.max_batch_size == 0:
            done.max_batch_size = default_max_batch_size
            _log.info(
                "model '%s': autofilled max_batch_size to %d, its tensors have a variable first "
                "dimension",
                done.name, default_max_batch_size,
            )  # fmt: skip
        if done.max_batch_size > 1 and not scheduling_choice(done):
            done.dynamic_batching.SetInParent()
    elif done.max_batch_size != 0:
        name, dims = next(iter(fixed.items()))
        raise InvalidArgumentError(
            f"autofill failed for model '{done.name}': model does not support batching while "
            "non-zero max_batch_size is specified",
            hint=f"'{name}' is {format_shape(dims)}: export it with a variable first dimension, or "
            "set max_batch_size: 0",
        )
    batches = done.max_batch_size > 0
    for field, infos in (("input", inputs), ("output", outputs)):
        if field == "output" or not config.batch_input:
            fill(done, field, [_tensor(name, info, batches) for name, info in infos.items()])
    return done


def fill(config: ModelConfig, field: str, tensors: Sequence[Mapping[str, Any]]) -> None:
    """Add the inputs or outputs of a model to a configuration that has none."""
    if not getattr(config, field):
        getattr(config, field).extend(getattr(from_dict({field: tensors}), field))


def _tensor(name: str, info: TensorInfo, batches: bool) -> dict[str, Any]:
    dims = list(info.dims[1:] if batches else info.dims)
    data_type = to_config(info.datatype) if info.datatype else "TYPE_INVALID"
    tensor: dict[str, Any] = {"name": name, "data_type": data_type, "dims": dims or [1]}
    if not dims and batches:
        tensor["reshape"] = {"shape": []}
    return tensor
