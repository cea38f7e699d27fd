"""Requests to send: generated inputs (PA30 to PA33) and requests cut from given arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.lab.perf.data import generate, requests_from
from nbtriton.lab.perf.settings import PERF
from nbtriton.model.config import normalize, parse_pbtxt


def model(inputs: str = "{name:'X' data_type:TYPE_FP32 dims:[4]}", max_batch_size: int = 8):
    text = (
        f"name:'m' backend:'python' max_batch_size:{max_batch_size} input[{inputs}] "
        "output[{name:'Y' data_type:TYPE_FP32 dims:[4]}]"
    )
    return normalize(parse_pbtxt(text), name="m")


ALL = ", ".join(
    f"{{name:'{kind}' data_type:TYPE_{kind} dims:[2,3]}}"
    for kind in ("BOOL", "UINT8", "INT8", "INT64", "FP16", "FP32", "FP64", "STRING")
)


def test_PA30_random_data_fits_every_datatype_and_repeats_with_its_seed():
    request = generate(model(ALL), batch_size=4, seed=3)
    assert {name: array.shape for name, array in request.items()} == dict.fromkeys(
        request, (4, 2, 3)
    )
    assert request["INT8"].dtype == np.int8
    assert request["INT8"].min() >= 0
    assert 0 <= request["FP16"].min() < request["FP16"].max() < 1.001
    assert set(np.unique(request["BOOL"])) == {False, True}
    again = generate(model(ALL), batch_size=4, seed=3)
    assert all(np.array_equal(request[name], again[name]) for name in request)
    other = generate(model(ALL), batch_size=4, seed=4)
    assert not np.array_equal(request["FP32"], other["FP32"])


def test_PA30_zero_data():
    request = generate(model(ALL), input_data="zero")
    assert not request["FP32"].any()
    assert set(request["STRING"].flat) == {b""}


def test_PA31_strings_have_128_random_characters():
    strings = list(generate(model(ALL))["STRING"].flat)
    assert {len(text) for text in strings} == {128}
    assert len(set(strings)) == len(strings)
    assert all(text.decode().isalnum() for text in strings)


def test_PA30_bfloat16_is_a_torch_tensor():
    torch = pytest.importorskip("torch", reason="BF16 data need torch")
    array = generate(model("{name:'X' data_type:TYPE_BF16 dims:[4]}"))["X"]
    assert array.dtype is torch.bfloat16


def test_PA32_a_variable_dimension_needs_a_shape():
    config = model("{name:'IN0' data_type:TYPE_FP32 dims:[-1,3]}")
    with pytest.raises(InvalidArgumentError) as error:
        generate(config)
    assert str(error.value) == (
        "input IN0 contains dynamic shape, provide shapes to send along with the request"
    )
    assert generate(config, shapes={"IN0": (5, 3)}, batch_size=2)["IN0"].shape == (2, 5, 3)
    with pytest.raises(InvalidArgumentError, match="'IN1' is not an input of model 'm'"):
        generate(config, shapes={"IN1": (5, 3)})


def test_optional_inputs_are_left_out_unless_shapes_name_them():
    config = model(
        "{name:'X' data_type:TYPE_FP32 dims:[4]}, "
        "{name:'O' data_type:TYPE_FP32 dims:[4] optional:true}"
    )
    assert set(generate(config)) == {"X"}
    assert set(generate(config, shapes={"O": (4,)})) == {"X", "O"}


def test_PA33_batches_and_models_that_do_not_batch():
    config = model(max_batch_size=0)
    assert generate(config)["X"].shape == (4,)
    text = "can not specify batch size > 1 as the model does not support batching"
    for attempt in (
        lambda: generate(config, batch_size=2),
        lambda: requests_from(config, {"X": np.zeros(4, np.float32)}, batch_size=2),
    ):
        with pytest.raises(InvalidArgumentError) as error:
            attempt()
        assert str(error.value) == text
    with pytest.raises(InvalidArgumentError, match=r"-b \(batch size\)\. The value must be > 0"):
        PERF["batch_size"].check(0)
    # The server itself refuses more than the model allows.
    assert generate(model(), batch_size=9)["X"].shape == (9, 4)


def rows(n, start=0):
    return {"X": (np.arange(start, start + n)[:, None] * np.ones(4)).astype(np.float32)}


def test_given_requests_are_sent_as_they_are():
    given_ = [rows(2), rows(2, 2)]
    requests, size = requests_from(model(), given_, batch_size=None)
    assert size == 2
    assert requests[0]["X"] is given_[0]["X"]
    with pytest.raises(InvalidArgumentError, match="several batch sizes: \\[1, 2\\]"):
        requests_from(model(), [rows(1), rows(2)], batch_size=None)


def test_lists_are_coerced_once():
    requests, size = requests_from(model(), {"X": [[1, 2, 3, 4]]}, batch_size=None)
    assert size == 1
    assert requests[0]["X"].dtype == np.float32


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 9))
def test_rows_are_cut_in_order_and_over_again(sizes, batch_size):
    given_, start = [], 0
    for n in sizes:
        given_.append(rows(n, start))
        start += n
    requests, size = requests_from(model(), given_, batch_size=batch_size)
    assert size == batch_size
    flat = np.concatenate([r["X"][:, 0] for r in requests])
    assert [r["X"].shape for r in requests] == [(batch_size, 4)] * len(requests)
    assert flat.tolist() == [i % start for i in range(len(flat))]
    assert len(flat) > start - batch_size


def test_impossible_inputs_are_refused():
    for bad, text in (
        ([], "inputs is an empty list"),
        ({"Z": rows(1)["X"]}, "'Z' is not an input of model 'm'"),
        ({"X": np.float32(1)}, "must have the batch dimension first"),
        (rows(0), "must have the batch dimension first, not 0"),
    ):
        for batch_size in (None, 4):
            with pytest.raises(InvalidArgumentError, match=text):
                requests_from(model(), bad, batch_size=batch_size)
