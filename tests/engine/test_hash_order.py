"""The order of Triton's hash table; expected values are from messages of the real server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtriton.runtime.engine.core.faults import hash_order

# More than the 13 that fit the table's first size.
MANY = (
    "input_ids attention_mask token_type_ids position_ids a b c d e f g h past_key_values_0 "
    "past_key_values_1 labels x y"
)
MANY_LISTED = (
    "x labels past_key_values_1 y input_ids attention_mask token_type_ids g past_key_values_0 a d b h "
    "position_ids c e f"
)


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        ("IN X", "X IN"),
        ("A B C", "B C A"),
        ("INPUT0 Z Y INPUT1", "INPUT1 Y Z INPUT0"),
        ("CODE OPT IN", "IN OPT CODE"),
        (MANY, MANY_LISTED),
    ],
)
def test_names_stand_as_the_real_server_lists_them(names: str, listed: str) -> None:
    assert " ".join(hash_order(names.split())) == listed


@given(st.lists(st.text(), unique=True, max_size=70))
def test_no_name_is_lost(names: list[str]) -> None:
    assert sorted(hash_order(names)) == sorted(names)
