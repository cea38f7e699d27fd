"""CUDA graphs of a torch module, one for each set of input shapes. Never run on hardware so far.

A graph replays the kernels of one call with one launch, in the memory that they were captured with: inputs are
copied there, and outputs have to be copied away before the next replay. The first batch of each shape is captured,
after warming up; with `optimization.cuda.graphs` in the configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["CudaGraphs"]

_log = logging.getLogger("nbtriton.pytorch")

# Calls before a capture, as PyTorch's documentation has it: libraries choose their algorithms then.
_WARM_UP = 3
# Each graph keeps memory for its shapes; further ones run without.
_MOST = 64


class _Captured:
    __slots__ = ("graph", "inputs", "result")

    def __init__(self, graph: Any, inputs: Mapping[str, Any], result: Any) -> None:
        self.graph = graph
        self.inputs = inputs
        self.result = result


class CudaGraphs:
    """The graphs of one instance.

    Parameters
    ----------
    model : str
        For the log.
    stream : torch.cuda.Stream
        Of the instance, which is current during every call.
    """

    def __init__(self, model: str, stream: Any) -> None:
        import torch

        self._torch: Any = torch
        self._model = model
        self._stream = stream
        self._captured: dict[tuple[Any, ...], _Captured | None] = {}
        self._pool: Any = None  # the graphs of an instance run one at a time and share memory

    def run(self, call: Callable[[Mapping[str, Any]], Any], inputs: Mapping[str, Any]) -> Any:
        """Return what the call returns, by a graph where its shapes have one or can get one.

        The tensors are overwritten by the next run.
        """
        shapes = tuple(
            (name, tuple(tensor.shape), tensor.dtype) if hasattr(tensor, "is_cuda") else (name,)
            for name, tensor in inputs.items()
        )
        if any(len(one) == 1 for one in shapes):  # strings: no kernel reads them
            return call(inputs)
        if shapes not in self._captured:
            if len(self._captured) >= _MOST:
                return call(inputs)
            self._captured[shapes] = self._capture(call, inputs)
        captured = self._captured[shapes]
        if captured is None:
            return call(inputs)
        for name, tensor in inputs.items():
            captured.inputs[name].copy_(tensor, non_blocking=True)
        captured.graph.replay()
        return captured.result

    def close(self) -> None:
        """Forget the graphs and their memory."""
        self._captured.clear()
        self._pool = None

    def _capture(
        self, call: Callable[[Mapping[str, Any]], Any], inputs: Mapping[str, Any]
    ) -> _Captured | None:
        """Return the graph of a call; None, with a warning, where it cannot be captured."""
        cuda = self._torch.cuda
        static = {name: tensor.clone() for name, tensor in inputs.items()}
        for _ in range(_WARM_UP):
            call(static)
        self._stream.synchronize()
        graph = cuda.CUDAGraph()
        try:
            # Other threads may allocate meanwhile: their calls are no part of this capture.
            with cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                result = call(static)
        except RuntimeError as error:
            _log.warning(
                "model '%s' runs without a CUDA graph: %s",
                self._model,
                str(error).partition("\n")[0],
            )
            return None
        if self._pool is None:
            self._pool = graph.pool()
        return _Captured(graph, static, result)
