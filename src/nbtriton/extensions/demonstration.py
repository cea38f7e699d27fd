"""Triton's small demonstration backends: `identity`, `repeat` and `square`.

They run no model: they need only a configuration.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
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
from nbtriton.backends.checks import expect, model_dims
from nbtriton.backends.parameters import integer_parameter, text_parameter
from nbtriton.backends.python.api.metrics import Metric, MetricKind, family_of
from nbtriton.common.errors import InternalError, TritonError, UnknownError
from nbtriton.model import tensors
from nbtriton.model.config import ModelConfig, TensorSpec, input_specs, output_specs
from nbtriton.model.tensors import Array, format_shape, shape_of, to_config, to_numpy

__all__ = ["IdentityBackend", "RepeatBackend", "SquareBackend"]

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


class _StreamingBackend(Backend):
    """Answers each request with a stream of responses; all its models have the same tensors."""

    needs_source: ClassVar[bool] = False
    # Names, in the order of the datatypes; those with one element.
    inputs: ClassVar[Sequence[str]]
    outputs: ClassVar[Sequence[str]]
    datatypes: ClassVar[Sequence[str]]
    single: ClassVar[Sequence[str]]

    def check(self, context: ModelContext) -> None:
        """Check the inputs and outputs."""
        config = context.config
        sides = (
            ("input", list(input_specs(config).values()), self.inputs),
            ("output", list(output_specs(config).values()), self.outputs),
        )
        for what, specs, names in sides:
            expected = f"{len(names)} {what}{'s' if len(names) > 1 else ''}"
            text = f"expected {expected}, got {len(specs)}"
            expect(len(specs) == len(names), text, f"{', '.join(names)}, in this order")
        for what, specs, names in sides:
            for ordinal, spec, name in zip(_ORDINALS, specs, names, strict=False):
                text = f"expected {ordinal} {what} tensor name to be {name}, got {spec.name}"
                expect(spec.name == name, text)
        self.check_shapes(*(spec.dims for spec in sides[0][1]))
        everything = [*sides[0][1], *sides[1][1]]
        for spec in everything:
            text = f"expected {spec.name} shape to be [1], got {format_shape(spec.dims)}"
            expect(spec.dims == (1,) or spec.name not in self.single, text)
        for spec, datatype in zip(everything, self.datatypes, strict=True):
            found = to_config(spec.datatype)
            text = f"expected {spec.name} datatype to be {datatype}, got {found}"
            expect(spec.datatype == datatype, text)

    def check_shapes(self, *dims: tuple[int, ...]) -> None:
        """Check the shapes of the inputs that are not `single`."""

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance."""
        return _StreamingInstance(context.name, partial(self.respond, context.model.config))

    @abstractmethod
    def respond(self, config: ModelConfig, request: BackendRequest) -> Iterator[Response]:
        """Yield the responses to a request; an error raised here is the last one."""


