"""The package onnxruntime, imported on first use, with its errors and types in Triton's terms."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from nbtriton.backends.described import TensorInfo
from nbtriton.common.errors import InternalError, TritonError, UnsupportedError
from nbtriton.common.packages import needed

# The protocol's datatypes of ONNX Runtime's element types, which are upper case in Triton's messages.
_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_DATATYPES = {
    **{name: name.upper() for name in ("bool", *_INTEGERS)},
    "float16": "FP16",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
    "bfloat16": "BF16",
}
_KINDS = {"seq": "SEQUENCE", "map": "MAP", "sparse_tensor": "SPARSETENSOR"}
# "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions …"
_ERROR = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)
_INVALID_ARGUMENT = 2


def import_onnxruntime() -> Any:
    """Return the module.

    Raises
    ------
    UnsupportedError
        It is not installed, or does not start.
    """
    with needed("backend 'onnxruntime'", package="onnxruntime"):
        import onnxruntime
    return onnxruntime


def has_provider(name: str) -> bool:
    """Return whether an onnxruntime with an execution provider is installed."""
    try:
        import onnxruntime
    except ImportError:
        return False
    return name in onnxruntime.get_available_providers()


def tensor_infos(nodes: Iterable[Any]) -> dict[str, TensorInfo]:
    """Return a session's description of its inputs or outputs, by name, in the model's order.

    Raises
    ------
    UnsupportedError
        One is not a tensor, such as a sequence or a map.
    """
    infos = {}
    for node in nodes:
        kind, _, element = str(node.type).removesuffix(")").partition("(")
        if kind != "tensor":
            raise UnsupportedError(
                f"Unsupported ONNX Type 'ONNX_TYPE_{_KINDS.get(kind, 'UNKNOWN')}' for I/O "
                f"'{node.name}', expected 'ONNX_TYPE_TENSOR'.",
                hint=f"it is a {node.type}",
            )
        datatype = _DATATYPES.get(element, "")
        onnx_type = element.upper() if datatype else "UNDEFINED"
        dims = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape)
        infos[str(node.name)] = TensorInfo(datatype, onnx_type, dims)
    return infos


def runtime_error(error: Exception) -> TritonError:
    """Return an exception of ONNX Runtime as Triton's backend reports it."""
    match = _ERROR.fullmatch(str(error))
    code, text = match.groups() if match is not None else (_INVALID_ARGUMENT, str(error))
    return InternalError(f"onnx runtime error {code}: {text.strip()}")
