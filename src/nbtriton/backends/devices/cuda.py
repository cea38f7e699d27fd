"""NVIDIA GPUs, by torch; CuPy arrays are used through DLPack. Not yet run on hardware.

Assumptions about CUDA and torch, to check at the first run:

- work of one stream is done in order, and ``cudaStreamWaitEvent`` orders two streams without the host;
- torch's allocator hands freed memory out again on the stream that it was allocated on, so memory that another
  stream reads is announced by ``record_stream``;
- torch's allocator of pinned memory keeps what an asynchronous copy still reads, and hands it out again afterwards:
  staging memory is taken from it for each copy and comes back by itself;
- torch hands its 32 streams of a device out in turn, so of many two are the same, which costs time alone.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from nbtriton.backends.devices.base import (
    Device,
    Event,
    Memory,
    OutOfMemoryError,
    Reservation,
    Stream,
    Weights,
)
from nbtriton.backends.devices.ledger import HOST, CopyLedger
from nbtriton.common.errors import InternalError
from nbtriton.model.tensors import Array, is_on_device, kind_of, to_numpy, to_torch


class CudaEvent(Event):
    """A point in the work of a stream."""

    def __init__(self, native: Any) -> None:
        self.native = native

    def is_reached(self) -> bool:
        """Return whether all work before it is done."""
        return bool(self.native.query())

    def synchronize(self) -> None:
        """Block the calling thread until it is reached."""
        self.native.synchronize()


def event_behind(stream: Any) -> CudaEvent:
    """Return an event after all work that is in a torch stream now.

    A thread that waits for it sleeps, as in Triton by default: by torch's default a waiting thread keeps a processor busy.
    """
    event = sys.modules["torch"].cuda.Event(blocking=True)
    event.record(stream)
    return CudaEvent(event)


class CudaStream(Stream):
    """A torch stream, which CuPy also uses while it is current.

    Parameters
    ----------
    index : int
        The GPU.
    owner : str
    ledger : CopyLedger
    device : str
        The GPU's name there.
    """

    def __init__(self, index: int, owner: str, ledger: CopyLedger, device: str) -> None:
        self.owner = owner
        self._index = index
        self._ledger = ledger
        self._device = device
        self._taken: Any = None
        self._entered: list[ExitStack] = []  # one thread at a time runs an instance

    @property
    def native(self) -> Any:
        """The stream itself, taken from torch's pool on first use: some instances never need one."""
        if self._taken is None:
            import torch

            self._taken = torch.cuda.Stream(torch.device("cuda", self._index))  # type: ignore[no-untyped-call]
        return self._taken

    def __enter__(self) -> None:
        native = self.native
        with ExitStack() as contexts:
            contexts.enter_context(sys.modules["torch"].cuda.stream(native))
            cupy = sys.modules.get("cupy")
            if cupy is not None:
                contexts.enter_context(cupy.cuda.Device(self._index))
                contexts.enter_context(cupy.cuda.ExternalStream(native.cuda_stream, self._index))
            self._entered.append(contexts.pop_all())

    def __exit__(self, *error: object) -> None:
        self._entered.pop().close()

    def record(self) -> CudaEvent:
        """Return an event after all work that is in the stream now."""
        return event_behind(self.native)

    def wait(self, event: Event) -> None:
        """Let later work wait for an event; the calling thread does not wait."""
        assert isinstance(event, CudaEvent)
        self.native.wait_event(event.native)

    def synchronize(self) -> None:
        """Block the calling thread until all work is done."""
        if self._taken is not None:
            self._ledger.waited(self.owner, self._device)
            self.record().synchronize()

    def close(self) -> None:
        """Release the stream; torch keeps it in its pool. May be called twice."""
        self._taken = None


# Writes that are remembered before those that are done are forgotten.
_REMEMBERED = 512


