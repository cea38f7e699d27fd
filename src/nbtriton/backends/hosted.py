"""Models on a simulated GPU whose libraries do not know it: run on the host, accounted on the GPU.

Inputs are copied to the device, the model's own library computes them in host memory, and its outputs belong
to the device: copies, memory, order and time are those of the simulated GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nbtriton.backends.base import (
    Backend,
    BackendInstance,
    BackendRequest,
    BatchTimer,
    InstanceContext,
    Placement,
    Response,
)
from nbtriton.backends.core.messages import ScatteredResponses
from nbtriton.backends.core.place import Place
from nbtriton.backends.devices.base import OutOfMemoryError, Reservation
from nbtriton.common.errors import UnavailableError
from nbtriton.model.tensors import Array, kind_of, scatter, shape_of, to_numpy


def create_instance(backend: Backend, context: InstanceContext) -> BackendInstance:
    """Create an instance on the device of its context: the host, a GPU, or a simulated GPU.

    Raises
    ------
    UnavailableError
        The model does not fit into the memory of its GPU, with Triton's text.
    """
    device = context.device
    if device is None:
        return backend.create_instance(context)
    try:
        weights = device.reserve(
            context.model.name, backend.weights_bytes(context.model), context.model
        )
    except OutOfMemoryError as error:
        raise UnavailableError(
            f"can not create model '{context.model.name}': memory limit set for GPU "
            f"{context.device_id} has exceeded, model loading is rejected.",
            hint=f"{error.message} {error.hint}",
        ) from error
    try:
        if not device.simulated or backend.knows_simulated(context):
            inner = backend.create_instance(context)
            return _Weighted(inner, weights)
        inner = backend.create_instance(replace(context, kind="KIND_CPU"))
        place = Place(device, context.model.name)
        return HostedInstance(inner, place, weights, backend.operation)
    except BaseException:
        weights.release()
        raise


class WrappedInstance(BackendInstance):
    """Delegates to another instance."""

    def __init__(self, inner: BackendInstance) -> None:
        self.inner = inner
        self.any_thread = inner.any_thread
        self.running = inner.running

    @property
    def readiness(self) -> Callable[[], bool] | None:  # type: ignore[override]
        """The inner instance's value."""
        return self.inner.readiness

    def execute(
        self, requests: Sequence[BackendRequest], timer: BatchTimer
    ) -> Sequence[Response | None] | None:
        """Run one batch; see `BackendInstance.execute`."""
        return self.inner.execute(requests, timer)

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """See `BackendInstance.watch`."""
        self.inner.watch(on_lost)

    def restart(self) -> None:
        """See `BackendInstance.restart`."""
        self.inner.restart()

    def abandon(self) -> None:
        """See `BackendInstance.abandon`."""
        self.inner.abandon()

    def placement(self) -> Placement | None:
        """See `BackendInstance.placement`."""
        return self.inner.placement()

    def finalize(self) -> None:
        """Release the instance's resources."""
        self.inner.finalize()


class _Weighted(WrappedInstance):
    """An instance whose weights are accounted on its device."""

    def __init__(self, inner: BackendInstance, weights: Reservation) -> None:
        super().__init__(inner)
        self._weights = weights

    def finalize(self) -> None:
        """Release the memory of the weights as well."""
        try:
            super().finalize()
        finally:
            self._weights.release()


