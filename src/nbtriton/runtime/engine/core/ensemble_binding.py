"""The versions that serve the steps of an ensemble, and how tensors reach them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain

from nbtriton.runtime.engine.core.hash_order import hash_order
from nbtriton.runtime.engine.core.model_signature import ModelSignature
from nbtriton.runtime.engine.core.runtime import Runtime
from nbtriton.scheduling import EnsemblePlan

__all__ = ["EnsembleBinding", "InputBinding", "OutputBinding"]


class InputBinding:
    """An input of a step.

    Attributes
    ----------
    name : str
    tensor : str
        Of the ensemble.
    dims : tuple of int or None
        Of the model's input, where the tensor comes from a model that batches and this one does
        not, or the other way round (E9); None where it can be taken as it is.
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
        Of the output, where the tensor is to be adapted, as for `InputBinding`.
    shared : bool
        True if a step reads the tensor too.
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
        One entry per step: the inputs that nothing else gets, where the ensemble's own inputs are
        the caller's, and where they are the engine's.
    plan : EnsemblePlan
    ensemble_inputs : frozenset of str
    ensemble_outputs : tuple of OutputBinding
        In the order in which Triton answers.
    active : int
        Requests that are executed with this binding; guarded by the ensemble's lock.
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
        """Release the versions, once no request is executed with this binding and none will be."""
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
