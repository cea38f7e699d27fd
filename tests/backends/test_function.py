"""Plain annotated functions on whole batches."""

# ruff: noqa: N803 - tensors have Triton's names

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from nbtriton.backends import ModelContext, find_backend
from nbtriton.backends.signature import read_signature
from nbtriton.common.errors import ConfigError, InternalError, ModelError, UnsupportedError
from nbtriton.model.config import as_config, normalize
from tests.backends.fakes import DEFAULT, Request, Timer, ones

TWO = """
max_batch_size: 8
input [{ name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }]
output [{ name: "A" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 4 ] }]
"""


def define(text, name="f"):
    """Compile a function as a notebook cell does: without this file's future imports."""
    namespace = {"np": np, "torch": torch}
    exec(compile(text, "<cell>", "exec", dont_inherit=True), namespace)
    return namespace[name]


def complete(function, config="max_batch_size: 8"):
    backend = find_backend("python")()
    return backend.complete_config(
        ModelContext("m", 1, normalize(as_config(config), name="m"), function)
    )


def tensors(config):
    return {
        t.name: (t.data_type, list(t.dims), getattr(t, "optional", False))
        for t in (*config.input, *config.output)
    }


DOUBLE = define('def f(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:\n    return {"OUT": IN * 2}\n')


def test_annotations_become_inputs_and_outputs():
    found = complete(
        define('def f(A: "FP32[4]", B: "BYTES[-1,2]" = None) -> {"X": "INT8[1]"}: pass\n')
    )
    assert tensors(found) == {
        "A": (11, [4], False),
        "B": (13, [-1, 2], True),
        "X": (6, [1], False),
    }


def test_annotations_survive_the_future_import():
    text = (
        "from __future__ import annotations\n"
        'def f(A: "FP32[4]", B: np.ndarray = None) -> {"X": "INT8[1]"}: pass\n'
    )
    assert list(tensors(complete(define(text)))) == ["A", "X"]


def test_a_configuration_is_enough():
    function = define("def f(IN): return IN\n")
    assert tensors(complete(function, DEFAULT)) == {"IN": (11, [4], False), "OUT": (11, [4], False)}


@pytest.mark.parametrize(
    ("text", "config", "message"),
    [
        ('def f(IN) -> {"X": "FP32[1]"}: pass', "", "parameter 'IN' of 'f' names no tensor"),
        ('def f(IN: "FP32[1]"): pass', "", "'f' does not say what it returns"),
        ('def f(IN: "FP33[1]") -> {"X": "FP32[1]"}: pass', "", "(tensor 'IN')"),
        ('def f(IN: "FP32[1]") -> "FP32[1]": pass', "", "the outputs of 'f' have no names"),
        (
            'def f(IN: "INT8[4]") -> {"OUT": "FP32[4]"}: pass',
            DEFAULT,
            "configuration expects datatype TYPE_FP32 for input 'IN', model provides TYPE_INT8",
        ),
        (
            'def f(IN: "FP32[5]") -> {"OUT": "FP32[4]"}: pass',
            DEFAULT,
            (
                "model 'm', tensor 'IN': the model expects dims [5] but the model configuration "
                "specifies dims [4]"
            ),
        ),
        (
            'def f(X: "FP32[5]") -> {"OUT": "FP32[4]"}: pass',
            TWO,
            "'f' has no parameter for input 'IN'",
        ),
    ],
)
def test_missing_and_contradicting_annotations_are_errors(text, config, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        complete(define(text + "\n"), config)
    assert caught.value.hint


def test_what_a_generator_computes_counts_as_computing(make):
    def f(IN):
        yield IN

    timer = Timer()
    make(f).execute([Request({"IN": ones()})], timer)
    assert timer.marks == ["inputs_ready", "infer_done"]


def test_a_batch_is_one_call_and_its_parts_are_views(make):
    calls = []

    def f(IN):
        calls.append(IN.shape)
        return IN * 2

    timer = Timer()
    first, second = make(f).execute([Request({"IN": ones()}), Request({"IN": ones(2, 3)})], timer)
    assert calls == [(3, 4)]
    assert timer.marks == ["inputs_ready", "infer_done"]
    assert first.outputs["OUT"].tolist() == [[2] * 4]
    assert second.outputs["OUT"].tolist() == [[6] * 4] * 2
    assert first.outputs["OUT"].base is second.outputs["OUT"].base


@pytest.mark.parametrize(
    "result",
    [
        lambda x: {"B": x + 2, "A": x + 1},
        lambda x: (x + 1, x + 2),
    ],
)
def test_outputs_by_name_or_in_order(make, run, result):
    def f(IN):
        return result(IN)

    (found,) = run(make(f, TWO), Request({"IN": ones()}, frozenset({"A", "B"})))
    assert {k: v[0, 0] for k, v in found.outputs.items()} == {"A": 2, "B": 3}
    (found,) = run(make(f, TWO), Request({"IN": ones()}, frozenset({"B"})))
    assert set(found.outputs) == {"B"}


def test_python_values_are_outputs_too(make, run):
    (found,) = run(make(lambda IN: [[1, 2, 3, 4]]), ones())
    assert found.outputs["OUT"].dtype == np.float32


def test_text_outputs_become_bytes(make, run):
    config = DEFAULT.replace('"OUT" data_type: TYPE_FP32', '"OUT" data_type: TYPE_STRING')
    (found,) = run(make(lambda IN: np.array([["a"], ["b"]]), config), ones(2))
    assert found.outputs["OUT"].tolist() == [[b"a"], [b"b"]]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda IN: np.zeros((3, 4)),
            (
                "output 'OUT' of model 'm' has shape [3,4], expected a first dimension of 2, the size "
                "of the batch"
            ),
        ),
        (lambda IN: np.float32(0), "has shape [], expected a first dimension of 2"),
        (lambda IN: (IN, IN), "model 'm' returned 2 outputs, its configuration has 1: 'OUT'"),
        (lambda IN: None, "model 'm' returned None, its configuration has 'OUT'"),
        (lambda IN: {}, "model 'm' did not return the output 'OUT', found an empty dict"),
        (lambda IN: {"OUT": IN, "OUTT": IN}, "returned the output 'OUTT', which"),
        (lambda IN: [["a"]], "output 'OUT' expects FP32, found values of type <U1"),
    ],
)
def test_wrong_outputs_name_what_was_expected(make, run, function, message):
    with pytest.raises((InternalError, Exception), match=re.escape(message)):
        run(make(function), ones(2))


