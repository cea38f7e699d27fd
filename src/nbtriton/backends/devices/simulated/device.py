"""A GPU that is simulated: memory with a limit, streams, events, copies that take their time."""

from __future__ import annotations

import linecache
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from nbtriton.backends.devices.base import Device, Event, Memory, Reservation, Weights
from nbtriton.backends.devices.errors import OutOfMemoryError
from nbtriton.backends.devices.ledger import BY_LINE, HOST, CopyLedger
from nbtriton.backends.devices.settings import SimulatedGPUs
from nbtriton.backends.devices.simulated.array import Allocation, SimulatedArray
from nbtriton.backends.devices.simulated.timeline import (
    Clock,
    SimulatedEvent,
    SimulatedStream,
    Timeline,
)
from nbtriton.model.tensors import Array, to_numpy

__all__ = ["SimulatedDevice"]

# Modules whose frames stand between a model's code and the device.
_BETWEEN = ("nbtriton.backends.devices.simulated", "numpy")
# Units of a device that work side by side.
_COMPUTE, _IN, _OUT = "compute", "copies in", "copies out"


class SimulatedDevice(Device):
    """One simulated GPU.

    The contents of its arrays lie in host memory and are computed by NumPy when an operation is given to
    a stream; how long it takes is counted on the device's own clock. So a read that is not ordered behind
    its write is an error and not a wrong number.

    Parameters
    ----------
    index : int
    settings : SimulatedGPUs
    ledger : CopyLedger
    clock : Clock, optional
        That of the machine by default.

    Attributes
    ----------
    faults : list of Exception
        What a real GPU would have punished: unordered reads and writes, host access to device memory.
    freed : deque
        Memory that arrays have released, not yet deducted.
    """

    simulated = True

    def __init__(
        self,
        index: int,
        settings: SimulatedGPUs,
        ledger: CopyLedger,
        clock: Clock | None = None,
    ) -> None:
        self.index = index
        self.name = f"simulated GPU {index}"
        self.settings = settings
        self.ledger = ledger
        self.timeline = Timeline(clock or Clock())
        self.freed: deque[tuple[str, int]] = deque()
        self.faults: list[Exception] = []
        self._used: Counter[str] = Counter()
        self._weights: dict[int, Weights] = {}
        # As in torch and CuPy: which stream a thread's operations go to is the thread's own.
        self._local = threading.local()
        self._default = SimulatedStream(self, "the default stream")

    def __repr__(self) -> str:
        return f"<{self.name}: {self.settings}>"

    # -- streams -----------------------------------------------------------------------------------

    def stream(self, owner: str) -> SimulatedStream:
        """Return a new stream."""
        return SimulatedStream(self, owner)

    def current(self) -> SimulatedStream:
        """Return the stream of the calling thread."""
        stack: list[SimulatedStream] = getattr(self._local, "stack", [])
        return stack[-1] if stack else self._default

    def line_of_code(self) -> str:
        """Return the model whose code calls a method of an array, and the line; empty for a caller's."""
        stream = self.current()
        if stream is self._default:
            return ""
        frame = sys._getframe(1)  # noqa: SLF001 - inspect's frames read all source files
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
            frame = frame.f_back
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        return f"{stream.owner}{BY_LINE}{frame.f_lineno}: {text}"

    def push(self, stream: SimulatedStream) -> None:
        """Make a stream the calling thread's."""
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        self._local.stack.append(stream)

    def pop(self) -> None:
        """Restore the stream that was current before."""
        self._local.stack.pop()

    def waited(self, stream: SimulatedStream) -> None:
        """Count a wait of the host."""
        self.ledger.waited(stream.owner, self.name)

    def fault(self, error: Exception) -> None:
        """Record an error; on a real GPU the results would be undefined."""
        self.faults.append(error)

    # -- memory ------------------------------------------------------------------------------------

    def charge(self, owner: str, nbytes: int) -> None:
        """Account for memory; OutOfMemoryError if it does not fit."""
        with self.timeline.lock:
            memory = self.memory()
            if nbytes > memory.free_bytes:
                raise OutOfMemoryError(self.name, nbytes, memory)
            self._used[owner] += nbytes

    def memory(self) -> Memory:
        """Return what is used and what is left."""
        with self.timeline.lock:
            while self.freed:
                owner, nbytes = self.freed.popleft()
                self._used[owner] -= nbytes
            by_owner = {owner: used for owner, used in self._used.items() if used}
            return Memory(self.settings.memory_bytes, sum(by_owner.values()), by_owner)

    def reserve(self, owner: str, nbytes: int, shared: object) -> Reservation:
        """Account for the weights of a model, once, and for their copy to the device."""
        with self.timeline.lock:
            weights = self._weights.get(id(shared))
            if weights is None:
                self.charge(owner, nbytes)
                weights = self._weights[id(shared)] = Weights(owner, nbytes, shared)
                if nbytes:
                    self.ledger.copied(
                        (HOST, f"{owner}: weights"), ("CPU", f"GPU {self.index}"), nbytes,
                        self.settings.copy_ns(nbytes), requests=0, simulated=True,
                    )  # fmt: skip
            weights.holders += 1
            return Reservation(self, weights)

    def release(self, weights: Weights) -> None:
        """Release one instance's share of a model's weights."""
        with self.timeline.lock:
            weights.holders -= 1
            if not weights.holders:
                del self._weights[id(weights.shared)]
                self._used[weights.owner] -= weights.nbytes

    def adopt(self, data: np.ndarray[Any, Any]) -> SimulatedArray:
        """Return an array of the device around memory that an operation there has made."""
        stream = self.current()
        allocation = Allocation(self, stream.owner, data.nbytes)
        stream.launch(_COMPUTE, (), (allocation.access,), lambda: 0)
        return SimulatedArray(self, data, allocation)

    # -- copies ------------------------------------------------------------------------------------

    def put(self, array: Array, reader: str, requests: int = 1) -> SimulatedArray:
        """Copy an array from the host, in the current stream."""
        data = np.array(to_numpy(array), order="C")
        stream = self.current()
        allocation = Allocation(self, stream.owner, data.nbytes)
        duration = self.settings.copy_ns(data.nbytes)
        stream.launch(_IN, (), (allocation.access,), lambda: duration)
        self.ledger.copied(
            (HOST, reader), ("CPU", f"GPU {self.index}"), data.nbytes, duration,
            requests=requests, simulated=True,
        )  # fmt: skip
        return SimulatedArray(self, data, allocation)

    def to_device(self, array: Array, reader: str) -> SimulatedArray:
        """Return an array from any simulated device here."""
        if array.device is not self:
            return self._copy_from_peer(array, reader)
        self.order_behind(array)
        found: SimulatedArray = array
        return found

    def order_behind(self, array: Array) -> None:
        """Let later work in the current stream wait until an array of this device is written."""
        self.current().wait(self._written(array))

    def _written(self, array: SimulatedArray) -> SimulatedEvent:
        """Return the event behind the last write of an array: a caller works on the default stream."""
        return array.allocation.access.ready or self._default.record()

    def _copy_from_peer(self, array: SimulatedArray, reader: str) -> SimulatedArray:
        stream, source = self.current(), array.device
        copier = source.stream(f"copies to {self.name}")
        copier.wait(source._written(array))  # noqa: SLF001 - another one of its own kind
        data = np.array(array.contents(), order="C")
        allocation = Allocation(self, stream.owner, data.nbytes)
        duration = self.settings.copy_ns(data.nbytes, peer=True)
        copier.launch(_OUT, (array.allocation.access,), (), lambda: duration)
        done = copier.record()
        copier.close()
        stream.launch(_IN, (), (allocation.access,), lambda: 0)
        stream.ready_ns = max(stream.ready_ns, done.reached_ns)
        self.ledger.copied(
            (array.allocation.access.label or HOST, reader),
            (f"GPU {source.index}", f"GPU {self.index}"), data.nbytes, duration,
            simulated=True,
        )  # fmt: skip
        return SimulatedArray(self, data, allocation)

    def fetch(self, array: Array, reader: str) -> np.ndarray[Any, Any]:
        """Copy an array of this device to the host, and wait for it."""
        access = array.allocation.access
        stream = self.current()
        self.order_behind(array)
        data: np.ndarray[Any, Any] = np.array(array.contents(), order="C")
        duration = self.settings.copy_ns(data.nbytes)
        stream.launch(_OUT, (access,), (), lambda: duration)
        self.ledger.copied(
            (access.label or HOST, reader or HOST), (f"GPU {self.index}", "CPU"), data.nbytes,
            duration, simulated=True,
        )  # fmt: skip
        stream.synchronize()
        return data

    def hand_over(self, arrays: Sequence[Array], writer: Sequence[str]) -> Event:
        """Note that the current stream has written these arrays."""
        event = self.current().record()
        for array, name in zip(arrays, writer, strict=True):
            access = array.allocation.access
            access.ready = event
            access.label = name
        return event

    def wait_for(self, array: Array) -> None:
        """Block the calling thread until an array of this device is written: handed over, or in its stream."""
        (array.allocation.access.ready or self.current().record()).synchronize()

    # -- computing ---------------------------------------------------------------------------------

    def run(
        self,
        operation: str,
        function: Callable[[], Any],
        reads: Sequence[SimulatedArray],
        writes: Sequence[SimulatedArray] = (),
    ) -> Any:
        """Run one operation in the current stream; return what the function returns."""
        stream, clock = self.current(), self.timeline.clock
        result: Any = None

        def work() -> int:
            nonlocal result
            began = clock.now_ns()
            result = function()
            return self.settings.compute_ns(operation, clock.now_ns() - began)

        duration = stream.launch(
            _COMPUTE,
            [array.allocation.access for array in reads],
            [array.allocation.access for array in writes],
            work,
        )
        self.ledger.computed(stream.owner, self.name, operation, duration, simulated=True)
        return result

    @contextmanager
    def computing(
        self, operation: str, owner: str, reads: Sequence[SimulatedArray] = ()
    ) -> Iterator[None]:
        """Return the context of one operation whose parts the device does not see."""
        clock = self.timeline.clock
        began = clock.now_ns()
        try:
            yield
        finally:
            stream = self.current()
            duration = self.settings.compute_ns(operation, clock.now_ns() - began)
            # The device has begun with the host, not after it.
            stream.launch(
                _COMPUTE,
                [array.allocation.access for array in reads],
                (),
                lambda: duration,
                began,
            )
            self.ledger.computed(owner, self.name, operation, duration, simulated=True)

    def close(self) -> None:
        """Nothing is held."""
