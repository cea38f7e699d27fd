"""The names of datatypes: Triton's protocol, Triton's configuration, numpy."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from nbtriton.common.errors import InvalidArgumentError, UnsupportedError, nearest

_T = TypeVar("_T")

# In the order of the DataType enumeration of model_config.proto, which starts at TYPE_INVALID = 0.
NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
# numpy has no dtype for the last one.
DATATYPES: tuple[str, ...] = (*NUMPY_DTYPES, "BF16")

_NUMBERS = {name: number for number, name in enumerate(DATATYPES, start=1)}
_TO_CONFIG = {name: "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}" for name in DATATYPES}
_TO_PROTOCOL = {config: name for name, config in _TO_CONFIG.items()}


def datatype_number(datatype: str) -> int:
    """Return the number of a protocol datatype in Triton's enumeration (``"FP32"`` is 11)."""
    return _look_up(_NUMBERS, datatype)


def to_config(datatype: str) -> str:
    """Return the configuration's name of a protocol datatype (``"BYTES"`` is ``"TYPE_STRING"``)."""
    return _look_up(_TO_CONFIG, datatype)


def to_protocol(data_type: str) -> str:
    """Return the protocol's name of a configuration datatype (``"TYPE_STRING"`` is ``"BYTES"``)."""
    return _look_up(_TO_PROTOCOL, data_type)


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """Return the numpy dtype that holds a protocol datatype.

    Parameters
    ----------
    datatype : str
        One of `DATATYPES`.

    Returns
    -------
    numpy.dtype
        ``object`` for BYTES, ``ml_dtypes.bfloat16`` for BF16.

    Raises
    ------
    InvalidArgumentError
        An unknown datatype.
    UnsupportedError
        BF16 without the ml_dtypes package: numpy itself has no such dtype.
    """
    dtype = NUMPY_DTYPES.get(datatype)
    if dtype is not None:
        return dtype
    if datatype != "BF16":
        return _look_up(NUMPY_DTYPES, datatype)
    try:
        import ml_dtypes
    except ImportError:
        raise UnsupportedError(
            "NumPy has no BF16 dtype",
            hint="use torch tensors (torch.bfloat16) or install the package ml_dtypes",
        ) from None
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def _look_up(table: dict[str, _T], name: str) -> _T:
    try:
        return table[name]
    except KeyError:
        raise InvalidArgumentError(
            f"invalid datatype '{name}'", hint=nearest(name, table)
        ) from None
