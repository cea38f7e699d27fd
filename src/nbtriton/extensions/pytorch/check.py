"""A configuration and its torch module: completion from annotations or an example, and checks with the texts of Triton's PyTorch backend."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from nbtriton.backends.base import ModelContext
from nbtriton.backends.described import expect, expect_input_count, model_dims
from nbtriton.backends.ragged import batch_input_names
from nbtriton.backends.signature import complete_signature, example_spec, read_signature
from nbtriton.backends.tracebacks import user_code
from nbtriton.common.errors import ConfigError, InternalError, InvalidArgumentError
from nbtriton.extensions.pytorch.core.naming import Forward, arrange_inputs, index_of
from nbtriton.extensions.pytorch.modules import Modules
from nbtriton.model.config import (
    ModelConfig,
    control_types,
    input_specs,
    output_specs,
    state_inputs,
    state_outputs,
)
from nbtriton.model.tensors import Array, copy_of, format_shape, kind_of, shape_of, to_torch

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
        config, {} if config.input else specs_in, {} if config.output else specs_out
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


def indexed_inputs(config: ModelConfig) -> list[str]:
    """Return the names of a sequence model's controls and states, which use ``NAME__index``."""
    return [*control_types(config), *state_inputs(config)]


def check(config: ModelConfig, forward: Forward) -> None:
    """Compare a completed configuration with the arguments of ``forward``.

    Raises
    ------
    ConfigError, InternalError
        With Triton's text.
    """
    for name in control_types(config):
        expect(
            index_of(name) is not None,
            f"input '{name}' does not follow <name>__<index> naming convention.",
            hint=f"call the control tensor {name}__1 if it is the second argument of forward",
            error=InternalError,
        )
    _check_states(config, forward)
    _check_text(config)
    names = [tensor.name for tensor in config.input] + batch_input_names(config)
    expected = len(names) + len(indexed_inputs(config))
    if forward.arguments is None or forward.dictionary:
        return
    most = expected if forward.variadic else len(forward.arguments)
    expect_input_count(config, expected, forward.arguments, forward.required, most)


def _check_states(config: ModelConfig, forward: Forward) -> None:
    """Check the names of implicit states, first of the inputs and then of the outputs."""
    if not config.sequence_batching.state:
        return
    by_argument = bool(forward.arguments) and all(
        tensor.name in (forward.arguments or ()) for tensor in config.input
    )
    for tensors, states, named in (
        (config.input, state_inputs(config), by_argument),
        (config.output, state_outputs(config), False),
    ):
        prefix = f"PyTorch model '{config.name}' is using sequence batching with state but"
        if named or any(index_of(tensor.name) is None for tensor in tensors):
            raise ConfigError(
                f"{prefix} not all inputs and outputs follow the <name>__<index> naming convention. ",
                hint="inputs that have the names of forward's arguments do not count as indexed: "
                "rename the arguments"
                if named
                else "INPUT__0 is the first argument of forward, OUTPUT__0 its first result",
                field="sequence_batching.state",
            )
        for name in states:
            if index_of(name) is None:
                raise ConfigError(
                    f"{prefix} state '{name}' does not follow the <name>__<index> naming convention. ",
                    field="sequence_batching.state",
                )


def _check_text(config: ModelConfig) -> None:
    """Check that strings have one dimension, as ``List[str]`` has."""
    batch = int(config.max_batch_size > 0)
    for kind, specs in (("input", input_specs(config)), ("output", output_specs(config))):
        for spec in specs.values():
            expect(
                spec.datatype != "BYTES" or len(model_dims(spec)) + batch <= 1,
                f"Triton only supports 1 dimensional List of String as {kind} for '{spec.name}' "
                f"for model '{config.name}'",
                hint="max_batch_size: 0 and dims: [ -1 ]: forward takes and returns List[str]",
                error=InternalError,
            )
