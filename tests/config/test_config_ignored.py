"""Fields without effect are reported with a reason, and no others."""

from __future__ import annotations

import pytest

from nbtriton.model.config import as_config, ignored_fields, normalize
from nbtriton.model.config.ignored import NEVER as REASONS
from nbtriton.model.config.ignored import PARAMETERS

PY = 'backend: "python" max_batch_size: 8 '
BATCH = 'data_type: TYPE_INT32 source_input: "a" target_name: "b"'


def paths(text):
    return [path for path, _ in ignored_fields(as_config(text))]


NEVER = {
    "input.format": (
        "input [ { name: 'a' }, { name: 'b' format: FORMAT_NHWC } ]",
        "input[1].format",
    ),
    "cc_model_filenames": (
        "cc_model_filenames { key: '7.5' value: 'model75.pt' }",
        "cc_model_filenames[7.5]",
    ),
    "model_metrics": (
        "model_metrics { metric_control { metric_identifier { family: 'f' } } }",
        "model_metrics",
    ),
    "model_operations": ("model_operations { op_library_filename: 'a.so' }", "model_operations"),
    "instance_group.secondary_devices": (
        "instance_group { secondary_devices { kind: KIND_NVDLA } }",
        "instance_group[0].secondary_devices[0]",
    ),
    "instance_group.profile": ("instance_group { profile: '0' }", "instance_group[0].profile"),
    "optimization.graph": ("optimization { graph { level: 1 } }", "optimization.graph"),
    "optimization.execution_accelerators": (
        "optimization { execution_accelerators { gpu_execution_accelerator { name: 't' } } }",
        "optimization.execution_accelerators",
    ),
    "optimization.priority": ("optimization { priority: PRIORITY_MAX }", "optimization.priority"),
    "optimization.cuda": ("optimization { cuda { graphs: true } }", "optimization.cuda"),
    "optimization.gather_kernel_buffer_threshold": (
        "optimization { gather_kernel_buffer_threshold: 8 }",
        "optimization.gather_kernel_buffer_threshold",
    ),
    "optimization.eager_batching": (
        "optimization { eager_batching: true }",
        "optimization.eager_batching",
    ),
    "sequence_batching.state.use_same_buffer_for_input_output": (
        "sequence_batching { state { use_same_buffer_for_input_output: true } }",
        "sequence_batching.state[0].use_same_buffer_for_input_output",
    ),
    "sequence_batching.state.use_growable_memory": (
        "sequence_batching { state { } state { use_growable_memory: true } }",
        "sequence_batching.state[1].use_growable_memory",
    ),
    "ensemble_scheduling.step.model_namespace": (
        "ensemble_scheduling { step { model_namespace: 'n' } }",
        "ensemble_scheduling.step[0].model_namespace",
    ),
}


@pytest.mark.parametrize("field", REASONS)
def test_a_field_that_never_has_an_effect(field):
    text, path = NEVER[field]
    assert ignored_fields(as_config(text)) == [(path, REASONS[field])]


RULES = [
    ('backend: "pytorch" optimization { cuda { graphs: true } }', []),
    (
        'backend: "pytorch" optimization { cuda { graphs: true output_copy_stream: true } }',
        ["optimization.cuda.output_copy_stream"],
    ),
    (
        'backend: "pytorch" optimization { cuda { graphs: true } } instance_group [ { kind: KIND_CPU } ]',
        ["optimization.cuda"],
    ),
    (
        "optimization { input_pinned_memory { enable: false } output_pinned_memory { } }",
        ["optimization.input_pinned_memory", "optimization.output_pinned_memory"],
    ),
    ("optimization { input_pinned_memory { enable: true } }", []),
    (
        "dynamic_batching { default_priority_level: 2 priority_queue_policy { key: 1 } }",
        [
            "dynamic_batching.default_priority_level",
            "dynamic_batching.priority_queue_policy[1]",
        ],
    ),
    (
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 2 "
            "priority_queue_policy { key: 1 } }"
        ),
        [],
    ),
    (
        "dynamic_batching { max_queue_delay_microseconds: 5 }",
        ["dynamic_batching.max_queue_delay_microseconds"],
    ),
    (
        "max_batch_size: 1 dynamic_batching { max_queue_delay_microseconds: 5 }",
        ["dynamic_batching.max_queue_delay_microseconds"],
    ),
    ("max_batch_size: 2 dynamic_batching { max_queue_delay_microseconds: 5 }", []),
    (
        (
            "dynamic_batching { default_queue_policy { timeout_action: DELAY "
            "allow_timeout_override: true } }"
        ),
        [
            "dynamic_batching.default_queue_policy.timeout_action",
            "dynamic_batching.default_queue_policy.allow_timeout_override",
        ],
    ),
    (
        (
            "dynamic_batching { default_queue_policy { timeout_action: DELAY "
            "allow_timeout_override: true default_timeout_microseconds: 1 } }"
        ),
        [],
    ),
    (
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 1 "
            "priority_queue_policy { key: 2 value { allow_timeout_override: true } } }"
        ),
        ["dynamic_batching.priority_queue_policy[2].allow_timeout_override"],
    ),
    ('backend: "python" runtime: "libtriton_python.so"', []),
    ('backend: "pytorch" runtime: "libtriton_pytorch.so"', []),
    (
        'backend: "pytorch" parameters { key: "ENABLE_NVFUSER" value { string_value: "true" } }',
        ["parameters[ENABLE_NVFUSER]"],
    ),
    ('platform: "ensemble" runtime: "x"', ["runtime"]),
    (
        "sequence_batching { direct { minimum_slot_utilization: 0.5 } }",
        ["sequence_batching.direct.minimum_slot_utilization"],
    ),
    (
        "sequence_batching { direct { max_queue_delay_microseconds: 5 } }",
        ["sequence_batching.direct.max_queue_delay_microseconds"],
    ),
    (
        (
            "sequence_batching { direct { max_queue_delay_microseconds: 5 "
            "minimum_slot_utilization: 0.5 } }"
        ),
        [],
    ),
]


