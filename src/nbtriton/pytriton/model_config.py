"""PyTriton's model configuration: tensors, batching, warmup; and Triton's ModelConfig made from it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nbtriton.common.checks import is_whole
from nbtriton.common.errors import TritonError
from nbtriton.model.tensors import DATATYPES, datatype_of, to_config
from nbtriton.pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError

__all__ = [
    "DeviceKind",
    "DynamicBatcher",
    "ModelConfig",
    "ModelWarmup",
    "QueuePolicy",
    "Tensor",
    "TensorSpec",
    "TimeoutAction",
    "TritonModelConfig",
    "WarmupInput",
]

# Element types of Triton's BYTES.
_TEXTS = (object, bytes, str, np.object_, np.bytes_, np.str_)


class DeviceKind(enum.Enum):
    """Kind of device for instances."""

    KIND_AUTO = "KIND_AUTO"
    KIND_CPU = "KIND_CPU"
    KIND_GPU = "KIND_GPU"


class TimeoutAction(enum.Enum):
    """Action at a queue timeout: reject the request, or delay it behind the others."""

    REJECT = "REJECT"
    DELAY = "DELAY"


@dataclass
class QueuePolicy:
    """ModelConfig's ``ModelQueuePolicy``.

    Attributes
    ----------
    timeout_action : TimeoutAction
    default_timeout_microseconds : int
        Limit of the time in the queue; 0 for none.
    allow_timeout_override : bool
        Whether a request may set a shorter timeout.
    max_queue_size : int
        Limit of queued requests; 0 for none.
    """

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the message's fields."""
        return {
            "timeout_action": self.timeout_action.value,
            "default_timeout_microseconds": int(self.default_timeout_microseconds),
            "allow_timeout_override": self.allow_timeout_override,
            "max_queue_size": int(self.max_queue_size),
        }


@dataclass
class DynamicBatcher:
    """ModelConfig's ``dynamic_batching``, with fields of the same names and meaning."""

    max_queue_delay_microseconds: int = 0
    preferred_batch_size: Sequence[int] | None = None
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy | None = None
    priority_queue_policy: Mapping[int, QueuePolicy] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the message's fields.

        Raises
        ------
        PyTritonBadParameterError
            A priority is beyond `priority_levels`.
        """
        policies = self.priority_queue_policy or {}
        for name, level in (
            ("default_priority_level", self.default_priority_level),
            *(("priority_queue_policy", level) for level in policies),
        ):
            if not 0 <= level <= self.priority_levels:
                raise PyTritonBadParameterError(
                    f"{name} names the priority {level}, and priority_levels is {self.priority_levels}"
                )
        found: dict[str, Any] = {
            "max_queue_delay_microseconds": int(self.max_queue_delay_microseconds),
            "preferred_batch_size": [int(size) for size in self.preferred_batch_size or ()],
            "preserve_ordering": self.preserve_ordering,
            "priority_levels": self.priority_levels,
            "default_priority_level": self.default_priority_level,
            "priority_queue_policy": {level: one.to_dict() for level, one in policies.items()},
        }
        if self.default_queue_policy is not None:
            found["default_queue_policy"] = self.default_queue_policy.to_dict()
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True)
class Tensor:
    """An input or output.

    Attributes
    ----------
    shape : tuple of int
        Without the batch dimension; -1 for any size.
    dtype : numpy.dtype or type
        `numpy.bytes_`, `bytes` or `object` for Triton's BYTES.
    name : str, optional
        By default ``INPUT_1``, ``OUTPUT_1`` and so on.
    optional : bool
        Whether requests may leave the input out.
    """

    shape: tuple[int, ...]
    dtype: Any
    name: str | None = None
    optional: bool | None = False

    def __post_init__(self) -> None:
        if isinstance(self.dtype, np.dtype):
            object.__setattr__(self, "dtype", self.dtype.type)


@dataclass
class WarmupInput:
    """An input of warmup requests, with zeros, random values or values of a ``.npy`` file."""

    dtype: Any
    shape: Sequence[int]
    zero_data: bool | None = False
    random_data: bool | None = False
    input_data_file: str | None = None


@dataclass
class ModelWarmup:
    """Warmup requests for an inference function.

    Attributes
    ----------
    name : str
    batch_size : int
    inputs : mapping of str to WarmupInput
    count : int
        Number of calls.
    """

    name: str
    batch_size: int
    inputs: Mapping[str, WarmupInput]
    count: int


@dataclass
class ModelConfig:
    """Batching, caching and warmup of a model.

    Attributes
    ----------
    batching : bool
        False for tensors without a batch dimension (``max_batch_size: 0``).
    max_batch_size : int
    batcher : DynamicBatcher or None
        None disables dynamic batching.
    response_cache : bool
        Needs ``TritonConfig(cache_config=["local,size=…"])``.
    decoupled : bool
        Whether the function is a generator, whose items have one response for each request.
    model_warmup : sequence of ModelWarmup, optional
    """

    batching: bool = True
    max_batch_size: int = 4
    batcher: DynamicBatcher | None = field(default_factory=DynamicBatcher)
    response_cache: bool = False
    decoupled: bool = False
    model_warmup: Sequence[ModelWarmup] | None = None


@dataclass(frozen=True)
class TensorSpec:
    """A tensor with its name."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    optional: bool = False

    @property
    def datatype(self) -> str:
        """Triton's datatype, such as ``"FP32"``."""
        return _datatype(self.dtype)

    def to_dict(self) -> dict[str, Any]:
        """Return the message's fields."""
        found = {
            "name": self.name,
            "data_type": to_config(self.datatype),
            "dims": [int(n) for n in self.shape],
        }
        return {**found, "optional": True} if self.optional else found


