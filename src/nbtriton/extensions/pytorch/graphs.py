"""The graphs of one call, one for each set of input shapes.

After a warm-up, the first call with each set of shapes is captured, and replayed from then on: one
launch instead of one for each operation. Work that cannot be captured runs as it is.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nbtriton.backends.devices.base import Stream
from nbtriton.model.tensors import Array, copy_of, datatype_of, is_on_device

if TYPE_CHECKING:
    from nbtriton.backends.devices.cuda import CudaDevice, CudaGraph


_log = logging.getLogger("nbtriton.pytorch")

# Calls before a capture, as PyTorch's documentation recommends: libraries choose their algorithms then.
_WARM_UP: Final = 3
# Each graph keeps memory for its shapes; further shapes run without one.
_MOST: Final = 64

# Shape and datatype of each input.
_Key = tuple[tuple[str, tuple[int, ...], str], ...]


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
            graph, result = device.capture(lambda: call(static), beside)
        except Exception as error:  # also the model's own
            level = logging.DEBUG if self._warned else logging.WARNING
            self._warned = True
            text = str(error).partition("\n")[0]
            _log.log(level, "%s runs without a CUDA graph: %s", self._what, text)
        else:
            return Captured(graph, static, result)
        gc.collect()  # frames of what has failed hold memory of the device, and each other
        return None


def _key(inputs: Mapping[str, Array]) -> _Key:
    return tuple([(name, tuple(array.shape), datatype_of(array)) for name, array in inputs.items()])
