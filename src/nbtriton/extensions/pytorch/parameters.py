"""The parameters of a torch model, read as by Triton's PyTorch backend and its Python runtime.

``ParseParameters`` of libtorch.cc, and model.py of the runtime of that name, which compiles modules by
``torch.compile`` (PT1 to PT4).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nbtriton.common.errors import InternalError
from nbtriton.model.config import ModelConfig
from nbtriton.model.config.parameters import boolean_parameter, integer_value, text_parameter

PYTHON_RUNTIME = "model.py"
_COMPILE_OPTIONS = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
# torch's function for each, process-wide.
_JIT = {
    "ENABLE_JIT_PROFILING": "_jit_set_profiling_mode",
    "ENABLE_JIT_EXECUTOR": "_jit_set_profiling_executor",
    "ENABLE_TENSOR_FUSER": "_jit_set_texpr_fuser_enabled",
}

_log = logging.getLogger("nbtriton.pytorch")


@dataclass(frozen=True, slots=True)
class ModuleParameters:
    """The parameters of an instance.

    Parameters
    ----------
    inference_mode : bool
        INFERENCE_MODE; gradients are off either way.
    optimized : bool
        Not DISABLE_OPTIMIZED_EXECUTION (TorchScript).
    cudnn : bool
        Not DISABLE_CUDNN.
    cleans_cache : bool
        ENABLE_CACHE_CLEANING: a GPU's unused memory is released after each batch.
    jit : mapping of str to bool
        Given settings of TorchScript's executor.
    """

    inference_mode: bool
    optimized: bool
    cudnn: bool
    cleans_cache: bool
    jit: Mapping[str, bool]

    def before_batch(self, *, script: bool, cuda: bool) -> Callable[[], None] | None:
        """Return a function that applies process-wide settings before each batch, as in Triton, or None."""
        import torch

        settings: list[tuple[Callable[[bool], object], bool]] = []
        if script:
            jit = torch._C  # noqa: SLF001 - torch has no other way to these
            settings = [(getattr(jit, _JIT[key]), value) for key, value in self.jit.items()]
        cudnn: Any = torch.backends.cudnn if cuda and not self.cudnn else None

        def apply() -> None:
            for setting, value in settings:
                setting(value)
            if cudnn is not None:
                cudnn.enabled = False

        return apply if settings or cudnn is not None else None


def module_parameters(config: ModelConfig) -> ModuleParameters:
    """Return the parameters of a configuration, in Triton's order of reading.

    Raises
    ------
    InvalidArgumentError
        A value that is neither true nor false, with Triton's text.
    """
    optimized = not boolean_parameter(config, "DISABLE_OPTIMIZED_EXECUTION", False)
    cleans_cache = boolean_parameter(config, "ENABLE_CACHE_CLEANING", False)
    inference_mode = boolean_parameter(config, "INFERENCE_MODE", True)
    cudnn = not boolean_parameter(config, "DISABLE_CUDNN", False)
    boolean_parameter(config, "ENABLE_WEIGHT_SHARING", False)
    jit = {
        key: boolean_parameter(config, key, True)
        for key in ("ENABLE_TENSOR_FUSER", "ENABLE_JIT_PROFILING", "ENABLE_JIT_EXECUTOR")
        if key in config.parameters
    }
    return ModuleParameters(inference_mode, optimized, cudnn, cleans_cache, jit)


def compile_options(config: ModelConfig) -> dict[str, Any] | None:
    """Return the arguments of ``torch.compile`` after the module; None without the Python runtime.

    Raises
    ------
    InternalError
        They are not a JSON object, or name the module itself, with the text of Triton's runtime.
    """
    if config.runtime != PYTHON_RUNTIME:
        return None
    text = text_parameter(config, _COMPILE_OPTIONS)
    if text is None:
        return {}
    try:
        options = json.loads(text)
    except ValueError as error:
        raise InternalError(
            f"JSONDecodeError: {error}", hint=f'{_COMPILE_OPTIONS} is JSON: {{"dynamic": true}}'
        ) from None
    if not isinstance(options, dict):
        raise InternalError(
            f"{_COMPILE_OPTIONS} is a {type(options).__name__}, expected a JSON object",
            hint='{"dynamic": true}',
        )
    if "model" in options:
        raise InternalError("'model' is not an optional parameter for 'torch.compile'")
    return options


def set_threads(config: ModelConfig) -> None:
    """Apply the two process-wide thread counts, as in Triton.

    Raises
    ------
    InvalidArgumentError
        A value is not a number.
    """
    import torch

    python = config.runtime == PYTHON_RUNTIME
    names = ("NUM_THREADS", "NUM_INTEROP_THREADS")
    if not python:
        names = ("INTRA_OP_THREAD_COUNT", "INTER_OP_THREAD_COUNT")
    for key, apply in zip(
        names, (torch.set_num_threads, torch.set_num_interop_threads), strict=True
    ):
        text = text_parameter(config, key)
        count = integer_value(text, f"it is parameter {key}") if text is not None else 0
        try:
            if count > 0:
                apply(count)
        except RuntimeError as error:
            # torch fixes the number of inter-op threads when the first of them has run.
            _log.warning("model '%s': %s is not applied: %s", config.name, key, error)
