"""The classification extension: the top classes of an output instead of its values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.model.tensors import datatype_of, to_numpy

if TYPE_CHECKING:
    from nbtriton.model.tensors import Array

__all__ = ["Labels", "classify"]

# Returns the class labels of a model, version and output.
Labels: TypeAlias = Callable[[str, int, str], Sequence[str]]

# BYTES too, on which Triton crashes.
_UNSUPPORTED = ("BOOL", "FP16", "BF16", "BYTES")


def classify(
    array: Array, count: int, batches: bool, labels: Sequence[str]
) -> np.ndarray[Any, Any]:
    """Return the `count` largest values of each batch entry, largest first.

    Parameters
    ----------
    array : array
        The output; the first dimension is the batch if the model batches.
    count : int
        Number of classes; at most all are returned.
    batches : bool
    labels : sequence of str
        By class index; may be shorter than the output or empty.

    Returns
    -------
    numpy.ndarray of object, shape [batch, count] or [count]
        BYTES ``value:index`` or ``value:index:label``; equal values in order of index.

    Raises
    ------
    InvalidArgumentError
        The datatype has no order in Triton.
    """
    datatype = datatype_of(array)
    if datatype in _UNSUPPORTED:
        raise InvalidArgumentError(
            f"class result not available for output due to unsupported type '{datatype}'"
        )
    host = to_numpy(array)
    batch = host.shape[0] if batches and host.ndim else 0
    size = math.prod(host.shape[1:] if batch else host.shape)
    rows = host.reshape(max(1, batch), size)
    kept = min(count, size)
    # A stable descending sort without negation, which unsigned numbers do not have.
    best = size - 1 - np.argsort(rows[:, ::-1], axis=1, kind="stable")[:, ::-1][:, :kept]
    values = np.take_along_axis(rows, best, axis=1)
    write = "{:f}".format if rows.dtype.kind == "f" else str
    out = np.empty(values.shape, dtype=object)
    out.reshape(-1)[:] = [
        _entry(write(value), index, labels)
        for value, index in zip(values.ravel().tolist(), best.ravel().tolist(), strict=True)
    ]
    return out if batch else out[0]


def _entry(value: str, index: int, labels: Sequence[str]) -> bytes:
    label = labels[index] if index < len(labels) else ""
    text = f"{value}:{index}:{label}" if label else f"{value}:{index}"
    return text.encode()
