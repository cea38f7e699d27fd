"""Who does the work of an ensemble: the versions that serve its steps, and how tensors reach them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain

from nbtriton.engine.admission import Interface
from nbtriton.engine.runtime import Runtime
from nbtriton.scheduling import EnsemblePlan

__all__ = ["Crew"]


class Feed:
    """An input of a step.

    Attributes
    ----------
    name : str
    tensor : str
        Of the ensemble.
    dims : tuple of int or None
        Of the model's input, where the tensor comes from a model that batches and this one does
        not, or the other way round (E9); None where it can be taken as it is.
    shared : bool
        Another step or the caller gets the tensor too: this one must not change it.
    """

    __slots__ = ("dims", "name", "shared", "tensor")

    def __init__(self, name: str, tensor: str, dims: tuple[int, ...] | None, shared: bool) -> None:
        self.name = name
        self.tensor = tensor
        self.dims = dims
        self.shared = shared


class Crew:
    """The versions that serve the steps, for all requests that began with them (E17).

    Attributes
    ----------
    runtimes, batching, decoupled, wanted, inner, feeds, makes : tuple
        One entry a step: the version that serves it, whether that batches, whether it is decoupled,
        the outputs that are asked of it (none for all of them), those of its outputs that are no
        output of the ensemble, its inputs, and where its outputs go.
    harvest : tuple
        The ensemble's outputs, with dims where the tensor is to be adapted.
    flights : int
        Requests that are with this crew; guarded by the ensemble's lock.
    """

    __slots__ = (
        "batching", "decoupled", "feeds", "flights", "harvest", "inner", "makes", "runtimes", "wanted",
    )  # fmt: skip

    def __init__(
        self, plan: EnsemblePlan, interface: Interface, runtimes: tuple[Runtime, ...]
    ) -> None:
        self.runtimes = runtimes
        self.batching = tuple(runtime.interface.max_batch_size > 0 for runtime in runtimes)
        self.decoupled = tuple(runtime.interface.decoupled for runtime in runtimes)
        self.wanted = tuple(
            _wanted(step.output_map, runtime.interface)
            for step, runtime in zip(plan.steps, runtimes, strict=True)
        )
        self.inner = tuple(
            frozenset(
                name for name, tensor in step.output_map.items() if tensor not in plan.outputs
            )
            for step in plan.steps
        )
        self.makes = tuple(tuple(step.output_map.items()) for step in plan.steps)
        own = interface.max_batch_size > 0
        batched = {
            tensor: self.batching[plan.producer[tensor]] if tensor in plan.producer else own
            for tensor in plan.bits
        }
        readers = Counter(chain(*plan.step_inputs, plan.outputs))
        self.feeds = tuple(
            _feeds(step.input_map, runtime.interface, batching, batched, readers)
            for step, runtime, batching in zip(plan.steps, runtimes, self.batching, strict=True)
        )
        self.harvest = tuple(
            (name, None if batched[name] is own else spec.dims)
            for name, spec in interface.outputs.items()
        )
        self.flights = 0

    def disband(self) -> None:
        """The last flight has landed, and none will come."""
        for runtime in self.runtimes:
            runtime.let_go()


def _wanted(output_map: Mapping[str, str], interface: Interface) -> frozenset[str]:
    names = frozenset(output_map)
    return frozenset() if names == interface.outputs.keys() else names


def _feeds(
    input_map: Mapping[str, str],
    interface: Interface,
    batching: bool,
    batched: Mapping[str, bool],
    readers: Mapping[str, int],
) -> tuple[Feed, ...]:
    specs = interface.inputs
    return tuple(
        Feed(
            name,
            tensor,
            None if batched[tensor] is batching or name not in specs else specs[name].dims,
            readers[tensor] > 1,
        )
        for name, tensor in input_map.items()
    )
