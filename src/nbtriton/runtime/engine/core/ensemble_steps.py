"""The steps of an ensemble: the versions that serve them, their limits, and the tensors between them."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Final

import numpy as np

from nbtriton.backends.base import Response
from nbtriton.backends.core.place import wait_for_outputs
from nbtriton.common.errors import InvalidArgumentError, TritonError
from nbtriton.model.tensors import Array
from nbtriton.runtime.engine.core.execution import Completion
from nbtriton.runtime.engine.core.faults import fits, hash_order
from nbtriton.runtime.engine.core.request import InferenceRequest, as_triton_error
from nbtriton.runtime.engine.core.runtime import ModelSignature, Runtime
from nbtriton.scheduling import SEQUENCE_END, SEQUENCE_START, EnsemblePlan


class InputBinding:
    """An input of a step.

    Attributes
    ----------
    name : str
    tensor : str
        Of the ensemble.
    dims : tuple of int or None
        The dims of the model's input if the tensor comes from a batching model and this one does
        not batch, or vice versa (E9); None if it can be passed as it is.
    """

    __slots__ = ("dims", "name", "tensor")

    def __init__(self, name: str, tensor: str, dims: tuple[int, ...] | None) -> None:
        self.name = name
        self.tensor = tensor
        self.dims = dims


class OutputBinding:
    """An output of the ensemble.

    Attributes
    ----------
    name : str
    dims : tuple of int or None
        The dims of the output if the tensor must be adapted, as for `InputBinding`.
    shared : bool
        True if a step also reads the tensor.
    """

    __slots__ = ("dims", "name", "shared")

    def __init__(self, name: str, dims: tuple[int, ...] | None, shared: bool) -> None:
        self.name = name
        self.dims = dims
        self.shared = shared


class EnsembleBinding:
    """The versions that serve the steps, for all requests that began with them (E17).

    Attributes
    ----------
    runtimes, batching, decoupled, requested, inputs, outputs : tuple
        One entry per step: the version that serves it, whether that batches, whether it is
        decoupled, the outputs that are requested of it (none for all of them), its input bindings,
        and (output, tensor) for each output that goes to a tensor of the ensemble.
    owned, owned_of_all : tuple
        One entry per step: the inputs that nothing else gets, if the ensemble's own inputs belong
        to the caller, and if they belong to the engine.
    plan : EnsemblePlan
    ensemble_inputs : frozenset of str
    ensemble_outputs : tuple of OutputBinding
        In the order in which Triton answers.
    active : int
        Number of requests that are executed with this binding; guarded by the ensemble's lock.
    """

    __slots__ = (
        "active", "batching", "decoupled", "ensemble_inputs", "ensemble_outputs", "inputs",
        "outputs", "owned", "owned_of_all", "plan", "requested", "runtimes",
    )  # fmt: skip

    def __init__(
        self, plan: EnsemblePlan, signature: ModelSignature, runtimes: tuple[Runtime, ...]
    ) -> None:
        self.plan = plan
        self.runtimes = runtimes
        self.batching = tuple(runtime.signature.max_batch_size > 0 for runtime in runtimes)
        self.decoupled = tuple(runtime.signature.decoupled for runtime in runtimes)
        self.requested = tuple(
            _requested(step.output_map, runtime.signature)
            for step, runtime in zip(plan.steps, runtimes, strict=True)
        )
        self.outputs = tuple(tuple(step.output_map.items()) for step in plan.steps)
        own = signature.max_batch_size > 0
        batched = {
            tensor: self.batching[plan.producer[tensor]] if tensor in plan.producer else own
            for tensor in plan.tensors
        }
        self.inputs = tuple(
            _input_bindings(step.input_map, runtime.signature, batching, batched)
            for step, runtime, batching in zip(plan.steps, runtimes, self.batching, strict=True)
        )
        readers = Counter(chain(*(step.input_map.values() for step in plan.steps), plan.outputs))
        once = frozenset([name for name, count in readers.items() if count == 1])
        self.owned_of_all = tuple(
            frozenset(name for name, tensor in step.input_map.items() if tensor in once)
            for step in plan.steps
        )
        self.owned = tuple(
            frozenset(name for name in owned if step.input_map[name] in plan.producer)
            for step, owned in zip(plan.steps, self.owned_of_all, strict=True)
        )
        self.ensemble_inputs = frozenset(signature.inputs)
        self.ensemble_outputs = tuple(
            OutputBinding(
                name,
                None if batched[name] is own else signature.outputs[name].dims,
                name not in once,
            )
            for name in hash_order(signature.outputs)
        )
        self.active = 0

    def release(self) -> None:
        """Release the versions; called once no request is or will be executed with this binding."""
        for runtime in self.runtimes:
            runtime.release()


def _requested(output_map: Mapping[str, str], signature: ModelSignature) -> frozenset[str]:
    names = frozenset(output_map)
    return frozenset() if names == signature.outputs.keys() else names


def _input_bindings(
    input_map: Mapping[str, str],
    signature: ModelSignature,
    batching: bool,
    batched: Mapping[str, bool],
) -> tuple[InputBinding, ...]:
    specs = signature.inputs
    return tuple(
        InputBinding(
            name,
            tensor,
            None if batched[tensor] is batching or name not in specs else specs[name].dims,
        )
        for name, tensor in input_map.items()
    )


# Set once the waiting request has its place.
Turn = threading.Event


class StepGate:
    """The places in one step, shared by all requests of an ensemble; first come, first served.

    Parameters
    ----------
    limit : int
        At least 1.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._inside = 0
        self._handing_on = False
        self._waiting: deque[tuple[Callable[[Completion | None], None], Turn]] = deque()

    def acquire(
        self, go: Callable[[Completion | None], None], completion: Completion | None = None
    ) -> Turn | None:
        """Call ``go(completion)`` now, or when a place becomes free.

        Returns
        -------
        Turn or None
            None if it was called at once.
        """
        with self._lock:
            if self._inside >= self._limit:
                turn = Turn()
                self._waiting.append((go, turn))
                return turn
            self._inside += 1
        go(completion)
        return None

    def release(self, completion: Completion | None = None) -> None:
        """Release a place; the next request starts on this thread."""
        with self._lock:
            self._inside -= 1
            # A loop on one thread: a request that starts may leave immediately, and calls must not nest.
            if self._handing_on:
                return
            self._handing_on = True
        while True:
            with self._lock:
                if not self._waiting or self._inside >= self._limit:
                    self._handing_on = False
                    return
                self._inside += 1
                go, turn = self._waiting.popleft()
            turn.set()
            go(completion)


