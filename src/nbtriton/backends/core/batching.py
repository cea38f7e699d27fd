"""Batches: inputs of requests joined along axis 0, outputs named, checked and split again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from nbtriton.backends.base import BackendInstance, BackendRequest, BatchTimer
from nbtriton.backends.compiling import mypyc_attr
from nbtriton.backends.core.messages import Response, ScatteredResponses
from nbtriton.backends.core.place import Place, fetched
from nbtriton.backends.ragged import PLAIN, BatchOutput, Layout, layout
from nbtriton.common.errors import InternalError, InvalidArgumentError, nearest
from nbtriton.model.config import ModelConfig
from nbtriton.model.tensors import (
    Array,
    format_shape,
    gather,
    kind_of,
    own,
    scatter,
    shape_of,
    to_kind,
    to_numpy,
    to_torch,
)

# Final: rule 13 of docs/compiled.md.
_ndarray: Final = np.ndarray
_NOT_JOINED: Final[Mapping[str, Array]] = {}


@mypyc_attr(allow_interpreted_subclasses=True)
class BatchInstance(BackendInstance):
    """An instance whose code runs whole batches; without batching, one request each."""

    def __init__(self, config: ModelConfig) -> None:
        self._name: str = config.name
        self._batches = config.max_batch_size > 0
        self._layout = layout(config)

    def execute(
        self, requests: Sequence[BackendRequest], timer: BatchTimer
    ) -> Sequence[Response | None] | None:
        """Run one batch; see `BackendInstance.execute`."""
        if not self._batches and len(requests) > 1:
            return [self.run([request], timer)[0] for request in requests]
        return self.run(requests, timer)

    def run(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> Sequence[Response]:
        """Run one batch; without batching it has one request."""
        raise NotImplementedError

    def scatter(
        self, requests: Sequence[BackendRequest], outputs: Mapping[str, Array]
    ) -> Sequence[Response]:
        """Return one response per request; see `scatter_outputs`."""
        return scatter_outputs(
            requests, outputs, batches=self._batches, model=self._name, layout=self._layout
        )


def gather_inputs(
    requests: Sequence[BackendRequest],
    names: Sequence[str],
    layout: Layout = PLAIN,
    *,
    copy: bool = True,
    model: str = "",
    place: Place | None = None,
) -> dict[str, Array]:
    """Return the named inputs of a batch, joined along axis 0.

    Ragged inputs are joined flat, and the batch inputs of the layout are added. A shape tensor is
    taken from any request, preceded by the size of the batch (G9). The memory belongs to the model,
    and is writable and
    contiguous. Without `copy` the arrays of a single request are returned as they are, for a model that only
    reads them.

    With a `place` they are on its device; otherwise those of a simulated GPU are copied to the host, for
    `model` in the copy ledger.

    Raises
    ------
    InvalidArgumentError
        Requests with different inputs or shapes in one batch.
    """
    first = requests[0].inputs
    # Joining several arrays makes new memory.
    owned = requests[0].owned_inputs
    copies = copy and len(requests) == 1
    # In a worker they arrive as one array.
    ready: Mapping[str, Array] = getattr(requests, "joined", _NOT_JOINED)
    joined = {}
    for name in names:
        if name not in first:
            continue
        if layout.shape_tensors and name in layout.shape_tensors:
            joined[name] = _shape_of_batch(requests, name, layout.shape_tensors[name])
            continue
        if name in ready and name not in layout.ragged:
            joined[name] = ready[name]
            continue
        try:
            arrays = [request.inputs[name] for request in requests]
            if name in layout.ragged:
                arrays = [array.reshape(-1) for array in arrays]
            fresh = False
            if place is not None:
                array, fresh = place.join(arrays, name)
            else:
                for given in arrays:
                    if type(given) is not _ndarray:
                        arrays = [fetched(one, f"{model}.{name}") for one in arrays]
                        break
                array = gather(arrays)
        except KeyError:
            raise InvalidArgumentError(
                f"input '{name}' is missing in some requests of one batch"
            ) from None
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"input '{name}': {error.message}", hint=error.hint
            ) from None
        joined[name] = own(array, name in owned or fresh) if copies else array
    for batch_input in layout.batch_inputs:
        value = batch_input.value(_source_shapes(requests, batch_input.source))
        joined[batch_input.name] = _beside(value, joined.get(batch_input.source))
    return joined


def _shape_of_batch(requests: Sequence[BackendRequest], name: str, count: int) -> Array:
    values = to_numpy(requests[0].inputs[name]).reshape(-1)
    rows = sum(request.batch_size for request in requests)
    return np.concatenate((np.array([rows], values.dtype), values[-count:]))


def _source_shapes(requests: Sequence[BackendRequest], source: str) -> list[tuple[int, ...]]:
    try:
        return [shape_of(request.inputs[source]) for request in requests]
    except KeyError:
        raise InvalidArgumentError(
            f"unknown request input name {source}",
            hint="it is the source of a batch input or output, so every request needs it",
        ) from None


def _beside(value: Array, other: Array) -> Array:
    """Return a host array as the same kind of array, on the same device, as another one."""
    kind = "numpy" if other is None else kind_of(other)
    if kind == "simulated":
        assert other is not None
        return other.device.put(value, "batch input")
    return to_torch(value, other.device) if kind == "torch" else to_kind(value, kind)


def name_outputs(
    result: Any, names: Sequence[str], *, model: str, exact: bool = True
) -> dict[str, Any]:
    """Return the result of a model's code as a dict by output name.

    Parameters
    ----------
    result : mapping, tuple, list or a single output
        By name, or in the order of `names`.
    names : sequence of str
        The model's outputs in the order of its configuration.
    model : str
        For messages.
    exact : bool
        Whether a mapping must not have other names.

    Raises
    ------
    InternalError
        Wrong number of outputs, a missing or an unknown name.
    """
    values = result if isinstance(result, (tuple, list)) else (result,)
    # (`isinstance` with a protocol is a Python call: 3% of an ensemble's step.)
    if values is not result and (type(result) is dict or isinstance(result, Mapping)):
        for name in result:
            if exact and name not in names:
                raise InternalError(
                    f"model '{model}' returned the output '{name}', which its configuration does "
                    "not have",
                    hint=nearest(str(name), names),
                )
        for name in names:
            if name not in result:
                raise InternalError(
                    f"model '{model}' did not return the output '{name}', found "
                    + (_listed(result) or "an empty dict"),
                    hint=nearest(name, [str(key) for key in result]),
                )
        return dict(result) if exact else {name: result[name] for name in names}
    if result is None:
        raise InternalError(
            f"model '{model}' returned None, its configuration has {_listed(names)}"
        )
    if len(values) != len(names):
        raise InternalError(
            f"model '{model}' returned {len(values)} outputs, its configuration has "
            f"{len(names)}: {_listed(names)}"
        )
    return dict(zip(names, values))  # noqa: B905 - of one length


def wanted_outputs(requests: Sequence[BackendRequest]) -> frozenset[str]:
    """Return the names of the outputs that any request of a batch requested."""
    names = requests[0].requested_outputs
    if len(requests) > 1:
        names = names.union(*(request.requested_outputs for request in requests))
    return names


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def scatter_outputs(
    requests: Sequence[BackendRequest],
    outputs: Mapping[str, Array],
    *,
    batches: bool,
    model: str,
    layout: Layout = PLAIN,
) -> Sequence[Response]:
    """Return one response per request, with views of its requested outputs.

    The batch outputs of the layout are split by the shapes of their source inputs.

    Raises
    ------
    InternalError
        The first dimension of an output is not the size of the batch, or the number of elements in a batch
        output differs from that of its parts.
    """
    sizes = [request.batch_size for request in requests]
    if batches:
        _check_rows(outputs, sum(sizes), layout, model)
    found: Mapping[str, Array | list[Array]] = outputs
    if layout.batch_outputs:
        found = {
            name: _scatter_by_input(requests, name, array, layout.batch_outputs[name], model)
            if name in layout.batch_outputs
            else array
            for name, array in outputs.items()
        }
    if batches and len(requests) > 1:
        return ScatteredResponses(found, sizes, [request.requested_outputs for request in requests])
    (request,) = requests  # one request at a time without batching
    requested = request.requested_outputs
    return [
        Response(
            {n: a[0] if isinstance(a, list) else a for n, a in found.items() if n in requested}
        )
    ]


def _check_rows(outputs: Mapping[str, Array], rows: int, layout: Layout, model: str) -> None:
    for name, array in outputs.items():
        shape = array.shape
        if (not shape or shape[0] != rows) and name not in layout.batch_outputs:
            raise InternalError(
                f"output '{name}' of model '{model}' has shape {format_shape(shape)}, expected "
                f"a first dimension of {rows}, the size of the batch",
                hint="with max_batch_size > 0 the model gets and returns whole batches",
            )


def _scatter_by_input(
    requests: Sequence[BackendRequest], name: str, array: Array, scattered: BatchOutput, model: str
) -> list[Array]:
    """Cut an output's elements, in order, into parts of the shapes in the source inputs."""
    shapes = [scattered.part(shape) for shape in _source_shapes(requests, scattered.source)]
    sizes = [prod(shape) for shape in shapes]
    flat = array.reshape(-1)
    if flat.shape[0] != sum(sizes):
        raise InternalError(
            f"output '{name}' of model '{model}' has {flat.shape[0]} elements, expected "
            f"{sum(sizes)}: " + ", ".join(format_shape(shape) for shape in shapes),
            hint=f"the shapes of '{scattered.source}' in the requests say how it is scattered",
        )
    return [part.reshape(shape) for part, shape in zip(scatter(flat, sizes), shapes, strict=True)]
