"""Triton's small demonstration backends: `identity` and `repeat`.

They run no model: they need only a configuration.
"""

from __future__ import annotations

import itertools
import logging
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
from nbtriton.backends.described import expect, model_dims
from nbtriton.backends.python.api.metrics import Metric, MetricKind, family_of
from nbtriton.common.errors import InternalError, TritonError
from nbtriton.model import tensors
from nbtriton.model.config import ModelConfig, TensorSpec, input_specs, output_specs
from nbtriton.model.config.parameters import integer_parameter
from nbtriton.model.tensors import Array, format_shape, shape_of, to_config, to_numpy

_log = logging.getLogger("nbtriton.backends")
_ORDINALS = ("first", "second", "third")


class IdentityBackend(Backend):
    """Copies ``INPUT<index>`` to ``OUTPUT<index>``.

    Parameters of the configuration: ``execute_delay_ms``; ``instance_wise_delay_multiplier``, by which the
    second instance's delay is multiplied, the third's by twice as much, …; and ``creation_delay_sec``.
    """

    name: ClassVar[str] = "identity"
    needs_source: ClassVar[bool] = False

    def __init__(self) -> None:
        self._received: Metric | None = None
        self._numbers = itertools.count()

    def check(self, context: ModelContext) -> None:
        """Check the parameters, and that inputs and outputs are pairs."""
        config = context.config
        counts = (len(config.input), len(config.output))
        text = "model configuration must have equal input/output pairs"
        expect(counts[0] == counts[1], text, "it has {} inputs and {} outputs".format(*counts))
        inputs = _by_index("input", "INPUT", input_specs(config).values())
        outputs = _by_index("output", "OUTPUT", output_specs(config).values())
        expect(inputs.keys() == outputs.keys(), "expected input and output indices to match")
        for pair in ((inputs[index], outputs[index]) for index in sorted(outputs)):
            for what, (one, other) in (
                ("datatype", [to_config(spec.datatype) for spec in pair]),
                ("shape", [format_shape(model_dims(spec)) for spec in pair]),
            ):
                text = f"expected input and output {what} to match, got {one} and {other}"
                expect(one == other, text, " and ".join(f"'{spec.name}'" for spec in pair))
        for key in ("execute_delay_ms", "instance_wise_delay_multiplier", "creation_delay_sec"):
            integer_parameter(config, key)

    def open(self, context: ModelContext) -> None:
        """Wait for the configured time, and start counting bytes."""
        time.sleep(max(0, integer_parameter(context.config, "creation_delay_sec")))
        text = "Cumulative input byte size of all requests received by the model"
        family = family_of(context.server, "input_byte_size_counter", text, MetricKind.COUNTER)
        labels = {"model": context.name, "version": str(context.version)}
        self._received = Metric(family, labels, None)

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance."""
        config = context.model.config
        delay_ms = max(0, integer_parameter(config, "execute_delay_ms"))
        multiplier = max(0, integer_parameter(config, "instance_wise_delay_multiplier"))
        assert self._received is not None
        delay_ms *= max(1, multiplier * next(self._numbers))
        return _IdentityInstance(config, self._received, delay_ms / 1000)

    def close(self) -> None:
        """Release the metric."""
        self._received = None


def _by_index(what: str, prefix: str, specs: Iterable[TensorSpec]) -> dict[str, TensorSpec]:
    for spec in specs:
        text = f"expected {what} name to follow {prefix}<index> pattern, got '{spec.name}'"
        expect(spec.name.startswith(prefix), text, f"{prefix}0, {prefix}1, …")
    return {spec.name.removeprefix(prefix): spec for spec in specs}


class _IdentityInstance(BackendInstance):
    def __init__(self, config: ModelConfig, received: Metric, delay_s: float) -> None:
        self._batches = config.max_batch_size > 0
        self._specs = input_specs(config)
        self._received = received
        self._delay_s = delay_s

    def execute(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> list[Response]:
        timer.inputs_ready()
        time.sleep(self._delay_s)
        return [
            Response({name: self._output(request, name) for name in request.requested_outputs})
            for request in requests
        ]

    def _output(self, request: BackendRequest, name: str) -> Array:
        spec = self._specs[name.replace("OUTPUT", "INPUT", 1)]
        array = request.inputs.get(spec.name)
        if array is not None:
            self._received.increment(tensors.nbytes_of(array))
            return tensors.copy_of(array)
        # Zeros replace a missing optional input.
        batch = (request.batch_size,) if self._batches else ()
        shape = (*batch, *(1 if dim == -1 else dim for dim in model_dims(spec)))
        if spec.datatype == "BYTES":
            return np.full(shape, b"", dtype=object)
        return np.zeros(shape, tensors.numpy_dtype(spec.datatype))


class RepeatBackend(Backend):
    """Sends the elements of ``IN`` back one by one as ``OUT``, with their indices as ``IDX``.

    ``DELAY`` has the milliseconds before each response, ``WAIT`` the milliseconds for which the instance
    stays busy.
    """

    name: ClassVar[str] = "repeat"
    needs_source: ClassVar[bool] = False

    def check(self, context: ModelContext) -> None:
        """Check that the model does not batch, then its inputs and outputs."""
        config = context.config
        size = config.max_batch_size
        text = "repeat backend only supports models with max_batch_size == 0"
        expect(size == 0, text, f"it is {size}")
        sides = (
            ("input", list(input_specs(config).values()), _INPUTS),
            ("output", list(output_specs(config).values()), _OUTPUTS),
        )
        for what, specs, expected in sides:
            text = f"expected {len(expected)} {what}s, got {len(specs)}"
            expect(len(specs) == len(expected), text, f"{', '.join(expected)}, in this order")
        for what, specs, expected in sides:
            for ordinal, spec, name in zip(_ORDINALS, specs, expected, strict=False):
                text = f"expected {ordinal} {what} tensor name to be {name}, got {spec.name}"
                expect(spec.name == name, text)
        inputs, outputs = sides[0][1], sides[1][1]
        _check_shapes(inputs[0].dims, inputs[1].dims)
        for spec in (inputs[2], *outputs):
            text = f"expected {spec.name} shape to be [1], got {format_shape(spec.dims)}"
            expect(spec.dims == (1,), text)
        for spec in (*inputs, *outputs):
            datatype, found = {**_INPUTS, **_OUTPUTS}[spec.name], to_config(spec.datatype)
            text = f"expected {spec.name} datatype to be {datatype}, got {found}"
            expect(spec.datatype == datatype, text)

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance."""
        return _RepeatInstance(context.name)


