"""BYTES tensors: object arrays of `bytes`, and their serialized form."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from nbtriton.errors import InvalidArgumentError

__all__ = ["as_bytes_array", "deserialize_bytes", "serialize_bytes"]

_LENGTH = struct.Struct("<I")


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
    parts: list[bytes] = []
    for item in array.flat:
        data = _to_bytes(item)
        parts.append(_LENGTH.pack(len(data)))
        parts.append(data)
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
    view = memoryview(buffer).cast("B")
    total = len(view)
    items: list[bytes] = []
    offset = 0
    while offset < total:
        if total - offset < _LENGTH.size:
            raise InvalidArgumentError(
                f"incomplete string length indicator, expecting {_LENGTH.size} bytes "
                f"but only {total - offset} bytes available"
            )
        (length,) = _LENGTH.unpack_from(view, offset)
        offset += _LENGTH.size
        if total - offset < length:
            raise InvalidArgumentError(
                f"incomplete string data, expecting string of length {length} "
                f"but only {total - offset} bytes available"
            )
        items.append(bytes(view[offset : offset + length]))
        offset += length
    out = np.empty(len(items), dtype=object)
    out[:] = items
    return out


def _to_bytes(item: object) -> bytes:
    if isinstance(item, bytes):
        return bytes(item)
    return str(item).encode("utf-8")
