"""Completion of a configuration from a torch module's annotations, or from its results for an example."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from nbtriton.backends.base import ModelContext
from nbtriton.backends.pytorch.core.naming import Forward, arrange_inputs
from nbtriton.backends.pytorch.modules import Modules
from nbtriton.backends.ragged import batch_input_names
from nbtriton.backends.signature import complete_signature, example_spec, read_signature
from nbtriton.backends.tracebacks import user_code
from nbtriton.common.errors import ConfigError, InvalidArgumentError
from nbtriton.model.config import ModelConfig
from nbtriton.model.tensors import (
    Array,
    copy_of,
    format_shape,
    kind_of,
    shape_of,
    to_torch,
)

_SINGLE_OUTPUT = "OUTPUT__0"


def complete(context: ModelContext, modules: Modules) -> ModelConfig:
    """Return the configuration with the module's inputs and outputs.

    They come from the annotations of ``forward``, then from `ModelContext.example`, and must agree with
    configured ones.

    Raises
    ------
    ConfigError
        Unknown inputs and outputs, or a contradiction between two sources.
    ModelError
        ``forward`` raised on the example.
    """
    import torch

    config = context.config
    module = modules.master()
    if not isinstance(module, torch.jit.ScriptModule) and inspect.ismethod(module.forward):
        annotated = read_signature(module.forward, single_output=_SINGLE_OUTPUT)
        made = batch_input_names(config)
        inputs = {name: spec for name, spec in annotated.inputs.items() if name not in made}
        config = complete_signature(config, inputs, annotated.outputs)
    if context.example is not None and not (config.input and config.output):
        config = _from_example(context.name, config, modules, context.example)
    missing = "inputs" if not config.input else "outputs" if not config.output else ""
    if missing:
        raise ConfigError(
            f"nothing says what the {missing} of model '{context.name}' are",
            hint='annotate forward (x: "FP32[1,8,8]") -> {"OUT": "FP32[10]"}, give an example '
            "batch, or write them in the configuration",
            field=missing[:-1],
        )
    return config


def _from_example(name: str, config: ModelConfig, modules: Modules, example: object) -> ModelConfig:
    forward = modules.forward()
    inputs = _example_inputs(config, forward, example)
    batches = config.max_batch_size > 0
    specs_in = {key: example_spec(key, array, batches) for key, array in inputs.items()}
    result = _run(name, config, modules.master(), forward, inputs)
    if isinstance(result, Mapping):
        outputs = {str(key): value for key, value in result.items()}
    else:
        values = result if isinstance(result, (tuple, list)) else (result,)
        outputs = {f"OUTPUT__{index}": value for index, value in enumerate(values)}
    specs_out = {key: example_spec(key, array, batches) for key, array in outputs.items()}
    size = {shape_of(array)[0] for array in inputs.values()}
    for key, array in outputs.items():
        if batches and {*shape_of(array)[:1]} != size:
            raise ConfigError(
                f"output '{key}' of model '{name}' has shape {format_shape(shape_of(array))} for an "
                f"example batch of {', '.join(map(str, sorted(size)))}: it keeps no batch dimension",
                hint="with max_batch_size > 0 the example and the outputs are whole batches",
                field=key,
            )
    # The configuration wins; complete_signature refuses contradictions.
    return complete_signature(
        config,
        {} if config.input else specs_in,
        {} if config.output else specs_out,
    )


def _example_inputs(config: ModelConfig, forward: Forward, example: object) -> dict[str, Array]:
    if isinstance(example, Mapping):
        return {str(name): _tensor(value) for name, value in example.items()}
    values = example if isinstance(example, tuple) else (example,)
    names = [tensor.name for tensor in config.input] or list(forward.arguments or ())
    if len(values) > len(names):
        names = [f"INPUT__{index}" for index in range(len(values))]
    return {name: _tensor(value) for name, value in zip(names, values, strict=False)}


def _run(
    name: str, config: ModelConfig, module: Any, forward: Forward, inputs: Mapping[str, Array]
) -> Any:
    import torch

    order = arrange_inputs([tensor.name for tensor in config.input] or list(inputs), forward)
    place = next((tensor.device for tensor in module.parameters()), None)
    moved = {key: array if place is None else array.to(place) for key, array in inputs.items()}
    with user_code(f"model '{name}' failed on the example batch: "), torch.inference_mode():
        return order.call(module, moved)


def _tensor(value: object) -> Any:
    import torch

    try:
        kind_of(value)
    except InvalidArgumentError:
        return torch.as_tensor(value)
    return to_torch(copy_of(value))  # `forward` may work in place
