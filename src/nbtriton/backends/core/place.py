"""The device of one instance: how a batch gets there, in which order, and how its outputs leave."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nbtriton.backends.core.synchronize import to_host, wait_for_outputs
from nbtriton.tensors import Array, gather, is_on_device, kind_of, to_kind, to_numpy, to_torch

if TYPE_CHECKING:
    from nbtriton.backends.base import BackendRequest

__all__ = ["Place", "fetched"]

# Final: rule 13 of docs/compiled.md.
_ndarray: Final = np.ndarray

# Batches that an instance has given to its device and not seen the end of: one is prepared while the
# device computes the other.
_IN_FLIGHT: Final = 2


def fetched(array: Array, reader: str) -> Array:
    """Return an array for a model on the host.

    What a simulated GPU has comes as a copy, by the ledger `reader` needed it; what a GPU has is written by
    then, and stays there for a model that wants it so.
    """
    if type(array) is _ndarray or not is_on_device(array):
        return array
    if kind_of(array) == "simulated":
        return array.device.fetch(array, reader)
    wait_for_outputs((array,))
    return array


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
        # Of copies from the host: in the other one they would wait for the batch before.
        self._copying = device.stream(model)
        self._on_host = on_host
        self._begun: deque[tuple[Any, list[Array]]] = deque()
        # CuPy's allocator knows of no other stream that reads an array: it is kept until that is done.
        self._held: list[Array] = []

    def begin(self) -> None:
        """Wait until the device has so few batches of this instance that it may get another one."""
        if self._held:  # by a batch that failed
            self._begun.append((self.stream.record(), self._held))
            self._held = []
        while len(self._begun) >= _IN_FLIGHT:
            try:
                event, _ = self._begun.popleft()
            except IndexError:  # a model's own thread has left meanwhile
                return
            if not event.is_reached():
                event.synchronize()

    def join(self, arrays: Sequence[Array], name: str) -> tuple[Array, bool]:
        """Return one input of a batch on the device, joined along axis 0, and whether it is new memory.

        What comes from the host goes there in one copy. Strings stay on the host, where all of them live.
        """
        reader = f"{self.model}.{name}"
        if name in self._on_host:
            on_host = [to_host(a, reader) if is_on_device(a) else a for a in arrays]
            return gather(on_host), len(arrays) > 1
        foreign = False
        for array in arrays:
            foreign = foreign or type(array) is not _ndarray
        if not foreign:
            joined = gather(arrays)
            if joined.dtype.kind in "OS":
                return joined, len(arrays) > 1
            return self._put(joined, reader, len(arrays)), True
        for array in arrays:
            if kind_of(array) == "cupy":
                self._held.append(array)
        placed = [
            self.device.to_device(array, reader)
            if is_on_device(array)
            else self._put(array, reader)
            for array in arrays
        ]
        return gather(placed), len(placed) > 1 or placed[0] is not arrays[0]

    def _put(self, array: Array, reader: str, requests: int = 1) -> Array:
        """Copy an array to the device while that computes the batch before; the stream waits for the copy."""
        with self._copying:
            placed = self.device.put(array, reader, requests)
            self.device.hand_over((placed,), ("",))  # the host
        return self.device.to_device(placed, reader)

    def seen_as(self, array: Array, kind: str) -> Array:
        """Return an input as the library that the model wants sees it, in the same memory.

        Torch knows no simulated device: it sees the memory as the host's.
        """
        if type(array) is _ndarray:
            return array
        if kind_of(array) != "simulated":
            return to_kind(array, kind)
        return to_torch(array.contents()) if kind == "torch" else array

    def adopted(self, array: Array) -> Array:
        """Return an output of a model on a simulated GPU: what torch has made there is the device's."""
        if not self.device.simulated or type(array) is _ndarray or kind_of(array) != "torch":
            return array
        return self.device.adopt(to_numpy(array))

    def as_one(
        self, call: Callable[[Mapping[str, Array]], Mapping[str, Any]], inputs: Mapping[str, Array],
        operation: str = "module",
    ) -> dict[str, Array]:  # fmt: skip
        """Return what a call gives whose parts a simulated GPU does not see, as one operation of the device's."""
        names: list[str] = []

        def work() -> list[Any]:
            found = call(inputs)
            names[:] = found
            return [np.ascontiguousarray(to_numpy(array)) for array in found.values()]

        arrays = self.device.run(operation, work, list(inputs.values()))
        return {name: self.device.adopt(array) for name, array in zip(names, arrays)}  # noqa: B905

    def computing(self, reads: Sequence[Array] = (), operation: str = "module") -> Any:
        """Return the context of a call whose parts the device does not see."""
        return self.device.computing(operation, self.model, reads)

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
        self._begun.append((event, self._held))
        self._held = []
        for request in requests:
            if not request.orders_events:
                if not event.is_reached():
                    event.synchronize()
                self._begun.clear()  # all that came before is done, too
                return

    def close(self) -> None:
        """Wait for the stream, and release it."""
        self._begun.clear()
        self._held = []
        try:
            for stream in (self._copying, self.stream):
                stream.synchronize()
        finally:
            self._copying.close()
            self.stream.close()
