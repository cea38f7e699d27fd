"""One instance of a forest: gather, predict, scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbtriton.backends.base import BackendRequest, BatchTimer, Response
from nbtriton.backends.core.batching import BatchInstance, gather_inputs
from nbtriton.config import ModelConfig
from nbtriton.errors import InternalError, TritonError
from nbtriton.tensors import to_numpy

__all__ = ["INPUT", "OUTPUT", "ForestInstance"]

INPUT = "input__0"
OUTPUT = "output__0"


class ForestInstance(BatchInstance):
    """Asks a forest, which other instances may share.

    Parameters
    ----------
    config : ModelConfig
    forest : nbtriton.backends.fil.forest.Forest
    width : int
        Elements of a row's output; with 1 the output has the batch dimension alone (FL6).
    """

    def __init__(self, config: ModelConfig, forest: Any, width: int) -> None:
        super().__init__(config)
        self._forest = forest
        self._width = width

    def finalize(self) -> None:
        """Release the forest."""
        self._forest = None

    def run(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> Sequence[Response]:
        """Run requests of which a model that does not batch gets one."""
        rows = to_numpy(gather_inputs(requests, (INPUT,), self._layout, copy=False)[INPUT])
        timer.inputs_ready()
        try:
            found = self._forest.predict(rows, self._width)
        except TritonError:
            raise
        except Exception as error:
            raise InternalError(str(error).strip()) from error
        timer.infer_done()
        if self._width == 1:
            found = found.reshape(-1)
        return self.scatter(requests, {OUTPUT: found})
