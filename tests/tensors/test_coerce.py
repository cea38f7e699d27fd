"""Python values become arrays of the declared datatype; arrays are never cast."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.model.tensors import as_array, datatype_of


@pytest.mark.parametrize(
    ("value", "datatype", "dtype", "shape"),
    [
        ([1, 2], "FP32", np.float32, (2,)),
        ([[1.5], [2]], "FP16", np.float16, (2, 1)),
        (3, "INT8", np.int8, ()),
        (np.float64(0.5), "FP32", np.float32, ()),
        ([True, False], "BOOL", np.bool_, (2,)),
        ([], "INT32", np.int32, (0,)),
        ([np.float32(1), 2], "FP64", np.float64, (2,)),
        ([255], "UINT8", np.uint8, (1,)),
        ([2**63], "UINT64", np.uint64, (1,)),
    ],
)
def test_python_values_take_the_declared_datatype(value, datatype, dtype, shape):
    array = as_array(value, datatype, name="IN")
    assert array.dtype == dtype
    assert array.shape == shape
    assert np.array_equal(array, np.asarray(value))


@pytest.mark.parametrize(
    ("value", "datatype"),
    [([1.5], "INT32"), ([256], "UINT8"), ([-1], "UINT32"), ([1e300], "FP32"), (["1"], "FP32"),
     ([1], "BOOL"), ([True], "FP32"), ([1j], "FP32"), ([None], "FP32")],
)  # fmt: skip
def test_lossy_conversions_are_refused(value, datatype):
    with pytest.raises(InvalidArgumentError, match=f"input 'IN' expects {datatype}"):
        as_array(value, datatype, name="IN")


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_ragged_lists_are_refused(datatype):
    with pytest.raises(InvalidArgumentError, match="not a regular array"):
        as_array(
            [[b"1"], [b"2", b"3"]] if datatype == "BYTES" else [[1], [2, 3]], datatype, name="I"
        )


def test_infinity_and_nan_are_values():
    assert np.isinf(as_array([float("inf")], "FP16", name="IN")).all()
    assert np.isnan(as_array([float("nan")], "FP32", name="IN")).all()


@pytest.mark.parametrize(
    "array", [np.zeros(2, np.float64), torch.zeros(2, dtype=torch.int8), np.zeros(2, np.float32)]
)
def test_arrays_of_any_dtype_come_back_themselves(array):
    assert as_array(array, "FP32", name="IN") is array


def test_only_the_byte_order_of_an_array_is_changed():
    array = as_array(np.arange(3, dtype=">f4"), "FP32", name="IN")
    assert datatype_of(array) == "FP32"
    assert array.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("grüß", np.array("grüß".encode(), dtype=object)),
        (b"\0\1", np.array(b"\0\1", dtype=object)),
        (["a", b"b"], np.array([b"a", b"b"], dtype=object)),
        ([["a"], ["b"]], np.array([[b"a"], [b"b"]], dtype=object)),
        (np.array(["a", "b"]), np.array([b"a", b"b"], dtype=object)),
        (np.array([b"a", b"bc"]), np.array([b"a", b"bc"], dtype=object)),
        (np.array(["a", b"b"], dtype=object), np.array([b"a", b"b"], dtype=object)),
        (np.str_("a"), np.array(b"a", dtype=object)),
        ([], np.empty(0, dtype=object)),
        (bytearray(b"x"), np.array(b"x", dtype=object)),
    ],
)
def test_text_becomes_bytes(value, expected):
    array = as_array(value, "BYTES", name="TEXT")
    assert array.dtype == object
    assert array.shape == expected.shape
    assert array.tolist() == expected.tolist()
    assert all(type(item) is bytes for item in array.flat)


def test_bytes_arrays_that_are_right_come_back_themselves():
    array = np.array([b"a"], dtype=object)
    assert as_array(array, "BYTES", name="TEXT") is array


def test_numbers_are_no_text():
    with pytest.raises(InvalidArgumentError, match="found a value of type 'int'"):
        as_array([1], "BYTES", name="TEXT")


def test_other_libraries_come_in_through_their_protocols():
    class WithDlpack:
        def __init__(self, array):
            self._array = array

        def __dlpack__(self, **options):
            return self._array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self._array.__dlpack_device__()

    class WithArray:
        def __array__(self, dtype=None, copy=None):
            return np.ones(3, np.float32)

    source = np.arange(3, dtype=np.float32)
    assert np.shares_memory(as_array(WithDlpack(source), "FP32", name="IN"), source)
    assert as_array(WithArray(), "FP32", name="IN").tolist() == [1, 1, 1]


def test_a_sparse_tensor_is_refused():
    with pytest.raises(
        InvalidArgumentError, match=r"'IN' is a tensor of layout torch\.sparse_coo"
    ) as e:
        as_array(torch.ones(1, 4).to_sparse(), "FP32", name="IN")
    assert "to_dense" in e.value.hint
