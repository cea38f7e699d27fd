"""Tensors as a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nbtriton.common.packages import needed
from nbtriton.model.tensors.arrays import Array, to_numpy

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["frame_of"]


def frame_of(outputs: Mapping[str, Array]) -> pd.DataFrame:
    """Return one row for each row of the batch; see `nbtriton.InferenceResult.to_frame`."""
    with needed("to_frame"):
        import pandas as pd

    arrays = {name: to_numpy(array) for name, array in outputs.items()}
    rows = {array.shape[0] if array.ndim else None for array in arrays.values()}
    if len(rows) != 1 or None in rows:
        # No common batch dimension: all of it is one row.
        arrays = {name: array[None] for name, array in arrays.items()}
    return pd.DataFrame({name: _column(array) for name, array in arrays.items()})


def _column(array: np.ndarray[Any, Any]) -> Any:
    """Return what stands in each row: a number or a string, or a list of them."""
    if array.dtype.kind in "OS":
        texts = np.empty(array.shape, object)
        texts.reshape(-1)[:] = [_text(item) for item in array.reshape(-1)]
        array = texts
    if array.size == array.shape[0]:
        return array.reshape(-1)
    return list(array.tolist())


def _text(item: object) -> object:
    """Return a string; bytes that are no UTF-8 stay bytes."""
    if not isinstance(item, bytes):
        return item
    try:
        return item.decode()
    except UnicodeDecodeError:
        return item
