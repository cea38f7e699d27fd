"""Several models as one graph on one GPU, which an ensemble runs by a single launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from time import monotonic_ns
from typing import Any, ClassVar

import numpy as np

from nbtriton.backends.base import (
    Backend,
    BackendInstance,
    BackendRequest,
    BatchTimer,
    InstanceContext,
    Response,
)
from nbtriton.backends.devices import CaptureError, Graphs
from nbtriton.backends.hosted import create_instance
from nbtriton.model.tensors import Array, copy_of, is_on_device

__all__ = ["FusedBackend", "FusedInstance", "Part"]

# The captured form of a model: a function from inputs by name to outputs by name.
_Call = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class Part:
    """One of the models, in the order of execution.

    Parameters
    ----------
    backend : Backend
        Opened, and open for as long as the parts are used.
    context : InstanceContext
        Of an instance made for the graph alone.
    inputs, outputs : mapping of str to str
        The tensors of its inputs and outputs.
    shared : frozenset of str
        Inputs to copy, as they share their memory.
    check : callable
        Raises for inputs that the model would refuse.
    """

    backend: Backend
    context: InstanceContext
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    shared: frozenset[str]
    check: Callable[[Mapping[str, Array]], object]

    @property
    def model(self) -> str:
        """Its name."""
        return self.context.model.name


class FusedBackend(Backend):
    """Runs several models as one graph, captured for each set of input shapes.

    Parameters
    ----------
    name : str
        The owner of the graphs for the log, such as ``ensemble 'e'``.
    parts : sequence of Part
    outputs : sequence of str
        The tensors to return.
    on_close : callable
        Called when the last instance is finalized.

    Attributes
    ----------
    shares : tuple of float
        Share of each part in the capture time of the last graph that ran; their sum is 1.
    """

    name: ClassVar[str] = "ensemble"

    def __init__(
        self,
        what: str,
        parts: Sequence[Part],
        outputs: Sequence[str],
        on_close: Callable[[], object],
    ) -> None:
        self.what = what
        self.parts = tuple(parts)
        self.outputs = tuple(outputs)
        self._on_close = on_close
        self.shares = tuple(1 / len(self.parts) for _ in self.parts)
        self._instance: FusedInstance | None = None

    def knows_simulated(self, context: InstanceContext) -> bool:  # noqa: ARG002 - as the interface has it
        """Return True: the parts decide."""
        return True

    def create_instance(self, context: InstanceContext) -> FusedInstance:
        """Create the only instance."""
        self._instance = FusedInstance(self, context)
        return self._instance

    def has_refused(self, inputs: Mapping[str, Array]) -> bool:
        """Return whether a capture of these input shapes has failed; callable on any thread."""
        return self._instance is None or self._instance.graphs.has_refused(inputs)

    def close(self) -> None:
        """Release the resources of the parts."""
        self._instance = None
        self._on_close()


class FusedInstance(BackendInstance):
    """Replays the graphs on its own stream.

    Raises
    ------
    CaptureError
        One of the models cannot be captured.
    """

    def __init__(self, backend: FusedBackend, context: InstanceContext) -> None:
        device = context.device
        assert device is not None
        self._backend = backend
        self._device = device
        self._owner = context.model.name
        self._stream: Any = device.stream(self._owner)
        self.graphs = Graphs(device, self._stream, backend.what)
        self._instances: list[BackendInstance] = []
        self._calls: list[_Call] = []
        self._readers: dict[str, str] = {}
        self._writers: dict[str, str] = {}
        try:
            for part in backend.parts:
                self._add(part)
        except BaseException:
            self.finalize()
            raise

    def _add(self, part: Part) -> None:
        instance = create_instance(part.backend, part.context)
        self._instances.append(instance)
        call = instance.capturable()
        if call is None:
            raise CaptureError(
                f"the code of step '{part.model}' does not work on arrays of the GPU alone"
            )
        self._calls.append(call)
        for name, tensor in part.inputs.items():
            self._readers.setdefault(tensor, f"{part.model}.{name}")
        for name, tensor in part.outputs.items():
            self._writers[tensor] = f"{part.model}.{name}"

    def execute(
        self, requests: Sequence[BackendRequest], timer: BatchTimer
    ) -> Sequence[Response | None] | None:
        """Replay the graph of the request's shapes, captured on first use.

        Raises
        ------
        CaptureError
            The graph cannot be captured: the models are to run one by one.
        """
        (request,) = requests
        device = self._device
        try:
            with self._stream:
                inputs = {
                    name: device.to_device(array, self._readers.get(name, name))
                    if is_on_device(array)
                    else array
                    for name, array in request.inputs.items()
                }
                captured = self.graphs.find(self._call, inputs, self._readers)
                if captured is None:
                    raise CaptureError("there is no graph for these shapes")
                captured.write(device, inputs, self._readers)
                timer.inputs_ready()
                result, shares = captured.result
                self._replay(captured.graph)
                # The next replay overwrites the results of this one.
                outputs = {name: copy_of(array) for name, array in result.items()}
                event = device.hand_over(
                    list(outputs.values()), [self._writers[name] for name in outputs]
                )
            if not request.orders_events and event is not None:
                event.synchronize()
        except CaptureError:
            raise
        except Exception as error:  # such as full memory; single models may succeed
            raise CaptureError(str(error)) from error
        self._backend.shares = shares
        timer.infer_done()
        return [Response(outputs)]

    def _replay(self, graph: Any) -> None:
        if self._device.simulated:  # counts each operation
            graph.replay()
            return
        with self._device.computing("module", self._owner):
            graph.replay()

    def _call(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], tuple[float, ...]]:
        """Run all models in a row; return the outputs, and each model's share of the time."""
        tensors = dict(inputs)
        marks = [monotonic_ns()]
        try:
            for part, call in zip(self._backend.parts, self._calls, strict=True):
                self._stream.owner = part.model
                self._call_one(part, call, tensors)
                marks.append(monotonic_ns())
        finally:
            self._stream.owner = self._owner
        whole = max(1, marks[-1] - marks[0])
        shares = tuple((end - begin) / whole for begin, end in pairwise(marks))
        return {name: tensors[name] for name in self._backend.outputs}, shares

    def _call_one(self, part: Part, call: _Call, tensors: dict[str, Array]) -> None:
        inputs = {
            name: copy_of(tensors[tensor]) if name in part.shared else tensors[tensor]
            for name, tensor in part.inputs.items()
        }
        part.check(inputs)
        outputs = call(inputs)
        for name, tensor in part.outputs.items():
            array = outputs[name]
            if type(array) is np.ndarray or not is_on_device(array):
                raise CaptureError(f"output '{name}' of step '{part.model}' is on the host")
            tensors[tensor] = array

    def finalize(self) -> None:
        """Release the graphs, and the instances that were made for them."""
        # In reverse order; all of it, despite errors in a model's finalize.
        with ExitStack() as stack:
            stack.callback(self._stream.close)
            for instance in self._instances:
                stack.callback(instance.finalize)
            self._instances = []
            self._calls = []
            stack.callback(self.graphs.close)
            self._stream.synchronize()
