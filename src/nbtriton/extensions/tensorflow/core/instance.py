"""One instance of a SavedModel: gather, call the signature, scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbtriton.backends.base import BackendRequest, BatchTimer, Response
from nbtriton.backends.core.batching import BatchInstance, gather_inputs
from nbtriton.common.errors import InternalError
from nbtriton.model.config import ModelConfig
from nbtriton.model.tensors import Array, as_bytes_array, to_numpy

__all__ = ["SavedModelInstance"]


class SavedModelInstance(BatchInstance):
    """Calls a signature, which other instances may share.

    Parameters
    ----------
    config : ModelConfig
    call : callable
        Maps tensors by name to tensors by name.
    constant : callable
        Makes a tensor of an array.
    """

    def __init__(self, config: ModelConfig, call: Any, constant: Any) -> None:
        super().__init__(config)
        self._call = call
        self._constant = constant
        self._inputs: list[str] = [tensor.name for tensor in config.input]
        self._outputs: list[str] = [tensor.name for tensor in config.output]

    def finalize(self) -> None:
        """Release the signature."""
        self._call = None

    def run(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> Sequence[Response]:
        """Run one batch; without batching it has one request."""
        # A constant is a copy, or is only read.
        gathered = gather_inputs(requests, self._inputs, self._layout, copy=False)
        feeds = {name: self._constant(to_numpy(array)) for name, array in gathered.items()}
        timer.inputs_ready()
        try:
            found = self._call(**feeds)
            outputs: dict[str, Array] = {name: found[name].numpy() for name in self._outputs}
        except Exception as error:
            raise InternalError(f"TensorFlow execute failure: {error}") from error
        timer.infer_done()
        for name, array in outputs.items():
            if array.dtype.kind in "OS":
                outputs[name] = as_bytes_array(array)
        return self.scatter(requests, outputs)