class _Written:
    """The last writer of each piece of device memory: one table for the process, as addresses are.

    A tensor and its views share the memory, so the table goes by the memory's address. What is written and
    forgotten needs no wait. An address that the allocator hands out again still has the event of older work: a
    model may pass on a caller's tensor, whose memory then is another one's. Such an event is reached, for the
    memory was free; so a reached event says nothing about the writer there now.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: OrderedDict[tuple[int, int], tuple[CudaEvent, str, CudaDevice]] = (
            OrderedDict()
        )

    def note(self, keys: Sequence[tuple[int, int]], event: CudaEvent, names: Sequence[str],
             device: CudaDevice) -> None:  # fmt: skip
        """Remember an event for these pieces of memory."""
        with self._lock:
            for key, name in zip(keys, names, strict=True):
                self._events.pop(key, None)
                self._events[key] = (event, name, device)
            if len(self._events) > _REMEMBERED:
                for key in [key for key, found in self._events.items() if found[0].is_reached()]:
                    del self._events[key]

    def find(self, array: Array) -> tuple[CudaEvent, str, CudaDevice] | None:
        """Return the event after the last write to an array's memory, and its writer's name and device."""
        with self._lock:
            return self._events.get(_memory_key(array))


_WRITTEN = _Written()


def _memory_key(array: Array) -> tuple[int, int]:
    """Return the device and the address of the memory that contains an array."""
    if kind_of(array) == "cupy":
        return int(array.device.id), int(array.data.mem.ptr)
    return int(array.device.index), int(array.untyped_storage().data_ptr())


def wait_for(array: Array) -> None:
    """Block the calling thread until an array is written, whichever instance writes it."""
    found = _WRITTEN.find(array)
    if found is not None and not found[0].is_reached():
        found[2].ledger.waited("the host", found[2].name)
        found[0].synchronize()
    elif kind_of(array) == "cupy":
        sys.modules["cupy"].cuda.get_current_stream().synchronize()
    else:
        sys.modules["torch"].cuda.current_stream(array.device).synchronize()


def order_behind(array: Array) -> None:
    """Let later work in this thread's stream wait until an array is written; the thread does not wait."""
    found = _WRITTEN.find(array)
    if found is None:
        return
    if kind_of(array) == "cupy":  # CuPy copies in its own stream
        found[0].synchronize()
    else:
        torch = sys.modules["torch"]
        torch.cuda.current_stream(array.device).wait_event(found[0].native)


def fetch(array: Array, reader: str) -> Array:
    """Return an array on the host; counted in the ledger of its writer, if that is a model."""
    found = _WRITTEN.find(array)
    if found is not None:
        return found[2].fetch(array, reader)
    return array.cpu() if str(array.dtype) == "torch.bfloat16" else to_numpy(array)