def test_an_exception_points_at_the_line(make, run):
    with pytest.raises(ModelError) as caught:
        run(make(define('def f(IN):\n    raise ValueError("kaboom")\n'), DEFAULT), ones())
    assert caught.value.message == (
        "Failed to process the request(s) for model 'm_0_0', message: ValueError: kaboom\n\nAt:\n"
        "  <cell>(2): f\n"
    )


def test_optional_inputs_that_are_missing_use_the_default(make, run):
    function = define(
        'def f(IN: "FP32[4]", BIAS: "FP32[4]" = 10) -> {"OUT": "FP32[4]"}: return IN + BIAS\n'
    )
    instance = make(function, "max_batch_size: 8")
    (found,) = run(instance, ones())
    assert found.outputs["OUT"].tolist() == [[11] * 4]
    (found,) = run(instance, Request({"IN": ones(), "BIAS": ones()}))
    assert found.outputs["OUT"].tolist() == [[2] * 4]


def test_without_batching_arrays_are_passed_as_they_are(make, run):
    config = DEFAULT.replace("max_batch_size: 8", "")
    shapes = []

    def f(IN):
        shapes.append(IN.shape)
        return IN + 1

    found = run(make(f, config), Request({"IN": np.zeros(4)}), Request({"IN": np.ones(4)}))
    assert shapes == [(4,), (4,)]
    assert [r.outputs["OUT"][0] for r in found] == [1, 2]


@pytest.mark.parametrize("sent", [np.ones((1, 4), np.float32), torch.ones(1, 4)])
@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        ('"FP32[4]"', np.ndarray),
        ('Annotated[np.ndarray, "FP32[4]"]', np.ndarray),
        ('Annotated[npt.NDArray[np.float32], "FP32[4]"]', np.ndarray),
        ('Annotated[torch.Tensor, "FP32[4]"]', torch.Tensor),
        ("torch.Tensor", torch.Tensor),
    ],
)
@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_a_function_gets_the_arrays_that_it_is_annotated_for(
    make, run, sent, annotation, kind, future
):
    kinds = []
    function = define(
        f"{future}from typing import Annotated\nimport numpy.typing as npt\n"
        f'def f(IN: {annotation}) -> {{"OUT": "FP32[4]"}}:\n    return seen(IN)\n'
    )
    function.__globals__["seen"] = lambda array: kinds.append(type(array)) or array * 2
    found = run(make(function, DEFAULT), sent, sent)
    assert kinds == [kind]
    assert [np.asarray(response.outputs["OUT"]).tolist() for response in found] == [[[2] * 4]] * 2


TYPED = """from typing import Annotated, Iterator, TypedDict
import numpy as np
class Outputs(TypedDict):
    OUT: Annotated[np.ndarray, "FP32[4]"]
    SUM: Annotated[np.ndarray, "FP32[1]"]
def f(IN: Annotated[np.ndarray, "FP32[4]"]) -> {result}:
    ...
"""


@pytest.mark.parametrize(
    "result",
    [
        "Outputs",
        "Iterator[Outputs]",
        'Annotated[dict[str, np.ndarray], {"OUT": "FP32[4]", "SUM": "FP32[1]"}]',
        'Iterator[Annotated[dict[str, np.ndarray], {"OUT": "FP32[4]", "SUM": "FP32[1]"}]]',
    ],
)
@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_annotations_that_type_checkers_understand_name_the_same_tensors(result, future):
    function = define(future + TYPED.replace("{result}", result))
    found = read_signature(function)
    assert {name: spec.dims for name, spec in found.inputs.items()} == {"IN": (4,)}
    assert {name: spec.dims for name, spec in found.outputs.items()} == {"OUT": (4,), "SUM": (1,)}
    assert found.kinds == {"IN": "numpy"}


def test_a_typed_dict_without_tensors_says_nothing():
    function = define(
        "from typing import TypedDict\n"
        "class Outputs(TypedDict):\n    OUT: object\n"
        'def f(IN: "FP32[4]") -> Outputs: ...\n'
    )
    assert read_signature(function).outputs == {}


def test_shapes_that_do_not_fit_into_one_batch_name_the_input(make, run):
    with pytest.raises(
        Exception, match=r"input 'IN': cannot join tensors of shapes \[1,4\], \[1,5\]"
    ):
        run(make(lambda IN: IN), ones(), np.zeros((1, 5), np.float32))


def test_a_result_that_the_function_keeps_is_copied(make, run):
    table = np.zeros((1, 4), np.float32)
    instance = make(lambda IN: table)
    (found,) = run(instance, ones())
    table += 1
    assert found.outputs["OUT"].tolist() == [[0] * 4]


def test_a_coroutine_function_is_refused(make):
    async def f(IN):
        return IN

    with pytest.raises(UnsupportedError):
        make(f)
