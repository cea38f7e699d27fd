"""Completion of a configuration from an ONNX model, as in Triton's backend."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from nbtriton.backends.onnxruntime.runtime import TensorInfo
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.model.config import ModelConfig, from_dict, scheduling_choice
from nbtriton.model.tensors import format_shape, to_config

__all__ = ["complete", "is_complete"]

_log = logging.getLogger("nbtriton.onnxruntime")


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
        ``max_batch_size`` is set, and the model does not batch.
    """
    done = ModelConfig()
    done.CopyFrom(config)
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
    if not (config.input or config.batch_input):
        tensors = [_tensor(name, info, batches) for name, info in inputs.items()]
        done.input.extend(from_dict({"input": tensors}).input)
    if not config.output:
        tensors = [_tensor(name, info, batches) for name, info in outputs.items()]
        done.output.extend(from_dict({"output": tensors}).output)
    return done


def _tensor(name: str, info: TensorInfo, batches: bool) -> dict[str, Any]:
    dims = list(info.dims[1:] if batches else info.dims)
    data_type = to_config(info.datatype) if info.datatype else "TYPE_INVALID"
    tensor: dict[str, Any] = {"name": name, "data_type": data_type, "dims": dims or [1]}
    if not dims and batches:
        tensor["reshape"] = {"shape": []}
    return tensor
