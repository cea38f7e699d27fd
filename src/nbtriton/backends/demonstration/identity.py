"""The identity backend: ``OUTPUT<index>`` is ``INPUT<index>``."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from nbtriton.backends.base import (
    Backend,
    BackendInstance,
    BackendRequest,
    BatchTimer,
    InstanceContext,
    ModelContext,
    Response,
)
from nbtriton.backends.parameters import integer_parameter
from nbtriton.backends.python.api.metrics import Metric, MetricKind, family_of
from nbtriton.config import ModelConfig, TensorSpec, input_specs, output_specs
from nbtriton.errors import InvalidArgumentError
from nbtriton.tensors import Array, copy_of, format_shape, nbytes_of, numpy_dtype, to_config

__all__ = ["IdentityBackend"]

_INPUT, _OUTPUT = "INPUT", "OUTPUT"
_METRIC = "input_byte_size_counter"
_METRIC_TEXT = "Cumulative input byte size of all requests received by the model"


class IdentityBackend(Backend):
    """Copies inputs to outputs.

    Parameters of the configuration: ``execute_delay_ms``; ``instance_wise_delay_multiplier``, which
    makes the second instance wait that many times as long, the third twice as many times, …; and
    ``creation_delay_sec``.
    """

    name: ClassVar[str] = "identity"
    needs_source: ClassVar[bool] = False

    def __init__(self) -> None:
        self._received: Metric | None = None
        self._created = 0
        self._counting = threading.Lock()

    @classmethod
    def accepts(cls, source: object) -> bool:  # noqa: ARG003 - nothing tells that it is meant
        """Return False: it is chosen by name."""
        return False

    def check(self, context: ModelContext) -> None:
        """Check that inputs and outputs are pairs, and the parameters."""
        _check_pairs(context.config)
        for key in ("execute_delay_ms", "instance_wise_delay_multiplier", "creation_delay_sec"):
            integer_parameter(context.config, key)

    def open(self, context: ModelContext) -> None:
        """Wait as long as the configuration asks for, and start counting bytes."""
        time.sleep(max(0, integer_parameter(context.config, "creation_delay_sec")))
        family = family_of(context.server, _METRIC, _METRIC_TEXT, MetricKind.COUNTER)
        labels = {"model": context.name, "version": str(context.version)}
        self._received = Metric(family, labels, None)

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance."""
        with self._counting:
            number = self._created
            self._created += 1
        config = context.model.config
        delay_ms = max(0, integer_parameter(config, "execute_delay_ms"))
        multiplier = max(0, integer_parameter(config, "instance_wise_delay_multiplier"))
        assert self._received is not None
        return _Instance(config, self._received, delay_ms * max(1, multiplier * number) / 1000)

    def close(self) -> None:
        """Let go of the metric."""
        self._received = None


class _Instance(BackendInstance):
    def __init__(self, config: ModelConfig, received: Metric, delay_s: float) -> None:
        self._batches = config.max_batch_size > 0
        self._inputs = {
            name.replace(_INPUT, _OUTPUT, 1): s for name, s in input_specs(config).items()
        }
        self._received = received
        self._delay_s = delay_s

    def execute(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> list[Response]:
        timer.inputs_ready()
        if self._delay_s:
            time.sleep(self._delay_s)
        return [self._answer(request) for request in requests]

    def _answer(self, request: BackendRequest) -> Response:
        outputs: dict[str, Array] = {}
        for name in request.requested_outputs:
            spec = self._inputs[name]
            array = request.inputs.get(spec.name)
            if array is None:
                outputs[name] = _zeros(spec, request.batch_size if self._batches else None)
                continue
            self._received.increment(nbytes_of(array))
            outputs[name] = copy_of(array)
        return Response(outputs)


def _zeros(spec: TensorSpec, batch_size: int | None) -> Array:
    """Return what stands in for an optional input that did not come."""
    dims = spec.dims if spec.reshape is None else spec.reshape
    shape = tuple(1 if dim == -1 else dim for dim in dims)
    if batch_size is not None:
        shape = (batch_size, *shape)
    if spec.datatype == "BYTES":
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, numpy_dtype(spec.datatype))


def _check_pairs(config: ModelConfig) -> None:
    if len(config.input) != len(config.output):
        raise InvalidArgumentError(
            "model configuration must have equal input/output pairs",
            hint=f"it has {len(config.input)} inputs and {len(config.output)} outputs",
        )
    inputs = _by_index("input", _INPUT, input_specs(config).values())
    outputs = _by_index("output", _OUTPUT, output_specs(config).values())
    for index, output in sorted(outputs.items()):
        spec = inputs.get(index)
        if spec is None:
            raise InvalidArgumentError(
                "expected input and output indices to match",
                hint=f"'{output.name}' has no '{_INPUT}{index}'",
            )
        if spec.datatype != output.datatype:
            raise InvalidArgumentError(
                f"expected input and output datatype to match, got {to_config(spec.datatype)} and "
                f"{to_config(output.datatype)}",
                hint=f"'{spec.name}' and '{output.name}'",
            )
        shapes = [s.dims if s.reshape is None else s.reshape for s in (spec, output)]
        if shapes[0] != shapes[1]:
            raise InvalidArgumentError(
                "expected input and output shape to match, got "
                + " and ".join(map(format_shape, shapes)),
                hint=f"'{spec.name}' and '{output.name}'",
            )


def _by_index(what: str, prefix: str, specs: Iterable[TensorSpec]) -> dict[str, TensorSpec]:
    for spec in specs:
        if not spec.name.startswith(prefix):
            raise InvalidArgumentError(
                f"expected {what} name to follow {prefix}<index> pattern, got '{spec.name}'",
                hint=f"{prefix}0, {prefix}1, …",
            )
    return {spec.name.removeprefix(prefix): spec for spec in specs}