_INPUTS = {"IN": "INT32", "DELAY": "UINT32", "WAIT": "UINT32"}
_OUTPUTS = {"OUT": "INT32", "IDX": "UINT32"}


def _check_shapes(values: tuple[int, ...], delays: tuple[int, ...]) -> None:
    """Check that IN is a list, and DELAY another one of the same length."""
    text = f"expected IN shape to have one dimension, got {format_shape(values)}"
    expect(len(values) == 1, text)
    shapes = f"{format_shape(values)} and {format_shape(delays)}"
    expect(values == delays, f"expected IN and DELAY shape to match, got {shapes}")


class _RepeatInstance(BackendInstance):
    """Sends the responses to each request from a thread of its own."""

    # The caller's thread must stay free to read responses while the instance waits.
    any_thread = False

    def __init__(self, name: str) -> None:
        self._name = f"nbtriton-{name}"
        self._threads: list[threading.Thread] = []

    def execute(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> None:
        timer.inputs_ready()
        for request in requests:
            thread = threading.Thread(
                target=self._answer, args=(request,), name=self._name, daemon=True
            )
            self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
            thread.start()
            time.sleep(_elements(request, "WAIT")[0] / 1000)

    def finalize(self) -> None:
        for thread in self._threads:
            thread.join()

    def _answer(self, request: BackendRequest) -> None:
        last = None
        try:
            _check_shapes(*(shape_of(request.inputs[name]) for name in ("IN", "DELAY")))
            pairs = zip(_elements(request, "IN"), _elements(request, "DELAY"), strict=True)
            for index, (value, delay_ms) in enumerate(pairs):
                time.sleep(delay_ms / 1000)
                if request.is_cancelled():
                    break
                outputs = {"OUT": np.array([value], np.int32), "IDX": np.array([index], np.uint32)}
                wanted = {
                    n: array for n, array in outputs.items() if n in request.requested_outputs
                }
                request.send(Response(wanted), final=False)
        except TritonError as error:
            last = Response(error=error)
        except Exception as error:
            _log.exception("answering a request of %s", self._name)
            last = Response(error=InternalError(f"{type(error).__name__}: {error}"))
        if not request.is_answered():
            request.send(last, final=True)


def _elements(request: BackendRequest, name: str) -> list[int]:
    return [int(element) for element in to_numpy(request.inputs[name]).reshape(-1)]
