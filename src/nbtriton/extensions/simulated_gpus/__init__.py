"""Simulated GPUs, which a server gets by ``gpus="simulated:2"``: limited memory, streams, events, and copies that take time.

A model gets a `SimulatedArray` where a real GPU would give a CuPy array. NumPy's functions and operators work on it, as on
CuPy's arrays, and run on the device. Only `get` brings one to the host: `numpy.asarray` and `numpy.from_dlpack` refuse, and an
array of the host in an operation is an error with the way out.
"""

from __future__ import annotations

import linecache
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from nbtriton.backends.base import BackendInstance
from nbtriton.backends.core.place import Place
from nbtriton.backends.devices.base import (
    Device,
    Event,
    Memory,
    OutOfMemoryError,
    Reservation,
    Weights,
)
from nbtriton.backends.devices.ledger import BY_LINE, HOST, CopyLedger
from nbtriton.backends.devices.settings import SimulatedGPUs
from nbtriton.extensions.simulated_gpus.hosted import HostedInstance
from nbtriton.extensions.simulated_gpus.streams import (
    Access,
    Clock,
    SimulatedEvent,
    SimulatedStream,
    Timeline,
)
from nbtriton.model.tensors import Array, add_kind, to_numpy

_REDUCTIONS = frozenset((
    "sum", "mean", "max", "min", "amax", "amin", "prod", "std", "var", "all", "any", "argmax", "argmin", "cumsum",
    "argsort", "sort", "median", "nansum", "nanmean", "unique", "partition", "argpartition", "topk", "linalg.norm", "norm",
))  # fmt: skip
_PRODUCTS = frozenset(
    ("matmul", "dot", "vdot", "inner", "outer", "tensordot", "einsum", "convolve")
)
# What a NumPy array says without a look at its contents.
_LAYOUT = frozenset(("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides", "flags"))
# kDLCUDA of DLPack, by which a consumer knows to refuse.
_CUDA = 2


def _operation(name: str) -> str:
    """Return the class of one of NumPy's functions: each has its own speed."""
    return "matmul" if name in _PRODUCTS else "reduction" if name in _REDUCTIONS else "elementwise"


class Allocation:
    """A piece of a device's memory, which is free again once no array refers to it."""

    __slots__ = ("__weakref__", "_device", "_owner", "access", "nbytes")

    def __init__(self, device: SimulatedDevice, owner: str, nbytes: int) -> None:
        self._device = device
        self._owner = owner
        self.nbytes = nbytes
        device.charge(owner, nbytes)
        self.access = Access()

    def __del__(self) -> None:
        # If the constructor raised, nothing was charged.
        if hasattr(self, "access"):
            self._device.freed.append((self._owner, self.nbytes))


