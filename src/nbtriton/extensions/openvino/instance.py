"""One instance of an OpenVINO model: gather, infer, scatter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nbtriton.backends.base import BackendRequest, BatchTimer, Response
from nbtriton.backends.core.batching import BatchInstance, gather_inputs
from nbtriton.common.errors import InternalError
from nbtriton.extensions.openvino.configuration import runtime_errors
from nbtriton.model.config import ModelConfig
from nbtriton.model.tensors import Array, to_numpy


class OpenVinoInstance(BatchInstance):
    """Runs its own inference request of a compiled model, which other instances may share.

    Parameters
    ----------
    config : ModelConfig
    compiled : openvino.CompiledModel
        For batches of ``max_batch_size`` rows, if the model batches.
    padding : bool
        Whether smaller batches are padded; else they are refused (OV4).
    """

    def __init__(self, config: ModelConfig, compiled: Any, *, padding: bool) -> None:
        super().__init__(config)
        self._request = compiled.create_infer_request()
        self._inputs: list[str] = [tensor.name for tensor in config.input]
        self._outputs: list[str] = [tensor.name for tensor in config.output]
        self._rows: int = config.max_batch_size
        self._padding = padding

    def finalize(self) -> None:
        """Release the inference request."""
        self._request = None

    def run(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> Sequence[Response]:
        """Run one batch; without batching it has one request."""
        missing = self._missing_rows(requests)
        # OpenVINO never writes into its inputs.
        gathered = gather_inputs(requests, self._inputs, self._layout, copy=False)
        feeds = {name: _padded(to_numpy(array), missing) for name, array in gathered.items()}
        timer.inputs_ready()
        with runtime_errors("running inference"):
            # Inputs are read in place; outputs are copied out of the inference request's own memory.
            results = self._request.infer(feeds, share_inputs=True, share_outputs=False)
        timer.infer_done()
        return self.scatter(requests, self._wanted(results, missing))

    def _missing_rows(self, requests: Sequence[BackendRequest]) -> int:
        if not self._batches:
            return 0
        rows = sum(request.batch_size for request in requests)
        if rows < self._rows and not self._padding:
            raise InternalError(
                f"expected requests with batch size '{self._rows}', got '{rows}'... this error can be "
                "avoided by setting 'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' "
                "at a performance cost."
            )
        return self._rows - rows

    def _wanted(self, results: Any, missing: int) -> Mapping[str, Array]:
        outputs = {}
        for name in self._outputs:
            array = results[name]
            outputs[name] = array[: self._rows - missing] if missing else array
        return outputs


def _padded(array: np.ndarray[Any, Any], missing: int) -> np.ndarray[Any, Any]:
    """Return a contiguous array with rows of zeros at its end."""
    if not missing:
        return np.ascontiguousarray(array)
    padding = np.zeros((missing, *array.shape[1:]), array.dtype)
    return np.concatenate((array, padding))
