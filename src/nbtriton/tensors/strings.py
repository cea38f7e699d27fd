"""BYTES tensors: object arrays of `bytes`, and their serialized form."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from nbtriton.errors import InvalidArgumentError

__all__ = ["as_bytes_array", "deserialize_bytes", "serialize_bytes"]

_LENGTH = struct.Struct("<I")
# Below this walking is faster than asking numpy.
_FEW_BYTES = 512


def as_bytes_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an object array whose elements are all `bytes`.

    Strings are encoded as UTF-8, other objects through `str` first, as Triton's
    ``serialize_byte_tensor`` does. An array that needs no change is returned itself.

    Parameters
    ----------
    array : numpy.ndarray
        Of dtype object, ``S`` or ``U``; any shape.
    """
    if array.dtype.kind == "S":
        return array.astype(object)
    if array.dtype.kind == "O" and all(type(item) is bytes for item in array.flat):
        return array
    out = np.empty(array.shape, dtype=object)
    flat = out.reshape(-1)
    for index, item in enumerate(array.flat):
        flat[index] = _to_bytes(item)
    return out


def serialize_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """Serialize a BYTES tensor: each element in C order as a 4-byte little-endian length and data.

    Parameters
    ----------
    array : numpy.ndarray
        Of dtype object, ``S`` or ``U``; any shape.
    """
    items = [
        item if type(item) is bytes else _to_bytes(item) for item in array.reshape(-1).tolist()
    ]
    parts = [b""] * (2 * len(items))
    parts[0::2] = map(_LENGTH.pack, map(len, items))
    parts[1::2] = items
    return b"".join(parts)


def deserialize_bytes(buffer: bytes | bytearray | memoryview) -> np.ndarray[Any, Any]:
    """Return the elements of a serialized BYTES tensor.

    Parameters
    ----------
    buffer : bytes-like

    Returns
    -------
    numpy.ndarray
        One-dimensional, dtype object, elements `bytes`.

    Raises
    ------
    InvalidArgumentError
        A length or an element is cut off.
    """
    raw = bytes(buffer)
    items = _split_at_zeros(raw) if len(raw) > _FEW_BYTES else None
    if items is None:
        items = _split(raw)
    out = np.empty(len(items), dtype=object)
    out[:] = items
    return out


def _split(raw: bytes) -> list[bytes]:
    """Walk from length to length."""
    total = len(raw)
    items: list[bytes] = []
    offset = 0
    while offset < total:
        start = offset + _LENGTH.size
        if start > total:
            raise InvalidArgumentError(
                f"incomplete string length indicator, expecting {_LENGTH.size} bytes "
                f"but only {total - offset} bytes available"
            )
        (length,) = _LENGTH.unpack_from(raw, offset)
        offset = start + length
        if offset > total:
            raise InvalidArgumentError(
                f"incomplete string data, expecting string of length {length} "
                f"but only {total - start} bytes available"
            )
        items.append(raw[start:offset])
    return items


def _split_at_zeros(raw: bytes) -> list[bytes] | None:
    """Guess where the lengths are, and check the guess: twice as fast as walking.

    The length of a short element ends in three zero bytes, which text does not contain. None if
    that finds anything but a chain of lengths from the first byte to the last.
    """
    values = np.frombuffer(raw, np.uint8)
    zero = values == 0
    starts = np.flatnonzero(zero[1:-2] & zero[2:-1] & zero[3:])
    if not len(starts) or starts[0] != 0:
        return None
    ends = starts + (values[starts].astype(np.int64) + _LENGTH.size)
    if ends[-1] != len(raw) or not np.array_equal(ends[:-1], starts[1:]):
        return None
    first = (starts + _LENGTH.size).tolist()
    return [raw[start:end] for start, end in zip(first, ends.tolist(), strict=True)]


def _to_bytes(item: object) -> bytes:
    if isinstance(item, bytes):
        return bytes(item)
    return str(item).encode("utf-8")
