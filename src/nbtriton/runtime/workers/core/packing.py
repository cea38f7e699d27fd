"""Tensors in one piece of memory: after a small message, or in a block of shared memory.

A column is a tensor of all requests or responses of a batch. Equal rows are joined along axis 0: they cost
one copy and one view per batch. A column's description says how to read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from nbtriton.model.tensors import Array, as_bytes_array, bits_of, datatype_of, of_bits, to_numpy
from nbtriton.runtime.workers.core.memory import Outgoing, Place

# Final: rule 13 of docs/compiled.md.
_ndarray: Final = np.ndarray
_dtype: Final = np.dtype

# Alignment of each column, for every dtype of numpy.
_ALIGNMENT: Final = 16
_PAD: Final = [bytes(count) for count in range(_ALIGNMENT)]

# The kinds of columns.
_ROWS: Final = 0
_EACH: Final = 1
_TEXT: Final = 2
_ONE: Final = 3
# The kinds of dtypes whose memory is their value.
_NUMBERS: Final = "biuf"

_BF16: Final = "bf16"
_NO_ROWS: Final[list[int]] = []
_DTYPES: Final[dict[str, Any]] = {}

Shape = tuple[int, ...]


class Packer:
    """Collects the tensors of one message.

    Attributes
    ----------
    size : int
        Bytes so far.
    """

    __slots__ = ("_arrays", "_offsets", "size")

    def __init__(self) -> None:
        self._arrays: list[list[Any]] = []
        self._offsets: list[int] = []
        self.size = 0

    def column(self, arrays: list[Any], rows: list[int]) -> tuple[Any, ...]:
        """Add a tensor of several requests; None where a request lacks it.

        Parameters
        ----------
        arrays : list of Array or None
        rows : list of int
            The batch size of each request, known to the reader.

        Returns
        -------
        tuple
            Its description, for `read_column`.
        """
        first = arrays[0]
        if len(arrays) == 1:
            if type(first) is _ndarray:
                dtype = first.dtype
                if dtype.kind in _NUMBERS:
                    return _ONE, dtype.str, self._add(arrays, first.nbytes), first.shape
        elif type(first) is _ndarray and first.ndim > 0:
            dtype = first.dtype
            shape = first.shape
            if dtype.kind in _NUMBERS:
                plain = True
                same = True
                counts: list[int] = []
                for array in arrays:
                    if type(array) is not _ndarray or array.dtype is not dtype:
                        plain = False
                        break
                    found = array.shape
                    if found != shape:
                        if found[1:] != shape[1:] or len(found) != len(shape):
                            plain = False
                            break
                        same = False
                    counts.append(found[0])
                if plain:
                    total = len(arrays) * shape[0] if same else sum(counts)
                    count = total * dtype.itemsize
                    for dim in shape[1:]:
                        count *= dim
                    offset = self._add(arrays, count)
                    return (
                        _ROWS, dtype.str, offset, total, shape[1:], None if counts == rows else counts,
                    )  # fmt: skip
        return self._each(arrays)

    def tensor(self, array: Array) -> tuple[Any, ...]:
        """Add one tensor; see `read_tensor`."""
        return self.column([array], _NO_ROWS)

    def finish(self, heap: Outgoing) -> tuple[Place | None, bytes]:
        """Write the tensors; return their place in shared memory, or the bytes after the message."""
        size = self.size
        if size <= heap.inline_bytes:
            if not size:
                return None, b""
            if len(self._arrays) == 1 and len(self._arrays[0]) == 1:
                return None, self._arrays[0][0].tobytes()
            parts: list[Any] = []
            end = 0
            for arrays, offset in zip(self._arrays, self._offsets):  # noqa: B905 - of one length
                if offset > end:
                    parts.append(_PAD[offset - end])
                    end = offset
                for array in arrays:
                    parts.append(array if array.flags.c_contiguous else array.tobytes())
                    end += array.nbytes
            return None, b"".join(parts)
        place, memory = heap.allocate(size)
        for arrays, offset in zip(self._arrays, self._offsets):  # noqa: B905 - of one length
            first = arrays[0]
            if len(arrays) == 1:
                np.copyto(_ndarray(first.shape, first.dtype, memory, offset), first)
                continue
            total = sum([array.shape[0] for array in arrays])
            out = _ndarray((total, *first.shape[1:]), first.dtype, memory, offset)
            np.concatenate(arrays, out=out)
        return place, b""

    def _add(self, arrays: list[Any], count: int) -> int:
        """Add the memory of arrays, one after the other; return its offset."""
        offset = (self.size + _ALIGNMENT - 1) & -_ALIGNMENT
        self._arrays.append(arrays)
        self._offsets.append(offset)
        self.size = offset + count
        return offset

    def _each(self, arrays: list[Any]) -> tuple[Any, ...]:
        """Add tensors of any datatypes and shapes."""
        described: list[Any] = []
        for given in arrays:
            if given is None:
                described.append(None)
                continue
            code = ""
            if type(given) is _ndarray and given.dtype.kind in _NUMBERS:
                array = given
            elif datatype_of(given) == "BF16":
                code = _BF16
                array = bits_of(given)
            else:
                array = to_numpy(given)
                if array.dtype.kind in "OS":
                    text = as_bytes_array(array)
                    described.append((_TEXT, text.shape, text.reshape(-1).tolist()))
                    continue
            code = code or array.dtype.str
            described.append((_EACH, code, self._add([array], array.nbytes), array.shape))
        return _EACH, described


def read_column(column: Sequence[Any], rows: Sequence[int], memory: Any) -> list[Any]:
    """Return a tensor of several requests from the packer's memory."""
    if column[0] == _ONE:
        return [_ndarray(column[3], _dtype_of(column[1]), memory, column[2])]
    if column[0] != _ROWS:
        return [None if one is None else _read(one, memory) for one in column[1]]
    _, code, offset, total, item, counts = column
    whole = _ndarray((total, *item), _dtype_of(code), memory, offset)
    views: list[Any] = []
    start = 0
    for count in rows if counts is None else counts:
        views.append(whole[start : start + count])
        start += count
    return views


def joined_rows(column: Sequence[Any], memory: Any) -> Array | None:
    """Return the rows of all requests as one array; None for a column in another form."""
    if column[0] != _ROWS:
        return None
    return _ndarray((column[3], *column[4]), _dtype_of(column[1]), memory, column[2])


def read_tensor(column: Sequence[Any], memory: Any) -> Array:
    """Return one tensor from the packer's memory."""
    if column[0] == _ONE:
        return _ndarray(column[3], _dtype_of(column[1]), memory, column[2])
    return _read(column[1][0], memory)


def _read(one: Sequence[Any], memory: Any) -> Array:
    if one[0] == _TEXT:
        _, shape, items = one
        text = np.empty(len(items), dtype=object)
        text[:] = items
        return text.reshape(shape)
    _, code, offset, shape = one
    if code == _BF16:
        return of_bits(_ndarray(shape, np.int16, memory, offset))
    return _ndarray(shape, _dtype_of(code), memory, offset)


def _dtype_of(code: str) -> Any:
    dtype = _DTYPES.get(code)
    if dtype is None:
        dtype = _DTYPES[code] = _dtype(code)
    return dtype