class SimulatedArray(NDArrayOperatorsMixin):
    """An array of a simulated GPU.

    Arrays are made by the device: a model's inputs, the results of operations, and host arrays
    moved by ``numpy.asarray(x, like=y)``.

    Attributes
    ----------
    device : SimulatedDevice
    """

    __slots__ = ("_data", "allocation", "device")
    __array_priority__ = 100.0

    def __init__(
        self, device: SimulatedDevice, data: np.ndarray[Any, Any], allocation: Allocation
    ) -> None:
        self.device = device
        self._data = data
        self.allocation = allocation

    # -- what does not touch the contents ----------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Return what NumPy's own arrays have: their layout, and reductions and products as methods."""
        if name in _LAYOUT:
            return getattr(self._data, name)
        operation = _operation(name)
        if operation == "elementwise" or not hasattr(np.ndarray, name):
            raise AttributeError(f"an array of {self.device.name} has no attribute '{name}'")
        function = getattr(np, name)
        return lambda *args, **options: self._call(operation, function, (self, *args), options)

    @property
    def T(self) -> SimulatedArray:
        """The transposed view."""
        return self._view(self._data.T)

    def reshape(self, *shape: Any) -> SimulatedArray:
        """Return the same elements in another shape; a view if possible."""
        return self._result(self._data.reshape(*shape))

    def transpose(self, *axes: Any) -> SimulatedArray:
        """Return a view with other axes."""
        return self._view(self._data.transpose(*axes))

    def ravel(self) -> SimulatedArray:
        """Return the elements in one dimension; a view if possible."""
        return self.reshape(-1)

    def squeeze(self, axis: Any = None) -> SimulatedArray:
        """Return a view without dimensions of 1."""
        return self._view(self._data.squeeze(axis))

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"<array of {self.device.name}: {self.dtype}{list(self.shape)}>"

    # -- to the host -------------------------------------------------------------------------------

    def get(self, reader: str = "") -> np.ndarray[Any, Any]:
        """Copy to the host, and wait until the copy is complete."""
        found: np.ndarray[Any, Any] = self.device.fetch(self, reader or self.device.line_of_code())
        return found

    def item(self) -> Any:
        """Return the only element as a Python value: a copy to the host, which is waited for."""
        return self.get().item()

    def tolist(self) -> Any:
        """Return the elements as Python values: a copy to the host, which is waited for."""
        return self.get().tolist()

    def __bool__(self) -> bool:
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __index__(self) -> int:
        return int(self.get().__index__())

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        # In CuPy's words, which its users know.
        self._refuse(TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a "
            f"NumPy array explicitly: this one is in the memory of {self.device.name}."
        ))  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CUDA, self.device.index)

    def __dlpack__(self, **_: Any) -> NoReturn:
        self._refuse(BufferError(
            f"the array is in the memory of {self.device.name}, which no other library can read; "
            "use .get() for a copy on the host"
        ))  # fmt: skip

    def _refuse(self, error: Exception) -> NoReturn:
        self.device.faults.append(error)  # on a real GPU the results would be undefined
        raise error

    # -- operations --------------------------------------------------------------------------------

    def __getitem__(self, at: Any) -> SimulatedArray:
        plain = at if isinstance(at, tuple) else (at,)
        keys = [one for one in plain if isinstance(one, SimulatedArray)]
        if keys:
            return self._call("elementwise", lambda data, key: data[key], (self, at), {})
        return self._result(self._data[at])

    def __setitem__(self, at: Any, value: Any) -> None:
        def assign(out: Any, key: Any, new: Any) -> None:
            out[key] = new

        self._call("elementwise", assign, (self, at, value), {}, writes=(self,))

    def __iter__(self) -> Iterator[SimulatedArray]:
        return (self[at] for at in range(len(self)))

    def astype(self, dtype: Any, *, copy: bool = True) -> SimulatedArray:
        """Return a copy of another dtype."""
        return self._call("elementwise", np.ndarray.astype, (self, dtype), {"copy": copy})

    def copy(self) -> SimulatedArray:
        """Return a copy on the same device, contiguous in C order."""
        return self._call("elementwise", np.array, (self,), {"order": "C"})

    def flatten(self) -> SimulatedArray:
        """Return a copy in one dimension."""
        return self._call("elementwise", np.ndarray.flatten, (self,), {})

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        operation = _operation(ufunc.__name__) if method == "__call__" else "reduction"
        out = options.pop("out", ())
        function = getattr(ufunc, method)
        if not out:
            return self._call(operation, function, inputs, options)
        targets = out if isinstance(out, tuple) else (out,)

        def into(*given: Any) -> None:
            count = len(inputs)
            function(*given[:count], out=given[count:], **options)

        self._call(operation, into, (*inputs, *targets), {}, writes=targets)
        return targets[0] if len(targets) == 1 else targets

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Any:
        if func is np.asarray or func is np.array:  # like=
            kwargs.pop("like", None)
            value = args[0]
            if isinstance(value, SimulatedArray):
                return value
            return self.device.put(func(*args, **kwargs), self.device.line_of_code() or HOST)
        return self._call(_operation(func.__name__), func, args, kwargs)

    def _call(
        self,
        operation: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        writes: Sequence[Any] = (),
    ) -> Any:
        """Run a function on the device; its results are arrays there."""
        found: list[SimulatedArray] = []
        plain_args = [self._plain(one, found) for one in args]
        plain_kwargs = {name: self._plain(one, found) for name, one in kwargs.items()}
        result = self.device.run(
            operation, lambda: function(*plain_args, **plain_kwargs), found, writes
        )
        return self._wrapped(result, found)

    def _plain(self, value: Any, found: list[SimulatedArray]) -> Any:
        """Return a value with contents in place of the device's arrays, and list those arrays."""
        if isinstance(value, SimulatedArray):
            if value.device is not self.device:
                raise ValueError(
                    f"arrays of {self.device.name} and {value.device.name} in one operation: copy one "
                    "of them, device.put(x.get())"
                )
            found.append(value)
            return value.contents()
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            return type(value)([self._plain(one, found) for one in value])
        if isinstance(value, np.ndarray) and value.ndim > 0:
            raise TypeError(
                f"Unsupported type <class 'numpy.ndarray'>: an array on the host in an operation on "
                f"{self.device.name}; put it there once, np.asarray(x, like=y) with y on the device"
            )
        return value

    def _wrapped(self, result: Any, sources: Sequence[SimulatedArray]) -> Any:
        if isinstance(result, (tuple, list)):
            parts = [self._wrapped(one, sources) for one in result]
            # A named tuple takes its items one by one.
            return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
        if isinstance(result, np.generic):
            result = np.asarray(result)
        if not isinstance(result, np.ndarray):
            return result
        for source in sources:
            if result.base is not None and np.may_share_memory(result, source.contents()):
                return SimulatedArray(self.device, result, source.allocation)
        return self.device.adopt(result)

    def _view(self, data: np.ndarray[Any, Any]) -> SimulatedArray:
        return SimulatedArray(self.device, data, self.allocation)

    def _result(self, data: Any) -> SimulatedArray:
        """Return a view, or what NumPy had to copy as new memory."""
        if isinstance(data, np.ndarray) and (
            data is self._data or not data.size or np.may_share_memory(data, self._data)
        ):
            return self._view(data)
        return self._call("elementwise", lambda _: np.asarray(data), (self,), {})

    def contents(self) -> np.ndarray[Any, Any]:
        """Return the memory itself, for the device and for libraries that it stands in for."""
        return self._data


