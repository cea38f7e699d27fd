"""The device of one instance: how a batch gets there, in which order, and how its outputs leave."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nbtriton.tensors import Array, gather, is_on_device, kind_of, to_numpy, to_torch

if TYPE_CHECKING:
    from nbtriton.backends.base import BackendRequest

__all__ = ["Place", "fetched"]

# Final: rule 13 of docs/compiled.md.
_ndarray: Final = np.ndarray

# Batches that an instance has given to its device and not seen the end of: one is prepared while the
# device computes the other.
_IN_FLIGHT: Final = 2


def fetched(array: Array, reader: str, requests: int = 1) -> Array:
    """Return an array on the host: a copy from its device, by the ledger `reader` needed it."""
    if type(array) is _ndarray or kind_of(array) != "simulated":
        return array
    return array.device.fetch(array, reader, requests)


class Place:
    """One instance's device and its stream on it.

    Parameters
    ----------
    device : nbtriton.devices.Device
    model : str
        Whose memory and time it is.
    on_host : set of str
        Inputs that the model wants as NumPy's.

    Attributes
    ----------
    device : nbtriton.devices.Device
    stream : nbtriton.devices.Stream
        The instance's own; current while a batch is inside ``with place.stream``.
    """

    def __init__(self, device: Any, model: str, on_host: frozenset[str] = frozenset()) -> None:
        self.device = device
        self.model = model
        self.stream = device.stream(model)
        self._on_host = on_host
        self._begun: deque[Any] = deque()

    def begin(self) -> None:
        """Wait until the device has so few batches of this instance that it may get another one."""
        if len(self._begun) >= _IN_FLIGHT:
            event = self._begun.popleft()
            if not event.is_reached():
                event.synchronize()

    def join(self, arrays: Sequence[Array], name: str) -> tuple[Array, bool]:
        """Return one input of a batch on the device, joined along axis 0, and whether it is new memory.

        What comes from the host goes there in one copy. Strings stay on the host, where all of them live.
        """
        reader = f"{self.model}.{name}"
        if name in self._on_host:
            return gather([fetched(array, reader) for array in arrays]), len(arrays) > 1
        foreign = False
        for array in arrays:
            foreign = foreign or type(array) is not _ndarray
        if not foreign:
            joined = gather(arrays)
            if joined.dtype.kind in "OS":
                return joined, len(arrays) > 1
            return self.device.put(joined, reader, len(arrays)), True
        placed = [
            self.device.take(array, reader)
            if is_on_device(array)
            else self.device.put(array, reader)
            for array in arrays
        ]
        return gather(placed), len(placed) > 1 or placed[0] is not arrays[0]

    def seen_as(self, array: Array, kind: str) -> Array:
        """Return an input as a model on a simulated GPU wants it.

        Torch, which has no such device, sees the memory as its own.
        """
        return (
            to_torch(array.contents()) if kind == "torch" and type(array) is not _ndarray else array
        )

    def adopted(self, array: Array) -> Array:
        """Return an output of a model on a simulated GPU: what torch has made there is the device's."""
        if type(array) is _ndarray or kind_of(array) != "torch":
            return array
        return self.device.adopt(to_numpy(array))

    def leave(
        self, outputs: Iterable[tuple[str, Array]], requests: Sequence[BackendRequest]
    ) -> None:
        """Hand over what the stream has written, by output name.

        The next step of an ensemble waits for the event that is recorded here, on the device; for anyone
        else this thread waits.
        """
        written = []
        writers = []
        for name, array in outputs:
            if type(array) is not _ndarray and is_on_device(array):
                written.append(array)
                writers.append(f"{self.model}.{name}")
        event = self.device.hand_over(written, writers)
        self._begun.append(event)
        for request in requests:
            if not request.orders_events:
                if not event.is_reached():
                    event.synchronize()
                return

    def close(self) -> None:
        """Wait for the stream, and give it back."""
        self._begun.clear()
        self.stream.synchronize()
        self.stream.close()
