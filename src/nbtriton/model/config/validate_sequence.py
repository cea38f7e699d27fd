"""Triton's checks of sequence batching: control tensors (class P) and initial states (class L).

``GetBooleanSequenceControlProperties`` and ``GetTypedSequenceControlProperties`` of core's
model_config_utils.cc; ``GenerateInitialStateData`` of sequence_batch_scheduler.cc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.common.errors import ConfigError
from nbtriton.model.config._proto import ModelConfig, enum_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nbtriton.model.config._messages import ModelSequenceBatching

__all__ = ["validate_controls", "validate_initial_states"]

_CORRID = "CONTROL_SEQUENCE_CORRID"

# Triton goes through the whole list once for each of these.
_BOOLEAN_KINDS = ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_READY")

_CORRID_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")

_VALUES = ("int32_false_true", "fp32_false_true", "bool_false_true")


def validate_controls(config: ModelConfig) -> None:
    """Check ``sequence_batching.control_input`` (V20 to V27)."""
    for kind in _BOOLEAN_KINDS:
        _validate_kind(config, kind)
    corrid = _validate_kind(config, _CORRID)
    if corrid is not None and enum_name(corrid, "data_type") not in _CORRID_TYPES:
        raise ConfigError(
            f"unexpected data type for control {_CORRID} for {config.name}. Allowed data types are "
            "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
            field="sequence_batching.control_input.control.data_type",
            hint=f"it is {enum_name(corrid, 'data_type')}; TYPE_UINT64 takes every numeric id",
        )


def _validate_kind(config: ModelConfig, kind: str) -> ModelSequenceBatching.Control | None:
    """Check all names and the one control of this kind, and return that one."""
    seen: set[str] = set()
    found: ModelSequenceBatching.Control | None = None
    for index, tensor in enumerate(config.sequence_batching.control_input):
        field = f"sequence_batching.control_input[{index}]"
        if not tensor.name:
            raise ConfigError(
                f"sequence batching control tensor must have a name for {config.name}",
                field=f"{field}.name",
                hint="the name of the tensor that the model gets, such as START",
            )
        if tensor.name in seen:
            raise ConfigError(
                f"sequence batching control tensor '{tensor.name}' is specified for multiple "
                f"control kinds for {config.name}",
                field=f"{field}.name",
                hint="give every control kind a tensor of its own",
            )
        seen.add(tensor.name)
        for control in tensor.control:
            if enum_name(control, "kind") != kind:
                continue
            if found is not None:
                raise ConfigError(
                    f"sequence batching specifies multiple {kind} tensors for {config.name}",
                    field=f"{field}.control",
                    hint=f"keep one {kind}",
                )
            found = control
            given = {one: values for one in _VALUES if (values := getattr(control, one))}
            check = _validate_typed if kind == _CORRID else _validate_boolean
            check(given, kind, config.name, f"{field}.control")
    return found


def _validate_typed(
    given: Mapping[str, Sequence[object]], kind: str, name: str, field: str
) -> None:
    if given:
        raise ConfigError(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or "
            f"'bool_false_true' for {kind} for {name}",
            field=f"{field}.{next(iter(given))}",
            hint=f"remove {next(iter(given))} and set data_type, for example TYPE_UINT64",
        )


def _validate_boolean(
    given: Mapping[str, Sequence[object]], kind: str, name: str, field: str
) -> None:
    if not given:
        raise ConfigError(
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
            f"'bool_false_true' for {kind} for {name}",
            field=field,
            hint="for example int32_false_true: [ 0, 1 ]",
        )
    if len(given) > 1:
        raise ConfigError(
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' "
            f"and 'bool_false_true' for {kind} for {name}",
            field=field,
            hint=f"keep one of {' and '.join(given)}: it is also the tensor's data type",
        )
    ((values, entries),) = given.items()
    if len(entries) != 2:
        raise ConfigError(
            f"sequence batching control '{values}' must have exactly 2 entries for {kind} for {name}",
            field=f"{field}.{values}",
            hint="the value for false, then the value for true",
        )


def validate_initial_states(config: ModelConfig) -> None:
    """Check ``sequence_batching.state[].initial_state`` as far as no file is read (V75 to V84)."""
    seen: set[str] = set()
    for index, state in enumerate(config.sequence_batching.state):
        field = f"sequence_batching.state[{index}].initial_state"
        name = state.input_name
        if len(state.initial_state) > 1:
            raise ConfigError(
                f"initial_state field for state input '{name}' must contain exactly one or zero "
                f"element. Found '{len(state.initial_state)}' elements.",
                field=field,
                hint="keep one initial_state",
            )
        for initial in state.initial_state:
            _validate_initial_state(state, initial, field, seen)


def _validate_initial_state(
    state: ModelSequenceBatching.State,
    initial: ModelSequenceBatching.InitialState,
    field: str,
    seen: set[str],
) -> None:
    name = state.input_name
    if initial.data_type != state.data_type:
        raise ConfigError(
            f"The data type used for 'initial_state' field of state '{name}' does not match the "
            "state data type.",
            field=f"{field}.data_type",
            hint=f"the state has {enum_name(state, 'data_type')}, "
            f"its initial state {enum_name(initial, 'data_type')}",
        )
    if not initial.name:
        raise ConfigError(
            f"Field 'name' must be set when using initial_state for state input '{name}'.",
            field=f"{field}.name",
            hint='any name will do, for example name: "zeros"',
        )
    if name in seen:
        raise ConfigError(
            f"State input name '{name}' specified more than once.",
            field=field,
            hint="keep one state of this input_name",
        )
    seen.add(name)
    if len(initial.dims) != len(state.dims):
        raise ConfigError(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions "
            f"for state input '{name}'. {len(initial.dims)} != {len(state.dims)}",
            field=f"{field}.dims",
            hint=f"the state's dims are {list(state.dims)}",
        )
    for got, wanted in zip(initial.dims, state.dims, strict=True):
        if got == -1:
            raise ConfigError(
                f"'initial_state' field for state input name '{name}' contains variable "
                "dimensions.",
                field=f"{field}.dims",
                hint="an initial state has a fixed size: replace -1",
            )
        if wanted not in (-1, got):
            raise ConfigError(
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim "
                f"description. {got} != {wanted}",
                field=f"{field}.dims",
                hint=f"the state's dims are {list(state.dims)}",
            )
    if initial.WhichOneof("state_data") is None:
        raise ConfigError(
            f"initial_state setting expects state'{name}' to have state_data set",
            field=field,
            hint="set zero_data: true or data_file",
        )
