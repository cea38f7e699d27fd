"""Does a configuration fit the model? Checks and texts of Triton's onnxruntime backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nbtriton.backends.onnxruntime.runtime import TensorInfo
from nbtriton.config import (
    ModelConfig,
    TensorSpec,
    control_types,
    enum_name,
    input_specs,
    output_specs,
)
from nbtriton.errors import InternalError, InvalidArgumentError, UnsupportedError, nearest
from nbtriton.tensors import format_shape, to_config, to_protocol

__all__ = ["Model", "check"]


@dataclass(frozen=True, slots=True)
class Model:
    """What a session says of its model.

    Parameters
    ----------
    inputs, outputs : mapping of str to TensorInfo
        By name, in the model's order.
    initializers : mapping of str to TensorInfo
        Weights that a request may bring along: optional inputs.
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
        Tensors that ONNX Runtime's Python interface cannot bring together.
    """
    states = config.sequence_batching.state
    controls = control_types(config)
    specs = input_specs(config)
    expected = sum(not spec.optional for spec in specs.values())
    expected += len(config.batch_input) + len(controls) + len(states)
    for name, data_type in controls.items():
        _check_control(config, model, name, data_type)
    if len(model.inputs) != expected:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', configuration expects {expected} inputs, model "
            f"provides {len(model.inputs)}",
            hint=f"the model's inputs are {', '.join(model.inputs) or 'none'}",
        )
    known = {**model.inputs, **model.initializers}
    for spec in specs.values():
        _check_input(config, spec, known)
    scattered = {name for batch in config.batch_output for name in batch.target_name}
    for spec in output_specs(config).values():
        info = _look_up("output", spec.name, model.outputs)
        _check_datatype(config.name, "output", spec.name, to_config(spec.datatype), info)
        if spec.name not in scattered:
            _check_shape(config, spec, info, exact=True)
    for state in states:
        data_type = enum_name(state, "data_type")
        name = str(state.output_name)
        _check_datatype(
            config.name, "output state", name, data_type, _look_up("output", name, model.outputs)
        )
        _look_up("input", str(state.input_name), known)
    _check_mixture(config.name, model)


def _check_control(config: ModelConfig, model: Model, name: str, data_type: str) -> None:
    info = model.inputs.get(name)
    if info is None:
        raise InternalError(
            f"configuration specified sequence control '{name}', but model does not provide that "
            "input",
            hint=nearest(name, model.inputs),
        )
    where = f"unable to load model '{config.name}', sequence control '{name}'"
    dims = info.dims[1 if config.max_batch_size > 0 else 0 :]
    if dims != (1,):
        raise InvalidArgumentError(
            f"{where} in model has dims {format_shape(dims)} but dims [1] is expected"
        )
    if info.datatype != to_protocol(data_type):
        raise InvalidArgumentError(
            f"{where}, the model expects data-type {info.onnx_type} but the model configuration "
            f"specifies data-type {data_type}"
        )


def _check_input(config: ModelConfig, spec: TensorSpec, known: Mapping[str, TensorInfo]) -> None:
    who = f"unable to load model '{config.name}',"
    if spec.optional and config.max_batch_size > 0:
        raise InvalidArgumentError(
            f"{who} optional input '{spec.name}' is not supported for models that support batching"
        )
    info = _look_up("input", spec.name, known)
    _check_datatype(config.name, "input", spec.name, to_config(spec.datatype), info)
    if not spec.allow_ragged_batch:
        _check_shape(config, spec, info, exact=False)
        return
    ragged = f"{who} configuration expects model provides input with shape [-1]"
    if spec.optional:
        raise InvalidArgumentError(
            f"{ragged} for ragged input '{spec.name}', which is not supported for optional input"
        )
    if info.dims != (-1,):
        raise InvalidArgumentError(
            f"{ragged}  for ragged input '{spec.name}', model provides {format_shape(info.dims)}"
        )


def _look_up(kind: str, name: str, known: Mapping[str, TensorInfo]) -> TensorInfo:
    info = known.get(name)
    if info is None:
        raise InvalidArgumentError(
            f"unexpected inference {kind} '{name}', allowed {kind}s are: "
            f"{', '.join(sorted(known))}",
            hint=nearest(name, known),
        )
    return info


def _check_datatype(model: str, kind: str, name: str, data_type: str, info: TensorInfo) -> None:
    if info.datatype != to_protocol(data_type):
        raise InvalidArgumentError(
            f"unable to load model '{model}', configuration expects datatype {data_type} for "
            f"{kind} '{name}', model provides TYPE_{info.datatype or '<invalid>'}"
        )


def _check_shape(config: ModelConfig, spec: TensorSpec, info: TensorInfo, *, exact: bool) -> None:
    """Compare shapes; ``exact`` also where the model's dimension varies (outputs)."""
    batches = config.max_batch_size > 0
    dims = spec.dims if spec.reshape is None else spec.reshape
    if not info.dims:
        if any(dim != 1 for dim in dims):
            raise InvalidArgumentError(
                f"unable to load model '{config.name}', scalar tensor '{spec.name}', should only "
                "provide 1 in the model configuration when the model doesn't support batching. "
                f"Model configuration provided: {format_shape(dims)}."
            )
        return
    who = f"model '{config.name}', tensor '{spec.name}':"
    if batches and info.dims[0] != -1:
        raise InvalidArgumentError(
            f"{who} for the model to support batching the shape should have at least 1 dimension "
            "and the first dimension must be -1; but shape expected by the model is "
            f"{format_shape(info.dims)}",
            hint="export it with a variable first dimension, or set max_batch_size: 0",
        )
    full = (-1, *dims) if batches else dims
    if not _fits(info.dims, full, exact=exact):
        complete = (
            " (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            f"tensor shape, making complete shape {format_shape(full)})"
            if batches
            else f" (shape {format_shape(full)})"
        )
        raise InvalidArgumentError(
            f"{who} the model expects {len(info.dims)} dimensions (shape {format_shape(info.dims)})"
            f" but the model configuration specifies {len(full)} dimensions{complete}"
        )


def _fits(of_model: Sequence[int], configured: Sequence[int], *, exact: bool) -> bool:
    return len(of_model) == len(configured) and all(
        here == there or (here == -1 and not exact)
        for here, there in zip(of_model, configured, strict=True)
    )


def _check_mixture(name: str, model: Model) -> None:
    """Refuse what could only be run through the C interface."""
    brings_bf16 = any(info.datatype == "BF16" for info in model.outputs.values())
    tensors = {**model.inputs, **model.outputs}
    strings = [tensor for tensor, info in tensors.items() if info.datatype == "BYTES"]
    if brings_bf16 and strings:
        raise UnsupportedError(
            f"model '{name}' has BF16 outputs and strings ('{strings[0]}'), which ONNX Runtime's "
            "Python interface cannot run together",
            hint="cast the outputs to FP32 in the model",
        )
