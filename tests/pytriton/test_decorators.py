"""PyTriton's decorators, each alone: from requests to what the function sees, and back."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from nbtriton.pytriton import (
    ConstantPadder,
    DynamicBatcher,
    ModelConfig,
    PyTritonBadParameterError,
    PyTritonRuntimeError,
    PyTritonValidationError,
    Request,
    Tensor,
    batch,
    fill_optionals,
    first_value,
    group_by_keys,
    group_by_values,
    pad_batch,
    sample,
    triton_context,
)
from nbtriton.pytriton.model_config import TritonModelConfig
from nbtriton.pytriton.stack import TritonContext, attach

INPUTS = (
    Tensor(name="a", dtype=np.int64, shape=(1,)),
    Tensor(name="b", dtype=np.int64, shape=(1,), optional=True),
    Tensor(name="text", dtype=np.bytes_, shape=(1,), optional=True),
)
OUTPUTS = (Tensor(name="x", dtype=np.int64, shape=(-1,)),)


def bound(function, config=None):
    context = TritonContext()
    described = TritonModelConfig.of("m", 1, INPUTS, OUTPUTS, config or ModelConfig(), 1)
    context.model_configs.add(function, described)
    return attach(function, described, context)


def rows(*values, **others):
    inputs = {"a": np.array(values).reshape(-1, 1)}
    return Request({**inputs, **{name: np.array(v).reshape(-1, 1) for name, v in others.items()}})


def lists(result):
    return [{name: array.tolist() for name, array in one.items()} for one in result]


def test_batch_joins_rows_and_splits_results():
    seen = []

    @batch
    def infer(a):
        seen.append(a.tolist())
        return {"x": a * 2}

    assert lists(bound(infer)([rows(1, 2), rows(3)])) == [{"x": [[2], [4]]}, {"x": [[6]]}]
    assert seen == [[[1], [2], [3]]]
    assert infer.__name__ == "infer"


def test_batch_of_a_method_and_of_a_partial():
    class Model:
        factor = 3

        @batch
        def infer(self, a):
            return [a * self.factor]

    def scaled(factor, a):
        return [a * factor]

    assert lists(bound(Model().infer)([rows(1)])) == [{"x": [[3]]}]
    assert lists(bound(batch(functools.partial(scaled, 5)))([rows(1)])) == [{"x": [[5]]}]
    assert Model.infer.__name__ == "infer"


def test_batch_refuses_what_is_no_batch():
    @batch
    def infer(a, b=None):
        return [a[:1]]

    with pytest.raises(PyTritonValidationError, match="requests with 'a' and with 'a', 'b'"):
        bound(infer)([rows(1), rows(2, b=[2])])
    with pytest.raises(PyTritonValidationError, match=r"shape \(1, 1\); the batch has 2 rows"):
        bound(infer)([rows(1), rows(2)])
    with pytest.raises(PyTritonValidationError, match="returned 2 outputs instead of 1: x"):
        bound(batch(lambda a: [a, a]))([rows(1)])
    with pytest.raises(PyTritonValidationError, match="the function returned int"):
        bound(batch(lambda a: 3))([rows(1)])
    with pytest.raises(PyTritonValidationError, match="is not bound to a model"):
        infer([rows(1)])


def test_sample_gives_the_inputs_of_one_request():
    assert lists(bound(sample(lambda a: [a + 1]))([rows(1)])) == [{"x": [[2]]}]


def test_group_by_keys_keeps_the_order_of_requests():
    calls = []

    @group_by_keys
    @batch
    def infer(a, b=None):
        calls.append(len(a))
        return [a if b is None else a + b]

    found = bound(infer)([rows(1), rows(2, b=[10]), rows(3), rows(4, b=[20])])
    assert lists(found) == [{"x": [[1]]}, {"x": [[12]]}, {"x": [[3]]}, {"x": [[24]]}]
    assert calls == [2, 2]


def test_group_by_values_splits_rows_and_merges_results():
    calls = []

    @batch
    @group_by_values("b", "text")
    def infer(a, b, text):
        calls.append((b[0, 0], text[0, 0], len(a)))
        return [a * b]

    requests = [rows(1, 2, b=[5, 6], text=[b"u", b"u"]), rows(3, 4, b=[5, 6], text=[b"u", b"v"])]
    assert lists(bound(infer)(requests)) == [{"x": [[5], [12]]}, {"x": [[15], [24]]}]
    assert sorted(calls) == [(5, b"u", 2), (6, b"u", 1), (6, b"v", 1)]


def test_group_by_values_pads_groups_of_other_shapes():
    @batch
    @group_by_values("b", pad_fn=ConstantPadder(-1))
    def infer(a, b):
        return [np.tile(a, (1, b[0, 0]))]

    found = bound(infer)([rows(1, 2, b=[1, 3])])
    assert lists(found) == [{"x": [[1, -1, -1], [2, 2, 2]]}]


def test_group_by_values_keeps_text_of_any_length():
    @batch
    @group_by_values("b")
    def infer(a, b):
        return [np.array([[b"u" * int(b[0, 0])]] * len(a))]

    assert lists(bound(infer)([rows(1, 2, b=[1, 4])])) == [{"x": [[b"u"], [b"uuuu"]]}]


def test_group_by_values_says_what_is_wrong():
    above = group_by_values("b")(batch(lambda a, b: [a]))
    with pytest.raises(PyTritonRuntimeError, match="stands below @batch"):
        bound(above)(a=np.zeros(1))
    unknown = batch(group_by_values("c")(lambda a: [a]))
    with pytest.raises(PyTritonValidationError, match="no input 'c' among 'a'"):
        bound(unknown)([rows(1)])


def test_constant_padder_refuses_other_dtypes():
    with pytest.raises(PyTritonRuntimeError, match="different dtypes of 'x'"):
        ConstantPadder()([{"x": np.zeros((1, 1), np.int8)}, {"x": np.zeros((1, 1), np.int16)}])


def test_fill_optionals_gives_each_row_the_default():
    @fill_optionals(b=np.array([7]), text=np.array([b"none"]))
    @batch
    def infer(a, b, text):
        return [a + b + np.char.str_len(text.astype("S"))]

    found = bound(infer)([rows(1, 2), rows(3, b=[0])])
    assert lists(found) == [{"x": [[12], [13]]}, {"x": [[7]]}]


@pytest.mark.parametrize(
    ("default", "text"),
    [
        ({"c": np.array([1])}, "'c': the model has 'a', 'b', 'text'"),
        ({"b": 1}, "'b': its default is int"),
        ({"b": np.array([1.0])}, "'b': its default has the dtype float64, it has INT64"),
        ({"b": np.array([1, 2])}, r"'b': its default has the shape \(2,\), it has \(1,\)"),
    ],
)
def test_fill_optionals_compares_defaults_with_the_model(default, text):
    with pytest.raises(PyTritonBadParameterError, match=text):
        bound(fill_optionals(**default)(batch(lambda **_: [])))([rows(1)])


def test_pad_batch_pads_to_the_next_preferred_size_and_cuts_the_result():
    sizes = []

    @batch
    @pad_batch
    def infer(a):
        sizes.append(a[:, 0].tolist())
        return [a]

    config = ModelConfig(max_batch_size=8, batcher=DynamicBatcher(preferred_batch_size=[4, 2]))
    function = bound(infer, config)
    assert lists(function([rows(1), rows(2, 3)])) == [{"x": [[1]]}, {"x": [[2], [3]]}]
    function([rows(1, 2, 3, 4, 5)])
    assert sizes == [[1, 2, 3, 3], [1, 2, 3, 4, 5, 5, 5, 5]]


def test_first_value_gives_a_scalar():
    @batch
    @first_value("b")
    def infer(a, b):
        assert np.isscalar(b)
        return [a * b]

    assert lists(bound(infer)([rows(1, 2, b=[3, 3])])) == [{"x": [[3], [6]]}]
    with pytest.raises(PyTritonRuntimeError, match="the rows of 'b' have different values"):
        bound(infer)([rows(1, b=[1]), rows(2, b=[2])])
    loose = batch(first_value("b", strict=False, squeeze_single_values=False)(lambda a, b: [a * b]))
    assert lists(bound(loose)([rows(1, 2, b=[3, 4])])) == [{"x": [[3], [6]]}]


def test_first_value_of_requests_and_of_a_model_without_batches():
    @first_value("b")
    def infer(requests):
        return [{"x": one["a"] * one["b"]} for one in requests]

    assert lists(bound(infer)([rows(2, b=[3]), rows(2, b=[4])])) == [{"x": [[6]]}, {"x": [[8]]}]
    with pytest.raises(PyTritonRuntimeError, match="has no batches"):
        bound(infer, ModelConfig(batching=False))([rows(1)])
    with pytest.raises(PyTritonBadParameterError, match="'triton_context' is none"):
        first_value("triton_context")


def test_triton_context_has_the_configuration():
    @triton_context
    @batch
    def infer(a, triton_context):
        return [a + triton_context.model_configs[infer].max_batch_size]

    assert lists(bound(infer, ModelConfig(max_batch_size=9))([rows(1)])) == [{"x": [[10]]}]


def test_generators_are_split_item_by_item():
    @batch
    def infer(a):
        yield [a]
        yield [a + 1]

    found = [lists(item) for item in bound(infer)([rows(1), rows(2)])]
    assert found == [[{"x": [[1]]}, {"x": [[2]]}], [{"x": [[2]]}, {"x": [[3]]}]]
