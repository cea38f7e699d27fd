"""The description of a model: tensors, batching, warmup; and the ModelConfig made from it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nbtriton.errors import TritonError
from nbtriton.pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from nbtriton.tensors import DATATYPES, datatype_of, to_config

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

# Types of elements that are Triton's BYTES.
_TEXTS = (object, bytes, str, np.object_, np.bytes_, np.str_)


class DeviceKind(enum.Enum):
    """The kind of device that instances run on."""

    KIND_AUTO = "KIND_AUTO"
    KIND_CPU = "KIND_CPU"
    KIND_GPU = "KIND_GPU"


class TimeoutAction(enum.Enum):
    """Treatment of a request that waited too long: refused, or served after the others."""

    REJECT = "REJECT"
    DELAY = "DELAY"


@dataclass
class QueuePolicy:
    """ModelConfig's ``ModelQueuePolicy``.

    Attributes
    ----------
    timeout_action : TimeoutAction
    default_timeout_microseconds : int
        Longest time in the queue; 0 for any.
    allow_timeout_override : bool
        Whether a request may ask for a shorter time.
    max_queue_size : int
        Requests in the queue; 0 for any number.
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
    """ModelConfig's ``dynamic_batching``; its fields have the same names and meaning there."""

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
        ``INPUT_1``, ``OUTPUT_1`` and so on where it is missing.
    optional : bool
        Of an input: requests may leave it out.
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
    """An input of warmup requests: its values are zero, random or from a file of `numpy.save`."""

    dtype: Any
    shape: Sequence[int]
    zero_data: bool | None = False
    random_data: bool | None = False
    input_data_file: str | None = None


@dataclass
class ModelWarmup:
    """Requests that an inference function gets before the model serves.

    Attributes
    ----------
    name : str
    batch_size : int
    inputs : mapping of str to WarmupInput
    count : int
        How often it is called with them.
    """

    name: str
    batch_size: int
    inputs: Mapping[str, WarmupInput]
    count: int


@dataclass
class ModelConfig:
    """The batching, caching and warmup of a model.

    Attributes
    ----------
    batching : bool
        Without it tensors have no batch dimension (``max_batch_size: 0``).
    max_batch_size : int
    batcher : DynamicBatcher or None
        None: requests are not joined.
    response_cache : bool
        Needs ``TritonConfig(cache_config=["local,size=…"])``.
    decoupled : bool
        The function is a generator: each item has one response for each request.
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
        """Return the fields of the message."""
        found = {
            "name": self.name,
            "data_type": to_config(self.datatype),
            "dims": [int(n) for n in self.shape],
        }
        return {**found, "optional": True} if self.optional else found


@dataclass(frozen=True)
class TritonModelConfig:
    """The complete description of a bound model; decorators read it."""

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
        """Return the description of a binding.

        Raises
        ------
        PyTritonValidationError
            An output is optional, or the name of a tensor stands twice.
        PyTritonBadParameterError
            A datatype that Triton lacks, or a batch size below 1.
        """
        if any(tensor.optional for tensor in outputs):
            raise PyTritonValidationError(f"model '{name}': an output cannot be optional")
        if config.batching and config.max_batch_size < 1:
            raise PyTritonBadParameterError(
                f"model '{name}': max_batch_size is {config.max_batch_size}",
                hint="1 or more; or ModelConfig(batching=False)",
            )
        return cls(
            model_name=name,
            model_version=version,
            inputs=_specs(name, "INPUT", inputs),
            outputs=_specs(name, "OUTPUT", outputs),
            instances=instances,
            max_batch_size=config.max_batch_size,
            batching=config.batching,
            batcher=config.batcher,
            decoupled=config.decoupled,
            response_cache=config.response_cache,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of ModelConfig.

        The functions share what the notebook holds: so they run in its process.
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
    for number, tensor in enumerate(tensors, 1):
        name = tensor.name or f"{prefix}_{number}"
        if any(name == other.name for other in found):
            raise PyTritonValidationError(f"model '{model}': two tensors have the name '{name}'")
        spec = TensorSpec(name, tuple(tensor.shape), tensor.dtype, bool(tensor.optional))
        _datatype(spec.dtype)
        found.append(spec)
    return tuple(found)


def _datatype(dtype: Any) -> str:
    if dtype in _TEXTS:
        return "BYTES"
    try:
        return datatype_of(np.empty(0, dtype))
    except (TypeError, TritonError):
        raise PyTritonBadParameterError(
            f"Triton has no datatype for {dtype!r}", hint=f"those of {', '.join(DATATYPES)}"
        ) from None
