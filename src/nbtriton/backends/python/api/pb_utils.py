"""The module `triton_python_backend_utils` for models.

Only names of Triton's own module belong here; other modules implement them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from nbtriton.backends.auto_complete import AutoCompleteConfig as ModelConfig
from nbtriton.backends.python.api.bls import is_model_ready, load_model, unload_model
from nbtriton.backends.python.api.metrics import MetricFamily
from nbtriton.backends.python.api.pybind import (
    Logger,
    PreferredMemory,
    TritonError,
    TritonModelException,
)
from nbtriton.backends.python.api.pybind import MemoryType as _MemoryType
from nbtriton.backends.python.api.requests import (
    InferenceRequest,
    get_input_tensor_by_name,
    get_output_tensor_by_name,
)
from nbtriton.backends.python.core.values import InferenceResponse, Tensor
from nbtriton.backends.python.running import current
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.model.tensors import deserialize_bytes, serialize_bytes
from nbtriton.model.tensors.datatypes import DATATYPES, NUMPY_DTYPES, datatype_number, to_config

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_CPU = _MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU = _MemoryType.TRITONSERVER_MEMORY_GPU

# The scalar types, not dtypes, as in Triton; without BF16, which numpy does not have.
TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    to_config(name): NUMPY_DTYPES[name].type for name in DATATYPES if name in NUMPY_DTYPES
} | {"TYPE_BOOL": bool}
_NUMBER_TO_NUMPY: dict[int, Any] = {
    datatype_number(name): dtype.type for name, dtype in NUMPY_DTYPES.items()
}
_NUMPY_TO_NUMBER = {kind: number for number, kind in _NUMBER_TO_NUMPY.items()}
_NUMPY_TO_NUMBER[np.bytes_] = datatype_number("BYTES")


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the input of this name in a configuration (``json.loads(args["model_config"])``)."""
    return _config_by_name(model_config, "input", name)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the output of this name in a configuration (``json.loads(args["model_config"])``)."""
    return _config_by_name(model_config, "output", name)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Return True if the configuration lets the model send any number of responses."""
    if "model_transaction_policy" in model_config:
        return bool(model_config["model_transaction_policy"]["decoupled"])
    return False


def triton_to_numpy_type(data_type: int) -> Any:
    """Return the numpy type of a datatype number; None if numpy has none."""
    return _NUMBER_TO_NUMPY.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """Return the datatype number of a numpy type or dtype; None if Triton has none."""
    # Python's own types equal none of numpy's; a dtype equals its type.
    return next((number for kind, number in _NUMPY_TO_NUMBER.items() if data_type == kind), None)


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return the numpy type of a configuration's datatype, such as ``"TYPE_FP32"``."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def serialize_byte_tensor(input_tensor: np.ndarray[Any, Any]) -> bytes | tuple[()] | None:
    """Serialize a BYTES tensor; ``()`` for an empty one, None for other dtypes."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    return serialize_bytes(input_tensor)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> np.ndarray[Any, Any]:
    """Return the elements of a serialized BYTES tensor as a one-dimensional object array."""
    try:
        return deserialize_bytes(encoded_tensor)
    except InvalidArgumentError:
        return _unpacked(encoded_tensor)


def get_model_dir() -> str:
    """Return the version directory of the running model; the working directory if it has none."""
    running = current()
    if running is None or running.version_directory is None:
        return os.getcwd()  # noqa: PTH109 - a str, as in Triton
    return str(running.version_directory)


def _unpacked(encoded: bytes) -> np.ndarray[Any, Any]:
    """Raise the exceptions of Triton's own function, which a model may catch."""
    offset = 0
    while offset < len(encoded):
        (size,) = struct.unpack_from("<I", encoded, offset)
        struct.unpack_from(f"<{size}s", encoded, offset + 4)
        offset += 4 + size
    raise TypeError(f"a serialized BYTES tensor is bytes, found type {type(encoded).__name__}")


def _config_by_name(
    model_config: Mapping[str, Any], direction: str, name: str
) -> dict[str, Any] | None:
    return next(
        (tensor for tensor in model_config.get(direction, ()) if tensor["name"] == name), None
    )
