"""Every validation rule that configurations alone can break: Triton's text, a field and a hint."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nbtriton.common.errors import ConfigError
from nbtriton.model.config import (
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
from tests.config import ensemble_rules, rules
from tests.config.ensemble_rules import (
    CHAIN,
    DECOUPLED,
    MEMBER_RULES,
    SHAPE,
    TWO,
    A,
    B,
    ensemble,
    member,
    step,
)
from tests.config.rules import GOOD_INITIAL, PY, START, TF, control, db, sb, state, tensors

ALL = (*rules.RULES, *ensemble_rules.RULES)


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


CHECKS = {
    "P": p,
    "raw": raw,
    "I": i,
    "L": load,
    "G": g(()),
    "G 0": g((0,)),
    "G 0 1": g((0, 1)),
    "G none": g(None),
}


@pytest.mark.parametrize(
    ("rule", "check", "text", "message"),
    ALL,
    ids=[f"{rule}-{index}" for index, (rule, *_) in enumerate(ALL)],
)
def test_rule(rule: str, check: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CHECKS[check](text)
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
    assert caught.value.hint
    assert caught.value.field


def test_a_shape_that_differs_by_ones_alone_is_reshaped() -> None:
    """As that of a forest, whose output has the batch dimension alone."""
    chain = step("a", "IN=x", "OUT=h") + step("b", "IN=h", "OUT=y")
    config = normalize(parse_pbtxt(ensemble(chain) + tensors("x", "y", SHAPE)), name="e")
    wider = member("b", "IN", "OUT", shape="data_type: TYPE_FP32 dims: [ -1, 4, 1 ]")
    with pytest.raises(ConfigError, match="inconsistent shape") as caught:
        validate_ensemble(config, {"a": A, "b": wider})
    assert "reshape" in caught.value.hint


def test_every_rule_has_a_row() -> None:
    wanted = [
        1,
        2,
        3,
        4,
        5,
        6,
        10,
        11,
        12,
        13,
        14,
        15,
        20,
        21,
        22,
        23,
        24,
        25,
        26,
        27,
        28,
        29,
        30,
        33,
        34,
        40,
        41,
        42,
        43,
        44,
        45,
        46,
        60,
        61,
        62,
        63,
        64,
        67,
        68,
        69,
        70,
        71,
        72,
        73,
        74,
        75,
        76,
        77,
        78,
        79,
        80,
        81,
        84,
        85,
        86,
        *range(100, 113),
        *range(116, 124),
    ]
    covered = {rule for rule, *_ in (*ALL, *MEMBER_RULES)}
    assert {f"V{number:02d}" for number in wanted} | {"V65a", "V65b", "V65c"} == covered


@pytest.mark.parametrize(
    ("check", "text"),
    [
        ("P", PY),
        ("P", "name: 'other' platform: 'onnxruntime_onnx'"),
        ("P", db("")),
        ("P", db("preferred_batch_size: [ 1, 8 ] default_priority_level: 9")),  # no levels
        ("P", db("preserve_ordering: true default_queue_policy { timeout_action: DELAY }")),
        ("P", PY + "dynamic_batching { }"),
        ("P", sb("direct { minimum_slot_utilization: 0 }")),
        ("P", sb(control(f"{START} bool_false_true: [ false, true ]"))),
        ("P", sb(control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING"))),
        ("P", PY + "model_transaction_policy { decoupled: true }"),
        ("P", CHAIN + tensors("x", "h y")),
        ("I", ""),
        ("I", f"input {{ name: 'a' {TF} dims: 1 }} input {{ name: 'a' {TF} dims: 2 }}"),
        ("I", f"input {{ name: 'a' {TF} dims: [ 2,4,-1,6 ] reshape {{ shape: [ 8,-1,1,6 ] }} }}"),
        ("I", f"max_batch_size: 1 input {{ name: 'a' {TF} dims: 1 reshape {{ }} }}"),
        ("I", f"input {{ name: 'a' {TF} dims: [ 3, 2, 2 ] format: FORMAT_NCHW }}"),
        ("G", "instance_group { count: 0 }"),
        ("G 0", "instance_group { kind: KIND_AUTO gpus: 0 }"),
        ("G none", "instance_group { kind: KIND_MODEL }"),
        ("L", state(GOOD_INITIAL)),
        ("L", state("", count=2)),
        ("L", "model_warmup { name: 'w' inputs { key: 'i' value { dims: -1 } } }"),
    ],
)
def test_good_configurations_pass(check: str, text: str) -> None:
    CHECKS[check](text)


@pytest.mark.parametrize(
    ("rule", "text", "members", "hint"),
    [
        ("V112", CHAIN, [member("bb", "", ""), A], "did you mean 'bb'?"),
        ("V112", CHAIN, [member("aa", "", "")], "did you mean 'aa'?; also missing: b"),
        ("V118", ensemble(step("a", "INN=x", "OUT=y")), [A], "did you mean 'IN'?"),
        ("V120", ensemble(step("a", "IN=x", "OUTS=y")), [A], "did you mean 'OUT'?"),
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
