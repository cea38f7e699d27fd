"""INSTANCE_ISOLATION: where the instances of a model live."""

import pytest

from nbtriton.common.errors import ConfigError, InvalidArgumentError
from nbtriton.model.config import apply_options, isolation_of, parse_pbtxt, to_dict


def config(value):
    return parse_pbtxt(
        f'name: "m" parameters {{ key: "INSTANCE_ISOLATION" value {{ string_value: "{value}" }} }}'
    )


@pytest.mark.parametrize("value", ["thread", "process", "auto", "ray"])
def test_the_parameter_says_where_instances_live(value):
    assert isolation_of(config(value)) == value
    assert isolation_of(apply_options(parse_pbtxt('name: "m"'), isolation=value)) == value


def test_without_the_parameter_the_configuration_does_not_say():
    assert isolation_of(parse_pbtxt('name: "m"')) is None
    plain = apply_options(parse_pbtxt('name: "m"'), max_batch_size=4)
    assert "parameters" not in to_dict(plain)


@pytest.mark.parametrize(
    ("value", "meant"), [("proces", "process"), ("threads", "thread"), ("Auto", "auto")]
)
def test_another_value_is_refused_with_the_nearest_one(value, meant):
    with pytest.raises(ConfigError) as caught:
        isolation_of(config(value))
    assert caught.value.message == (
        f"Incorrect value for INSTANCE_ISOLATION of model 'm': '{value}'"
    )
    assert caught.value.hint == f"thread, process, auto or ray; did you mean '{meant}'?"
    assert caught.value.field == "parameters.INSTANCE_ISOLATION"
    with pytest.raises(InvalidArgumentError, match=f"unknown isolation '{value}'") as option:
        apply_options(parse_pbtxt('name: "m"'), isolation=value)
    assert option.value.hint == f"did you mean '{meant}'?"
