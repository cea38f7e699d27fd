"""Session options from a configuration, with the meaning of Triton's onnxruntime backend.

Parameters and graph level are those of its README; error texts are those of its code.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
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