@dataclass(frozen=True)
class TritonModelConfig:
    """Complete configuration of a bound model, which decorators read."""

    model_name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    instances: int = 1
    model_version: int = 1
    max_batch_size: int = 4
    batching: bool = True
    batcher: DynamicBatcher | None = None
    decoupled: bool = False
    response_cache: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        version: int,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        config: ModelConfig,
        instances: int,
    ) -> TritonModelConfig:
        """Return the configuration of a binding.

        Raises
        ------
        PyTritonValidationError
            An output is optional, a tensor's name is repeated, or an item is not a `Tensor`.
        PyTritonBadParameterError
            A datatype is unknown to Triton, or the batch size is below 1.
        """
        given_inputs = _specs(name, "INPUT", inputs)
        given_outputs = _specs(name, "OUTPUT", outputs)
        if any(spec.optional for spec in given_outputs):
            raise PyTritonValidationError(f"model '{name}': an output cannot be optional")
        if config.batching and not (is_whole(config.max_batch_size) and config.max_batch_size >= 1):
            raise PyTritonBadParameterError(
                f"model '{name}': max_batch_size is {config.max_batch_size}",
                hint="1 or more; or ModelConfig(batching=False)",
            )
        return cls(
            model_name=name,
            model_version=version,
            inputs=given_inputs,
            outputs=given_outputs,
            instances=instances,
            max_batch_size=config.max_batch_size,
            batching=config.batching,
            batcher=config.batcher,
            decoupled=config.decoupled,
            response_cache=config.response_cache,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of ModelConfig.

        Instances are in this process, as the functions use the notebook's variables.
        """
        found: dict[str, Any] = {
            "name": self.model_name,
            "backend": "python",
            "max_batch_size": self.max_batch_size if self.batching else 0,
            "input": [tensor.to_dict() for tensor in self.inputs],
            "output": [tensor.to_dict() for tensor in self.outputs],
            "instance_group": [{"count": self.instances, "kind": "KIND_CPU"}],
            "parameters": {"INSTANCE_ISOLATION": {"string_value": "thread"}},
        }
        if self.batching and self.batcher is not None:
            found["dynamic_batching"] = self.batcher.to_dict()
        if self.decoupled:
            found["model_transaction_policy"] = {"decoupled": True}
        if self.response_cache:
            found["response_cache"] = {"enable": True}
        return found


def _specs(model: str, prefix: str, tensors: Sequence[Tensor]) -> tuple[TensorSpec, ...]:
    found: list[TensorSpec] = []
    if not isinstance(tensors, Iterable):
        raise PyTritonValidationError(
            f"model '{model}': {prefix.lower()}s is {tensors!r}", hint="a list of Tensor"
        )
    for number, tensor in enumerate(tensors, 1):
        _check_tensor(f"model '{model}': {prefix.lower()} {number}", tensor)
        name = tensor.name or f"{prefix}_{number}"
        if any(name == other.name for other in found):
            raise PyTritonValidationError(f"model '{model}': two tensors have the name '{name}'")
        spec = TensorSpec(name, tuple(tensor.shape), tensor.dtype, bool(tensor.optional))
        _datatype(spec.dtype)
        found.append(spec)
    return tuple(found)


def _check_tensor(what: str, tensor: object) -> None:
    if not isinstance(tensor, Tensor):
        raise PyTritonValidationError(f"{what} is {tensor!r}", hint="a Tensor")
    if not isinstance(tensor.name, str | None):
        raise PyTritonValidationError(f"{what} has the name {tensor.name!r}, which is no text")
    shape: object = tensor.shape
    if not (isinstance(shape, Sequence) and all(map(is_whole, shape))):
        raise PyTritonValidationError(
            f"{what} has the shape {shape!r}", hint="a tuple of whole numbers, -1 for any size"
        )


def _datatype(dtype: Any) -> str:
    if dtype in _TEXTS:
        return "BYTES"
    try:
        return datatype_of(np.empty(0, dtype))
    except (TypeError, TritonError):
        raise PyTritonBadParameterError(
            f"Triton has no datatype for {dtype!r}", hint=f"those of {', '.join(DATATYPES)}"
        ) from None