@pytest.mark.parametrize(("text", "expected"), RULES)
def test_a_field_that_others_make_ineffective(text, expected):
    assert paths(text) == expected


@pytest.mark.parametrize("key", PARAMETERS)
def test_a_parameter(key):
    text = f"parameters {{ key: '{key}' value {{ string_value: 'x' }} }}"
    assert ignored_fields(as_config(text)) == [(f"parameters[{key}]", PARAMETERS[key])]


def test_a_host_policy_binds_processes_alone():
    config = as_config("instance_group { } instance_group { host_policy: 'p' }")
    assert ignored_fields(config) == []
    ((path, reason),) = ignored_fields(config, policies=False)
    assert path == "instance_group[1].host_policy"
    assert "--isolation process --host-policy" in reason


def test_batch_inputs_and_outputs_depend_on_the_backend():
    text = (
        f"batch_input {{ {BATCH} }} batch_output {{ source_input: 'a' target_name: 'o' }} "
        f"batch_input {{ {BATCH} }}"
    )
    assert paths(text) == []
    assert paths('backend: "pytorch" ' + text) == []
    found = ignored_fields(as_config(PY + text))
    assert [path for path, _ in found] == ["batch_input[0]", "batch_input[1]", "batch_output[0]"]
    assert all("TritonPythonModel" in reason for _, reason in found)


def test_what_normalisation_adds_is_not_reported():
    text = PY + "dynamic_batching { } instance_group { count: 2 }"
    config = normalize(as_config(text), name="m")
    assert config.optimization.input_pinned_memory.enable
    assert ignored_fields(config) == []


def test_what_has_an_effect_is_not_reported():
    assert paths("""
        backend: "python" max_batch_size: 8 version_policy { all { } }
        input { name: "a" data_type: TYPE_FP32 dims: -1 optional: true allow_ragged_batch: true }
        output { name: "o" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 2 ] } }
        dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 100
                           preserve_ordering: true default_queue_policy { max_queue_size: 3 } }
        instance_group { count: 2 kind: KIND_CPU passive: true
                         rate_limiter { resources { name: "R" count: 1 } priority: 2 } }
        parameters { key: "anything" value { string_value: "of the model's own" } }
        model_warmup { name: "w" batch_size: 1 }
        response_cache { enable: true } model_transaction_policy { decoupled: true }
        default_model_filename: "other.py"
    """) == []  # fmt: skip


def test_every_reason_is_a_sentence_about_this_place():
    for reason in (*REASONS.values(), *PARAMETERS.values()):
        assert reason[0].islower() or reason[:2] in ("C ", "CU"), reason
        assert not reason.endswith("."), reason


def test_what_onnx_runtime_acts_on_is_not_reported_for_it():
    text = "model_operations { op_library_filename: 'a.so' } optimization { graph { level: 1 } }"
    assert paths(f"backend: 'onnxruntime' {text}") == []
    assert sorted(paths(f"backend: 'pytorch' {text}")) == ["model_operations", "optimization.graph"]


@pytest.mark.parametrize(
    ("text", "path", "where"),
    [
        ("model_repository_agents { agents { name: 'a' } }", "model_repository_agents", "agents"),
        ("response_cache { enable: true }", "response_cache", "cache"),
        (
            "instance_group { rate_limiter { priority: 2 } }",
            "instance_group[0].rate_limiter",
            "limiter",
        ),
    ],
)
def test_what_only_some_servers_act_on(text, path, where):
    config = as_config(text)
    assert ignored_fields(config) == []
    ((found, reason),) = ignored_fields(config, **{where: False})
    assert found == path
    assert reason


def test_a_cache_that_is_not_wanted_is_not_missed():
    assert ignored_fields(as_config("response_cache { }"), cache=False) == []


def test_labels_of_a_model_in_memory_are_reported():
    text = "output { name: 'a' } output { name: 'b' label_filename: 'labels.txt' }"
    assert paths(text) == []
    ((path, reason),) = ignored_fields(as_config(text), labels=False)
    assert path == "output[1].label_filename"
    assert "directory" in reason
