"""BYTES tensors: object arrays of `bytes`, and their serialized form."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from nbtriton.common.errors import InvalidArgumentError

_LENGTH = struct.Struct("<I")
# Below this, walking is faster than numpy.
_FEW_BYTES = 512
# Above this too: numpy would block other threads for more than 50 ms.
_MANY_BYTES = 16 << 20
# An item of a numpy dtype.
_LARGEST_ITEM = 2**31 - 1
# Above this times the data, padding short elements to the longest one costs more than it saves.
_MOST_PADDING = 8


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
    if array.dtype.kind == "O" and set(map(type, array.reshape(-1).tolist())) <= {bytes}:
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


def deserialize_bytes(
    buffer: bytes | bytearray | memoryview, most: int | None = None
) -> np.ndarray[Any, Any]:
    """Return the elements of a serialized BYTES tensor.

    Parameters
    ----------
    buffer : bytes-like
    most : int, optional
        Elements after which the reader may stop; then one more is returned.

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
    if _FEW_BYTES < len(raw) <= _MANY_BYTES:
        found = _of_one_length(raw)
        if found is None and _begins_short(raw):
            found = _at_zeros(raw)
        if found is not None:
            return found
    return _as_array(_walk(raw, len(raw) if most is None else most))


def _as_array(items: list[bytes]) -> np.ndarray[Any, Any]:
    out = np.empty(len(items), dtype=object)
    out[:] = items
    return out


def _walk(raw: bytes, most: int) -> list[bytes]:
    """Walk from length to length, to the end or to one element beyond the limit."""
    total = len(raw)
    items: list[bytes] = []
    offset = 0
    while offset < total and len(items) <= most:
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


def _of_one_length(raw: bytes) -> np.ndarray[Any, Any] | None:
    """Return elements that all have the length of the first; None if they do not.

    Eight times as fast as walking: one strided view of the lengths, one of the data.
    """
    length = int.from_bytes(raw[: _LENGTH.size], "little")
    step = _LENGTH.size + length
    if len(raw) % step or length > _LARGEST_ITEM:
        return None
    count = len(raw) // step
    if (np.ndarray((count,), "<u4", raw, 0, (step,)) != length).any():
        return None
    if not length:
        return _as_array([b""] * count)
    return np.ndarray((count,), f"V{length}", raw, _LENGTH.size, (step,)).astype(object)


def _begins_short(raw: bytes) -> bool:
    """Return whether the first elements have less than 256 bytes: longer ones are best walked."""
    offset = 0
    for _ in range(8):
        (length,) = _LENGTH.unpack_from(raw, offset)
        offset += _LENGTH.size + length
        if length > 255 or offset + _LENGTH.size > len(raw):
            return False
    return True


def _at_zeros(raw: bytes) -> np.ndarray[Any, Any] | None:
    """Guess the places of the lengths, and check the guess: three times as fast as walking.

    The length of a short element ends in three zero bytes, which text does not contain. None if
    that finds anything but a chain of lengths from the first byte to the last, of which only one
    can exist.
    """
    values = np.frombuffer(raw, np.uint8)
    zero = values == 0
    starts = np.flatnonzero(zero[1:-2] & zero[2:-1] & zero[3:])
    if not len(starts):
        return None
    lengths = values[starts]
    if not lengths.all():  # some elements are empty
        starts = _without_overlap(starts, zero)
        lengths = values[starts]
    ends = starts + _LENGTH.size
    ends += lengths
    if starts[0] != 0 or ends[-1] != len(raw) or not np.array_equal(ends[:-1], starts[1:]):
        return None
    longest = int(lengths.max())
    # numpy's own strings are padded with zeros, so they lose those at the end of an element.
    ends_in_zero = zero[ends - 1] & (lengths != 0)
    if len(starts) * longest > _MOST_PADDING * len(raw) or ends_in_zero.any():
        first = (starts + _LENGTH.size).tolist()
        return _as_array([raw[a:b] for a, b in zip(first, ends.tolist(), strict=True)])
    windows = np.ndarray((len(raw) + 1,), f"V{longest}", raw + bytes(longest), 0, (1,))
    rows = windows[starts + _LENGTH.size].view(np.uint8).reshape(len(starts), longest)
    # Row n of the triangle has n ones.
    rows *= np.tri(longest + 1, longest, -1, np.uint8)[lengths]
    return rows.view(f"S{longest}").reshape(-1).astype(object)


def _without_overlap(
    starts: np.ndarray[Any, Any], zero: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Drop the false starts in a run of zeros.

    The length of k empty elements in a row are 4 k zeros: every fourth of them is a start, and what
    comes before the first of them is text.
    """
    empty = zero[starts]
    begins = empty & ((starts == 0) | ~zero[starts - 1])
    run = np.maximum.accumulate(np.where(begins, starts, 0))
    before_run = np.zeros(len(starts), bool)
    before_run[:-1] = starts[1:] == starts[:-1] + 1
    kept: np.ndarray[Any, Any] = starts[
        np.where(empty, (starts - run) % _LENGTH.size == 0, ~before_run)
    ]
    return kept


def _to_bytes(item: object) -> bytes:
    if isinstance(item, bytes):
        return bytes(item)
    return str(item).encode("utf-8")
