"""PyTriton's interface in this process: `Triton().bind(…)`, its decorators and its clients.

A PyTriton program runs with ``nbtriton.pytriton`` for ``pytriton`` in its imports, without a second
process. docs/pytriton.md lists the differences.
"""

from nbtriton.pytriton.client import (
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)
from nbtriton.pytriton.decorators import (
    ConstantPadder,
    batch,
    fill_optionals,
    first_value,
    group_by_keys,
    group_by_values,
    pad_batch,
    sample,
    triton_context,
)
from nbtriton.pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonError,
    PyTritonInvalidOperationError,
    PyTritonModelConfigError,
    PyTritonRuntimeError,
    PyTritonUnrecoverableError,
    PyTritonValidationError,
)
from nbtriton.pytriton.model_config import (
    DeviceKind,
    DynamicBatcher,
    ModelConfig,
    ModelWarmup,
    QueuePolicy,
    Tensor,
    TimeoutAction,
    WarmupInput,
)
from nbtriton.pytriton.request import Request
from nbtriton.pytriton.triton import Triton, TritonConfig, TritonSecurityConfig

__all__ = [
    "AsyncioModelClient",
    "ConstantPadder",
    "DecoupledModelClient",
    "DeviceKind",
    "DynamicBatcher",
    "FuturesModelClient",
    "ModelClient",
    "ModelConfig",
    "ModelWarmup",
    "PyTritonBadParameterError",
    "PyTritonError",
    "PyTritonInvalidOperationError",
    "PyTritonModelConfigError",
    "PyTritonRuntimeError",
    "PyTritonUnrecoverableError",
    "PyTritonValidationError",
    "QueuePolicy",
    "Request",
    "Tensor",
    "TimeoutAction",
    "Triton",
    "TritonConfig",
    "TritonSecurityConfig",
    "WarmupInput",
    "batch",
    "fill_optionals",
    "first_value",
    "group_by_keys",
    "group_by_values",
    "pad_batch",
    "sample",
    "triton_context",
]
