"""The validation rules that one configuration alone can break, as a table.

Each row has a rule's number, the class of check that finds it, the configuration that breaks it and
Triton's exact text. The model is called ``m``. Classes: P when a model is polled (raw: before
normalisation), I inputs and outputs, L loading, G instance groups (with the GPUs that there are).
"""

from __future__ import annotations

__all__ = ["RULES", "control", "db", "sb", "state", "tensors"]

PY = 'backend: "python" '
START = "kind: CONTROL_SEQUENCE_START"
NO_PREFERRED_DELAY = "timeout_action: DELAY default_timeout_microseconds: 1"


def db(text: str) -> str:
    return PY + "max_batch_size: 8 dynamic_batching { " + text + " }"


def sb(text: str) -> str:
    return PY + "max_batch_size: 8 sequence_batching { " + text + " }"


def control(text: str, name: str = "T") -> str:
    return f"control_input {{ name: '{name}' control {{ {text} }} }} "


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
    ("V01", "raw", PY, "model configuration must specify 'name'"),
    ("V02", "P", "platform: 'x'", "unexpected platform type 'x' for m"),
    ("V02", "P", "", "unexpected platform type '' for m"),
    (
        "V03",
        "P",
        PY + "platform: 'ensemble'",
        "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
    ),
    (
        "V04",
        "P",
        "backend: 'onnxruntime' platform: 'tensorrt_plan'",
        "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime",
    ),
    ("V05", "P", PY + "max_batch_size: -1", "'max_batch_size' must be non-negative value for m"),
    ("V06", "raw", PY + "name: 'm'", "must specify 'version policy' for m"),
    (
        "V10",
        "P",
        db("preferred_batch_size: [ 4, 0 ]"),
        "dynamic batching preferred size must be positive for m",
    ),
    (
        "V11",
        "P",
        db("preferred_batch_size: [ 4, 9 ]"),
        "dynamic batching preferred size must be <= max batch size for m",
    ),
    (
        "V12",
        "P",
        db("priority_levels: 2"),
        "default priority level must be in range [1, 2] for m",
    ),
    (
        "V12",
        "P",
        db("priority_levels: 2 default_priority_level: 3"),
        "default priority level must be in range [1, 2] for m",
    ),
    (
        "V13",
        "P",
        db(
            "priority_levels: 2 default_priority_level: 1 "
            "priority_queue_policy { key: 3 value { } }"
        ),
        "priority queue policy must have priority level in range [1, 2] for m",
    ),
    (
        "V13",
        "P",
        db(
            "priority_levels: 2 default_priority_level: 1 "
            "priority_queue_policy { key: 0 value { } }"
        ),
        "priority queue policy must have priority level in range [1, 2] for m",
    ),
    (
        "V14",
        "P",
        db("priority_levels: 2 default_priority_level: 1 preserve_ordering: true"),
        "Only one priority level is allowed when 'preserve_ordering' is true for m",
    ),
    (
        "V15",
        "P",
        db(f"preserve_ordering: true default_queue_policy {{ {NO_PREFERRED_DELAY} }}"),
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    (
        "V15",
        "P",
        db(
            "preserve_ordering: true priority_levels: 1 default_priority_level: 1 "
            f"priority_queue_policy {{ key: 1 value {{ {NO_PREFERRED_DELAY} }} }}"
        ),
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    (
        "V20",
        "P",
        sb(control(START, name="")),
        "sequence batching control tensor must have a name for m",
    ),
    (
        "V21",
        "P",
        sb(control(f"{START} int32_false_true: [ 0, 1 ]") + control("kind: CONTROL_SEQUENCE_END")),
        "sequence batching control tensor 'T' is specified for multiple control kinds for m",
    ),
    (
        "V22",
        "P",
        sb(
            control(f"{START} int32_false_true: [ 0, 1 ]")
            + control(f"{START} int32_false_true: [ 0, 1 ]", name="U")
        ),
        "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
    ),
    (
        "V22",
        "P",
        sb(
            control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64")
            + control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64", name="U")
        ),
        "sequence batching specifies multiple CONTROL_SEQUENCE_CORRID tensors for m",
    ),
    (
        "V23",
        "P",
        sb(control("kind: CONTROL_SEQUENCE_END")),
        f"sequence batching must specify either {BOTH} for CONTROL_SEQUENCE_END for m",
    ),
    (
        "V24",
        "P",
        sb(control("kind: CONTROL_SEQUENCE_READY int32_false_true: 0 bool_false_true: true")),
        (
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            "'bool_false_true' for CONTROL_SEQUENCE_READY for m"
        ),
    ),
    *(
        (
            "V25",
            "P",
            sb(control(f"{START} {kind}_false_true: [ {values} ]")),
            (
                f"sequence batching control '{kind}_false_true' must have exactly 2 entries for "
                "CONTROL_SEQUENCE_START for m"
            ),
        )
        for kind, values in (("int32", "1"), ("fp32", "0, 1, 2"), ("bool", "true"))
    ),
    (
        "V26",
        "P",
        sb(control("kind: CONTROL_SEQUENCE_CORRID int32_false_true: [ 0, 1 ]")),
        f"sequence batching must not specify either {BOTH} for CONTROL_SEQUENCE_CORRID for m",
    ),
    (
        "V27",
        "P",
        sb(control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32")),
        (
            "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are "
            "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        ),
    ),
    (
        "V28",
        "P",
        sb("oldest { preferred_batch_size: -1 }"),
        "sequence batching preferred batch size must be positive for m",
    ),
    (
        "V29",
        "P",
        sb("oldest { preferred_batch_size: 9 }"),
        "sequence batching preferred batch size must be <= max batch size for m",
    ),
    *(
        (
            "V30",
            "P",
            sb(f"direct {{ minimum_slot_utilization: {value} }}"),
            "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
        )
        for value in (-0.1, 1.1)
    ),
    (
        "V33",
        "P",
        sb("") + "response_cache { enable: true }",
        (
            "Response Cache does not currently support model m with sequence batching scheduler. "
            "Please disable the response cache."
        ),
    ),
    (
        "V34",
        "P",
        PY + "model_transaction_policy { decoupled: true } response_cache { enable: true }",
        (
            "Response Cache does not currently support model m with 'decoupled' transaction policy. "
            "Please disable the response cache."
        ),
    ),
    # --- G: instance groups
    (
        "V40",
        "G",
        "instance_group { kind: KIND_GPU }",
        "instance group m_0 of model m has kind KIND_GPU but no GPUs are available",
    ),
    (
        "V41",
        "G 0 1",
        "instance_group { name: 'x' kind: KIND_GPU gpus: [ 1, 7 ] }",
        f"instance group x of model m specifies invalid or unsupported gpu id 7. {GPU_TEXT}0, 1",
    ),
    (
        "V41",
        "G",
        "instance_group { kind: KIND_GPU gpus: 0 }",
        f"instance group m_0 of model m specifies invalid or unsupported gpu id 0. {GPU_TEXT}",
    ),
    (
        "V42",
        "G none",
        "instance_group { kind: KIND_GPU }",
        "instance group m_0 of model m has kind KIND_GPU but server does not support GPUs",
    ),
    (
        "V43",
        "G 0",
        "instance_group { } instance_group { kind: KIND_CPU gpus: 0 }",
        "instance group m_1 of model m has kind KIND_CPU but specifies one or more GPUs",
    ),
    (
        "V43",
        "G",
        "instance_group { gpus: 0 }",
        "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs",
    ),
    (
        "V44",
        "G 0",
        "instance_group { kind: KIND_MODEL gpus: 0 }",
        "instance group m_0 of model m has kind KIND_MODEL but specifies one or more GPUs",
    ),
    (
        "V45",
        "G",
        "instance_group { profile: 'p' }",
        (
            "instance group m_0 of model m and platform specifies profile field which is only "
            "supported for TensorRT models"
        ),
    ),
    (
        "V45",
        "G",
        "platform: 'x' instance_group { profile: 'p' }",
        (
            "instance group m_0 of model m and platform xspecifies profile field which is only "
            "supported for TensorRT models"
        ),
    ),
    # --- I: inputs and outputs
    ("V60", "I", f"input {{ {TF} dims: 1 }}", "model input must specify 'name' for m"),
    ("V60", "I", f"output {{ {TF} dims: 1 }}", "model output must specify 'name' for m"),
    ("V61", "I", "input { name: 'a' dims: 1 }", "model input 'a' must specify 'data_type' for m"),
    ("V62", "I", f"input {{ name: 'a' {TF} }}", "model input 'a' must specify 'dims' for m"),
    ("V62", "I", f"output {{ name: 'a' {TF} }}", "model output 'a' must specify 'dims' for m"),
    *(
        (
            "V63",
            "I",
            f"{what} {{ name: 'a' {TF} dims: [ 4, {dim} ] }}",
            (
                f"model {what} 'a' dimension must be integer >= 1, or -1 to indicate a variable-size "
                "dimension for m"
            ),
        )
        for what, dim in (("input", 0), ("input", -2), ("output", 0))
    ),
    (
        "V64",
        "I",
        f"input {{ name: 'a' {TF} dims: 1 reshape {{ }} }}",
        (
            "model input 'a' cannot have empty reshape for non-batching model as scalar tensors are "
            "not supported for m"
        ),
    ),
    (
        "V65a",
        "I",
        f"input {{ name: 'a' {TF} dims: 4 reshape {{ shape: [ 4, 0 ] }} }}",
        (
            "model input 'a' reshape dimensions must be integer >= 1, or -1 to indicate a "
            "variable-size dimension for m"
        ),
    ),
    *(
        (
            "V65b",
            "I",
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
        "V65c",
        "I",
        f"input {{ name: 'a' {TF} dims: [ -1, 4 ] reshape {{ shape: [ -1, -1, 4 ] }} }}",
        (
            "model input 'a' has different number of variable-size dimensions for dims and reshape "
            "for m"
        ),
    ),
    *(
        (
            "V67",
            "I",
            f"input {{ name: 'a' {TF} dims: [ 2, 2 ] format: FORMAT_{order} }}",
            "model input NHWC/NCHW require 3 dims for m",
        )
        for order in ("NHWC", "NCHW")
    ),
    *(
        (
            "V68",
            "I",
            f"{what} {{ name: 'a' {TF} dims: 1 is_shape_tensor: true }}",
            "shape tensors are only supported for TensorRT platform for m",
        )
        for what in ("input", "output")
    ),
    *(
        (
            "V69",
            "I",
            f"{what} {{ name: 'a' {TF} dims: 1 is_non_linear_format_io: true }}",
            "Non-linear IO format is only supported for the TensorRT platform for m",
        )
        for what in ("input", "output")
    ),
    (
        "V70",
        "I",
        "batch_input { kind: BATCH_ITEM_SHAPE data_type: TYPE_INT32 }",
        "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0 for m",
    ),
    (
        "V71",
        "I",
        tensors("a") + "batch_input { data_type: TYPE_INT64 source_input: 'a' }",
        "batch input data type must be TYPE_INT32 or TYPE_FP32 for m",
    ),
    (
        "V72",
        "I",
        tensors("a") + "batch_input { data_type: TYPE_INT32 source_input: 'b' }",
        "unknown source input name 'b' for m",
    ),
    (
        "V72",
        "I",
        tensors("a") + "batch_output { source_input: 'b' }",
        "unknown source input name 'b' for m",
    ),
    (
        "V73",
        "I",
        tensors("a") + "batch_output { source_input: [ 'a', 'a' ] }",
        "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 2 for m",
    ),
    (
        "V74",
        "I",
        tensors("a", "o") + "batch_output { source_input: 'a' target_name: [ 'o', 'q' ] }",
        "unknown target output name 'q' for m",
    ),
    (
        "V74",
        "I",
        tensors("a", "o") + "batch_output { source_input: 'a' target_name: [ 'o', 'o' ] }",
        "target output name 'o' can only be specified once for m",
    ),
    # --- L: custom batching, initial states and warmup
    (
        "V46",
        "L",
        (
            "sequence_batching { } parameters { key: 'TRITON_BATCH_STRATEGY_PATH' value { "
            "string_value: 'x.so' } }"
        ),
        (
            "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher, using default "
            "batching strategy"
        ),
    ),
    (
        "V75",
        "L",
        state(GOOD_INITIAL + GOOD_INITIAL),
        (
            "initial_state field for state input 's' must contain exactly one or zero element. Found "
            "'2' elements."
        ),
    ),
    (
        "V76",
        "L",
        state(initial("name: 'z' data_type: TYPE_INT32 dims: [ 4, 2 ] zero_data: true")),
        (
            "The data type used for 'initial_state' field of state 's' does not match the state data "
            "type."
        ),
    ),
    (
        "V77",
        "L",
        state(initial("data_type: TYPE_FP32 dims: [ 4, 2 ] zero_data: true")),
        "Field 'name' must be set when using initial_state for state input 's'.",
    ),
    (
        "V78",
        "L",
        state(initial("name: 'z' data_type: TYPE_FP32 dims: 4 zero_data: true")),
        (
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for "
            "state input 's'. 1 != 2"
        ),
    ),
    (
        "V79",
        "L",
        state(initial("name: 'z' data_type: TYPE_FP32 dims: [ 4, -1 ] zero_data: true")),
        "'initial_state' field for state input name 's' contains variable dimensions.",
    ),
    (
        "V80",
        "L",
        state(initial("name: 'z' data_type: TYPE_FP32 dims: [ 5, 2 ] zero_data: true")),
        "'initial_state' dim for input name 's' doesn't match 'state' dim description. 5 != 4",
    ),
    (
        "V81",
        "L",
        state(initial("name: 'z' data_type: TYPE_FP32 dims: [ 4, 2 ]")),
        "initial_state setting expects state's' to have state_data set",
    ),
    (
        "V84",
        "L",
        state(GOOD_INITIAL, count=2),
        "State input name 's' specified more than once.",
    ),
    (
        "V85",
        "L",
        (
            "model_warmup { name: 'w' batch_size: 1 inputs { key: 'i' value { data_type: TYPE_FP32 "
            "dims: -1 zero_data: true } } }"
        ),
        "warmup setting expects all variable-size dimensions are specified for input 'i'",
    ),
    (
        "V86",
        "L",
        (
            "model_warmup { name: 'w' batch_size: 1 inputs { key: 'i' value { data_type: TYPE_FP32 "
            "dims: 1 } } }"
        ),
        "[request id: <id_unknown>] warmup setting expects input 'i' to have input_data_type set",
    ),
]
