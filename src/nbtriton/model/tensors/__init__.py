"""Tensors: datatypes, shapes, and plain numpy, torch and CuPy arrays.

nbtriton does not have its own array class. A tensor of datatype BYTES is a numpy object array of `bytes`;
a BF16 tensor is a torch tensor, or a numpy array of the ``ml_dtypes`` package.
"""

from nbtriton.model.tensors.arrays import (
    Array,
    add_kind,
    bits_of,
    copy_of,
    datatype_of,
    format_shape,
    gather,
    is_on_device,
    kind_of,
    nbytes_of,
    of_bits,
    own,
    read_only,
    scatter,
    shape_of,
    to_kind,
    to_numpy,
    to_torch,
)
from nbtriton.model.tensors.coerce import as_array
from nbtriton.model.tensors.datatypes import (
    DATATYPES,
    datatype_number,
    numpy_dtype,
    to_config,
    to_protocol,
)
from nbtriton.model.tensors.strings import as_bytes_array, deserialize_bytes, serialize_bytes

__all__ = [
    "DATATYPES", "Array", "add_kind", "as_array", "as_bytes_array", "bits_of", "copy_of", "datatype_number",
    "datatype_of", "deserialize_bytes", "format_shape", "gather", "is_on_device", "kind_of", "nbytes_of",
    "numpy_dtype", "of_bits", "own", "read_only", "scatter", "serialize_bytes", "shape_of", "to_config", "to_kind", "to_numpy", "to_protocol",
    "to_torch",
]  # fmt: skip