# Final: rule 13 of docs/compiled.md.
_ndarray: Final = np.ndarray

# Sequence id and flags.
SequenceMark = tuple[int | str, int]


def completed(response: Response, request: InferenceRequest) -> Response:
    """Return a response once devices have written its outputs, unless its receiver orders events, as steps do.

    Errors of a device appear when it is waited for; the response is then that error.
    """
    foreign = False
    for array in response.outputs.values():
        foreign = foreign or type(array) is not _ndarray
    if not foreign or request.orders_events:
        return response
    try:
        wait_for_outputs(response.outputs.values())
    except Exception as raised:
        return Response(error=as_triton_error(raised, request.model_name))
    return response


def placed(error: TritonError, ensemble: str) -> TritonError:
    """Return the same error with the ensemble's name before its text."""
    found = error.again()
    found.args = (f"in ensemble '{ensemble}', {error.message}",)
    return found


def sequence_mark(parameters: Mapping[str, bool | int | str]) -> SequenceMark | None:
    """Return the sequence id and flags that a step's response sets for later steps (E6)."""
    if not any(name in parameters for name in ("sequence_id", "sequence_start", "sequence_end")):
        return None
    correlation_id = parameters.get("sequence_id", 0)
    if isinstance(correlation_id, bool) or not isinstance(correlation_id, (int, str)):
        raise InvalidArgumentError(
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or "
            "TRITONSERVER_PARAMETER_STRING"
        )
    flags = 0
    for name, flag in (("sequence_start", SEQUENCE_START), ("sequence_end", SEQUENCE_END)):
        value = parameters.get(name, False)
        if not isinstance(value, bool):
            raise InvalidArgumentError(
                f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL"
            )
        flags |= flag * value
    return correlation_id, flags


def adapt(value: Array, dims: Sequence[int], *, to_batching: bool) -> Array:
    """Pass a tensor between a batching and a non-batching model (E9)."""
    shape = tuple(value.shape)
    fitting = fits(shape, dims)
    if to_batching:
        return value.reshape((1, *shape)) if fitting else value
    if fitting or not shape or shape[0] != 1:
        return value
    return value.reshape(shape[1:])
