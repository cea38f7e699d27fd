"""The graphs of one call, one for each set of input shapes.

After a warm-up, the first call with each set of shapes is captured, and replayed from then on: one
launch instead of one for each operation. Work that cannot be captured runs as it is. Not yet run on hardware.

What another instance launches into a stream that captures would become a part of the graph, and torch hands its 32
streams of a device out in turn: so captures have a stream of the pool of high priority, which no instance has.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from nbtriton.backends.devices.base import Stream
from nbtriton.common.errors import InternalError
from nbtriton.model.tensors import Array, copy_of, datatype_of, is_on_device

if TYPE_CHECKING:
    from nbtriton.backends.devices.cuda import CudaDevice


_log = logging.getLogger("nbtriton.pytorch")

# Calls before a capture, as PyTorch's documentation recommends: libraries choose their algorithms then.
_WARM_UP: Final = 3
# Each graph keeps memory for its shapes; further shapes run without one.
_MOST: Final = 64

# Captures run one at a time: each begins by waiting for the whole device, an error while another stream captures.
_CAPTURING = threading.Lock()
# Graphs whose capture failed: torch's allocators may go on asking them whether a stream is theirs.
_FAILED: list[Any] = []

# Shape and datatype of each input.
_Key = tuple[tuple[str, tuple[int, ...], str], ...]


class CaptureError(InternalError):
    """The work cannot be captured as a graph; it can still be done one operation at a time."""


class CudaGraph:
    """Work that was captured once and is repeated by one launch.

    It uses the memory that it was captured with: its inputs are written there before a replay, and
    its outputs are copied before the next one. One replay at a time.

    Attributes
    ----------
    pool : tuple of int
        The memory that it was captured with, in torch's allocator.
    """

    def __init__(self, native: Any, pool: Any) -> None:
        self._native = native
        self.pool = pool

    def replay(self) -> None:
        """Launch it in the calling thread's current stream."""
        self._native.replay()

    def close(self) -> None:
        """Release its memory, once its tensors have been released as well."""
        self._native = None


@dataclass(frozen=True, slots=True)
class Captured:
    """One graph, with its input memory and the result of the call.

    Attributes
    ----------
    graph : CudaGraph
    inputs : mapping of str to Array
        Arrays of the device, written before each replay.
    result : object
        The call's result. The next replay overwrites its arrays.
    """

    graph: CudaGraph
    inputs: Mapping[str, Array]
    result: Any

    def write(self, device: CudaDevice, inputs: Mapping[str, Array]) -> None:
        """Write the inputs of the next replay, in the current stream; as `Graphs.find` gets them."""
        for name, target in self.inputs.items():
            device.write(target, inputs[name], name)


class Graphs:
    """The graphs of one call, which run one at a time on one stream.

    Parameters
    ----------
    device : CudaDevice
    stream : Stream
        Current during every call.
    what : str
        The owner for the log, such as ``model 'bert'``.
    """

    def __init__(self, device: CudaDevice, stream: Stream, what: str) -> None:
        self._device = device
        self._stream = stream
        self._what = what
        self._captured: dict[_Key, Captured | None] = {}
        self._warned = False

    def find(
        self, call: Callable[[Mapping[str, Array]], Any], inputs: Mapping[str, Array]
    ) -> Captured | None:
        """Return the graph of a call for inputs of these shapes; None if there can be none.

        Parameters
        ----------
        call : callable
            Gets arrays of the device, and computes there.
        inputs : mapping of str to Array
            On the host, or on the device and ordered before later work in the stream.
        """
        key = _key(inputs)
        if key not in self._captured:
            if len(self._captured) >= _MOST:
                return None
            self._captured[key] = self._capture(call, inputs)
        return self._captured[key]

    def close(self) -> None:
        """Release the graphs and their memory."""
        captured, self._captured = self._captured, {}
        for one in captured.values():
            if one is not None:
                one.graph.close()

    def _capture(
        self, call: Callable[[Mapping[str, Array]], Any], inputs: Mapping[str, Array]
    ) -> Captured | None:
        """Return the graph of a call; None, with one warning, if it cannot be captured.

        After any error the graph is abandoned: the ordinary call that follows raises it again, or works.
        """
        device = self._device
        beside = next((one.graph for one in self._captured.values() if one is not None), None)
        try:
            static = {
                name: copy_of(array) if is_on_device(array) else device.put(array, name)
                for name, array in inputs.items()
            }
            for _ in range(_WARM_UP):
                call(static)
            self._stream.synchronize()
            graph, result = self._graph(lambda: call(static), beside)
        except Exception as error:  # also the model's own
            level = logging.DEBUG if self._warned else logging.WARNING
            self._warned = True
            text = str(error).partition("\n")[0]
            _log.log(level, "%s runs without a CUDA graph: %s", self._what, text)
        else:
            return Captured(graph, static, result)
        gc.collect()  # frames of what has failed hold memory of the device, and each other
        return None

    def _graph(self, work: Callable[[], Any], beside: CudaGraph | None) -> tuple[CudaGraph, Any]:
        """Capture the work that a call gives to torch's current stream instead of doing it; return the call's result as well.

        Parameters
        ----------
        work : callable
            Gives work to torch's current stream alone, and has done so before: what
            libraries allocate and choose with their first call is no part of it. Arrays that it makes belong to the
            graph.
        beside : CudaGraph, optional
            A graph that is never replayed at the same time, whose memory may be reused.

        Raises
        ------
        CaptureError
            It reads from the device or waits for it, or its memory does not suffice; the stream is as before.
        """
        import torch

        # Chosen here, as a graph whose capture fails does not tell its own.
        pool: Any = beside.pool if beside is not None else torch.cuda.graph_pool_handle()
        native = torch.cuda.CUDAGraph()
        try:
            # Other threads may allocate at the same time: their calls are not part of this capture.
            with (
                _CAPTURING,
                torch.cuda.graph(
                    native, pool=pool, stream=self._captures, capture_error_mode="thread_local"
                ),
            ):
                result = work()
        except BaseException as error:
            _give_up(self._device.index, native, pool)
            if isinstance(error, RuntimeError):  # an error of torch, full memory included
                raise CaptureError(str(error).partition("\n")[0]) from None
            raise
        return CudaGraph(native, pool), result

    @cached_property
    def _captures(self) -> Any:
        """The stream of all captures: one, so that graphs can share memory."""
        import torch

        streams: Any = torch.cuda  # without types
        return streams.Stream(self._device.place, priority=-1)


def _give_up(device: int, native: Any, pool: Any) -> None:
    """End a failed capture: torch ends its own part only if CUDA reports no error.

    Its allocator would wait for the end for good, and keep all memory meanwhile that several streams have
    used.
    """
    import torch

    of_torch: Any = torch._C  # noqa: SLF001 - torch has no other way to these
    # The second is its name in older versions.
    end = getattr(of_torch, "_cuda_endAllocateToPool", None)
    end = end or of_torch._cuda_endAllocateCurrentStreamToPool  # noqa: SLF001
    try:
        end(device, pool)
    except RuntimeError:  # it had not begun, or torch has already ended it
        return
    of_torch._cuda_releasePool(device, pool)  # noqa: SLF001
    _FAILED.append(native)


def _key(inputs: Mapping[str, Array]) -> _Key:
    return tuple([(name, tuple(array.shape), datatype_of(array)) for name, array in inputs.items()])