class _StreamingInstance(BackendInstance):
    """Sends the responses to each request from a thread of its own."""

    # The caller's thread must stay free to read responses while the instance waits.
    any_thread = False

    def __init__(self, name: str, respond: Callable[[BackendRequest], Iterator[Response]]) -> None:
        self._name = f"nbtriton-{name}"
        self._respond = respond
        self._threads: list[threading.Thread] = []

    def execute(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> None:
        timer.inputs_ready()
        for request in requests:
            thread = threading.Thread(
                target=self._answer, args=(request,), name=self._name, daemon=True
            )
            self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
            thread.start()
            if "WAIT" in request.inputs:
                time.sleep(_elements(request, "WAIT")[0] / 1000)

    def finalize(self) -> None:
        for thread in self._threads:
            thread.join()

    def _answer(self, request: BackendRequest) -> None:
        last = None
        try:
            for response in self._respond(request):
                request.send(response, final=False)
        except TritonError as error:
            last = Response(error=error)
        except Exception as error:
            _log.exception("answering a request of %s", self._name)
            last = Response(error=InternalError(f"{type(error).__name__}: {error}"))
        if not request.is_answered():
            request.send(last, final=True)


def _elements(request: BackendRequest, name: str) -> list[int]:
    return [int(element) for element in to_numpy(request.inputs[name]).reshape(-1)]


class RepeatBackend(_StreamingBackend):
    """Sends the elements of ``IN`` back one by one as ``OUT``, with their indices as ``IDX``.

    ``DELAY`` has the milliseconds before each response, ``WAIT`` the milliseconds for which the instance
    stays busy.
    """

    name: ClassVar[str] = "repeat"
    inputs, outputs = ("IN", "DELAY", "WAIT"), ("OUT", "IDX")
    datatypes = ("INT32", "UINT32", "UINT32", "INT32", "UINT32")
    single = ("WAIT", "OUT", "IDX")

    def check(self, context: ModelContext) -> None:
        """Check that the model does not batch, then its inputs and outputs."""
        size = context.config.max_batch_size
        text = "repeat backend only supports models with max_batch_size == 0"
        expect(size == 0, text, f"it is {size}")
        super().check(context)

    def check_shapes(self, *dims: tuple[int, ...]) -> None:
        """Check that IN is a list, and DELAY another one of the same length."""
        text = f"expected IN shape to have one dimension, got {format_shape(dims[0])}"
        expect(len(dims[0]) == 1, text)
        shapes = " and ".join(map(format_shape, dims[:2]))
        expect(dims[0] == dims[1], f"expected IN and DELAY shape to match, got {shapes}")

    def respond(self, config: ModelConfig, request: BackendRequest) -> Iterator[Response]:  # noqa: ARG002
        """Yield a response for each element."""
        self.check_shapes(*(shape_of(request.inputs[name]) for name in ("IN", "DELAY")))
        pairs = zip(_elements(request, "IN"), _elements(request, "DELAY"), strict=True)
        for index, (value, delay_ms) in enumerate(pairs):
            time.sleep(delay_ms / 1000)
            if request.is_cancelled():
                return
            outputs = {"OUT": np.array([value], np.int32), "IDX": np.array([index], np.uint32)}
            requested = request.requested_outputs
            yield Response({name: outputs[name] for name in outputs if name in requested})


class SquareBackend(_StreamingBackend):
    """Answers a request for N with N responses ``OUT`` = N.

    Parameters of the configuration, whole numbers: ``CUSTOM_INFER_DELAY_NS`` and ``CUSTOM_OUTPUT_DELAY_NS``
    before each response, ``CUSTOM_CANCEL_DELAY_NS`` before a cancelled request ends, the number of omitted
    responses at the end (``CUSTOM_EMPTY_COUNT``), and the number of errors before these
    (``CUSTOM_FAIL_COUNT``).
    """

    name: ClassVar[str] = "square"
    inputs, outputs = ("IN",), ("OUT",)
    datatypes = ("INT32", "INT32")
    single = ("IN", "OUT")

    def respond(self, config: ModelConfig, request: BackendRequest) -> Iterator[Response]:
        """Yield the requested number of responses."""
        shape = shape_of(request.inputs["IN"])
        one = len(shape) != 2 or shape[0] == 1
        hint = "one request asks for one number: batch size 1"
        expect(one, "unexpected shape for IN input", hint)
        number = _elements(request, "IN")[0]
        # Triton reads a negative number as a count of some 10**19.
        expect(number >= 0, f"IN is {number}, expected 0 or more: a number of responses")
        infer_ns, output_ns, cancel_ns = (
            _count(config, f"CUSTOM_{what}_DELAY_NS") for what in ("INFER", "OUTPUT", "CANCEL")
        )
        empty = number - _count(config, "CUSTOM_EMPTY_COUNT")
        failing = empty - _count(config, "CUSTOM_FAIL_COUNT")
        for index in range(number):
            if request.is_cancelled():
                time.sleep(cancel_ns / 1e9)
                return
            time.sleep(infer_ns / 1e9)
            if index >= empty:
                continue
            time.sleep(output_ns / 1e9)
            if index >= failing:
                yield Response(error=UnknownError("simulated failure"))
            else:
                yield Response({"OUT": np.full(shape, number, np.int32)})


def _count(config: ModelConfig, key: str) -> int:
    """Return a parameter, 0 if it is no number: Triton ignores it, too."""
    text = text_parameter(config, key) or "0"
    if text.isascii() and text.isdigit():
        return int(text)
    _log.warning("model '%s': %s string_value is not a number: '%s'", config.name, key, text)
    return 0
