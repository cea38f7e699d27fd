"""Every validation rule that a configuration alone can break: its number, its cause, Triton's text.

Each row is a rule of Triton's (classes: P when a model is polled, I inputs and outputs, G instance
groups, L loading, E ensembles with their models), the configuration that breaks it, and the exact
text. The model is called ``m``, an ensemble ``e``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nbtriton.config import (
    ModelConfig,
    normalize,
    normalize_instance_groups,
    parse_pbtxt,
    to_dict,
    validate,
    validate_ensemble,
    validate_instance_groups,
    validate_io,
    validate_load,
)
from nbtriton.errors import ConfigError

PY = 'backend: "python" '
START = "kind: CONTROL_SEQUENCE_START"
NO_PREFERRED_DELAY = "timeout_action: DELAY default_timeout_microseconds: 1"


def model(text: str) -> ModelConfig:
    return normalize(parse_pbtxt(text), name="m")


def p(text: str) -> None:
    validate(model(text))


def raw(text: str) -> None:
    validate(parse_pbtxt(text))


def i(text: str) -> None:
    validate_io(model(PY + text))


def load(text: str) -> None:
    validate_load(model(PY + text))


def g(gpus: tuple[int, ...] | None = ()) -> Callable[[str], None]:
    def check(text: str) -> None:
        config = normalize_instance_groups(model(PY + text), gpus=gpus)
        validate_instance_groups(config, gpus=gpus)

    return check


def db(text: str) -> str:
    return PY + "max_batch_size: 8 dynamic_batching { " + text + " }"


def sb(text: str) -> str:
    return PY + "max_batch_size: 8 sequence_batching { " + text + " }"


def control(text: str, name: str = "T") -> str:
    return f"control_input {{ name: '{name}' control {{ {text} }} }} "


def ensemble(text: str) -> str:
    return f"name: 'e' platform: 'ensemble' ensemble_scheduling {{ {text} }} "


def step(name: str, reads: str, writes: str) -> str:
    """Write a step: ``"IN=a IN2=b"`` and ``"OUT=c"`` are model tensors = ensemble tensors."""
    maps = [
        f"{field} {{ key: '{key}' value: '{tensor}' }} "
        for field, text in (("input_map", reads), ("output_map", writes))
        for key, _, tensor in (pair.partition("=") for pair in text.split())
    ]
    return f"step {{ model_name: '{name}' model_version: -1 {''.join(maps)} }} "


def tensors(
    inputs: str = "", outputs: str = "", shape: str = "data_type: TYPE_FP32 dims: 4"
) -> str:
    return "".join(f"input {{ name: '{name}' {shape} }} " for name in inputs.split()) + "".join(
        f"output {{ name: '{name}' {shape} }} " for name in outputs.split()
    )


TF = "data_type: TYPE_FP32"

STATE = "input_name: 's' output_name: 'o' data_type: TYPE_FP32 "


def state(text: str, dims: str = "dims: [ 4, -1 ]", count: int = 1) -> str:
    one = f"state {{ {STATE} {dims} {text} }} "
    return "max_batch_size: 8 sequence_batching { " + one * count + "}"


def initial(text: str) -> str:
    return f"initial_state {{ {text} }} "


GOOD_INITIAL = initial("name: 'z' data_type: TYPE_FP32 dims: [ 4, 2 ] zero_data: true")

BOTH = "'int32_false_true', 'fp32_false_true' or 'bool_false_true'"

GPU_TEXT = "GPUs with at least the minimum required CUDA compute compatibility of 6.000000 are: "

RULES = [
    # --- P: the configuration as a whole
    ("V-01", raw, PY, "model configuration must specify 'name'"),
    ("V-02", p, "platform: 'x'", "unexpected platform type 'x' for m"),
    ("V-02", p, "", "unexpected platform type '' for m"),
    (
        "V-03",
        p,
        PY + "platform: 'ensemble'",
        "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
    ),
    (
        "V-04",
        p,
        "backend: 'onnxruntime' platform: 'tensorrt_plan'",
        "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime",
    ),
    ("V-05", p, PY + "max_batch_size: -1", "'max_batch_size' must be non-negative value for m"),
    ("V-06", raw, PY + "name: 'm'", "must specify 'version policy' for m"),
    (
        "V-10",
        p,
        db("preferred_batch_size: [ 4, 0 ]"),
        "dynamic batching preferred size must be positive for m",
    ),
    (
        "V-11",
        p,
        db("preferred_batch_size: [ 4, 9 ]"),
        "dynamic batching preferred size must be <= max batch size for m",
    ),
    (
        "V-12",
        p,
        db("priority_levels: 2"),
        "default priority level must be in range [1, 2] for m",
    ),
    (
        "V-12",
        p,
        db("priority_levels: 2 default_priority_level: 3"),
        "default priority level must be in range [1, 2] for m",
    ),
    (
        "V-13",
        p,
        db(
            "priority_levels: 2 default_priority_level: 1 "
            "priority_queue_policy { key: 3 value { } }"
        ),
        "priority queue policy must have priority level in range [1, 2] for m",
    ),
    (
        "V-13",
        p,
        db(
            "priority_levels: 2 default_priority_level: 1 "
            "priority_queue_policy { key: 0 value { } }"
        ),
        "priority queue policy must have priority level in range [1, 2] for m",
    ),
    (
        "V-14",
        p,
        db("priority_levels: 2 default_priority_level: 1 preserve_ordering: true"),
        "Only one priority level is allowed when 'preserve_ordering' is true for m",
    ),
    (
        "V-15",
        p,
        db(f"preserve_ordering: true default_queue_policy {{ {NO_PREFERRED_DELAY} }}"),
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    (
        "V-15",
        p,
        db(
            "preserve_ordering: true priority_levels: 1 default_priority_level: 1 "
            f"priority_queue_policy {{ key: 1 value {{ {NO_PREFERRED_DELAY} }} }}"
        ),
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    (
        "V-20",
        p,
        sb(control(START, name="")),
        "sequence batching control tensor must have a name for m",
    ),
    (
        "V-21",
        p,
        sb(control(f"{START} int32_false_true: [ 0, 1 ]") + control("kind: CONTROL_SEQUENCE_END")),
        "sequence batching control tensor 'T' is specified for multiple control kinds for m",
    ),
    (
        "V-22",
        p,
        sb(
            control(f"{START} int32_false_true: [ 0, 1 ]")
            + control(f"{START} int32_false_true: [ 0, 1 ]", name="U")
        ),
        "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
    ),
    (
        "V-22",
        p,
        sb(
            control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64")
            + control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64", name="U")
        ),
        "sequence batching specifies multiple CONTROL_SEQUENCE_CORRID tensors for m",
    ),
    (
        "V-23",
        p,
        sb(control("kind: CONTROL_SEQUENCE_END")),
        f"sequence batching must specify either {BOTH} for CONTROL_SEQUENCE_END for m",
    ),
    (
        "V-24",
        p,
        sb(control("kind: CONTROL_SEQUENCE_READY int32_false_true: 0 bool_false_true: true")),
        "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
        "'bool_false_true' for CONTROL_SEQUENCE_READY for m",
    ),
    *(
        (
            "V-25",
            p,
            sb(control(f"{START} {kind}_false_true: [ {values} ]")),
            f"sequence batching control '{kind}_false_true' must have exactly 2 entries for "
            "CONTROL_SEQUENCE_START for m",
        )
        for kind, values in (("int32", "1"), ("fp32", "0, 1, 2"), ("bool", "true"))
    ),
    (
        "V-26",
        p,
        sb(control("kind: CONTROL_SEQUENCE_CORRID int32_false_true: [ 0, 1 ]")),
        f"sequence batching must not specify either {BOTH} for CONTROL_SEQUENCE_CORRID for m",
    ),
    (
        "V-27",
        p,
        sb(control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32")),
        "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are "
        "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
    ),
    (
        "V-28",
        p,
        sb("oldest { preferred_batch_size: -1 }"),
        "sequence batching preferred batch size must be positive for m",
    ),
    (
        "V-29",
        p,
        sb("oldest { preferred_batch_size: 9 }"),
        "sequence batching preferred batch size must be <= max batch size for m",
    ),
    *(
        (
            "V-30",
            p,
            sb(f"direct {{ minimum_slot_utilization: {value} }}"),
            "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
        )
        for value in (-0.1, 1.1)
    ),
    (
        "V-33",
        p,
        sb("") + "response_cache { enable: true }",
        "Response Cache does not currently support model m with sequence batching scheduler. "
        "Please disable the response cache.",
    ),
    (
        "V-34",
        p,
        PY + "model_transaction_policy { decoupled: true } response_cache { enable: true }",
        "Response Cache does not currently support model m with 'decoupled' transaction policy. "
        "Please disable the response cache.",
    ),
    # --- G: instance groups
    (
        "V-40",
        g(),
        "instance_group { kind: KIND_GPU }",
        "instance group m_0 of model m has kind KIND_GPU but no GPUs are available",
    ),
    (
        "V-41",
        g((0, 1)),
        "instance_group { name: 'x' kind: KIND_GPU gpus: [ 1, 7 ] }",
        f"instance group x of model m specifies invalid or unsupported gpu id 7. {GPU_TEXT}0, 1",
    ),
    (
        "V-41",
        g(),
        "instance_group { kind: KIND_GPU gpus: 0 }",
        f"instance group m_0 of model m specifies invalid or unsupported gpu id 0. {GPU_TEXT}",
    ),
    (
        "V-42",
        g(None),
        "instance_group { kind: KIND_GPU }",
        "instance group m_0 of model m has kind KIND_GPU but server does not support GPUs",
    ),
    (
        "V-43",
        g((0,)),
        "instance_group { } instance_group { kind: KIND_CPU gpus: 0 }",
        "instance group m_1 of model m has kind KIND_CPU but specifies one or more GPUs",
    ),
    (
        "V-43",
        g(),
        "instance_group { gpus: 0 }",
        "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs",
    ),
    (
        "V-44",
        g((0,)),
        "instance_group { kind: KIND_MODEL gpus: 0 }",
        "instance group m_0 of model m has kind KIND_MODEL but specifies one or more GPUs",
    ),
    (
        "V-45",
        g(),
        "instance_group { profile: 'p' }",
        "instance group m_0 of model m and platform specifies profile field which is only "
        "supported for TensorRT models",
    ),
    (
        "V-45",
        g(),
        "platform: 'x' instance_group { profile: 'p' }",
        "instance group m_0 of model m and platform xspecifies profile field which is only "
        "supported for TensorRT models",
    ),
    # --- I: inputs and outputs
    ("V-60", i, f"input {{ {TF} dims: 1 }}", "model input must specify 'name' for m"),
    ("V-60", i, f"output {{ {TF} dims: 1 }}", "model output must specify 'name' for m"),
    ("V-61", i, "input { name: 'a' dims: 1 }", "model input 'a' must specify 'data_type' for m"),
    ("V-62", i, f"input {{ name: 'a' {TF} }}", "model input 'a' must specify 'dims' for m"),
    ("V-62", i, f"output {{ name: 'a' {TF} }}", "model output 'a' must specify 'dims' for m"),
    *(
        (
            "V-63",
            i,
            f"{what} {{ name: 'a' {TF} dims: [ 4, {dim} ] }}",
            f"model {what} 'a' dimension must be integer >= 1, or -1 to indicate a variable-size "
            "dimension for m",
        )
        for what, dim in (("input", 0), ("input", -2), ("output", 0))
    ),
    (
        "V-64",
        i,
        f"input {{ name: 'a' {TF} dims: 1 reshape {{ }} }}",
        "model input 'a' cannot have empty reshape for non-batching model as scalar tensors are "
        "not supported for m",
    ),
    (
        "V-65a",
        i,
        f"input {{ name: 'a' {TF} dims: 4 reshape {{ shape: [ 4, 0 ] }} }}",
        "model input 'a' reshape dimensions must be integer >= 1, or -1 to indicate a "
        "variable-size dimension for m",
    ),
    *(
        (
            "V-65b",
            i,
            f"max_batch_size: 1 input {{ name: 'a' {TF} dims: {dims} reshape {{ shape: {shape} }} }}",
            "model input 'a' has different size for dims and reshape for m",
        )
        for dims, shape in (
            ("[ 4 ]", "[ 2, 3 ]"),
            ("[ 4 ]", "[ ]"),
            ("[ 4 ]", "[ -1 ]"),
            ("[ 2, 4, -1, 6 ]", "[ 8, -1, 5 ]"),
        )
    ),
    (
        "V-65c",
        i,
        f"input {{ name: 'a' {TF} dims: [ -1, 4 ] reshape {{ shape: [ -1, -1, 4 ] }} }}",
        "model input 'a' has different number of variable-size dimensions for dims and reshape "
        "for m",
    ),
    *(
        (
            "V-67",
            i,
            f"input {{ name: 'a' {TF} dims: [ 2, 2 ] format: FORMAT_{order} }}",
            "model input NHWC/NCHW require 3 dims for m",
        )
        for order in ("NHWC", "NCHW")
    ),
    *(
        (
            "V-68",
            i,
            f"{what} {{ name: 'a' {TF} dims: 1 is_shape_tensor: true }}",
            "shape tensors are only supported for TensorRT platform for m",
        )
        for what in ("input", "output")
    ),
    *(
        (
            "V-69",
            i,
            f"{what} {{ name: 'a' {TF} dims: 1 is_non_linear_format_io: true }}",
            "Non-linear IO format is only supported for the TensorRT platform for m",
        )
        for what in ("input", "output")
    ),
    (
        "V-70",
        i,
        "batch_input { kind: BATCH_ITEM_SHAPE data_type: TYPE_INT32 }",
        "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0 for m",
    ),
    (
        "V-71",
        i,
        tensors("a") + "batch_input { data_type: TYPE_INT64 source_input: 'a' }",
        "batch input data type must be TYPE_INT32 or TYPE_FP32 for m",
    ),
    (
        "V-72",
        i,
        tensors("a") + "batch_input { data_type: TYPE_INT32 source_input: 'b' }",
        "unknown source input name 'b' for m",
    ),
    (
        "V-72",
        i,
        tensors("a") + "batch_output { source_input: 'b' }",
        "unknown source input name 'b' for m",
    ),
    (
        "V-73",
        i,
        tensors("a") + "batch_output { source_input: [ 'a', 'a' ] }",
        "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 2 for m",
    ),
    (
        "V-74",
        i,
        tensors("a", "o") + "batch_output { source_input: 'a' target_name: [ 'o', 'q' ] }",
        "unknown target output name 'q' for m",
    ),
    (
        "V-74",
        i,
        tensors("a", "o") + "batch_output { source_input: 'a' target_name: [ 'o', 'o' ] }",
        "target output name 'o' can only be specified once for m",
    ),
    # --- L: initial states and warmup
    (
        "V-75",
        load,
        state(GOOD_INITIAL + GOOD_INITIAL),
        "initial_state field for state input 's' must contain exactly one or zero element. Found "
        "'2' elements.",
    ),
    (
        "V-76",
        load,
        state(initial("name: 'z' data_type: TYPE_INT32 dims: [ 4, 2 ] zero_data: true")),
        "The data type used for 'initial_state' field of state 's' does not match the state data "
        "type.",
    ),
    (
        "V-77",
        load,
        state(initial("data_type: TYPE_FP32 dims: [ 4, 2 ] zero_data: true")),
        "Field 'name' must be set when using initial_state for state input 's'.",
    ),
    (
        "V-78",
        load,
        state(initial("name: 'z' data_type: TYPE_FP32 dims: 4 zero_data: true")),
        "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for "
        "state input 's'. 1 != 2",
    ),
    (
        "V-79",
        load,
        state(initial("name: 'z' data_type: TYPE_FP32 dims: [ 4, -1 ] zero_data: true")),
        "'initial_state' field for state input name 's' contains variable dimensions.",
    ),
    (
        "V-80",
        load,
        state(initial("name: 'z' data_type: TYPE_FP32 dims: [ 5, 2 ] zero_data: true")),
        "'initial_state' dim for input name 's' doesn't match 'state' dim description. 5 != 4",
    ),
    (
        "V-81",
        load,
        state(initial("name: 'z' data_type: TYPE_FP32 dims: [ 4, 2 ]")),
        "initial_state setting expects state's' to have state_data set",
    ),
    (
        "V-84",
        load,
        state(GOOD_INITIAL, count=2),
        "State input name 's' specified more than once.",
    ),
    (
        "V-85",
        load,
        "model_warmup { name: 'w' batch_size: 1 inputs { key: 'i' value { data_type: TYPE_FP32 "
        "dims: -1 zero_data: true } } }",
        "warmup setting expects all variable-size dimensions are specified for input 'i'",
    ),
    (
        "V-86",
        load,
        "model_warmup { name: 'w' batch_size: 1 inputs { key: 'i' value { data_type: TYPE_FP32 "
        "dims: 1 } } }",
        "[request id: <id_unknown>] warmup setting expects input 'i' to have input_data_type set",
    ),
    # --- P: ensembles by themselves
    (
        "V-100",
        p,
        "name: 'e' platform: 'ensemble'",
        "ensemble scheduling must be set for ensemble e whose platform is ensemble",
    ),
    (
        "V-101",
        p,
        PY + "ensemble_scheduling { }",
        "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble",
    ),
    (
        "V-102",
        p,
        ensemble("") + "instance_group { }",
        "instance group should not be specified for ensemble 'e'",
    ),
    (
        "V-103",
        p,
        ensemble("") + "optimization { }",
        "optimization should not be specified for ensemble 'e'",
    ),
    (
        "V-104",
        p,
        ensemble("") + "model_warmup { }",
        "model_warmup can not be specified for ensemble 'e'",
    ),
    ("V-105", p, ensemble(""), "must specify 'step' for ensemble 'e'"),
    (
        "V-106",
        p,
        ensemble(step("a", "IN=x", "OUT=y") + step("", "IN=y", "OUT=z")),
        "must specify 'model_name' in step 1 of ensemble 'e'",
    ),
    (
        "V-106",
        p,
        ensemble(step("a", "", "OUT=y")),
        "must specify 'input_map' in step 0 of ensemble 'e'",
    ),
    (
        "V-106",
        p,
        ensemble(step("a", "IN=x", "")),
        "must specify 'output_map' in step 0 of ensemble 'e'",
    ),
    (
        "V-107",
        p,
        ensemble(step("a", "IN=x", "OUT=y") + step("a", "IN=x", "OUT=y")) + tensors("x", "y"),
        "ensemble tensor 'y' can appear in an output map only once for ensemble 'e' step 1",
    ),
    (
        "V-108",
        p,
        ensemble(step("a", "IN=x", "OUT=y")) + tensors("x z", "y"),
        "ensemble input 'z' for ensemble e is not used",
    ),
    (
        "V-109",
        p,
        ensemble(step("a", "IN=x", "OUT=y")) + tensors("x", "y z"),
        "ensemble output 'z' for ensemble e is not used",
    ),
    (
        "V-110",
        p,
        ensemble(step("a", "IN=x", "OUT=y")) + tensors("", "y"),
        "output 'y' for ensemble 'e' is not written: at least one of its depending tensors, 'x', "
        "is not connected",
    ),
    (
        "V-110",
        p,
        ensemble(step("a", "IN=x IN2=y", "OUT=y")) + tensors("x", "y"),
        "output 'y' for ensemble 'e' is not written",
    ),
    (
        "V-110",
        p,
        ensemble(step("a", "IN=z", "OUT=y") + step("b", "IN=y", "OUT=z")) + tensors("", "y"),
        "output 'y' for ensemble 'e' is not written",
    ),
    (
        "V-111",
        p,
        ensemble(step("a", "IN=x", "OUT=y OUT2=z")) + tensors("x", "y"),
        "ensemble tensor 'z' is unused in ensemble 'e'",
    ),
    (
        "V-111",
        p,
        ensemble(step("a", "IN=x", "OUT=y") + step("b", "IN=u", "OUT=v")) + tensors("x", "y"),
        "ensemble tensor 'v' is unused in ensemble 'e'",
    ),
]


def member(name: str, inputs: str, outputs: str, more: str = "", shape: str = "") -> ModelConfig:
    shape = shape or "data_type: TYPE_FP32 dims: [ -1, 4 ]"
    return parse_pbtxt(f"name: '{name}' {PY} {more} " + tensors(inputs, outputs, shape))


SHAPE = "data_type: TYPE_FP32 dims: [ -1, 4 ]"

A = member("a", "IN", "OUT")
B = member("b", "IN", "OUT")
TWO = member("two", "IN IN2", "OUT")
DECOUPLED = member("d", "IN", "OUT", "model_transaction_policy { decoupled: true }")
DECOUPLED2 = member("d2", "IN", "OUT", "model_transaction_policy { decoupled: true }")
NESTED = parse_pbtxt(ensemble(step("e", "x=x", "y=y")).replace("'e' p", "'n' p"))

CHAIN = ensemble(step("a", "IN=x", "OUT=h") + step("b", "IN=h", "OUT=y"))

MEMBER_RULES = [
    (
        "V-112",
        CHAIN + tensors("x", "y", SHAPE),
        [],
        "ensemble e contains models that are not available or ambiguous: a, b",
    ),
    (
        "V-116",
        ensemble(step("n", "x=x", "y=y")) + tensors("x", "y", SHAPE),
        [NESTED],
        "circular dependency between ensembles: e -> ... -> n -> e",
    ),
    (
        "V-116",
        ensemble(step("e", "x=x", "y=y")) + tensors("x", "y", SHAPE),
        [],
        "circular dependency between ensembles: e -> ... -> e -> e",
    ),
    (
        "V-117",
        CHAIN + tensors("x", "y") + "max_batch_size: 8",
        [A, member("b", "IN", "OUT", "max_batch_size: 4", "data_type: TYPE_FP32 dims: 4")],
        "ensemble e allows maximum batch size 8, but it contains model b which only allows "
        "maximum batch size to be 4",
    ),
    (
        "V-118",
        ensemble(step("a", "IM=x", "OUT=y")) + tensors("x", "y", SHAPE),
        [A],
        "in ensemble e, ensemble tensor x is mapping to non-existing input IM in model a",
    ),
    (
        "V-119",
        ensemble(step("two", "IN=x", "OUT=y")) + tensors("x", "y", SHAPE),
        [TWO],
        "in ensemble e, input IN2 in model two is not mapped to any ensemble tensors",
    ),
    (
        "V-120",
        ensemble(step("a", "IN=x", "OUT=y OUTS=z")) + tensors("x", "y z", SHAPE),
        [A],
        "in ensemble e, ensemble tensor z is mapped from non-existing output OUTS in model a",
    ),
    (
        "V-121",
        CHAIN + tensors("x", "y", SHAPE),
        [A, member("b", "IN", "OUT", shape="data_type: TYPE_STRING dims: [ -1, 4 ]")],
        "in ensemble e, ensemble tensor h: inconsistent data type: TYPE_FP32 is inferred from "
        "model a while TYPE_STRING is inferred from model b",
    ),
    (
        "V-122",
        CHAIN + tensors("x", "y", SHAPE),
        [A, member("b", "IN", "OUT", shape="data_type: TYPE_FP32 dims: [ -1, 5 ]")],
        "in ensemble e, ensemble tensor h: inconsistent shape: [-1,4] is inferred from model a "
        "while [-1,5] is inferred from model b",
    ),
    (
        "V-122",
        ensemble(step("a", "IN=x", "OUT=y"))
        + tensors("x", "y", "data_type: TYPE_FP32 dims: 5")
        + "max_batch_size: 8",
        [A],
        "in ensemble e, ensemble tensor x: inconsistent shape: [-1,5] is inferred from model e "
        "while [-1,4] is inferred from model a",
    ),
    (
        "V-123",
        ensemble(
            step("d", "IN=x", "OUT=p")
            + step("d2", "IN=x", "OUT=q")
            + step("two", "IN=p IN2=q", "OUT=y")
        )
        + tensors("x", "y", SHAPE),
        [DECOUPLED, DECOUPLED2, TWO],
        "in ensemble e, step of model 'e' receives inputs originated from different decoupled "
        "models",
    ),
]


@pytest.mark.parametrize(
    ("rule", "check", "text", "message"),
    RULES,
    ids=[f"{rule}-{index}" for index, (rule, *_) in enumerate(RULES)],
)
def test_rule(rule: str, check: Callable[[str], None], text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(text)
    assert caught.value.message == message, rule
    assert caught.value.hint, "every rule says what would be right"
    assert caught.value.field, "every rule names the field"


@pytest.mark.parametrize(
    ("rule", "text", "members", "message"),
    MEMBER_RULES,
    ids=[f"{rule}-{index}" for index, (rule, *_) in enumerate(MEMBER_RULES)],
)
def test_ensemble_rule(rule: str, text: str, members: list[ModelConfig], message: str) -> None:
    config = normalize(parse_pbtxt(text), name="e")
    validate(config)
    with pytest.raises(ConfigError) as caught:
        validate_ensemble(config, {one.name: one for one in members})
    assert caught.value.message == message, rule
    assert caught.value.hint or not members
    assert caught.value.field


def test_every_rule_has_a_row() -> None:
    wanted = (
        [1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14, 15]
        + [20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 33, 34]
        + [40, 41, 42, 43, 44, 45, 60, 61, 62, 63, 64, 67, 68, 69, 70, 71, 72, 73, 74]
        + [75, 76, 77, 78, 79, 80, 81, 84, 85, 86]
        + [*range(100, 113), *range(116, 124)]
    )
    covered = {rule for rule, *_ in (*RULES, *MEMBER_RULES)}
    assert {f"V-{number:02d}" for number in wanted} | {"V-65a", "V-65b", "V-65c"} == covered


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (p, PY),
        (p, "name: 'other' platform: 'onnxruntime_onnx'"),
        (p, db("")),
        (p, db("preferred_batch_size: [ 1, 8 ] default_priority_level: 9")),  # no levels
        (p, db("preserve_ordering: true default_queue_policy { timeout_action: DELAY }")),
        (p, PY + "dynamic_batching { }"),
        (p, sb("direct { minimum_slot_utilization: 0 }")),
        (p, sb(control(f"{START} bool_false_true: [ false, true ]"))),
        (p, sb(control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING"))),
        (p, PY + "model_transaction_policy { decoupled: true }"),
        (p, CHAIN + tensors("x", "h y")),
        (i, ""),
        (i, f"input {{ name: 'a' {TF} dims: 1 }} input {{ name: 'a' {TF} dims: 2 }}"),
        (i, f"input {{ name: 'a' {TF} dims: [ 2,4,-1,6 ] reshape {{ shape: [ 8,-1,1,6 ] }} }}"),
        (i, f"max_batch_size: 1 input {{ name: 'a' {TF} dims: 1 reshape {{ }} }}"),
        (i, f"input {{ name: 'a' {TF} dims: [ 3, 2, 2 ] format: FORMAT_NCHW }}"),
        (g(), "instance_group { count: 0 }"),
        (g((0,)), "instance_group { kind: KIND_AUTO gpus: 0 }"),
        (g(None), "instance_group { kind: KIND_MODEL }"),
        (load, state(GOOD_INITIAL)),
        (load, state("", count=2)),
        (load, "model_warmup { name: 'w' inputs { key: 'i' value { dims: -1 } } }"),
    ],
)
def test_good_configurations_pass(check: Callable[[str], None], text: str) -> None:
    check(text)


@pytest.mark.parametrize(
    ("rule", "text", "members", "hint"),
    [
        ("V-112", CHAIN, [member("bb", "", ""), A], "did you mean 'bb'?"),
        ("V-118", ensemble(step("a", "INN=x", "OUT=y")), [A], "did you mean 'IN'?"),
        ("V-120", ensemble(step("a", "IN=x", "OUTS=y")), [A], "did you mean 'OUT'?"),
    ],
)
def test_hints_name_the_nearest(
    rule: str, text: str, members: list[ModelConfig], hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_ensemble(parse_pbtxt(text), {one.name: one for one in members})
    assert caught.value.hint == hint, rule


def test_ensemble_shape_rule_counts_the_batch_dimension_as_minus_one() -> None:
    text = ensemble(step("a", "IN=x", "OUT=y")) + "max_batch_size: 8 "
    config = parse_pbtxt(text + tensors("x", "y"))
    validate_ensemble(config, {"a": A})


def test_ensemble_compares_reshape_of_its_own_tensors() -> None:
    own = "data_type: TYPE_FP32 dims: 4 reshape { shape: [ 1, 4 ] }"
    config = parse_pbtxt(ensemble(step("a", "IN=x", "OUT=y")) + tensors("x", "y", own))
    validate_ensemble(config, {"a": A})


def test_ensemble_may_leave_optional_inputs_out() -> None:
    two = ModelConfig()
    two.CopyFrom(TWO)
    two.input[1].optional = True
    text = ensemble(step("two", "IN=x", "OUT=y")) + tensors("x", "y", SHAPE)
    validate_ensemble(parse_pbtxt(text), {"two": two})


@pytest.mark.parametrize(("first", "decoupled"), [(A, False), (DECOUPLED, True)])
def test_J3_decoupled_is_computed(first: ModelConfig, decoupled: bool) -> None:
    chain = step(first.name, "IN=x", "OUT=h") + step("b", "IN=h", "OUT=y")
    config = parse_pbtxt(ensemble(chain) + tensors("x", "y", SHAPE))
    done = validate_ensemble(config, {first.name: first, "b": B})
    assert done.model_transaction_policy.decoupled is decoupled
    assert not config.HasField("model_transaction_policy")
    done.ClearField("model_transaction_policy")
    assert to_dict(done) == to_dict(config)


def test_one_decoupled_model_may_feed_two_inputs() -> None:
    fan = member("d", "IN", "OUT OUT2", "model_transaction_policy { decoupled: true }")
    text = step("d", "IN=x", "OUT=p OUT2=q") + step("two", "IN=p IN2=q", "OUT=y")
    config = parse_pbtxt(ensemble(text) + tensors("x", "y", SHAPE))
    done = validate_ensemble(config, {"d": fan, "two": TWO})
    assert done.model_transaction_policy.decoupled
