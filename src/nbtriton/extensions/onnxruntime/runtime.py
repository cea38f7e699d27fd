"""The package onnxruntime, imported on first use: its errors and types in Triton's terms, its options from a configuration.

Parameters and graph level are those of the README of Triton's backend; error texts are those of its code.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from nbtriton.backends.described import TensorInfo
from nbtriton.common.errors import (
    InternalError,
    InvalidArgumentError,
    TritonError,
    UnsupportedError,
)
from nbtriton.common.packages import imported
from nbtriton.model.config import ModelConfig
from nbtriton.model.config.parameters import (
    boolean_parameter,
    boolean_value,
    integer_parameter,
    integer_value,
    text_parameter,
)

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
    return imported("backend 'onnxruntime'", "onnxruntime")


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


CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"

# Settings of the server: whether sessions share a thread pool, and its sizes.
GLOBAL_THREADS = ("enable-global-threadpool", "intra_op_thread_count", "inter_op_thread_count")

_ERRORS_ONLY = 3  # warnings would go to the process's stderr instead of the notebook
_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_DEVICE_ALLOCATOR = "session.use_device_allocator_for_initializers"

# `optimization.graph.level`; every other value means all optimizations.
_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}

_log = logging.getLogger("nbtriton.onnxruntime")


def session_options(ort: Any, config: ModelConfig) -> Any:
    """Return an ``onnxruntime.SessionOptions``.

    Parameters
    ----------
    ort : module
        onnxruntime.
    config : ModelConfig

    Raises
    ------
    InvalidArgumentError
        An invalid value of a parameter.
    InternalError
        A library of ``model_operations`` cannot be loaded.
    """
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    levels = ort.GraphOptimizationLevel
    level = _LEVELS.get(config.optimization.graph.level, "ORT_ENABLE_ALL")
    options.graph_optimization_level = getattr(levels, level)
    mode = integer_parameter(config, "execution_mode")
    if mode not in (0, 1):
        raise InvalidArgumentError(
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 "
            f"but got {mode} .",
            hint="0 runs the operators one after the other, 1 side by side where they can be",
        )
    modes = ort.ExecutionMode
    options.execution_mode = modes.ORT_PARALLEL if mode else modes.ORT_SEQUENTIAL
    for key, attribute in (
        ("intra_op_thread_count", "intra_op_num_threads"),
        ("inter_op_thread_count", "inter_op_num_threads"),
    ):
        count = integer_parameter(config, key)
        if count > 0:
            setattr(options, attribute, count)
    for key, attribute in (
        ("enable_mem_arena", "enable_cpu_mem_arena"),
        ("enable_mem_pattern", "enable_mem_pattern"),
    ):
        default = getattr(options, attribute)
        setattr(options, attribute, boolean_parameter(config, key, default))
    value = text_parameter(config, _DEVICE_ALLOCATOR)
    if value is not None:
        options.add_session_config_entry(_DEVICE_ALLOCATOR, value)
    for path in config.model_operations.op_library_filename:
        try:
            options.register_custom_ops_library(path)
        except Exception as error:
            raise runtime_error(error) from error
    return options


def uses_global_threads(ort: Any, settings: Mapping[str, str]) -> bool:
    """Return whether all sessions share one thread pool, made by the first of them.

    Parameters
    ----------
    ort : module
        onnxruntime.
    settings : mapping of str to str
        Settings of `GLOBAL_THREADS`, as in ``--backend-config`` of Triton's backend.

    Raises
    ------
    InvalidArgumentError
        An invalid number or truth value.
    """
    switch, *names = GLOBAL_THREADS
    if not boolean_value(settings.get(switch, "0"), f"it is {switch}"):
        return False
    sizes = [max(0, integer_value(settings.get(name, "0"), f"it is {name}")) for name in names]
    try:
        ort.set_global_thread_pool_sizes(*sizes)
    except AttributeError:
        _log.warning("%s has no effect: it needs onnxruntime 1.23 or newer", switch)
        return False
    except Exception:  # it exists, and keeps its sizes
        _log.debug("the global pool of threads exists", exc_info=True)
    return True


def run_options(ort: Any, config: ModelConfig) -> Any:
    """Return an ``onnxruntime.RunOptions``, or None for the defaults."""
    value = text_parameter(config, _SHRINKAGE)
    if value is None:
        return None
    options = ort.RunOptions()
    options.add_run_config_entry(_SHRINKAGE, value)
    return options


def providers(config: ModelConfig, device_id: int | None) -> list[tuple[str, dict[str, str]]]:
    """Return the execution providers of a session on a GPU, or on the host for None, first choice first.

    Raises
    ------
    UnsupportedError
        A GPU with an onnxruntime without CUDA.
    """
    if device_id is None:
        return [(CPU, {})]
    if not has_provider(CUDA):
        raise UnsupportedError(
            f"model '{config.name}' has an instance on GPU {device_id}, and the installed "
            "onnxruntime has no CUDA execution provider",
            hint="KIND_CPU runs it on the host; pip install onnxruntime-gpu brings CUDA",
        )
    return [(CUDA, {"device_id": str(device_id)}), (CPU, {})]
