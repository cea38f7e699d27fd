"""Ragged batches, batch inputs and batch outputs: the table of G7, and the backends that gather."""

# ruff: noqa: N803 - tensors have Triton's names

from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbtriton.backends.python import install_pb_utils
from nbtriton.backends.ragged import PLAIN, BatchInput, layout
from nbtriton.common.errors import ConfigError, InternalError, InvalidArgumentError, LoadError
from nbtriton.model.config import as_config
from nbtriton.runtime.engine import Server
from tests.backends.fakes import Request
from tests.backends.test_function import define
from tests.engine.support import WAIT_S, Gate

KINDS = {
    "BATCH_ELEMENT_COUNT": [3, 8, 5],
    "BATCH_ACCUMULATED_ELEMENT_COUNT": [3, 11, 16],
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": [0, 3, 11, 16],
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": [0] * 8,
    "BATCH_ITEM_SHAPE": [[3], [4], [4], [5]],
    "BATCH_ITEM_SHAPE_FLATTEN": [3, 4, 4, 5],
}
# Three requests of one input with dims [-1]; the second has two items.
SHAPES = [(1, 3), (2, 4), (1, 5)]
DTYPES = {"TYPE_INT32": np.int32, "TYPE_FP32": np.float32}


# -- the table ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_G7_batch_input(kind, dtype):
    value = BatchInput("MADE", kind, np.dtype(dtype), "IN").value(SHAPES)
    assert value.dtype == dtype
    assert value.tolist() == KINDS[kind]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [12, 2]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [12, 14]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 12, 14]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0] * 12),
        ("BATCH_ITEM_SHAPE", [[2, 3], [2, 3], [1, 2]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [2, 3, 2, 3, 1, 2]),
    ],
)
def test_G7_batch_input_of_matrices(kind, expected):
    found = BatchInput("MADE", kind, np.dtype(np.int32), "IN").value([(2, 2, 3), (1, 1, 2)])
    assert found.tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_G7_batch_input_of_a_single_request(kind):
    expected = {
        "BATCH_ELEMENT_COUNT": [4],
        "BATCH_ACCUMULATED_ELEMENT_COUNT": [4],
        "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": [0, 4],
        "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": [0] * 4,
        "BATCH_ITEM_SHAPE": [[4]],
        "BATCH_ITEM_SHAPE_FLATTEN": [4],
    }
    found = BatchInput("MADE", kind, np.dtype(np.int32), "IN").value([(1, 4)])
    assert found.tolist() == expected[kind]


shapes = st.integers(1, 3).flatmap(
    lambda rank: st.lists(st.tuples(*[st.integers(1, 4)] * (rank + 1)), min_size=1, max_size=6)
)


@pytest.mark.medium
@given(shapes, st.sampled_from([np.int32, np.float32]))
def test_G7_the_kinds_agree_with_each_other_and_with_the_buffer(shapes, dtype):
    def value(kind):
        return BatchInput("MADE", kind, np.dtype(dtype), "IN").value(shapes)

    flat = np.concatenate([np.full(prod(shape), at) for at, shape in enumerate(shapes)])
    bounds = value("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO").astype(int)
    counts = value("BATCH_ELEMENT_COUNT")
    for at in range(len(shapes)):
        part = flat[bounds[at] : bounds[at + 1]]
        assert (part == at).all()
        assert len(part) == counts[at]
    assert bounds[-1] == len(flat)
    assert value("BATCH_ACCUMULATED_ELEMENT_COUNT").tolist() == bounds[1:].tolist()
    assert value("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE").shape == (counts.max(),)
    items = value("BATCH_ITEM_SHAPE")
    assert items.shape == (sum(shape[0] for shape in shapes), len(shapes[0]) - 1)
    assert items.prod(axis=1).sum() == len(flat)
    assert value("BATCH_ITEM_SHAPE_FLATTEN").tolist() == items.reshape(-1).tolist()


