"""Arrays on a GPU: waiting for them, and the device of one instance, with its copies, its order and the hand-over of outputs.

A batch waits for its device once, and not at all without a GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from nbtriton.backends.base import BackendRequest
from nbtriton.model.tensors import (
    Array,
    copy_of,
    gather,
    is_on_device,
    kind_of,
    to_kind,
    to_numpy,
    to_torch,
)

# Final: rule 13 of docs/compiled.md.
_ndarray: Final = np.ndarray

# Unfinished batches of an instance on its device: one is prepared while the device computes the other.
_IN_FLIGHT: Final = 2


def _cuda() -> Any:
    """Return the module of real GPUs, imported on first use."""
    from nbtriton.backends.devices import cuda

    return cuda


def copies_of(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return complete copies: their receiver may use any stream, or the host."""
    copies: dict[str, Array] = {}
    is_plain = True
    for name, array in arrays.items():
        if type(array) is _ndarray:
            copies[name] = array.copy()
            continue
        is_plain = False
        if is_on_device(array):
            if kind_of(array) == "simulated":
                array.device.order_behind(array)
            else:
                _cuda().order_behind(array)
        copies[name] = copy_of(array)
    if not is_plain:
        wait_for_outputs(copies.values())
    return copies


def wait_for_outputs(arrays: Iterable[Array]) -> None:
    """Wait until the GPU has written these arrays, by an instance or in this thread's stream.

    Their receiver may then use another stream or another library without an event.
    """
    foreign = [array for array in arrays if type(array) is not _ndarray and is_on_device(array)]
    if not foreign:
        return
    for array in foreign:
        if kind_of(array) == "simulated":
            array.device.wait_for(array)
        else:
            _cuda().wait_for(array)


def to_host(array: Array, reader: str = "") -> Array:
    """Return a device array on the host; the copy ledger names `reader`.

    BF16 stays a torch tensor: numpy has no such dtype, and models reach it through DLPack.
    """
    if kind_of(array) == "simulated":
        return array.device.fetch(array, reader)
    return _cuda().fetch(array, reader)


def fetched(array: Array, reader: str) -> Array:
    """Return an array for a model on the host.

    An array of a simulated GPU is copied, and the copy ledger names `reader`. An array of a GPU is
    waited for, and stays on the GPU if the model accepts that.
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
    device : nbtriton.backends.devices.Device
    model : str
        The model to which memory and time are accounted.
    on_host : set of str
        Inputs that the model needs as NumPy arrays.

    Attributes
    ----------
    device : nbtriton.backends.devices.Device
    stream : nbtriton.backends.devices.Stream
        The instance's own; current while a batch is inside ``with place.stream``.
    """

    def __init__(self, device: Any, model: str, on_host: frozenset[str] = frozenset()) -> None:
        self.device = device
        self.model = model
        self.stream = device.stream(model)
        # For copies from the host: in the other stream they would wait for the previous batch.
        self._copying = device.stream(model)
        self._on_host = on_host
        self._begun: deque[tuple[Any, list[Array]]] = deque()
        # CuPy's allocator ignores other streams that read an array: it is kept until they are done.
        self._held: list[Array] = []

    def begin(self) -> None:
        """Wait until the device may get another batch of this instance."""
        if self._held:  # of a failed batch
            self._begun.append((self.stream.record(), self._held))
            self._held = []
        while len(self._begun) >= _IN_FLIGHT:
            try:
                event, _ = self._begun.popleft()
            except IndexError:  # the model's own thread has called `leave` in the meantime
                return
            if not event.is_reached():
                event.synchronize()

    def join(self, arrays: Sequence[Array], name: str) -> tuple[Array, bool]:
        """Return one input of a batch on the device, joined along axis 0, and whether it is new memory.

        Arrays of the host are moved in one copy. Strings stay on the host.
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
        """Copy an array while the device computes the previous batch; the stream waits for the copy."""
        with self._copying:
            placed = self.device.put(array, reader, requests)
            self.device.hand_over((placed,), ("",))  # the host
        return self.device.to_device(placed, reader)

    def seen_as(self, array: Array, kind: str) -> Array:
        """Return an input as an array of the model's library, in the same memory.

        Torch does not know simulated devices: it gets the memory as the host's.
        """
        if type(array) is _ndarray:
            return array
        if kind_of(array) != "simulated":
            return to_kind(array, kind)
        return to_torch(array.contents()) if kind == "torch" else array

    def adopted(self, array: Array) -> Array:
        """Return an output as an array of the simulated GPU; torch made it on the host."""
        if not self.device.simulated or type(array) is _ndarray or kind_of(array) != "torch":
            return array
        return self.device.adopt(to_numpy(array))

    def computing(self, reads: Sequence[Array] = (), operation: str = "module") -> Any:
        """Return the context of a call without simulated arrays."""
        return self.device.computing(operation, self.model, reads)

    def leave(
        self, outputs: Iterable[tuple[str, Array]], requests: Sequence[BackendRequest]
    ) -> None:
        """Hand over the outputs that the stream has written, by name.

        The next step of an ensemble waits on the device for the event that is recorded here; for other
        receivers this thread waits.
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
                self._begun.clear()  # all earlier batches are done as well
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
