"""Completion of a configuration from a model, as in Triton's openvino backend (OV2)."""

from __future__ import annotations

import logging
from typing import Any

from nbtriton.extensions.openvino.runtime import dims_of, import_openvino, type_of
from nbtriton.model.config import ModelConfig, from_dict
from nbtriton.model.tensors import to_config

_log = logging.getLogger("nbtriton.openvino")


def complete(config: ModelConfig, model: Any, default_max_batch_size: int) -> ModelConfig:
    """Return a configuration with inputs, outputs and batching filled in.

    A model batches if the layouts of all its tensors name a batch dimension. Without ``max_batch_size`` it
    gets `default_max_batch_size`, at least 1, and above 1 the dynamic batcher unless sequences are batched.

    Parameters
    ----------
    config : ModelConfig
    model : openvino.Model
    default_max_batch_size : int
    """
    helpers = import_openvino().layout_helpers
    done = ModelConfig()
    done.CopyFrom(config)
    ports = [*model.inputs, *model.outputs]
    if all(helpers.has_batch(helpers.get_layout(port)) for port in ports):
        if done.max_batch_size == 0:
            done.max_batch_size = max(1, default_max_batch_size)
            _log.warning(
                "autofilled max_batch_size to %d for model '%s' since batching is supported but no "
                "max_batch_size is specified in model configuration. Must specify max_batch_size to "
                "utilize autofill with a larger max batch size",
                done.max_batch_size, done.name,
            )  # fmt: skip
        chosen = done.HasField("dynamic_batching") or done.HasField("sequence_batching")
        if done.max_batch_size > 1 and not chosen:
            done.dynamic_batching.SetInParent()
    elif done.max_batch_size:
        _log.warning(
            "model layout for model %s does not support batching while non-zero max_batch_size is "
            "specified",
            done.name,
        )
    for field, tensors in (("input", model.inputs), ("output", model.outputs)):
        if not getattr(done, field):
            specs = [_tensor(port, done.max_batch_size > 0) for port in tensors]
            getattr(done, field).extend(getattr(from_dict({field: specs}), field))
    return done


def _tensor(port: Any, batches: bool) -> dict[str, Any]:
    datatype = type_of(port)
    return {
        "name": port.any_name,
        "data_type": to_config(datatype) if datatype else "TYPE_INVALID",
        "dims": list(dims_of(port)[1 if batches else 0 :]),
    }