# -- configurations ----------------------------------------------------------------------------------


def ragged(extra="", *, dims="-1", out="-1", rest="max_batch_size: 8"):
    return f"""
    {rest}
    input {{ name: "IN" data_type: TYPE_FP32 dims: [ {dims} ] allow_ragged_batch: true }}
    output {{ name: "OUT" data_type: TYPE_FP32 dims: [ {out} ] }}
    {extra}
    """


def batch_input(kind, name="B", data_type="TYPE_INT32"):
    return (
        f'batch_input {{ kind: {kind} target_name: "{name}" data_type: {data_type} '
        'source_input: "IN" }\n'
    )


SCATTER = (
    'batch_output { target_name: "OUT" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "IN" }\n'
)
BOUNDS = batch_input("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO")


def test_a_layout_of_a_plain_configuration_is_plain():
    config = as_config('max_batch_size: 4 input { name: "IN" data_type: TYPE_FP32 dims: -1 }')
    assert layout(config) == PLAIN


def test_a_batch_input_may_have_several_names():
    text = batch_input("BATCH_ELEMENT_COUNT").replace('"B"', '[ "B", "C" ]')
    assert [made.name for made in layout(as_config(ragged(text))).batch_inputs] == ["B", "C"]


@pytest.mark.parametrize(
    ("dims", "out", "rest", "source", "expected"),
    [
        ("-1", "-1", "max_batch_size: 8", (2, 5), (2, 5)),
        ("-1", "3", "max_batch_size: 8", (2, 5), (2, 3)),
        ("-1, 4", "-1, 7", "max_batch_size: 8", (1, 5, 4), (1, 5, 7)),
        ("-1, -1", "2, -1", "max_batch_size: 8", (3, 5, 6), (3, 2, 6)),
        ("-1, -1", "-1", "max_batch_size: 0", (5, 6), (5,)),
    ],
)
def test_G7_a_part_of_a_batch_output_has_the_inputs_variable_dimensions(
    dims, out, rest, source, expected
):
    config = as_config(ragged(SCATTER, dims=dims, out=out, rest=rest))
    assert layout(config).batch_outputs["OUT"].part(source) == expected


def test_a_batch_output_needs_a_dimension_of_its_source():
    with pytest.raises(ConfigError, match="more variable dimensions than 'IN'"):
        layout(as_config(ragged(SCATTER, dims="-1", out="2, -1")))


# -- plain functions ---------------------------------------------------------------------------------


def vector(*values):
    return np.array([values], np.float32)


THREE = [vector(1, 2, 3), np.array([[4, 5, 6, 7], [8, 9, 10, 11]], np.float32), vector(*range(5))]


