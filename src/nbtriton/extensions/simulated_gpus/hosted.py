"""Models on a simulated GPU whose libraries do not know it: run on the host, accounted on the GPU.

Inputs are copied to the device, the model's own library computes them in host memory, and its outputs belong
to the device: copies, memory, order and time are those of the simulated GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nbtriton.backends.base import BackendInstance, BackendRequest, BatchTimer, Response
from nbtriton.backends.core.messages import ScatteredResponses
from nbtriton.backends.core.place import Place
from nbtriton.backends.on_device import WrappedInstance
from nbtriton.model.tensors import Array, kind_of, scatter, shape_of, to_numpy


class HostedInstance(WrappedInstance):
    """Runs an instance on the host as if on a simulated GPU.

    Parameters
    ----------
    inner : BackendInstance
        On the host.
    place : Place
        On the simulated GPU.
    operation : str
        The operation class of a batch.
    """

    def __init__(self, inner: BackendInstance, place: Place, operation: str) -> None:
        super().__init__(inner)
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