add_kind("simulated", SimulatedArray)

# Modules whose frames are between a model's code and the device.
_BETWEEN = (__name__, "numpy")
# Units of a device that work in parallel.
_COMPUTE, _IN, _OUT = "compute", "copies in", "copies out"


class SimulatedDevice(Device):
    """One simulated GPU.

    The contents of its arrays lie in host memory and are computed by NumPy when an operation is given to
    a stream; how long it takes is counted on the device's own clock. So a read that is not ordered
    after its write is an error instead of a wrong result.

    Parameters
    ----------
    index : int
    settings : SimulatedGPUs
    ledger : CopyLedger
    clock : Clock, optional
        The machine's clock by default.

    Attributes
    ----------
    faults : list of Exception
        Errors that would go unnoticed on a real GPU: unordered reads and writes, host access to device memory.
    freed : deque
        Memory that arrays have released, not yet deducted.
    """

    simulated = True

    def __init__(
        self, index: int, settings: SimulatedGPUs, ledger: CopyLedger, clock: Clock | None = None
    ) -> None:
        self.index = index
        self.name = f"simulated GPU {index}"
        self.settings = settings
        self.ledger = ledger
        self.timeline = Timeline(self.name, ledger, clock or Clock())
        self.freed: deque[tuple[str, int]] = deque()
        self.faults = self.timeline.faults
        self._used: Counter[str] = Counter()
        self._weights: dict[int, Weights] = {}

    def __repr__(self) -> str:
        return f"<{self.name}: {self.settings}>"

    # -- streams -----------------------------------------------------------------------------------

    def stream(self, owner: str) -> SimulatedStream:
        """Return a new stream."""
        return SimulatedStream(self.timeline, owner)

    def current(self) -> SimulatedStream:
        """Return the stream of the calling thread."""
        return self.timeline.current()

    def line_of_code(self) -> str:
        """Return the model whose code calls a method of an array, and the line; empty for a caller's."""
        stream = self.current()
        if stream is self.timeline.default:
            return ""
        frame = sys._getframe(1)  # noqa: SLF001 - inspect's frames read all source files
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
            frame = frame.f_back
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        return f"{stream.owner}{BY_LINE}{frame.f_lineno}: {text}"

    # -- memory ------------------------------------------------------------------------------------

    def charge(self, owner: str, nbytes: int) -> None:
        """Account for memory; OutOfMemoryError if it does not fit."""
        with self.timeline.lock:
            memory = self.memory()
            if nbytes > memory.free_bytes:
                raise OutOfMemoryError(self.name, nbytes, memory)
            self._used[owner] += nbytes

    def memory(self) -> Memory:
        """Return the used and the free memory."""
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

    def hosted(self, instance: BackendInstance, model: str, operation: str) -> HostedInstance:
        """Return an instance on the host as one of this device."""
        return HostedInstance(instance, Place(self, model), operation)

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
        """Return the event after the last write of an array: a caller works on the default stream."""
        return array.allocation.access.ready or self.timeline.default.record()

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

        read = [array.allocation.access for array in reads]
        written = [array.allocation.access for array in writes]
        duration = stream.launch(_COMPUTE, read, written, work)
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
            # The device began together with the host, not after it.
            stream.launch(
                _COMPUTE, [array.allocation.access for array in reads], (), lambda: duration, began
            )
            self.ledger.computed(owner, self.name, operation, duration, simulated=True)

    def close(self) -> None:
        """Nothing to release."""
