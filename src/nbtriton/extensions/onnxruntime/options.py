"""Session options from a configuration, with the meaning of Triton's onnxruntime backend.

Parameters, graph level and execution accelerators are those of its README; error texts are those of its code.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from nbtriton.backends.parameters import (
    boolean_parameter,
    boolean_value,
    integer_parameter,
    integer_value,
    text_parameter,
)
from nbtriton.common.errors import InvalidArgumentError, UnsupportedError
from nbtriton.extensions.onnxruntime.runtime import has_provider, runtime_error
from nbtriton.model.config import ModelConfig

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
_OPENVINO = "OpenVINOExecutionProvider"
_TENSORRT = "TensorrtExecutionProvider"

# Settings of the server: whether sessions share a thread pool, and its sizes.
GLOBAL_THREADS = ("enable-global-threadpool", "intra_op_thread_count", "inter_op_thread_count")

_ERRORS_ONLY = 3  # warnings would go to the process's stderr instead of the notebook
_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_DEVICE_ALLOCATOR = "session.use_device_allocator_for_initializers"

# `optimization.graph.level`; every other value means all optimizations.
_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}

_TENSORRT_KEYS = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_PRECISIONS = {"FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}

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
    """Return the execution providers of a session, first choice first.

    Parameters
    ----------
    config : ModelConfig
    device_id : int or None
        The GPU; None for the host.

    Returns
    -------
    list of (str, dict)
        Names and options; the host's own provider comes last. An accelerator that this onnxruntime lacks is
        left out, with a warning: the results are the same without it.

    Raises
    ------
    InvalidArgumentError
        An accelerator, or a parameter of one, that Triton does not know either.
    UnsupportedError
        A GPU with an onnxruntime without CUDA.
    """
    chosen: list[tuple[str, dict[str, str]]] = []
    if device_id is not None:
        chosen += _on_gpu(config, device_id)
    for accelerator in config.optimization.execution_accelerators.cpu_execution_accelerator:
        if accelerator.name != "openvino":
            raise _unknown_accelerator(accelerator.name, ("openvino",))
        chosen += _if_there(config.name, "openvino", _OPENVINO, {"device_type": "CPU"})
    return [*chosen, (CPU, {})]


def _on_gpu(config: ModelConfig, device_id: int) -> list[tuple[str, dict[str, str]]]:
    chosen = []
    cuda = {"device_id": str(device_id)}
    for accelerator in config.optimization.execution_accelerators.gpu_execution_accelerator:
        if accelerator.name == "tensorrt":
            options = _tensorrt_options(accelerator.parameters.items())
            options["device_id"] = str(device_id)
            chosen += _if_there(config.name, "tensorrt", _TENSORRT, options)
        elif accelerator.name == "cuda":
            cuda |= {key: value for key, value in accelerator.parameters.items() if value}
        else:
            raise _unknown_accelerator(accelerator.name, ("tensorrt", "cuda"))
    if not has_provider(CUDA):
        raise UnsupportedError(
            f"model '{config.name}' has an instance on GPU {device_id}, and the installed "
            "onnxruntime has no CUDA execution provider",
            hint="KIND_CPU runs it on the host; pip install onnxruntime-gpu brings CUDA",
        )
    return [*chosen, (CUDA, cuda)]


def _tensorrt_options(parameters: Iterable[tuple[str, str]]) -> dict[str, str]:
    options = {}
    for key, value in parameters:
        if key == "precision_mode":
            if value in _PRECISIONS:
                options[_PRECISIONS[value]] = "1"
            elif value != "FP32":
                raise InvalidArgumentError(f"unsupported precision mode '{value}' is requested")
        elif key in _TENSORRT_KEYS or key.startswith("trt_"):
            options[_TENSORRT_KEYS.get(key, key)] = value
        else:
            raise InvalidArgumentError(
                f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator"
            )
    return options


def _if_there(
    model: str, accelerator: str, provider: str, options: dict[str, str]
) -> list[tuple[str, dict[str, str]]]:
    if has_provider(provider):
        return [(provider, options)]
    _log.warning(
        "model '%s': execution accelerator '%s' is left out, the installed onnxruntime has no %s; a Triton 2.51 "
        "without it refuses the model (docs/differences.md: onnx-accelerators)",
        model, accelerator, provider,
    )  # fmt: skip
    return []


def _unknown_accelerator(name: str, known: tuple[str, ...]) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"unknown Execution Accelerator '{name}' is requested", hint=" or ".join(known)
    )
