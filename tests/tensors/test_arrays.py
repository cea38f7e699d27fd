"""Arrays: kind, datatype, views, and conversions between numpy and torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nbtriton.common.errors import InvalidArgumentError, UnsupportedError
from nbtriton.model.tensors import (
    DATATYPES,
    datatype_number,
    datatype_of,
    format_shape,
    gather,
    is_on_device,
    kind_of,
    nbytes_of,
    numpy_dtype,
    scatter,
    shape_of,
    to_config,
    to_kind,
    to_numpy,
    to_protocol,
    to_torch,
)
from tests.children import run_python

NUMERIC = [name for name in DATATYPES if name not in ("BYTES", "BF16")]


def address(array):
    return array.data_ptr() if kind_of(array) == "torch" else array.__array_interface__["data"][0]


@pytest.mark.parametrize(
    ("datatype", "number"),
    [("BOOL", 1), ("UINT8", 2), ("INT64", 9), ("FP16", 10), ("FP32", 11), ("FP64", 12),
     ("BYTES", 13), ("BF16", 14)],
)  # fmt: skip
def test_numbers_are_those_of_model_config_proto(datatype, number):
    assert datatype_number(datatype) == number


@pytest.mark.parametrize("datatype", DATATYPES)
def test_names_of_configuration_and_protocol_are_inverse(datatype):
    assert to_protocol(to_config(datatype)) == datatype


def test_an_unknown_datatype_is_an_error_with_the_nearest_name():
    with pytest.raises(InvalidArgumentError) as caught:
        numpy_dtype("FP33")
    assert "FP3" in caught.value.hint


@pytest.mark.parametrize("datatype", NUMERIC)
def test_datatype_of_numpy_and_torch(datatype):
    array = np.zeros((2, 3), numpy_dtype(datatype))
    assert datatype_of(array) == datatype
    assert datatype_of(torch.from_numpy(array)) == datatype


def test_datatype_of_rare_dtypes():
    assert datatype_of(np.array([b"a"], dtype=object)) == "BYTES"
    assert datatype_of(np.array([b"abc"])) == "BYTES"
    assert datatype_of(torch.zeros(2, dtype=torch.bfloat16)) == "BF16"
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert datatype_of(np.zeros(2, ml_dtypes.bfloat16)) == "BF16"


@pytest.mark.parametrize(
    ("array", "hint"),
    [
        (np.zeros(2, np.complex64), ""),
        (np.array(["text"]), "encode"),
        (np.zeros(2, ">f4"), "byte order"),
        (torch.zeros(2, dtype=torch.complex64), ""),
    ],
)
def test_dtypes_without_a_triton_datatype_are_refused(array, hint):
    with pytest.raises(InvalidArgumentError, match="has no Triton datatype") as caught:
        datatype_of(array)
    assert hint in caught.value.hint


def test_other_types_than_arrays_are_refused():
    with pytest.raises(InvalidArgumentError, match="found type 'list'"):
        datatype_of([1, 2])


def test_kind_datatype_shape_and_size():
    array = np.zeros((2, 3), np.float32)
    assert shape_of(torch.zeros(2, 3)) == (2, 3)
    assert type(shape_of(torch.zeros(2, 3))) is tuple
    assert nbytes_of(array) == 24
    assert nbytes_of(torch.zeros(2, 3)) == 24
    assert nbytes_of(np.array([b"abc", b""], dtype=object)) == 11
    assert kind_of(array) == "numpy"
    assert kind_of(torch.nn.Parameter(torch.zeros(1))) == "torch"
    assert not is_on_device(array)
    assert not is_on_device(torch.zeros(1))
    assert format_shape((1, 4)) == "[1,4]"
    assert format_shape(()) == "[]"


def test_numpy_and_torch_share_memory_in_both_directions():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = to_torch(array)
    assert address(tensor) == address(array)
    assert address(to_numpy(tensor)) == address(array)
    assert to_kind(array, "numpy") is array
    assert to_kind(tensor, "torch") is tensor


def test_a_tensor_with_a_gradient_comes_to_numpy():
    parameter = torch.nn.Parameter(torch.ones(2))
    assert address(to_numpy(parameter)) == address(parameter)


def test_a_tensor_made_in_inference_mode_comes_to_numpy():
    with torch.inference_mode():
        tensor = torch.ones(2) + 1
    assert to_numpy(tensor).tolist() == [2, 2]


def test_read_only_reversed_and_foreign_endian_arrays_reach_torch_as_copies():
    constant = np.arange(3, dtype=np.float32)
    constant.flags.writeable = False
    to_torch(constant)[0] = 9
    assert constant[0] == 0
    assert to_torch(np.arange(3)[::-1]).tolist() == [2, 1, 0]
    assert to_torch(np.arange(3, dtype=">i4")).tolist() == [0, 1, 2]


def test_bf16_keeps_its_bits_both_ways():
    pytest.importorskip("ml_dtypes")
    tensor = torch.tensor([1.5, -3.0], dtype=torch.bfloat16)
    array = to_numpy(tensor)
    assert datatype_of(array) == "BF16"
    assert array.astype(np.float32).tolist() == [1.5, -3.0]
    assert torch.equal(to_torch(array), tensor)


def test_strings_do_not_go_to_torch():
    with pytest.raises(UnsupportedError):
        to_torch(np.array([b"a"], dtype=object))


def test_gather_passes_a_single_array_through():
    array = np.zeros((2, 2))
    assert gather([array]) is array


def test_gather_joins_numpy_torch_bytes_and_mixtures():
    a, b = np.full((1, 2), 1, np.float32), np.full((2, 2), 2, np.float32)
    assert gather([a, b]).tolist() == [[1, 1], [2, 2], [2, 2]]
    mixed = gather([torch.from_numpy(a), b])
    assert kind_of(mixed) == "torch"
    assert mixed.tolist() == [[1, 1], [2, 2], [2, 2]]
    text = gather([np.array([b"x"], dtype=object), np.array([b"yy"], dtype=object)])
    assert text.tolist() == [b"x", b"yy"]


WIDE = np.arange(3 * 600, dtype=np.float32).reshape(3, 600)


@pytest.mark.parametrize(
    "arrays",
    [
        [WIDE, WIDE[:1]],
        [WIDE.reshape(3, 20, 30)[:2]] * 3,
        [WIDE[0], WIDE[1, :7]],
        [WIDE > 900, WIDE < 9],
        [WIDE, WIDE.astype(np.float64)],
        [np.asfortranarray(WIDE), WIDE[:, ::-1]],
        [WIDE.astype(np.float16), np.empty((0, 600), np.float16)],
        [WIDE.astype(object), WIDE.astype(object)],
        [np.zeros((2, 1 << 18), np.int64), np.ones((1, 1 << 18), np.int64)],
    ],
)
def test_gather_of_any_numpy_arrays_is_their_concatenation(arrays):
    for array in arrays:
        array.flags.writeable = False
    joined = gather(arrays)
    np.testing.assert_array_equal(joined, np.concatenate(arrays), strict=True)
    assert joined.flags.writeable


@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
def test_gather_names_the_shapes_that_do_not_fit(make):
    with pytest.raises(InvalidArgumentError, match=r"\[1,2\], \[1,3\]"):
        gather([make((1, 2)), make((1, 3))])
    with pytest.raises(InvalidArgumentError, match=r"\[2,600\], \[2,300\]"):
        gather([make((2, 600)), make((2, 300))])


@pytest.mark.parametrize("make", [np.arange, torch.arange])
def test_scatter_gives_views(make):
    array = make(12).reshape(6, 2)
    parts = scatter(array, [1, 3, 2])
    assert [tuple(part.shape) for part in parts] == [(1, 2), (3, 2), (2, 2)]
    row = 2 * array.itemsize
    assert [address(part) - address(array) for part in parts] == [0, row, 4 * row]
    assert scatter(array, [6])[0] is array


@pytest.mark.parametrize("array", [np.zeros((3, 4)), np.zeros(())])
def test_scatter_refuses_a_wrong_first_dimension(array):
    with pytest.raises(InvalidArgumentError, match="cannot split a tensor of shape"):
        scatter(array, [1, 1])


def test_importing_tensors_imports_neither_torch_nor_cupy():
    program = (
        "import sys, numpy as np, nbtriton.model.tensors as t\n"
        "t.datatype_of(np.zeros(2)); t.kind_of(np.zeros(2)); t.as_array([1.0], 'FP32', name='x')\n"
        "assert not {'torch', 'cupy', 'ml_dtypes'} & set(sys.modules)\n"
    )
    source = Path(__file__).parents[2] / "src"
    run_python("-c", program, check=True, env={"PYTHONPATH": str(source)})


@pytest.mark.gpu
def test_device_tensors_stay_on_the_device_until_asked():
    tensor = torch.arange(4, device="cuda").reshape(2, 2)
    assert is_on_device(tensor)
    assert all(is_on_device(part) for part in scatter(tensor, [1, 1]))
    joined = gather([np.zeros((1, 2), np.int64), tensor])
    assert is_on_device(joined)
    assert to_numpy(joined).tolist() == [[0, 0], [0, 1], [2, 3]]
