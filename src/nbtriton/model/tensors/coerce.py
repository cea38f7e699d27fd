"""Conversion of lists, numbers and text to arrays of a declared datatype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.common.packages import needed
from nbtriton.model.tensors.arrays import Array, kind_or_none, to_numpy
from nbtriton.model.tensors.datatypes import numpy_dtype
from nbtriton.model.tensors.strings import as_bytes_array

if TYPE_CHECKING:
    import pandas as pd

_REGULAR = "all rows of a nested list must have the same length"


def as_array(value: object, datatype: str, *, name: str) -> Array:
    """Return a value as an array of the declared datatype.

    Parameters
    ----------
    value : object
        An array (numpy, torch, CuPy, anything with ``__array__`` or ``__dlpack__``), or Python
        values: a number, str or bytes, or nested lists of them.
    datatype : str
        Protocol datatype of the tensor, such as ``"FP32"``.
    name : str
        Name of the tensor, for messages.

    Returns
    -------
    Array
        An array is returned as it is, whatever its dtype: casting data is up to the caller, and
        Triton refuses it too. For BYTES, text of any form becomes an object array
        of `bytes` (UTF-8). Python values are cast where no value is lost; a scalar gives shape [].

    Raises
    ------
    InvalidArgumentError
        Values that the datatype cannot hold, ragged lists, or a sparse tensor.
    """
    if type(value) is np.ndarray or kind_or_none(value) is not None:
        return _from_array(value, datatype, name)
    if datatype == "BYTES":
        return _text(value, name)
    if not isinstance(value, (list, tuple, bool, int, float, np.generic)):
        foreign = _from_foreign(value)
        if foreign is not None:
            return foreign
    return _numbers(value, datatype, name)


def _from_array(array: Array, datatype: str, name: str) -> Array:
    if not isinstance(array, np.ndarray):
        layout = str(getattr(array, "layout", "torch.strided"))
        if layout != "torch.strided":
            raise InvalidArgumentError(
                f"input '{name}' is a tensor of layout {layout}, expected torch.strided",
                hint="make it dense: tensor.to_dense()",
            )
        return array
    if datatype == "BYTES" and array.dtype.kind in "OSU":
        return as_bytes_array(array)
    if not array.dtype.isnative and array.dtype.kind in "iuf":
        return array.astype(array.dtype.newbyteorder("="))
    return array


def _from_foreign(value: Any) -> Array | None:
    if hasattr(value, "__dlpack_device__"):
        # 1 is kDLCPU; anything else is left to torch, which knows the devices.
        if int(value.__dlpack_device__()[0]) == 1:
            return np.from_dlpack(value)
        with needed("a tensor on a GPU"):
            from torch.utils.dlpack import from_dlpack

        return from_dlpack(value)
    if hasattr(value, "__array__"):
        return np.asarray(value)
    return None


def _text(value: Any, name: str) -> np.ndarray[Any, Any]:
    if hasattr(value, "__array__") and not isinstance(value, (str, bytes)):
        return as_bytes_array(np.asarray(value).astype(object))
    if isinstance(value, (bytearray, memoryview)):
        value = bytes(value)
    out = np.array(value, dtype=object)
    flat = out.reshape(-1)
    for index, item in enumerate(flat.tolist()):
        if isinstance(item, (list, tuple)):
            raise InvalidArgumentError(f"input '{name}' is not a regular array", hint=_REGULAR)
        if not isinstance(item, (str, bytes)):
            raise InvalidArgumentError(
                f"input '{name}' expects BYTES, found a value of type '{type(item).__name__}'",
                hint="write text as str or bytes",
            )
        flat[index] = item.encode("utf-8") if isinstance(item, str) else bytes(item)
    return out


def _numbers(value: Any, datatype: str, name: str) -> np.ndarray[Any, Any]:
    dtype = numpy_dtype(datatype)
    try:
        found = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgumentError(
            f"input '{name}' is not a regular array: {error}", hint=_REGULAR
        ) from None
    if found.size == 0:
        return found.astype(dtype)
    is_float = "FP" in datatype or datatype == "BF16"
    allowed = "b" if datatype == "BOOL" else "iuf" if is_float else "iu"
    fits = found.dtype.kind in allowed
    if fits:
        with np.errstate(over="ignore", invalid="ignore"):
            cast = found.astype(dtype)
        # A float may lose digits, which is what FP16 is for, but not become infinite.
        overflow = bool(np.any(np.isinf(cast) & ~np.isinf(found))) if is_float else False
        if not overflow and (is_float or np.array_equal(cast, found)):
            return cast
    what = "values out of its range" if fits else f"values of type {found.dtype}"
    raise InvalidArgumentError(
        f"input '{name}' expects {datatype}, found {what}",
        hint="pass a numpy array if the conversion is meant",
    )


def frame_of(outputs: Mapping[str, Array]) -> pd.DataFrame:
    """Return one row for each row of the batch; see `nbtriton.types.InferenceResult.to_frame`."""
    with needed("to_frame"):
        import pandas as pd

    arrays = {name: to_numpy(array) for name, array in outputs.items()}
    rows = {array.shape[0] if array.ndim else None for array in arrays.values()}
    if len(rows) != 1 or None in rows:
        # No common batch dimension: all of it is one row.
        arrays = {name: array[None] for name, array in arrays.items()}
    return pd.DataFrame({name: _column(array) for name, array in arrays.items()})


def _column(array: np.ndarray[Any, Any]) -> Any:
    """Return the contents of each row: a number or a string, or a list of them."""
    if array.dtype.kind in "OS":
        texts = np.empty(array.shape, object)
        texts.reshape(-1)[:] = [_decoded(item) for item in array.reshape(-1)]
        array = texts
    if array.size == array.shape[0]:
        return array.reshape(-1)
    return list(array.tolist())


def _decoded(item: object) -> object:
    """Return a string; bytes that are not UTF-8 stay bytes."""
    if not isinstance(item, bytes):
        return item
    try:
        return item.decode()
    except UnicodeDecodeError:
        return item
