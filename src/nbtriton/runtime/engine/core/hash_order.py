"""The order in which Triton goes through the tensors of a request: that of its hash table.

Errors of several inputs name the first one in this order; lists of names in messages, and the outputs
of an ensemble, follow it. It is that of ``std::unordered_map<std::string, …>`` in
GNU's C++ library, whose hash has no seed of its own: the same names that come in the same order always
stand in the same order. Made where a request is refused or a model is loaded, never for each request.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable

__all__ = ["hash_order"]

# How many buckets the table has as it grows: the library's primes.
_SIZES = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273)
_64_BITS = (1 << 64) - 1
_SEED = 0xC70F6907
_FACTOR = 0xC6A4A7935BD1E995


def hash_order(names: Iterable[str]) -> list[str]:
    """Return names that were put into Triton's table one after the other as it lists them."""
    listed: list[str] = []
    size = _SIZES[0]
    hashes: dict[str, int] = {}
    for count, name in enumerate(names, start=1):
        hashes[name] = _hash(name.encode("utf-8", "surrogateescape"))
        if count > size:
            size = _SIZES[min(bisect(_SIZES, size), len(_SIZES) - 1)]
            before, listed = listed, []
            for known in before:
                _insert(listed, known, hashes, size)
        _insert(listed, name, hashes, size)
    return listed


def _insert(listed: list[str], name: str, hashes: dict[str, int], size: int) -> None:
    """Put a name before the others of its bucket, or before all if its bucket is empty."""
    bucket = hashes[name] % size
    places = (place for place, other in enumerate(listed) if hashes[other] % size == bucket)
    listed.insert(next(places, 0), name)


def _hash(text: bytes) -> int:
    """Return ``std::hash<std::string>`` of 64 bits, a MurmurHash."""
    whole = len(text) & ~7
    found = _SEED ^ (len(text) * _FACTOR & _64_BITS)
    for at in range(0, whole, 8):
        block = _mixed(int.from_bytes(text[at : at + 8], "little") * _FACTOR & _64_BITS)
        found = (found ^ (block * _FACTOR & _64_BITS)) * _FACTOR & _64_BITS
    if whole < len(text):
        found = (found ^ int.from_bytes(text[whole:], "little")) * _FACTOR & _64_BITS
    return _mixed(_mixed(found) * _FACTOR & _64_BITS)


def _mixed(value: int) -> int:
    return value ^ (value >> 47)
