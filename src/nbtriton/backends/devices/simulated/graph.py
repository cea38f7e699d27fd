"""Graphs of a simulated GPU: the operations of a stream, recorded and done again in the same memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from nbtriton.backends.devices.base import Graph
from nbtriton.backends.devices.errors import CaptureError

__all__ = ["Recording", "SimulatedGraph", "rebuilt"]

# What every error of CUDA about a capture begins with.
_REFUSED = "CUDA error: operation not permitted when stream is capturing"


class _Memory(Protocol):
    """Memory of the device, and who has touched it."""

    @property
    def access(self) -> Any: ...


class _Array(Protocol):
    """An array of the device."""

    @property
    def allocation(self) -> _Memory: ...

    def contents(self) -> np.ndarray[Any, Any]: ...


class _Operation:
    __slots__ = ("function", "operation", "owner", "results")

    def __init__(
        self,
        operation: str,
        owner: str,
        function: Callable[[], Any],
        results: list[np.ndarray[Any, Any] | None],
    ) -> None:
        self.operation = operation
        self.owner = owner
        self.function = function
        self.results = results

    def repeat(self) -> None:
        """Compute it again, into the memory of its results."""
        found = _arrays_of(_arrays(self.function()))
        for old, new in zip(self.results, found, strict=True):
            if old is None:
                continue
            if old.shape != new.shape:
                raise CaptureError(f"{_REFUSED}: the shape of a result depends on the data")
            np.copyto(old, new)


class Recording:
    """The work that is given to a stream while it captures.

    An operation is computed at once, so that what comes next knows its shape; it takes no time on the device.

    Attributes
    ----------
    operations : list
    reads, writes : dict of int to Access
        The memory that they touch.
    kept : list of Allocation
        The memory that they have made.
    error : CaptureError or None
        Why it is no graph, even where the code has caught what was raised.
    """

    def __init__(self) -> None:
        self.operations: list[_Operation] = []
        self.reads: dict[int, Any] = {}
        self.writes: dict[int, Any] = {}
        self.kept: list[_Memory] = []
        self.error: CaptureError | None = None

    def refuse(self, what: str) -> CaptureError:
        """Return the error of what a graph cannot do; there is none any more."""
        self.error = CaptureError(f"{_REFUSED}: {what}")
        return self.error

    def add(
        self,
        operation: str,
        owner: str,
        function: Callable[[], Any],
        reads: Sequence[_Array],
        writes: Sequence[_Array],
    ) -> Any:
        """Record one operation; return what its function returns, arrays of NumPy for its numbers."""
        result = _arrays(function())
        if isinstance(result, bool):
            raise self.refuse("the host reads a result")
        sources = [array.contents() for array in reads]
        # A view of what it reads follows that by itself.
        made = [
            None if any(np.may_share_memory(one, source) for source in sources) else one
            for one in _arrays_of(result)
        ]
        self.operations.append(_Operation(operation, owner, function, made))
        for array in reads:
            self.reads[id(array.allocation.access)] = array.allocation.access
        for array in writes:
            self.writes[id(array.allocation.access)] = array.allocation.access
        return result

    def keep(self, allocation: _Memory) -> None:
        """Keep memory that an operation has made for as long as the graph."""
        self.kept.append(allocation)
        self.writes[id(allocation.access)] = allocation.access


class SimulatedGraph(Graph):
    """A graph of a simulated GPU, in its books one operation.

    Parameters
    ----------
    device : SimulatedDevice
    recording : Recording
        That has ended without an error.
    """

    def __init__(self, device: Any, recording: Recording) -> None:
        self._device = device
        self._recording: Recording | None = recording

    def replay(self) -> None:
        """Do all operations again, in the memory that they were recorded with."""
        recording = self._recording
        assert recording is not None, "a graph is replayed after its end"
        device = self._device
        stream = device.current()
        if stream.recording is not None:
            raise stream.recording.refuse("a graph in a graph")
        stream.launch(
            device.COMPUTE, recording.reads.values(), recording.writes.values(), self._again
        )

    def close(self) -> None:
        """Release the memory."""
        self._recording = None

    def _again(self) -> int:
        """Do all operations again; return how long they take on the device, which counts the launch once."""
        assert self._recording is not None
        device = self._device
        clock = device.timeline.clock
        launch_ns = device.settings.launch_ns
        total_ns = 0
        for one in self._recording.operations:
            began = clock.now_ns()
            one.repeat()
            took_ns = device.settings.compute_ns(one.operation, clock.now_ns() - began)
            if one is not self._recording.operations[0]:
                took_ns -= launch_ns
            device.ledger.computed(one.owner, device.name, one.operation, took_ns, simulated=True)
            total_ns += took_ns
        return total_ns


def rebuilt(result: Any, parts: list[Any]) -> Any:
    """Return a list, a tuple or a named tuple of another one's kind."""
    return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)


def _arrays_of(result: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(result, (list, tuple)):
        return [one for part in result for one in _arrays_of(part)]
    return [result] if isinstance(result, np.ndarray) else []


def _arrays(result: Any) -> Any:
    """Return a result with arrays in place of NumPy's single numbers, which cannot be written to."""
    if isinstance(result, (list, tuple)):
        return rebuilt(result, [_arrays(one) for one in result])
    return np.asarray(result) if isinstance(result, np.generic) else result
