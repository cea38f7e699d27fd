"""BYTES tensors and their serialized form."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.model.tensors import as_bytes_array, deserialize_bytes, serialize_bytes


def objects(items):
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_serialized_elements_are_read_again(items):
    back = deserialize_bytes(serialize_bytes(objects(items)))
    assert back.dtype == object
    assert back.shape == (len(items),)
    assert back.tolist() == items


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=5), st.data())
def test_a_cut_buffer_is_an_error_or_fewer_items(items, data):
    buffer = serialize_bytes(objects(items))
    cut = data.draw(st.integers(0, len(buffer) - 1))
    whole = []
    end = 0
    for item in items:
        end += 4 + len(item)
        if end <= cut:
            whole.append(item)
    if cut == sum(4 + len(item) for item in whole):
        assert deserialize_bytes(buffer[:cut]).tolist() == whole
    else:
        with pytest.raises(InvalidArgumentError, match="incomplete string"):
            deserialize_bytes(buffer[:cut])


@given(st.lists(st.one_of(st.text(), st.binary(), st.integers(), st.none()), max_size=8))
def test_other_objects_are_their_text_in_utf8(items):
    expected = [i if isinstance(i, bytes) else str(i).encode() for i in items]
    assert as_bytes_array(objects(items)).tolist() == expected
    assert deserialize_bytes(serialize_bytes(objects(items))).tolist() == expected


def test_the_layout_is_a_little_endian_length_and_the_data_in_c_order():
    array = np.array([[b"a", b"bc"], [b"", b"d"]], dtype=object)
    expected = b"".join(struct.pack("<I", len(x)) + x for x in (b"a", b"bc", b"", b"d"))
    assert serialize_bytes(array) == expected
    assert serialize_bytes(np.asfortranarray(array)) == expected
    assert serialize_bytes(np.array([b"a", b"bc"])) == expected[: 5 + 6]


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (
            b"\1\0",
            "incomplete string length indicator, expecting 4 bytes but only 2 bytes available",
        ),
        (
            struct.pack("<I", 100) + b"ab",
            "incomplete string data, expecting string of length 100 but only 2 bytes available",
        ),
    ],
)
def test_errors_say_what_is_missing(buffer, message):
    with pytest.raises(InvalidArgumentError) as caught:
        deserialize_bytes(buffer)
    assert caught.value.message == message


def test_an_array_of_bytes_is_not_copied():
    array = np.array([b"a"], dtype=object)
    assert as_bytes_array(array) is array


@given(st.lists(st.binary(max_size=300), min_size=60, max_size=120))
@pytest.mark.medium
def test_many_elements_of_any_content(items):
    assert deserialize_bytes(serialize_bytes(objects(items))).tolist() == items


@pytest.mark.parametrize("item", [b"word", b"", b"\0\0\0", b"a\0\0\0", b"x" * 300, b"\1\0\0\0x"])
def test_a_guess_at_the_lengths_is_never_taken_for_the_lengths(item):
    items = [item, b"between", b""] * 200
    assert deserialize_bytes(serialize_bytes(objects(items))).tolist() == items


def plain(buffer):
    """Walk from length to length; a message where something is cut off."""
    items, offset = [], 0
    while offset < len(buffer):
        if offset + 4 > len(buffer):
            left = len(buffer) - offset
            return f"incomplete string length indicator, expecting 4 bytes but only {left} bytes available"
        (length,) = struct.unpack_from("<I", buffer, offset)
        offset += 4
        if offset + length > len(buffer):
            left = len(buffer) - offset
            return f"incomplete string data, expecting string of length {length} but only {left} bytes available"
        items.append(buffer[offset : offset + length])
        offset += length
    return items


def found(buffer):
    try:
        array = deserialize_bytes(buffer)
    except InvalidArgumentError as error:
        return error.message
    assert {*map(type, array)} <= {bytes}
    return array.tolist()


@given(
    st.lists(st.sampled_from([b"", b"\0", b"a", b"ab\0", b"\0\0\0\0", b"text", b"\4", b"t" * 254]), min_size=1),
    st.integers(1, 200),
    st.sampled_from([None, 0, 1, 3, 4, 5, -1, -2, -5]),
    st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from([0, 1, 4, 200, 255])), max_size=3),
)  # fmt: skip
def test_every_way_of_reading_finds_the_same(items, times, cut, damage):
    # Repeated and damaged: all of one length, guessed by zeros, or neither.
    buffer = bytearray(serialize_bytes(objects(items * times))[:cut])
    for place, value in damage:
        if buffer:
            buffer[place % len(buffer)] = value
    assert found(bytes(buffer)) == plain(bytes(buffer))


@pytest.mark.parametrize("length", [0, 1, 255, 256, 70_000])
def test_elements_of_one_length(length):
    items = [bytes([n % 7]) * length for n in range(150)]
    buffer = serialize_bytes(objects(items))
    assert found(buffer) == items
    assert found(buffer[:-1]) == plain(buffer[:-1])
    assert found(buffer + b"\1") == plain(buffer + b"\1")


def test_a_length_beyond_the_buffer_costs_no_memory():
    buffer = b"\xff\xff\xff\xff" + bytes(2000)
    assert found(buffer) == (
        "incomplete string data, expecting string of length 4294967295 but only 2000 bytes available"
    )
