"""The validation rules of ensembles, as tables: by themselves, and with their composing models.

Each row has a rule's number, the configuration that breaks it and Triton's exact text; the ensemble
is called ``e``. `MEMBER_RULES` has the composing models as well.
"""

from __future__ import annotations

from nbtriton.model.config import ModelConfig, parse_pbtxt
from tests.config.rules import PY, tensors


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


RULES: list[tuple[str, str, str, str]] = [
    (
        "V100",
        "P",
        "name: 'e' platform: 'ensemble'",
        "ensemble scheduling must be set for ensemble e whose platform is ensemble",
    ),
    (
        "V101",
        "P",
        PY + "ensemble_scheduling { }",
        "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble",
    ),
    (
        "V102",
        "P",
        ensemble("") + "instance_group { }",
        "instance group should not be specified for ensemble 'e'",
    ),
    (
        "V103",
        "P",
        ensemble("") + "optimization { }",
        "optimization should not be specified for ensemble 'e'",
    ),
    (
        "V104",
        "P",
        ensemble("") + "model_warmup { }",
        "model_warmup can not be specified for ensemble 'e'",
    ),
    ("V105", "P", ensemble(""), "must specify 'step' for ensemble 'e'"),
    (
        "V106",
        "P",
        ensemble(step("a", "IN=x", "OUT=y") + step("", "IN=y", "OUT=z")),
        "must specify 'model_name' in step 1 of ensemble 'e'",
    ),
    (
        "V106",
        "P",
        ensemble(step("a", "", "OUT=y")),
        "must specify 'input_map' in step 0 of ensemble 'e'",
    ),
    (
        "V106",
        "P",
        ensemble(step("a", "IN=x", "")),
        "must specify 'output_map' in step 0 of ensemble 'e'",
    ),
    (
        "V107",
        "P",
        ensemble(step("a", "IN=x", "OUT=y") + step("a", "IN=x", "OUT=y")) + tensors("x", "y"),
        "ensemble tensor 'y' can appear in an output map only once for ensemble 'e' step 1",
    ),
    (
        "V108",
        "P",
        ensemble(step("a", "IN=x", "OUT=y")) + tensors("x z", "y"),
        "ensemble input 'z' for ensemble e' is not used",
    ),
    (
        "V109",
        "P",
        ensemble(step("a", "IN=x", "OUT=y")) + tensors("x", "y z"),
        "ensemble output 'z' for ensemble e' is not used",
    ),
    (
        "V110",
        "P",
        ensemble(step("a", "IN=x", "OUT=y")) + tensors("", "y"),
        (
            "output 'y' for ensemble 'e' is not written: at least one of its depending tensors, 'x', "
            "is not connected"
        ),
    ),
    (
        "V110",
        "P",
        ensemble(step("a", "IN=x IN2=y", "OUT=y")) + tensors("x", "y"),
        "output 'y' for ensemble 'e' is not written",
    ),
    (
        "V110",
        "P",
        ensemble(step("a", "IN=z", "OUT=y") + step("b", "IN=y", "OUT=z")) + tensors("", "y"),
        "output 'y' for ensemble 'e' is not written",
    ),
    (
        "V111",
        "P",
        ensemble(step("a", "IN=x", "OUT=y OUT2=z")) + tensors("x", "y"),
        "ensemble tensor 'z' is unused in ensemble 'e'",
    ),
    (
        "V111",
        "P",
        ensemble(step("a", "IN=x", "OUT=y") + step("b", "IN=u", "OUT=v")) + tensors("x", "y"),
        "ensemble tensor 'u' is unused in ensemble 'e'",
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
        "V112",
        CHAIN + tensors("x", "y", SHAPE),
        [],
        "ensemble e contains models that are not available or ambiguous: a",
    ),
    (
        "V116",
        ensemble(step("n", "x=x", "y=y")) + tensors("x", "y", SHAPE),
        [NESTED],
        "circular dependency between ensembles: e -> ... -> n -> e",
    ),
    (
        "V116",
        ensemble(step("e", "x=x", "y=y")) + tensors("x", "y", SHAPE),
        [],
        "circular dependency between ensembles: e -> ... -> e -> e",
    ),
    (
        "V117",
        CHAIN + tensors("x", "y") + "max_batch_size: 8",
        [A, member("b", "IN", "OUT", "max_batch_size: 4", "data_type: TYPE_FP32 dims: 4")],
        (
            "ensemble e allows maximum batch size 8, but it contains model b which only allows "
            "maximum batch size to be 4"
        ),
    ),
    (
        "V118",
        ensemble(step("a", "IM=x", "OUT=y")) + tensors("x", "y", SHAPE),
        [A],
        "in ensemble e, ensemble tensor x is mapping to non-existing input IM in model a",
    ),
    (
        "V119",
        ensemble(step("two", "IN=x", "OUT=y")) + tensors("x", "y", SHAPE),
        [TWO],
        "in ensemble e, input IN2 in model two is not mapped to any ensemble tensors",
    ),
    (
        "V120",
        ensemble(step("a", "IN=x", "OUT=y OUTS=z")) + tensors("x", "y z", SHAPE),
        [A],
        "in ensemble e, ensemble tensor z is mapped from non-existing output OUTS in model a",
    ),
    (
        "V121",
        CHAIN + tensors("x", "y", SHAPE),
        [A, member("b", "IN", "OUT", shape="data_type: TYPE_STRING dims: [ -1, 4 ]")],
        (
            "in ensemble e, ensemble tensor h: inconsistent data type: TYPE_FP32 is inferred from "
            "model a while TYPE_STRING is inferred from model b"
        ),
    ),
    (
        "V122",
        CHAIN + tensors("x", "y", SHAPE),
        [A, member("b", "IN", "OUT", shape="data_type: TYPE_FP32 dims: [ -1, 5 ]")],
        (
            "in ensemble e, ensemble tensor h: inconsistent shape: [-1,4] is inferred from model a "
            "while [-1,5] is inferred from model b"
        ),
    ),
    (
        "V122",
        ensemble(step("a", "IN=x", "OUT=y"))
        + tensors("x", "y", "data_type: TYPE_FP32 dims: 5")
        + "max_batch_size: 8",
        [A],
        (
            "in ensemble e, ensemble tensor x: inconsistent shape: [-1,5] is inferred from model e "
            "while [-1,4] is inferred from model a"
        ),
    ),
    (
        "V123",
        ensemble(
            step("d", "IN=x", "OUT=p")
            + step("d2", "IN=x", "OUT=q")
            + step("two", "IN=p IN2=q", "OUT=y")
        )
        + tensors("x", "y", SHAPE),
        [DECOUPLED, DECOUPLED2, TWO],
        (
            "in ensemble e, step of model 'e' receives inputs originated from different decoupled "
            "models"
        ),
    ),
]
