"""What a response cache keeps: K7 and K11, with numbers measured on a tritonserver 2.51."""

from __future__ import annotations

import pytest

from nbtriton.scheduling import CacheSpace, header_bytes

LARGE = 1_000_000


def entry_bytes(*outputs: tuple[str, str, int, int]) -> int:
    """Return the size of an entry: name, datatype, dimensions and bytes of each output."""
    return header_bytes([output[:3] for output in outputs]) + sum(size for *_, size in outputs)


@pytest.mark.parametrize(
    ("outputs", "taken"),
    [
        ([], 48),
        ([("OUT", "INT8", 1, 9)], 64),
        ([("OUT", "INT8", 1, 10)], 80),
        ([("BO", "BOOL", 1, 10)], 64),
        ([("BO", "BOOL", 1, 11)], 80),
        ([("UU", "UINT16", 1, 8)], 64),
        ([("UU", "UINT16", 1, 10)], 80),
        ([("FF", "FP16", 1, 10)], 64),
        ([("FF", "FP16", 1, 12)], 80),
        ([("OUT", "INT32", 1, 8)], 64),
        ([("OUT", "INT32", 1, 12)], 80),
        ([("OUT", "INT32", 1, 100)], 160),
        ([("OUT", "INT32", 3, 4)], 80),
        ([("OUTPUT_LONGER", "INT32", 1, 4)], 80),
        ([("OUT", "BYTES", 1, 7)], 64),
        ([("OUT", "BYTES", 1, 14)], 80),
        ([("OUT", "INT8", 1, 50_000)], 50_064),
        ([("OUT", "INT8", 1, 1), ("BO", "BOOL", 1, 1)], 112),
        ([("OUT", "INT8", 1, 1), ("BO", "BOOL", 1, 1), ("UU", "UINT16", 1, 14)], 160),
    ],
)
def test_K11_an_entry_takes_what_it_takes_in_triton(outputs: list, taken: int):
    space = CacheSpace(LARGE)
    assert space.used_bytes == 128
    assert space.insert("key", entry_bytes(*outputs)) == []
    assert space.used_bytes == 128 + taken


@pytest.mark.parametrize(
    ("size_bytes", "data_bytes", "held"),
    [
        (192, 5, 0), (207, 5, 0), (208, 5, 1), (256, 5, 1), (300, 5, 2), (1000, 5, 13), (1001, 5, 13),
        (1008, 5, 13), (4000, 5, 60), (4000, 100, 24),
    ],
)  # fmt: skip
def test_K7_K11_as_many_entries_fit_as_in_triton(size_bytes: int, data_bytes: int, held: int):
    space = CacheSpace(size_bytes)
    content = entry_bytes(("OUT", "INT8", 1, data_bytes))
    evicted = [gone for key in range(100) for gone in space.insert(key, content)]
    assert len(space) == held
    assert evicted == list(range(100 - held)) if held else evicted == []


@pytest.mark.parametrize(
    ("content_bytes", "left"),
    # Too large for what the cache leaves; exactly its size; larger.
    [(3851, 0), (4000, 0), (4001, 2)],
)
def test_K11_what_does_not_fit_evicts_all_unless_it_is_larger_than_the_cache(
    content_bytes: int, left: int
):
    space = CacheSpace(4000)
    for key in ("a", "b"):
        space.insert(key, 100)
    evicted = space.insert("c", content_bytes)
    assert (len(space), len(evicted)) == (left, 2 - left)
    assert not space.holds("c")


def test_K7_the_least_recently_used_entry_goes_first():
    space = CacheSpace(300)  # holds two
    for key in ("a", "b"):
        space.insert(key, 50)
    space.use("a")
    assert space.insert("c", 50) == ["b"]


def test_K7_K11_entries_of_any_sizes_leave_no_gaps():
    space = CacheSpace(1008)
    for key, content in enumerate((56, 376, 56, 312)):  # 64, 384, 64, 320 of 864 bytes
        assert space.insert(key, content) == []
    for key in (3, 1):
        space.use(key)
    # 64 bytes in front of the second entry and 64 behind it.
    assert space.insert("two gaps", 120) == [0, 2]
    assert space.used_bytes == 128 + 128 + 384 + 320
