"""Annotations and dataflow lines: both end as the ModelConfig that pbtxt would give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtriton.common.errors import ConfigError
from nbtriton.model.config import (
    ModelConfig,
    TensorSpec,
    input_specs,
    normalize,
    output_specs,
    parse_annotation,
    parse_pbtxt,
    to_dict,
    validate,
    validate_ensemble,
    validate_io,
)
from nbtriton.model.config.dataflow import called_models, parse_dataflow
from nbtriton.model.config.signature import add_input, add_output

# --- annotations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "datatype", "dims"),
    [
        ("FP32[4]", "FP32", (4,)),
        ("FP32[-1,3]", "FP32", (-1, 3)),
        (" FP32 [ -1 , 3 ] ", "FP32", (-1, 3)),
        ("BYTES[1]", "BYTES", (1,)),
        ("BYTES", "BYTES", (1,)),
        ("TYPE_STRING[2]", "BYTES", (2,)),
        ("STRING[1]", "BYTES", (1,)),
        ("TYPE_BF16[2]", "BF16", (2,)),
    ],
)
def test_annotations(annotation: str, datatype: str, dims: tuple[int, ...]) -> None:
    assert parse_annotation(annotation) == TensorSpec("", datatype, dims)


@pytest.mark.parametrize(
    ("annotation", "hint"),
    [
        ("FP31[4]", "did you mean 'FP32'?"),
        ("fp32[4]", "did you mean 'FP32'?"),
        ("STR[4]", "did you mean 'BYTES'?"),
        ("FLOAT[4]", "did you mean 'FP32'?"),
        ("float64[4]", "did you mean 'FP64'?"),
        ("LONG[4]", "did you mean 'INT64'?"),
        ("INVALID[4]", "did you mean 'INT8'?"),
        ("FP32[0]", "one value per request is [1], a sequence of any length is [-1]"),
        ("FP32[-2]", "one value per request is [1], a sequence of any length is [-1]"),
        ("FP32[]", "one value per request is [1], a sequence of any length is [-1]"),
        ("FP32[4", "write a data type and dims without the batch dimension, such as 'FP32[4]'"),
        ("", "write a data type and dims without the batch dimension, such as 'FP32[4]'"),
        (float, "write a data type and dims without the batch dimension, such as 'FP32[4]'"),
    ],
)
def test_invalid_annotations(annotation: Any, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_annotation(annotation)
    if "INVALID" not in str(annotation):
        assert caught.value.hint == hint


@pytest.mark.medium
@given(st.text())
def test_any_annotation_is_read_or_refused(text: str) -> None:
    try:
        spec = parse_annotation(text)
    except ConfigError:
        return
    assert spec.dims


def test_specs_are_written_as_they_are_read() -> None:
    inputs = {
        "A": TensorSpec("A", "FP32", (4,)),
        "B": TensorSpec("B", "FP16", (2, -1), optional=True, allow_ragged_batch=True, reshape=(2,)),
    }
    outputs = {"OUT": TensorSpec("OUT", "BYTES", (1,), label_filename="labels.txt")}
    config = ModelConfig(name="m")
    for spec in inputs.values():
        add_input(config, spec)
    for spec in outputs.values():
        add_output(config, spec)
    assert list(input_specs(config).items()) == list(inputs.items())
    assert output_specs(config) == outputs


def test_F6_the_first_of_a_name_counts() -> None:
    config = parse_pbtxt("input { name: 'A' dims: 1 } input { name: 'A' dims: 2 }")
    assert input_specs(config)["A"].dims == (1,)


def test_a_data_type_that_triton_does_not_know_is_its_number() -> None:
    assert input_specs(parse_pbtxt("input { name: 'A' data_type: 99 }"))["A"].datatype == "99"


# --- dataflow lines ------------------------------------------------------------------------------


def model(name: str, inputs: dict[str, str], outputs: dict[str, str], size: int = 8) -> ModelConfig:
    config = ModelConfig(name=name, max_batch_size=size)
    for tensor, annotation in inputs.items():
        add_input(config, replace(parse_annotation(annotation), name=tensor))
    for tensor, annotation in outputs.items():
        add_output(config, replace(parse_annotation(annotation), name=tensor))
    return config


MODELS = {
    one.name: one
    for one in (
        model("tokenizer", {"TEXT": "BYTES[1]"}, {"IDS": "INT64[-1]", "MASK": "INT64[-1]"}),
        model("bert", {"INPUT__0": "INT64[128]", "INPUT__1": "INT64[-1]"}, {"OUT": "FP32[2]"}, 4),
        model("join", {"A": "FP32[2]", "B": "FP32[2]"}, {"OUT": "FP32[2]"}, 16),
        model("my-model", {"IN:0": "FP32[2]"}, {"OUT": "FP32[2]"}),
        model("plain", {"IN": "FP32[-1,2]"}, {"OUT": "FP32[-1,2]"}, 0),
    )
}
MODELS["join"].input[1].optional = True


def dataflow(text: str, outputs: tuple[str, ...] = ()) -> ModelConfig:
    return parse_dataflow(text, name="e", models=MODELS, outputs=outputs)


def test_lines_and_pbtxt_give_the_same_configuration() -> None:
    config = dataflow(
        """
        # two models in a row
        ids, mask = tokenizer(TEXT=excerpt)   # outputs in the order of the configuration
        SCORE = bert(INPUT__0=ids, INPUT__1=mask)
        """.replace("\n        ", "\n")
    )
    assert config == parse_pbtxt(
        """
        name: "e" platform: "ensemble" max_batch_size: 4
        input { name: "excerpt" data_type: TYPE_STRING dims: 1 }
        output { name: "SCORE" data_type: TYPE_FP32 dims: 2 }
        ensemble_scheduling {
          step {
            model_name: "tokenizer" model_version: -1
            input_map { key: "TEXT" value: "excerpt" }
            output_map { key: "IDS" value: "ids" }
            output_map { key: "MASK" value: "mask" }
          }
          step {
            model_name: "bert" model_version: -1
            input_map { key: "INPUT__0" value: "ids" }
            input_map { key: "INPUT__1" value: "mask" }
            output_map { key: "OUT" value: "SCORE" }
          }
        }
        """
    )
    done = normalize(config, name="e")
    validate(done)
    validate_io(done)
    validate_ensemble(done, MODELS)


def test_underscore_leaves_an_output_out_and_output_names_are_added() -> None:
    config = dataflow("ids, _ = tokenizer(TEXT=t)\nS = bert(INPUT__0=ids, INPUT__1=ids)", ("ids",))
    assert list(output_specs(config)) == ["ids", "S"]
    assert dict(config.ensemble_scheduling.step[0].output_map) == {"IDS": "ids"}
    validate(normalize(config, name="e"))


def test_an_indented_cell_is_read() -> None:
    assert dataflow("    S = join(A=x)\n    T = join(A=y)\n") == dataflow(
        "S = join(A=x)\nT = join(A=y)"
    )


def test_lines_may_stand_in_any_order() -> None:
    config = dataflow("S = bert(INPUT__0=ids, INPUT__1=mask)\nids, mask = tokenizer(TEXT=t)")
    assert list(input_specs(config)) == ["t"]
    validate(normalize(config, name="e"))


def test_an_input_takes_the_narrowest_shape_and_is_optional_if_all_can_do_without() -> None:
    config = dataflow("S = bert(INPUT__0=x, INPUT__1=x)\nT = join(A=y, B=z)")
    assert input_specs(config) == {
        "x": TensorSpec("x", "INT64", (128,)),
        "y": TensorSpec("y", "FP32", (2,)),
        "z": TensorSpec("z", "FP32", (2,), optional=True),
    }
    assert not input_specs(dataflow("T = join(A=z, B=z)"))["z"].optional


def test_models_that_do_not_batch() -> None:
    inside = dataflow("h = plain(IN=x)\nS = join(A=h)")
    assert (inside.max_batch_size, input_specs(inside)["x"].dims) == (16, (2,))
    validate_ensemble(normalize(inside, name="e"), MODELS)
    alone = dataflow("h = plain(IN=x)")
    assert (alone.max_batch_size, output_specs(alone)["h"].dims) == (0, (-1, 2))
    validate_ensemble(normalize(alone, name="e"), MODELS)


def test_names_that_are_not_python_names() -> None:
    config = dataflow('S = "my-model"(**{"IN:0": x})')
    (step,) = config.ensemble_scheduling.step
    assert (step.model_name, dict(step.input_map)) == ("my-model", {"IN:0": "x"})


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        (
            "\nids = tokenizer(TEXT=t)",
            2,
            "model tokenizer has 2 outputs, but the line names 1 output",
            "tokenizer gives, in this order: IDS, MASK; use _ for one that is not needed",
        ),
        (
            "a, b = join(A=t)",
            1,
            "model join has 1 output, but the line names 2 outputs",
            "join gives, in this order: OUT; use _ for one that is not needed",
        ),
        (
            "ids, mask = tokeniser(TEXT=t)",
            1,
            "ensemble e contains models that are not available or ambiguous: tokeniser",
            "did you mean 'tokenizer'?",
        ),
        (
            "ids, mask = tokenizer(TEXTS=t)",
            1,
            (
                "in ensemble e, ensemble tensor t is mapping to non-existing input TEXTS in model "
                "tokenizer"
            ),
            "did you mean 'TEXT'?",
        ),
        (
            "S = bert(\n  INPUT__0=t)",
            1,
            "in ensemble e, input INPUT__1 in model bert is not mapped to any ensemble tensors",
            "add INPUT__1=… to the call",
        ),
        (
            "S = join(A=x)\nS = join(A=y)",
            2,
            "ensemble tensor 'S' can appear in an output map only once for ensemble 'e' step 1",
            "line 1 assigns it already: use another name",
        ),
        (
            "i, i = tokenizer(TEXT=t)",
            1,
            "ensemble tensor 'i' can appear in an output map only once for ensemble 'e' step 0",
            "line 1 assigns it already: use another name",
        ),
        (
            "tokenizer(TEXT=t)",
            1,
            "the outputs of model tokenizer need names",
            "tokenizer gives: IDS, MASK",
        ),
        ("_ = join(A=t)", 1, "no output of model join is used", "give one of them a name"),
        (
            "S = join(x)",
            1,
            "inputs of model join are given by name",
            "join(A=…, B=…)",
        ),
        (
            "S = join(A=x + 1)",
            1,
            "input A of model join is 'x + 1', which is not a tensor's name",
            "a line passes tensors on; what computes belongs into a model",
        ),
        (
            "_, x = tokenizer(TEXT=t)\nS = join(A=_)",
            2,
            "input A of model join is '_', which is not a tensor's name",
            "a line passes tensors on; what computes belongs into a model",
        ),
        (
            "import os",
            1,
            "a dataflow line calls one model and names its outputs",
            "write OUT = model(IN=x), or A, B = model(IN=x) for two outputs",
        ),
        (
            "h = my-model(A=x)",
            1,
            "a dataflow line calls one model and names its outputs",
            'a name that is not a Python name is quoted: OUT = "my-model"(IN=x)',
        ),
        (
            "a.b = join(A=x)",
            1,
            "'a.b' is not a name",
            "outputs get plain names",
        ),
        (
            "S = join(A=x, **{'A': y})",
            1,
            "input A of model join is given twice",
            "keep one of them",
        ),
        ("S = join(**x)", 1, "what follows ** is a dict", '**{"INPUT:0": x}'),
    ],
)
def test_wrong_lines(text: str, line: int, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dataflow(text)
    assert caught.value.message == f"line {line}: {message}"
    assert caught.value.hint == hint
    assert caught.value.line == line


def test_syntax_errors_have_a_line() -> None:
    with pytest.raises(ConfigError) as caught:
        dataflow("S = join(A=x)\nT = join(A=")
    assert caught.value.line == 2
    assert caught.value.column > 0


def test_no_lines_and_unknown_outputs() -> None:
    with pytest.raises(ConfigError, match="must specify 'step' for ensemble 'e'"):
        dataflow("# nothing yet")
    with pytest.raises(ConfigError, match="'SCORE' for ensemble e' is not used") as caught:
        dataflow("SCORES = join(A=x)", ("SCORE",))
    assert caught.value.hint == "did you mean 'SCORES'?"


def test_circles_are_left_to_validation() -> None:
    config = dataflow("x = join(A=y)\ny = join(A=x)", ("x",))
    with pytest.raises(ConfigError, match="'x' for ensemble 'e' is not written"):
        validate(normalize(config, name="e"))


WORDS = "a b _ , = ( ) join tokenizer A B TEXT ** { } 'A' : . \n # +"


@pytest.mark.medium
@given(st.lists(st.sampled_from(WORDS.split(" "))).map(" ".join))
def test_any_text_gives_an_ensemble_or_a_config_error(text: str) -> None:
    try:
        config = dataflow(text)
    except ConfigError:
        return
    assert to_dict(config)["ensemble_scheduling"]["step"]


def test_the_first_outputs_may_be_named_alone_if_the_model_changes_a_tensor() -> None:
    passing = model(
        "nms",
        {"BOXES": "FP32[-1,4]", "SCORES": "FP32[-1]"},
        {"BOXES": "FP32[-1,4]", "KEPT": "INT32[-1]"},
    )
    line = "b = nms(BOXES=x, SCORES=y)"
    config = parse_dataflow(line, name="e", models={"nms": passing})
    assert [tensor.name for tensor in config.output] == ["b"]
    assert dict(config.ensemble_scheduling.step[0].output_map) == {"BOXES": "b"}
    both = parse_dataflow(f"b, s{line[1:]}", name="e", models={"nms": passing})
    assert [tensor.name for tensor in both.output] == ["b", "s"]


def test_a_model_without_outputs_is_no_step() -> None:
    sink = model("sink", {"IN": "FP32[4]"}, {})
    with pytest.raises(
        ConfigError, match="model sink has 0 outputs, but the line names 1"
    ) as caught:
        parse_dataflow("OUT = sink(IN=x)", name="e", models={"sink": sink})
    assert caught.value.hint == "a step has outputs, and sink gives none"


def test_called_models() -> None:
    assert called_models('a = one(X=x)\nb, c = "two:2"(A=a)\nd = one(X=c)') == ["one", "two:2"]
