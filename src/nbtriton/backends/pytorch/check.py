"""Checks of a configuration against the module, with the texts of Triton's PyTorch backend."""

from __future__ import annotations

from nbtriton.backends.checks import expect, expect_input_count, model_dims
from nbtriton.backends.pytorch.core.naming import Forward, index_of
from nbtriton.backends.ragged import batch_input_names
from nbtriton.common.errors import ConfigError, InternalError
from nbtriton.model.config import (
    ModelConfig,
    control_types,
    input_specs,
    output_specs,
    state_inputs,
    state_outputs,
)


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
