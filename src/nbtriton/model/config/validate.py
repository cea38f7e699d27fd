"""Triton's checks of a model configuration as a whole (class P) and of its instance groups (G).

The texts and their order are those of ``ValidateModelConfig`` and ``ValidateInstanceGroup`` (core,
model_config_utils.cc); rule numbers such as V11 name the rows of the validation tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.common.errors import ConfigError
from nbtriton.model.config._proto import ModelConfig, enum_name
from nbtriton.model.config.normalize import FAMILIES, queue_policies
from nbtriton.model.config.parameters import max_unread_responses, reads_only, sharing_of
from nbtriton.model.config.validate_ensemble import validate_structure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nbtriton.model.config._messages import ModelSequenceBatching


def validate(config: ModelConfig) -> None:
    """Check what can be checked without the model and without other models (class P).

    Parameters
    ----------
    config : ModelConfig
        Normalised by `nbtriton.model.config.normalize`.

    Raises
    ------
    ConfigError
        With Triton's text, the field at fault and what would be right.

    Examples
    --------
    >>> validate(normalize(as_config("backend: 'python'  max_batch_size: -1"), name="bert"))
    Traceback (most recent call last):
    nbtriton.common.errors.ConfigError: ...
    """
    _validate_identity(config)
    if config.HasField("dynamic_batching"):
        _validate_dynamic_batching(config)
    if config.HasField("sequence_batching"):
        _validate_sequence_batching(config)
    if config.HasField("ensemble_scheduling"):
        validate_structure(config)
    elif config.platform == "ensemble":
        raise ConfigError(
            f"ensemble scheduling must be set for ensemble {config.name} whose platform is ensemble",
            field="ensemble_scheduling",
            hint="add ensemble_scheduling { step [ … ] }, or remove the platform",
        )
    if config.model_transaction_policy.decoupled and config.response_cache.enable:
        raise ConfigError(
            f"Response Cache does not currently support model {config.name} with 'decoupled' "
            "transaction policy. Please disable the response cache.",
            field="response_cache.enable",
            hint="remove response_cache",
        )
    reads_only(config)  # which refuses what it cannot read
    max_unread_responses(config)  # as well
    sharing_of(config)


def _validate_identity(config: ModelConfig) -> None:
    name = config.name
    if not name:
        raise ConfigError(
            "model configuration must specify 'name'", field="name", hint='add name: "…"'
        )
    if not config.backend and config.platform != "ensemble":
        wants_ensemble = config.HasField("ensemble_scheduling")
        raise ConfigError(
            f"unexpected platform type '{config.platform}' for {name}",
            field="platform" if config.platform or wants_ensemble else "backend",
            hint='an ensemble needs platform: "ensemble"'
            if wants_ensemble
            else 'name the backend instead, for example backend: "python"',
        )
    if config.backend and config.platform == "ensemble":
        raise ConfigError(
            f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type",
            field="backend",
            hint="remove backend, or remove platform if this is not an ensemble",
        )
    platforms = [family.platform for family in FAMILIES if family.backend == config.backend]
    if any(platforms) and config.platform not in platforms:
        raise ConfigError(
            f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}",
            field="platform",
            hint=f"the backend {config.backend} goes with platform "
            + " or ".join(sorted(platforms)),
        )
    if config.max_batch_size < 0:
        raise ConfigError(
            f"'max_batch_size' must be non-negative value for {name}",
            field="max_batch_size",
            hint="0 means that the model does not batch",
        )
    if not config.HasField("version_policy"):
        raise ConfigError(
            f"must specify 'version policy' for {name}",
            field="version_policy",
            hint="normalize() sets version_policy { latest { num_versions: 1 } }",
        )


def _validate_dynamic_batching(config: ModelConfig) -> None:
    name, batching = config.name, config.dynamic_batching
    _validate_preferred(
        config, batching.preferred_batch_size, "dynamic_batching", "dynamic batching preferred size"
    )
    levels = batching.priority_levels
    if levels and not 1 <= batching.default_priority_level <= levels:
        raise ConfigError(
            f"default priority level must be in range [1, {levels}] for {name}",
            field="dynamic_batching.default_priority_level",
            hint=f"it is {batching.default_priority_level}; requests without a priority get it",
        )
    if levels and any(not 1 <= level <= levels for level in batching.priority_queue_policy):
        raise ConfigError(
            f"priority queue policy must have priority level in range [1, {levels}] for {name}",
            field="dynamic_batching.priority_queue_policy",
            hint=f"raise priority_levels above {levels} or remove the other keys",
        )
    if batching.preserve_ordering:
        _validate_preserved_order(config)


def _validate_preserved_order(config: ModelConfig) -> None:
    name, batching = config.name, config.dynamic_batching
    if batching.priority_levels > 1:
        raise ConfigError(
            f"Only one priority level is allowed when 'preserve_ordering' is true for {name}",
            field="dynamic_batching.priority_levels",
            hint="remove preserve_ordering or the priority levels",
        )
    for field, policy in queue_policies(config).items():
        delays = enum_name(policy, "timeout_action") == "DELAY"
        if delays and policy.default_timeout_microseconds:
            raise ConfigError(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is "
                f"true for {name}",
                field=f"dynamic_batching.{field}.timeout_action",
                hint="use REJECT, or remove preserve_ordering",
            )


def _validate_sequence_batching(config: ModelConfig) -> None:
    name, batching = config.name, config.sequence_batching
    if config.response_cache.enable:
        raise ConfigError(
            f"Response Cache does not currently support model {name} with sequence batching "
            "scheduler. Please disable the response cache.",
            field="response_cache.enable",
            hint="remove response_cache",
        )
    validate_controls(config)
    oldest, what = batching.oldest, "sequence batching preferred batch size"
    _validate_preferred(config, oldest.preferred_batch_size, "sequence_batching.oldest", what)
    utilization = batching.direct.minimum_slot_utilization
    if utilization < 0.0 or utilization > 1.0:
        raise ConfigError(
            f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}",
            field="sequence_batching.direct.minimum_slot_utilization",
            hint="it is a fraction of the slots: 0.5 is half of them, 0 means the same as unset",
        )


def _validate_preferred(config: ModelConfig, sizes: Sequence[int], field: str, what: str) -> None:
    for size in sizes:
        if 0 < size <= config.max_batch_size:
            continue
        wanted, hint = "positive", f"remove {size}"
        if size > 0:
            wanted = "<= max batch size"
            hint = (
                f"{size} is more than max_batch_size {config.max_batch_size}"
                if config.max_batch_size
                else f"max_batch_size is 0, so the model does not batch; set it to at least {size}"
            )
        raise ConfigError(
            f"{what} must be {wanted} for {config.name}",
            field=f"{field}.preferred_batch_size",
            hint=hint,
        )


def validate_instance_groups(config: ModelConfig, *, gpus: Sequence[int] | None) -> None:
    """Check the instance groups against the GPUs of this machine (class G).

    Parameters
    ----------
    config : ModelConfig
        Its groups resolved by `nbtriton.model.config.normalize_instance_groups`.
    gpus : sequence of int or None
        The GPUs of this machine; None where GPUs are not supported at all.

    Raises
    ------
    ConfigError
        With Triton's text, the field at fault and what would be right.
    """
    if config.HasField("ensemble_scheduling"):
        return
    for index, group in enumerate(config.instance_group):
        who = f"instance group {group.name} of model {config.name}"
        field = f"instance_group[{index}]"
        kind = enum_name(group, "kind")
        if kind == "KIND_GPU":
            _validate_gpus(group.gpus, who, field, gpus)
        elif group.gpus:
            raise ConfigError(
                f"{who} has kind {kind} but specifies one or more GPUs",
                field=f"{field}.gpus",
                hint="KIND_MODEL leaves the choice of devices to the model: remove gpus"
                if kind == "KIND_MODEL"
                else "remove gpus, or use KIND_GPU on a machine that has them all; KIND_AUTO is "
                "KIND_CPU where one of them is missing",
            )
        if group.profile and config.platform != "tensorrt_plan":
            raise ConfigError(
                f"{who} and platform {config.platform}specifies profile field which is only "
                "supported for TensorRT models",
                field=f"{field}.profile",
                hint="remove profile",
            )


def _validate_gpus(wanted: Sequence[int], who: str, field: str, gpus: Sequence[int] | None) -> None:
    if gpus is None:
        raise ConfigError(
            f"{who} has kind KIND_GPU but server does not support GPUs",
            field=f"{field}.kind",
            hint="use KIND_CPU or KIND_AUTO",
        )
    if not wanted:
        raise ConfigError(
            f"{who} has kind KIND_GPU but "
            + ("specifies no GPUs" if gpus else "no GPUs are available"),
            field=f"{field}.kind",
            hint="use KIND_AUTO: GPUs where there are some, else the CPU",
        )
    for gpu in wanted:
        if gpu not in gpus:
            known = ", ".join(str(one) for one in sorted(gpus))
            raise ConfigError(
                f"{who} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the "
                f"minimum required CUDA compute compatibility of 6.000000 are: {known}",
                field=f"{field}.gpus",
                hint=f"this machine has: {known}" if known else "this machine has no GPU",
            )


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
                hint="give every control kind its own tensor",
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
    """Check ``sequence_batching.state[].initial_state`` without reading files (V75 to V84)."""
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
