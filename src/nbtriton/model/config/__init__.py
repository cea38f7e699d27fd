"""Model configurations: Triton's ModelConfig read, completed, checked and written.

Everything here is a function of the configuration alone: no threads, no arrays, no files except the
text that is passed in. Messages are Triton's, hints are ours.
"""

from __future__ import annotations

from nbtriton.model.config._proto import ModelConfig, copy_config, enum_name
from nbtriton.model.config.convert import (
    Dumpable,
    ReadyModel,
    amend,
    as_config,
    complete_from,
    from_dict,
    is_whole,
    to_dict,
    to_json,
    to_reported_dict,
)
from nbtriton.model.config.ignored import (
    EXECUTION_ENV_PATH,
    Difference,
    differences,
    ignored_fields,
)
from nbtriton.model.config.normalize import (
    InstancePlan,
    equal_but_for_instances,
    is_ensemble,
    normalize,
    normalize_instance_groups,
    plan_instances,
    scheduling_choice,
)
from nbtriton.model.config.options import apply_options
from nbtriton.model.config.parameters import (
    INSTANCE_RESOURCES,
    INSTANCE_RESTARTS,
    isolation_of,
    mark_stand_in,
    max_unread_responses,
    numbers_parameter,
    reads_only,
    stand_in_reason,
    without_stand_in,
)
from nbtriton.model.config.pbtxt import format_pbtxt, looks_like_pbtxt, parse_pbtxt
from nbtriton.model.config.signature import (
    TensorSpec,
    all_input_specs,
    all_output_specs,
    control_types,
    input_specs,
    output_specs,
    output_types,
    parse_annotation,
    state_inputs,
    state_outputs,
)
from nbtriton.model.config.validate import validate, validate_instance_groups
from nbtriton.model.config.validate_ensemble import validate_ensemble
from nbtriton.model.config.validate_io import STRATEGY_PATH, validate_io, validate_load

__all__ = [
    "EXECUTION_ENV_PATH", "INSTANCE_RESOURCES", "INSTANCE_RESTARTS",
    "STRATEGY_PATH", "Difference", "Dumpable", "InstancePlan", "ModelConfig", "ReadyModel", "TensorSpec",
    "all_input_specs", "all_output_specs", "amend", "apply_options", "as_config", "complete_from",
    "control_types", "copy_config", "differences", "enum_name", "equal_but_for_instances", "format_pbtxt",
    "from_dict", "ignored_fields", "input_specs", "is_ensemble", "is_whole", "isolation_of", "looks_like_pbtxt",
    "mark_stand_in", "max_unread_responses", "normalize", "normalize_instance_groups",
    "numbers_parameter", "output_specs", "output_types",
    "parse_annotation", "parse_pbtxt", "plan_instances", "reads_only", "scheduling_choice", "stand_in_reason",
    "state_inputs", "state_outputs", "to_dict", "to_json", "to_reported_dict", "validate", "validate_ensemble",
    "validate_instance_groups", "validate_io", "validate_load", "without_stand_in",
]  # fmt: skip