@pytest.mark.parametrize("data_type", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_G7_a_function_gets_one_flat_buffer_and_the_batch_input(make, run, kind, data_type):
    seen = {}

    def f(IN, B):
        seen.update(IN=IN, B=B)
        return np.zeros((4, 1), np.float32)

    run(make(f, ragged(batch_input(kind, data_type=data_type), out="1")), *THREE)
    assert seen["IN"].tolist() == [1, 2, 3, *range(4, 12), *range(5)]
    assert seen["IN"].flags.writeable
    assert seen["B"].tolist() == KINDS[kind]
    assert seen["B"].dtype == DTYPES[data_type]


def test_a_single_request_is_flat_too(make, run):
    shapes = []

    def f(IN):
        shapes.append(IN.shape)
        return np.zeros((2, 1), np.float32)

    run(make(f, ragged(out="1")), THREE[1])
    assert shapes == [(8,)]


def test_outputs_with_one_row_an_item_are_split_by_rows(make, run):
    def f(IN, B):  # sums of the requests' items
        rows = np.split(IN, np.cumsum(B[:, 0]).astype(int)[:-1])
        return np.array([[row.sum()] for row in rows], np.float32)

    found = run(make(f, ragged(batch_input("BATCH_ITEM_SHAPE"), out="1")), *THREE)
    assert [r.outputs["OUT"].tolist() for r in found] == [[[6]], [[22], [38]], [[10]]]


def test_G7_a_batch_output_is_split_by_the_shapes_of_the_inputs(make, run):
    found = run(make(lambda IN: IN + 1, ragged(SCATTER)), *THREE)
    for response, given_ in zip(found, THREE, strict=True):
        assert response.outputs["OUT"].shape == given_.shape
        assert (response.outputs["OUT"] == given_ + 1).all()


def test_a_batch_output_of_a_wrong_size_says_what_was_expected(make, run):
    with pytest.raises(InternalError) as caught:
        run(make(lambda IN: IN[1:], ragged(SCATTER)), *THREE)
    assert caught.value.message == (
        "output 'OUT' of model 'm' has 15 elements, expected 16: [1,3], [2,4], [1,5]"
    )


def test_only_the_outputs_asked_for_are_sent(make, run):
    text = ragged(SCATTER).replace(
        " output {", ' output { name: "N" data_type: TYPE_FP32 dims: 1 } output {'
    )
    instance = make(lambda IN: (np.zeros((3, 1), np.float32), IN), text)
    found = run(
        instance,
        Request({"IN": vector(1)}, frozenset({"N"})),
        Request({"IN": vector(1, 2)}, frozenset({"OUT"})),
        Request({"IN": vector(1, 2)}, frozenset({"N", "OUT"})),
    )
    assert [sorted(r.outputs) for r in found] == [["N"], ["OUT"], ["N", "OUT"]]


def test_a_ragged_input_of_strings(make, run):
    text = ragged(SCATTER).replace("TYPE_FP32", "TYPE_STRING")
    words = [np.array([["a", "b"]], object), np.array([["c"]], object)]
    found = run(make(lambda IN: IN, text), *words)
    assert [r.outputs["OUT"].tolist() for r in found] == [[[b"a", b"b"]], [[b"c"]]]


def test_batch_inputs_are_of_the_kind_that_the_function_is_annotated_for(make, run):
    kinds = []

    def f(IN: torch.Tensor, B: torch.Tensor):
        kinds.extend((type(IN), type(B)))
        return IN * 2

    found = run(make(f, ragged(BOUNDS + SCATTER)), torch.ones(1, 2), torch.ones(1, 3))
    assert kinds == [torch.Tensor] * 2
    assert [tuple(r.outputs["OUT"].shape) for r in found] == [(1, 2), (1, 3)]


def test_without_batching_a_batch_output_still_takes_the_inputs_shape(make, run):
    text = ragged(SCATTER, dims="-1, -1", out="-1, -1", rest="")
    found = run(make(lambda IN: IN, text), np.zeros((2, 3), np.float32))
    assert found[0].outputs["OUT"].shape == (2, 3)


def test_the_source_of_a_batch_input_must_be_in_each_request(make, run):
    text = ragged(BOUNDS).replace("allow_ragged_batch", "optional: true allow_ragged_batch")
    text += 'input { name: "X" data_type: TYPE_FP32 dims: 1 }'
    instance = make(lambda X, B, IN=None: X, text)
    with pytest.raises(InvalidArgumentError, match="unknown request input name IN"):
        run(instance, Request({"X": vector(1)}))


def test_a_functions_annotations_leave_batch_inputs_alone(make, run):
    function = define(
        'def f(IN: "FP32[-1]", B, C: "INT32[-1]" = None) -> {"OUT": "FP32[1]"}:\n'
        "    return np.diff(B)[:, None].astype(np.float32)\n"
    )
    text = ragged(BOUNDS + batch_input("BATCH_ELEMENT_COUNT", "C"), out="1")
    found = run(make(function, text), vector(1, 2), vector(3))
    assert [r.outputs["OUT"].tolist() for r in found] == [[[2]], [[1]]]


def test_a_function_needs_a_parameter_for_each_batch_input(make):
    with pytest.raises(ConfigError, match="'<lambda>' has no parameter for input 'B'"):
        make(lambda IN: IN, ragged(BOUNDS))


# -- torch -------------------------------------------------------------------------------------------


class Sums(torch.nn.Module):
    """The sum of every request's values, beside each of its values."""

    def forward(self, IN, B):
        parts = torch.tensor_split(IN, B[1:-1].long())
        return torch.cat([part.sum().expand(len(part)) for part in parts])


class Annotated(Sums):
    def forward(self, IN: "FP32[-1]", B: "INT32[-1]") -> {"OUT": "FP32[-1]"}:  # noqa: F821
        return super().forward(IN, B)


class Positional(torch.nn.Module):
    def forward(self, x, bounds):
        return Sums().forward(x, bounds)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("module", [Sums, Annotated, Positional, torch.jit.script])
def test_G7_a_torch_module_gets_flat_buffers_and_batch_inputs(make, run, module, tmp_path):
    source = module
    if module is torch.jit.script:
        source = tmp_path / "model.pt"
        torch.jit.script(Scripted()).save(source)
    instance = make(source, ragged(BOUNDS + SCATTER), backend="pytorch")
    found = run(instance, *THREE)
    assert [r.outputs["OUT"].tolist() for r in found] == [
        [[6, 6, 6]], [[60] * 4] * 2, [[10] * 5]
    ]  # fmt: skip


class Scripted(torch.nn.Module):
    def forward(self, IN: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(IN)
        for at in range(B.shape[0] - 1):
            begin, end = int(B[at]), int(B[at + 1])
            out[begin:end] = IN[begin:end].sum()
        return out


def test_a_torch_module_with_too_few_arguments(make):
    class One(torch.nn.Module):
        def forward(self, IN):
            return IN

    with pytest.raises(ConfigError, match="configuration expects 2 inputs, model provides 1"):
        make(One, ragged(BOUNDS), backend="pytorch")


# -- through the server ------------------------------------------------------------------------------


@pytest.fixture
def server():
    with Server(gpus=()) as running:
        yield running


def test_G4_requests_of_different_shapes_share_a_batch(server):
    gate = Gate()

    def f(IN, B):
        gate.stand(B.tolist())
        return IN * 2

    server.load(ragged(BOUNDS + SCATTER + "dynamic_batching { }"), f, name="m")
    futures = [server.submit("m", {"IN": vector(0)})]
    gate.wait_entered()
    futures += [server.submit("m", {"IN": value}) for value in THREE]
    gate.open()
    found = [future.result(WAIT_S)["OUT"] for future in futures]
    assert gate.batches == [[0, 1], [0, 3, 11, 16]]
    for out, value in zip(found[1:], THREE, strict=True):
        assert out.tolist() == (value * 2).tolist()


def test_G7_a_python_model_gets_each_requests_own_tensors_and_no_batch_inputs(server):
    install_pb_utils()
    import triton_python_backend_utils as pb_utils

    gate = Gate()
    seen = []

    class TritonPythonModel:
        def execute(self, requests):
            gate.stand([""])
            out = []
            for request in requests:
                seen.append([(t.name(), tuple(t.shape())) for t in request.inputs()])
                tensor = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
                out.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor)]))
            return out

    server.load(ragged(BOUNDS + SCATTER + "dynamic_batching { }"), TritonPythonModel, name="m")
    futures = [server.submit("m", {"IN": vector(0)})]
    gate.wait_entered()
    futures += [server.submit("m", {"IN": value}) for value in THREE]
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    assert len(gate.batches) == 2
    assert seen[1:] == [[("IN", (1, 3))], [("IN", (2, 4))], [("IN", (1, 5))]]


def test_errors_of_a_batch_output_are_raised_at_load(server):
    with pytest.raises(LoadError, match="more variable dimensions"):
        server.load(ragged(SCATTER, out="2, -1"), lambda IN: IN, name="m")