class HostedInstance(_Weighted):
    """Runs an instance on the host as if on a simulated GPU.

    Parameters
    ----------
    inner : BackendInstance
        On the host.
    place : Place
        On the simulated GPU.
    weights : Reservation
    operation : str
        The operation class of a batch.
    """

    def __init__(
        self, inner: BackendInstance, place: Place, weights: Reservation, operation: str
    ) -> None:
        super().__init__(inner, weights)
        self._place = place
        self._operation = operation

    def execute(
        self, requests: Sequence[BackendRequest], timer: BatchTimer
    ) -> Sequence[Response | None] | None:
        """Run one batch; see `BackendInstance.execute`."""
        place = self._place
        place.begin()
        with place.stream:
            placed = _placed(place, requests)
            held = [array for one in placed for array in one.values() if _is_simulated(array)]
            staged: list[Any] = [
                _Staged(request, inputs, place)
                for request, inputs in zip(requests, placed, strict=True)
            ]
            with place.computing(held, self._operation):
                responses = self.inner.execute(staged, timer)
            return _adopted(place, responses, requests)

    def finalize(self) -> None:
        """Release the stream as well."""
        try:
            super().finalize()
        finally:
            self._place.close()


class _Staged:
    """A request with its inputs on the device, which the model gets as host arrays."""

    def __init__(self, request: BackendRequest, inputs: Mapping[str, Array], place: Place) -> None:
        self._request = request
        self._place = place
        self.inputs = {
            name: array.contents() if _is_simulated(array) else array
            for name, array in inputs.items()
        }
        # Copied to the device for this batch, or another step's output.
        self.owned_inputs = frozenset(
            name
            for name, array in inputs.items()
            if name in request.owned_inputs or array is not request.inputs[name]
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def send(self, response: Response | None, *, final: bool) -> None:
        """Deliver one response before the end of the batch."""
        if response is not None:
            with self._place.stream:
                _adopted(self._place, [response], [self._request])
        self._request.send(response, final=final)


def _placed(place: Place, requests: Sequence[BackendRequest]) -> list[dict[str, Array]]:
    """Return the inputs of each request on the device; host arrays are moved in one copy."""
    inputs: list[dict[str, Array]] = [{} for _ in requests]
    names = dict.fromkeys(name for request in requests for name in request.inputs)
    for name in names:
        holders = [index for index, request in enumerate(requests) if name in request.inputs]
        arrays = [requests[index].inputs[name] for index in holders]
        on_host = all(kind_of(array) == "numpy" for array in arrays)
        if on_host and arrays[0].dtype.kind in "OSU":
            parts: list[Array] = arrays
        elif on_host and len(arrays) > 1 and len({shape_of(array)[1:] for array in arrays}) == 1:
            sizes = [shape_of(array)[0] if array.ndim else 1 for array in arrays]
            parts = scatter(place.join(arrays, name)[0], sizes)
        else:
            parts = [place.join([array], name)[0] for array in arrays]
        for index, part in zip(holders, parts, strict=True):
            inputs[index][name] = part
    return inputs


def _adopted(
    place: Place, responses: Sequence[Response | None] | None, requests: Sequence[BackendRequest]
) -> Sequence[Response | None] | None:
    """Move the outputs of responses to the device's account."""
    if responses is None:
        return None
    outputs: dict[str, Array] = {}
    # (The compiled class mistakes every list for its own type.)
    if type(responses) is ScatteredResponses:
        whole, sizes, wanted = responses.parts()
        outputs = {name: _on_device(place, array) for name, array in whole.items()}
        flat = [(n, a) for n, found in outputs.items() for a in _listed(found)]
        place.leave(flat, requests)
        return ScatteredResponses(outputs, sizes, wanted)
    written: list[tuple[str, Array]] = []
    for response in responses:
        if response is not None:
            response.outputs = {
                name: _on_device(place, array) for name, array in response.outputs.items()
            }
            written += response.outputs.items()
    place.leave(written, requests)
    return responses


def _listed(found: Any) -> list[Array]:
    return found if isinstance(found, list) else [found]


def _on_device(place: Place, array: Any) -> Any:
    if isinstance(array, list):
        return [_on_device(place, one) for one in array]
    data = to_numpy(array)
    return array if data.dtype.kind in "OSU" else place.device.adopt(np.ascontiguousarray(data))


def _is_simulated(array: Array) -> bool:
    return kind_of(array) == "simulated"
