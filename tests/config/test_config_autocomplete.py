"""The object that `auto_complete_config` gets: Triton's rules, Triton's texts (AC3, AC4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nbtriton.backends.auto_complete import AutoCompleteConfig, completing
from nbtriton.common.errors import ConfigError, InternalError
from nbtriton.model.config import (
    ModelConfig,
    complete_from,
    normalize,
    parse_pbtxt,
    to_dict,
    to_reported_dict,
)

IN = {"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}
TENSOR = "{ name: 'IN' data_type: TYPE_INT32 dims: [ 5 ] }"
AT = "in auto-complete-config function for model 'm'"


def auto(text: str = "") -> AutoCompleteConfig:
    config = normalize(parse_pbtxt("backend: 'python' " + text), name="m")
    return completing(to_reported_dict(config))


def test_AC3_as_dict_is_the_live_normalised_configuration() -> None:
    config = auto("max_batch_size: 2")
    found = config.as_dict()
    assert found["input"] == found["output"] == []
    assert found["parameters"] == {}
    assert found["version_policy"] == {"latest": {"num_versions": 1}}
    assert "dynamic_batching" not in found
    found["max_batch_size"] = 7
    assert config.as_dict()["max_batch_size"] == 7


def test_AC7_set_max_batch_size_raises_a_smaller_one() -> None:
    config = auto("max_batch_size: 2")
    config.set_max_batch_size(4)
    assert config.as_dict()["max_batch_size"] == 4


def test_AC8_set_dynamic_batching_keeps_what_is_there() -> None:
    config = auto("max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 9 }")
    config.set_dynamic_batching()
    assert config.as_dict()["dynamic_batching"]["max_queue_delay_microseconds"] == 9


def test_AC9_add_tensors() -> None:
    config = auto()
    config.add_input({**IN, "optional": True})
    config.add_output({**IN, "name": "OUT"})
    done = complete_from(parse_pbtxt("name: 'm'"), config.as_dict())
    assert to_dict(done) == {
        "name": "m",
        "input": [{**IN, "optional": True}],
        "output": [{**IN, "name": "OUT"}],
    }


def test_PB51_unset_fields_are_filled() -> None:
    config = auto("input { name: 'IN' } input { name: 'MORE' } output { name: 'IN' dims: 4 }")
    config.add_input(IN)
    config.add_output(IN)
    done = complete_from(ModelConfig(), config.as_dict())
    assert [to_dict(done)["input"][0], to_dict(done)["output"][0]] == [IN, IN]
    assert [tensor.name for tensor in done.input] == ["IN", "MORE"]


def test_AC10_set_model_transaction_policy() -> None:
    config = auto()
    config.set_model_transaction_policy({"decoupled": True})
    config.set_model_transaction_policy({"decoupled": True})
    config.set_model_transaction_policy({})
    assert config.as_dict()["model_transaction_policy"] == {"decoupled": True}


@pytest.mark.parametrize(
    ("text", "call", "message"),
    [
        (
            "max_batch_size: 8",
            lambda config: config.set_max_batch_size(4),
            (
                "configuration specified max_batch_size 8, but in auto-complete-config function for "
                "model 'm' specified max_batch_size 4"
            ),
        ),
        (
            "sequence_batching { }",
            lambda config: config.set_dynamic_batching(),
            (
                "Configuration specified scheduling_choice as 'sequence_batching', but "
                "auto-complete-config function for model 'm' tries to set scheduling_choice as "
                "'dynamic_batching'"
            ),
        ),
        (
            "",
            lambda config: config.add_input({**IN, "shape": [1]}),
            (
                f"input 'IN' {AT} contains property other than 'name', 'data_type', 'dims' and "
                "'optional'."
            ),
        ),
        (
            "",
            lambda config: config.add_output({**IN, "optional": True}),
            f"output 'IN' {AT} contains property other than 'name', 'data_type' and 'dims'.",
        ),
        ("", lambda config: config.add_input({}), f"input {AT} is missing 'name' property."),
        (
            "",
            lambda config: config.add_input({"name": "IN", "dims": [1]}),
            f"input 'IN' {AT} is missing 'data_type' property.",
        ),
        (
            "",
            lambda config: config.add_output({"name": "IN", "data_type": "TYPE_FP32"}),
            f"output 'IN' {AT} is missing 'dims' property.",
        ),
        (
            f"input {TENSOR}",
            lambda config: config.add_input(IN),
            (
                "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'IN', "
                "model provides TYPE_FP32"
            ),
        ),
        (
            f"output {TENSOR}",
            lambda config: config.add_output(IN),
            (
                "unable to load model 'm', configuration expects datatype TYPE_INT32 for output 'IN', "
                "model provides TYPE_FP32"
            ),
        ),
        (
            f"input {TENSOR}",
            lambda config: config.add_input({**IN, "data_type": "TYPE_INT32"}),
            (
                "model 'm', tensor 'IN': the model expects dims [4] but the model configuration "
                "specifies dims [5]"
            ),
        ),
        (
            f"input {TENSOR}",
            lambda config: config.add_input(
                {"name": "IN", "data_type": "TYPE_INT32", "dims": [5], "optional": True}
            ),
            (
                "model 'm', tensor 'IN': the model expects optional True but the model configuration "
                "specifies optional False"
            ),
        ),
        (
            "",
            lambda config: config.set_model_transaction_policy({"decouple": True}),
            (
                "model transaction property in auto-complete-config function for model 'm' contains "
                "property other than 'decoupled'."
            ),
        ),
        (
            "model_transaction_policy { }",
            lambda config: config.set_model_transaction_policy({"decoupled": True}),
            (
                "trying to change decoupled property in auto-complete-config for model 'm', which is "
                "already set to 'False'."
            ),
        ),
    ],
)
def test_AC7_AC8_AC9_AC10_conflicts(
    text: str, call: Callable[[AutoCompleteConfig], None], message: str
) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        call(auto(text))
    assert str(caught.value) == message


def completed(before: str, **changes: Any) -> ModelConfig:
    config = normalize(parse_pbtxt(before), name="m")
    found = to_reported_dict(config)
    for name, value in changes.items():
        if value is None:
            found.pop(name)
        else:
            found[name] = value
    return complete_from(config, found)


def test_AC4_only_some_fields_are_taken_over() -> None:
    done = completed(
        "max_batch_size: 2",
        max_batch_size=8,
        parameters={"a": {"string_value": "x"}},
        instance_group=[{"count": 5}],
        backend="other",
        model_transaction_policy={"decoupled": True},
    )
    assert done.max_batch_size == 8
    assert done.model_transaction_policy.decoupled
    assert (done.backend, len(done.instance_group), len(done.parameters)) == ("", 0, 0)


def test_AC4_scheduling_choice_only_if_none_was_configured() -> None:
    assert completed("", dynamic_batching={}).HasField("dynamic_batching")
    kept = completed(
        "dynamic_batching { max_queue_delay_microseconds: 5 }",
        dynamic_batching={"max_queue_delay_microseconds": 100},
    )
    assert kept.dynamic_batching.max_queue_delay_microseconds == 5
    with pytest.raises(InternalError) as caught:
        completed("dynamic_batching { }", dynamic_batching=None)
    assert caught.value.message == (
        "Cannot update scheduling choice from 11 to 11 when auto-completing."
    )


def test_AC4_nonsense_is_an_error() -> None:
    with pytest.raises(ConfigError, match="max_batch"):
        completed("", max_batch=3)