class CudaDevice(Device):
    """One GPU, by torch.

    Parameters
    ----------
    index : int
    ledger : CopyLedger
    """

    simulated = False

    def __init__(self, index: int, ledger: CopyLedger) -> None:
        import torch

        self._torch: Any = torch
        self.index = index
        self.ledger = ledger
        self.place: Any = torch.device("cuda", index)
        self.name = f"GPU {index}"
        self._lock = threading.Lock()
        self._weights: dict[int, Weights] = {}

    def __repr__(self) -> str:
        return f"<{self.name}: {self._torch.cuda.get_device_name(self.index)}>"

    def stream(self, owner: str) -> CudaStream:
        """Return a new stream."""
        return CudaStream(self.index, owner, self.ledger, self.name)

    # -- memory ------------------------------------------------------------------------------------

    def memory(self) -> Memory:
        """Return the used and the free memory by the driver; weights by model, the rest together."""
        cuda = self._torch.cuda
        free, total = cuda.mem_get_info(self.index)
        # Memory that torch caches is free for the models.
        free += cuda.memory_reserved(self.index) - cuda.memory_allocated(self.index)
        with self._lock:
            by_owner: Counter[str] = Counter()
            for weights in self._weights.values():
                by_owner[weights.owner] += weights.nbytes
        rest = total - free - sum(by_owner.values())
        return Memory(
            total, total - free, {**by_owner, "batches, libraries and others": max(0, rest)}
        )

    def reserve(self, owner: str, nbytes: int, shared: object) -> Reservation:
        """Account for the weights of a model, once; torch then allocates them."""
        with self._lock:
            weights = self._weights.get(id(shared))
        if weights is None:
            memory = self.memory()
            if nbytes > memory.free_bytes:
                raise OutOfMemoryError(self.name, nbytes, memory)
        with self._lock:
            weights = self._weights.setdefault(id(shared), Weights(owner, nbytes, shared))
            weights.holders += 1
        return Reservation(self, weights)

    def release(self, weights: Weights) -> None:
        """Release one instance's share of a model's weights."""
        with self._lock:
            weights.holders -= 1
            if not weights.holders:
                self._weights.pop(id(weights.shared), None)

    # -- copies ------------------------------------------------------------------------------------

    def put(self, array: Array, reader: str, requests: int = 1) -> Array:
        """Copy an array from the host, in the current stream, through pinned memory."""
        source = to_torch(array)
        with self._in_memory():
            staged = self._torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            staged.copy_(source)
            with self._timed((HOST, reader), ("CPU", self.name), staged.nbytes, requests):
                return staged.to(self.place, non_blocking=True)

    def to_device(self, array: Array, reader: str) -> Array:
        """Return an array from any GPU here, as torch's: the same memory, or a copy from another GPU."""
        torch = self._torch
        current = torch.cuda.current_stream(self.place)
        found = _WRITTEN.find(array)
        tensor = to_torch(array)
        if tensor.device == self.place:
            self._order(current, found)
            # Otherwise its memory could be reused while this stream still reads it.
            tensor.record_stream(current)
            return tensor
        # torch orders such a copy after the current streams of both devices.
        there = torch.cuda.current_stream(tensor.device)
        self._order(there, found)
        tensor.record_stream(there)
        writer = HOST if found is None else found[1] or HOST
        memories = (f"GPU {tensor.device.index}", self.name)
        with self._in_memory(), self._timed((writer, reader), memories, tensor.nbytes):
            return tensor.to(self.place, non_blocking=True)

    def write(self, target: Array, source: Array, reader: str) -> None:
        """Copy an array into one of this device, in the current stream; from the host through pinned memory."""
        tensor = to_torch(source)
        if is_on_device(source):
            target.copy_(tensor, non_blocking=True)
            return
        staged = self._torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        staged.copy_(tensor)
        with self._timed((HOST, reader), ("CPU", self.name), staged.nbytes):
            target.copy_(staged, non_blocking=True)

    def fetch(self, array: Array, reader: str) -> Array:
        """Copy an array of this device to the host, and wait for it."""
        torch = self._torch
        found = _WRITTEN.find(array)
        tensor = to_torch(array).detach()
        current = torch.cuda.current_stream(self.place)
        self._order(current, found)
        tensor.record_stream(current)
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        writer = HOST if found is None else found[1] or HOST
        with self._timed((writer, reader or HOST), (self.name, "CPU"), host.nbytes):
            host.copy_(tensor, non_blocking=True)
        self.ledger.waited(writer.partition(".")[0], self.name)
        event_behind(current).synchronize()
        return host if tensor.dtype is torch.bfloat16 else to_numpy(host)

    def hand_over(self, arrays: Sequence[Array], writer: Sequence[str]) -> Event:
        """Note that the current stream has written these arrays."""
        torch = self._torch
        current = torch.cuda.current_stream(self.place)
        event = event_behind(current)
        callers = torch.cuda.default_stream(self.place)
        for array in arrays:
            if kind_of(array) == "torch":  # a caller may read it on the default stream
                array.record_stream(callers)
        _WRITTEN.note([_memory_key(array) for array in arrays], event, writer, self)
        return event

    def wait_for(self, array: Array) -> None:
        """Block the calling thread until an array of this device is written."""
        wait_for(array)

    def _order(self, stream: Any, written: tuple[CudaEvent, str, CudaDevice] | None) -> None:
        """Let a stream wait for an array's writer: an instance, or a caller on the default stream."""
        if written is not None and not written[0].is_reached():
            stream.wait_event(written[0].native)
        else:
            stream.wait_stream(self._torch.cuda.default_stream(stream.device))

    @contextmanager
    def _in_memory(self) -> Iterator[None]:
        """Raise torch's error of a full memory with Triton's status: it fails the batch alone."""
        try:
            yield
        except self._torch.cuda.OutOfMemoryError as error:
            raise InternalError(str(error).partition("\n")[0]) from None

    # -- times -------------------------------------------------------------------------------------

    @contextmanager
    def computing(
        self,
        operation: str,
        owner: str,
        reads: Sequence[Array] = (),  # noqa: ARG002 - torch orders what reads them
    ) -> Iterator[None]:
        """Time the work given to the current stream inside, by two events that no thread waits for."""
        begin, end = self._marks()
        current = self._torch.cuda.current_stream(self.place)
        begin.record(current)
        try:
            yield
        finally:
            end.record(current)
            self.ledger.later(
                end.query,
                lambda: self.ledger.computed(
                    owner, self.name, operation, _between_ns(begin, end), simulated=False
                ),
            )

    @contextmanager
    def _timed(
        self, edge: tuple[str, str], memories: tuple[str, str], nbytes: int, requests: int = 1
    ) -> Iterator[None]:
        begin, end = self._marks()
        # Named: that of a thread's current device, which may be another one, is the default.
        current = self._torch.cuda.current_stream(self.place)
        begin.record(current)
        yield
        end.record(current)
        self.ledger.later(
            end.query,
            lambda: self.ledger.copied(
                edge, memories, nbytes, _between_ns(begin, end), requests=requests, simulated=False
            ),
        )

    def _marks(self) -> tuple[Any, Any]:
        event = self._torch.cuda.Event
        return event(enable_timing=True), event(enable_timing=True)

    def close(self) -> None:
        """Nothing to release: pinned memory belongs to torch."""


def _between_ns(begin: Any, end: Any) -> int:
    return int(begin.elapsed_time(end) * 1e6)
