"""One instance of a forest: gather, predict, scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbtriton.backends.base import BackendRequest, BatchTimer, Response
from nbtriton.backends.core.batching import BatchInstance, gather_inputs
from nbtriton.backends.core.place import Place
from nbtriton.common.errors import InternalError, TritonError
from nbtriton.model.config import ModelConfig
from nbtriton.model.tensors import Array, to_numpy, to_torch

INPUT = "input__0"
OUTPUT = "output__0"


class ForestInstance(BatchInstance):
    """Runs a forest, which other instances may share.

    Parameters
    ----------
    config : ModelConfig
    forest : nbtriton.extensions.fil.forest.Forest or nbtriton.extensions.fil.gpu.GpuForest
    width : int
        Elements of a row's output; with 1 the output has the batch dimension alone (FL6).
    place : Place, optional
        The GPU of a `GpuForest`.
    """

    def __init__(
        self, config: ModelConfig, forest: Any, width: int, place: Place | None = None
    ) -> None:
        super().__init__(config)
        self._forest = forest
        self._width = width
        self._place = place

    def finalize(self) -> None:
        """Release the forest."""
        self._forest = None
        if self._place is not None:
            self._place.close()

    def run(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> Sequence[Response]:
        """Run one batch; without batching it has one request."""
        place = self._place
        if place is None:
            outputs = self._predict(requests, timer)
        else:
            place.begin()
            with place.stream:
                outputs = self._predict(requests, timer)
                place.leave([(OUTPUT, outputs)], requests)
        timer.infer_done()
        return self.scatter(requests, {OUTPUT: outputs})

    def _predict(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> Array:
        place = self._place
        gathered = gather_inputs(
            requests, (INPUT,), self._layout, copy=False, model=self._name, place=place
        )
        rows: Array = gathered[INPUT]
        timer.inputs_ready()
        try:
            if place is None:
                return self._answer(rows)
            with place.computing():
                return self._answer(rows)
        except TritonError:
            raise
        except Exception as error:
            raise InternalError(str(error).strip()) from error

    def _answer(self, rows: Array) -> Array:
        given = to_numpy(rows) if self._place is None else to_torch(rows)
        results: Array = self._forest.predict(given, self._width)
        return results.reshape(-1) if self._width == 1 else results
