"""The interface between the engine and a device: memory, copies, streams, events, errors.

Two implementations: CUDA (`nbtriton.backends.devices.cuda`, by torch or CuPy) and the simulated GPU
(`nbtriton.extensions.simulated_gpus`). Work on a device is asynchronous: a call that starts it returns
immediately, the work of one stream is done in order, and an event is reached when the stream has done all work
before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from nbtriton.backends.devices.ledger import CopyLedger
from nbtriton.common.errors import InternalError, UnsupportedError
from nbtriton.model.tensors import Array

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


class OutOfMemoryError(InternalError):
    """An array does not fit into the memory of a device; nothing else is affected."""

    def __init__(self, device: str, nbytes: int, memory: Memory) -> None:
        used = ", ".join(
            f"{owner} {_size(taken)}"
            for owner, taken in sorted(memory.by_owner.items(), key=lambda item: -item[1])[:5]
        )
        super().__init__(
            f"CUDA out of memory. Tried to allocate {_size(nbytes)} on {device}, which has a total "
            f"capacity of {_size(memory.total_bytes)} of which {_size(memory.free_bytes)} is free.",
            hint=f"in use: {used or 'nothing'}",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return InternalError, (self.message,)


def _size(nbytes: int) -> str:
    for unit, name in _UNITS:
        if nbytes >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes} bytes"


class Event(ABC):
    """A point in the work of a stream."""

    @abstractmethod
    def is_reached(self) -> bool:
        """Return whether all work before it is done."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block the calling thread until it is reached."""


class Stream(ABC):
    """A queue of work that a device does in order.

    Attributes
    ----------
    owner : str
        The owner of the work, such as a model: memory allocated on the stream is accounted to it.
    """

    owner: str

    @abstractmethod
    def __enter__(self) -> None:
        """Make it the calling thread's current stream on its device."""

    @abstractmethod
    def __exit__(self, *error: object) -> None:
        """Restore the stream that was current before."""

    @abstractmethod
    def record(self) -> Event:
        """Return an event after all work that is in the stream now."""

    @abstractmethod
    def wait(self, event: Event) -> None:
        """Let later work wait for an event of any stream; the calling thread does not wait."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block the calling thread until all work is done."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a device in bytes, and how much each owner uses."""

    total_bytes: int
    used_bytes: int
    by_owner: Mapping[str, int]

    @property
    def free_bytes(self) -> int:
        """Free memory."""
        return self.total_bytes - self.used_bytes


@dataclass(slots=True, eq=False)
class Weights:
    """The weights of one version of a model, which its instances on one device share.

    Attributes
    ----------
    owner : str
        The owner of the weights.
    nbytes : int
        Their size.
    shared : object
        The object that the instances share; kept alive here while its id is in use.
    holders : int
        How many instances share them.
    """

    owner: str
    nbytes: int
    shared: object
    holders: int = 0


class Reservation:
    """One instance's share of a model's weights, for as long as the instance is loaded."""

    def __init__(self, device: Device, weights: Weights) -> None:
        self._device: Device | None = device
        self._weights = weights
        self.nbytes = weights.nbytes

    def release(self) -> None:
        """Release it; may be called twice."""
        device, self._device = self._device, None
        if device is not None:
            device.release(self._weights)


class Device(ABC):
    """One GPU, real or simulated.

    Attributes
    ----------
    index : int
        The id in ``gpus`` of an instance group.
    name : str
        Such as ``"NVIDIA H200"`` or ``"simulated GPU 0"``.
    simulated : bool
        Whether its times must be displayed as simulated.
    ledger : CopyLedger
        Records the copies of all devices of the server.
    """

    index: int
    name: str
    simulated: bool
    ledger: CopyLedger

    @abstractmethod
    def stream(self, owner: str) -> Stream:
        """Return a new stream."""

    @abstractmethod
    def memory(self) -> Memory:
        """Return the used and the free memory."""

    @abstractmethod
    def reserve(self, owner: str, nbytes: int, shared: object) -> Reservation:
        """Account for the weights of a model, once for all instances with the same `shared`.

        Raises
        ------
        OutOfMemoryError
            The weights do not fit.
        """

    @abstractmethod
    def release(self, weights: Weights) -> None:
        """Release one instance's share of a model's weights."""

    @abstractmethod
    def put(self, array: Array, reader: str, requests: int = 1) -> Array:
        """Copy an array from the host, in the current stream, through reused pinned memory.

        Parameters
        ----------
        array : Array
            An array on the host. Its current contents are copied.
        reader : str
            The input that needs it, as ``model.INPUT``, for the ledger.
        requests : int
            The number of requests in it.

        Raises
        ------
        OutOfMemoryError
            The array does not fit.
        """

    @abstractmethod
    def to_device(self, array: Array, reader: str) -> Array:
        """Return an array from any device here: the same memory, or a copy from another device.

        Later work in the current stream waits for the array's writer; the calling thread does not.
        """

    @abstractmethod
    def fetch(self, array: Array, reader: str) -> Array:
        """Copy an array of this device to the host, and wait for it.

        A NumPy array if NumPy has the datatype, else a torch tensor.
        """

    @abstractmethod
    def hand_over(self, arrays: Sequence[Array], writer: Sequence[str]) -> Event | None:
        """Note that the current stream has written these arrays, as ``model.OUTPUT``.

        A reader waits for the event that is recorded here.
        """

    @abstractmethod
    def wait_for(self, array: Array) -> None:
        """Block the calling thread until an array of this device is written."""

    @abstractmethod
    def computing(
        self, operation: str, owner: str, reads: Sequence[Array] = ()
    ) -> AbstractContextManager[Any]:
        """Return the context of one operation whose parts the device does not see.

        `operation` is one of `nbtriton.backends.devices.settings.OPERATIONS`; `reads` are the
        arrays of the device that it reads.
        """

    def hosted(self, instance: Any, model: str, operation: str) -> Any:  # noqa: ARG002
        """Return an instance on the host as one of this device, whose arrays its library does not know.

        `operation` is as in `computing`. Only a simulated device needs it.
        """
        raise UnsupportedError(f"models run on {self.name} by their own libraries")

    @abstractmethod
    def close(self) -> None:
        """Release the device's own resources, such as staging memory."""
