"""Triton's defaults (N1 to N13), the instances that follow, and options laid over them."""

from __future__ import annotations

from typing import Any

import pytest

from nbtriton.common.errors import ConfigError
from nbtriton.model.config import (
    ModelConfig,
    apply_options,
    is_ensemble,
    normalize,
    normalize_instance_groups,
    parse_pbtxt,
    plan_instances,
    scheduling_choice,
    to_dict,
)


def normal(text: str, **known: Any) -> ModelConfig:
    return normalize(parse_pbtxt(text), name="m", **known)


def groups(text: str, gpus: tuple[int, ...] = (), **known: str) -> list[dict[str, Any]]:
    config = normalize_instance_groups(parse_pbtxt("name: 'm' " + text), gpus=gpus, **known)
    return list(to_dict(config).get("instance_group", []))


def test_normalize_does_not_change_its_argument() -> None:
    config = parse_pbtxt("dynamic_batching { }")
    normalize(config, name="m")
    assert config == parse_pbtxt("dynamic_batching { }")


def test_N1_name() -> None:
    assert normal("").name == "m"
    assert normal("name: 'n'").name == "n"


@pytest.mark.parametrize(
    ("text", "files", "backend", "platform", "filename"),
    [
        ("", ["model.py"], "python", "", "model.py"),
        ("", ["model.pt"], "pytorch", "pytorch_libtorch", "model.pt"),
        ("", ["model.pt", "model.py"], "pytorch", "pytorch_libtorch", "model.pt"),
        ("", ["model.onnx/"], "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        ("", ["model.plan", "model.onnx"], "tensorrt", "tensorrt_plan", "model.plan"),
        ("", ["model.xml"], "openvino", "", "model.xml"),
        ("", ["model.graphdef"], "tensorflow", "tensorflow_graphdef", "model.graphdef"),
        ("", ["model.savedmodel/"], "tensorflow", "tensorflow_savedmodel", "model.savedmodel"),
        ("default_model_filename: 'model.py'", [], "python", "", "model.py"),
        ("default_model_filename: 'my.py'", ["model.py"], "", "", "my.py"),
        ("backend: 'python'", [], "python", "", "model.py"),
        ("backend: 'python' default_model_filename: 'x.py'", [], "python", "", "x.py"),
        ("backend: 'python'", None, "python", "", "model.py"),
        ("platform: 'pytorch_libtorch'", None, "pytorch", "pytorch_libtorch", "model.pt"),
        ("backend: 'onnxruntime'", None, "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        ("platform: 'ensemble'", [], "", "ensemble", ""),
        ("", None, "", "", ""),
    ],
)
def test_N2_N3_backend(
    text: str, files: list[str] | None, backend: str, platform: str, filename: str
) -> None:
    config = normal(text, filenames=files)
    assert (config.backend, config.platform, config.default_model_filename) == (
        backend,
        platform,
        filename,
    )


def test_N4_backend_from_the_name() -> None:
    config = normalize(ModelConfig(), name="model.mine", filenames=[])
    assert (config.backend, config.default_model_filename) == ("mine", "model.mine")
    with pytest.raises(ConfigError) as caught:
        normal("", filenames=["weights.bin"])
    assert caught.value.message == (
        "Invalid model name: Could not determine backend for model 'm' with no backend in model "
        "configuration. Expected model name of the form 'model.<backend_name>'."
    )


def test_N5_version_policy() -> None:
    assert normal("").version_policy.latest.num_versions == 1
    assert to_dict(normal("version_policy { all { } }"))["version_policy"] == {"all": {}}


@pytest.mark.parametrize(
    ("text", "preferred"),
    [
        ("max_batch_size: 8 dynamic_batching { }", [8]),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 }", [4]),
        ("dynamic_batching { }", []),
        ("max_batch_size: 8", []),
    ],
)
def test_N6_preferred_sizes(text: str, preferred: list[int]) -> None:
    config = normal(text)
    assert list(config.dynamic_batching.preferred_batch_size) == preferred
    assert scheduling_choice(config) == ("dynamic_batching" if "dynamic" in text else "")


def test_N7_sequence_batching() -> None:
    batching = normal("max_batch_size: 4 sequence_batching { oldest { } }").sequence_batching
    assert batching.max_sequence_idle_microseconds == 1_000_000
    assert list(batching.oldest.preferred_batch_size) == [4]
    kept = normal("sequence_batching { max_sequence_idle_microseconds: 5 }").sequence_batching
    assert kept.max_sequence_idle_microseconds == 5
    assert kept.WhichOneof("strategy_choice") is None


def test_N8_pinned_memory() -> None:
    both = {"input_pinned_memory": {"enable": True}, "output_pinned_memory": {"enable": True}}
    assert to_dict(normal(""))["optimization"] == both
    off = to_dict(normal("optimization { input_pinned_memory { enable: false } }"))
    assert off["optimization"] == {**both, "input_pinned_memory": {}}
    ensemble = normal("platform: 'ensemble' ensemble_scheduling { }")
    assert not ensemble.HasField("optimization")


def test_N9_normalising_again_keeps_the_preferred_sizes() -> None:
    config = normal("max_batch_size: 2 dynamic_batching { }")
    config.max_batch_size = 4
    assert list(normalize(config, name="m").dynamic_batching.preferred_batch_size) == [2]


def test_N10_default_group() -> None:
    assert groups("") == [{"name": "m", "kind": "KIND_CPU", "count": 1}]
    gpu = [{"name": "m", "kind": "KIND_GPU", "count": 1, "gpus": [0, 1]}]
    assert groups("", gpus=(1, 0), default_kind="KIND_GPU") == gpu
    assert groups("", default_kind="KIND_GPU") == [{"name": "m", "kind": "KIND_CPU", "count": 1}]
    assert groups("", gpus=(0,), default_kind="KIND_AUTO")[0]["kind"] == "KIND_GPU"


@pytest.mark.parametrize(
    ("text", "gpus", "kind"),
    [
        ("instance_group { }", (), "KIND_CPU"),
        ("instance_group { }", (0,), "KIND_GPU"),
        ("instance_group { gpus: 0 }", (0, 1), "KIND_GPU"),
        ("instance_group { gpus: [ 0, 2 ] }", (0, 1), "KIND_CPU"),
        ("instance_group { gpus: 0 }", (), "KIND_CPU"),
        ("instance_group { kind: KIND_CPU }", (0,), "KIND_CPU"),
        ("instance_group { kind: KIND_MODEL }", (0,), "KIND_MODEL"),
    ],
)
def test_N11_auto_kind(text: str, gpus: tuple[int, ...], kind: str) -> None:
    assert groups(text, gpus=gpus)[0]["kind"] == kind


def test_N11_names_and_counts() -> None:
    found = groups(
        "instance_group { count: 0 } instance_group { name: 'x' count: -3 } "
        "instance_group { count: 3 }"
    )
    assert [(one["name"], one["count"]) for one in found] == [("m_0", 1), ("x", 1), ("m_2", 3)]
    assert groups("backend: 'onnxruntime' instance_group { }")[0]["count"] == 2
    assert groups("backend: 'onnxruntime'")[0] == {"name": "m", "kind": "KIND_CPU", "count": 2}
    assert groups("backend: 'onnxruntime' instance_group { }", gpus=(0,))[0]["count"] == 1


def test_N12_instances_per_gpu() -> None:
    config = parse_pbtxt("name: 'm' instance_group { kind: KIND_GPU count: 2 }")
    plans = plan_instances(config, gpus=[0, 1])
    assert [(plan.name, plan.device_id, plan.host_policy) for plan in plans] == [
        ("m_0_0", 0, "gpu_0"),
        ("m_0_0", 1, "gpu_1"),
        ("m_0_1", 0, "gpu_0"),
        ("m_0_1", 1, "gpu_1"),
    ]
    assert {plan.kind for plan in plans} == {"KIND_GPU"}


def test_N12_P8_instances_elsewhere() -> None:
    config = parse_pbtxt(
        "name: 'm' instance_group [ { kind: KIND_CPU passive: true }, "
        "{ kind: KIND_MODEL }, { kind: KIND_CPU host_policy: 'numa' } ]"
    )
    plans = plan_instances(config, gpus=[])
    assert [(plan.name, plan.kind, plan.device_id, plan.host_policy) for plan in plans] == [
        ("m_0_0", "KIND_CPU", 0, "cpu"),
        ("m_1_0", "KIND_MODEL", 0, "model"),
        ("m_2_0", "KIND_CPU", 0, "numa"),
    ]
    assert [plan.passive for plan in plans] == [True, False, False]


def test_N10_P8_name_of_the_only_instance() -> None:
    (plan,) = plan_instances(ModelConfig(name="a1"), gpus=[])
    assert (plan.name, plan.kind) == ("a1_0", "KIND_CPU")


def test_N13_ensembles_have_no_instances() -> None:
    config = parse_pbtxt("name: 'e' platform: 'ensemble' ensemble_scheduling { }")
    assert is_ensemble(config)
    assert not is_ensemble(ModelConfig(name="m"))
    assert plan_instances(config, gpus=[0]) == ()


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "options", "after"),
    [
        ("max_batch_size: 4", {}, "max_batch_size: 4"),
        ("max_batch_size: 4", {"max_batch_size": 8}, "max_batch_size: 8"),
        ("max_batch_size: 4", {"max_batch_size": 0}, ""),
        ("", {"instances": 2}, "instance_group { count: 2 }"),
        ("", {"kind": "gpu"}, "instance_group { kind: KIND_GPU }"),
        ("", {"kind": "KIND_MODEL"}, "instance_group { kind: KIND_MODEL }"),
        ("", {"gpus": [0, 1]}, "instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }"),
        ("", {"gpus": [0], "kind": "auto"}, "instance_group { gpus: 0 }"),
        (
            "instance_group [ { name: 'a' gpus: 3 }, { name: 'b' } ]",
            {"instances": 2, "kind": "cpu", "gpus": []},
            (
                "instance_group [ { name: 'a' kind: KIND_CPU count: 2 }, "
                "{ name: 'b' kind: KIND_CPU count: 2 } ]"
            ),
        ),
        ("", {"dynamic_batching": True}, "dynamic_batching { }"),
        ("dynamic_batching { }", {"dynamic_batching": False}, ""),
        ("sequence_batching { }", {"dynamic_batching": False}, "sequence_batching { }"),
        (
            "dynamic_batching { preserve_ordering: true preferred_batch_size: 3 }",
            {"max_queue_delay_us": 100, "preferred": [4, 8]},
            (
                "dynamic_batching { preserve_ordering: true preferred_batch_size: [ 4, 8 ] "
                "max_queue_delay_microseconds: 100 }"
            ),
        ),
        ("", {"max_queue_delay_us": 0}, "dynamic_batching { }"),
    ],
)
def test_options(before: str, options: dict[str, Any], after: str) -> None:
    config = parse_pbtxt(before)
    assert apply_options(config, **options) == parse_pbtxt(after)
    assert config == parse_pbtxt(before)


@pytest.mark.parametrize(
    ("before", "options", "field"),
    [
        ("", {"max_batch_size": -1}, "max_batch_size"),
        ("", {"max_batch_size": 2**40}, "max_batch_size"),
        ("", {"instances": 0}, "instance_group.count"),
        ("", {"kind": "gpus"}, "instance_group.kind"),
        ("", {"gpus": [-1]}, "instance_group.gpus"),
        ("", {"preferred": [0]}, "dynamic_batching.preferred_batch_size"),
        ("", {"max_queue_delay_us": -5}, "dynamic_batching.max_queue_delay_microseconds"),
        ("", {"dynamic_batching": False, "preferred": [4]}, "dynamic_batching"),
        ("sequence_batching { }", {"preferred": [4]}, "dynamic_batching"),
    ],
)
def test_invalid_options(before: str, options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_options(parse_pbtxt(before), **options)
    assert caught.value.field == field
