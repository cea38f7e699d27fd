"""The repeat backend: one response for each element of ``IN``, each after its ``DELAY``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from nbtriton.backends.base import (
    Backend,
    BackendInstance,
    BackendRequest,
    BatchTimer,
    InstanceContext,
    ModelContext,
    Response,
)
from nbtriton.backends.demonstration.answering import Answering
from nbtriton.backends.demonstration.signature import check_datatypes, check_names, check_one
from nbtriton.errors import InvalidArgumentError
from nbtriton.tensors import Array, format_shape, shape_of, to_numpy

__all__ = ["RepeatBackend"]

_MISMATCH = "expected IN and DELAY shape to match, got "


class RepeatBackend(Backend):
    """Sends the elements of ``IN`` back one by one as ``OUT``, with their indices as ``IDX``.

    ``DELAY`` has the milliseconds before each response, ``WAIT`` those for which the instance stays
    busy.
    """

    name: ClassVar[str] = "repeat"
    needs_source: ClassVar[bool] = False

    @classmethod
    def accepts(cls, source: object) -> bool:  # noqa: ARG003 - nothing tells that it is meant
        """Return False: it is chosen by name."""
        return False

    def check(self, context: ModelContext) -> None:
        """Check the inputs and outputs."""
        config = context.config
        if config.max_batch_size != 0:
            raise InvalidArgumentError(
                "repeat backend only supports models with max_batch_size == 0",
                hint=f"it is {config.max_batch_size}",
            )
        check_names(config, ("IN", "DELAY", "WAIT"), ("OUT", "IDX"))
        values, delays = (tuple(tensor.dims) for tensor in config.input[:2])
        if len(values) != 1:
            raise InvalidArgumentError(
                f"expected IN shape to have one dimension, got {format_shape(values)}"
            )
        if values != delays:
            raise InvalidArgumentError(
                f"{_MISMATCH}{format_shape(values)} and {format_shape(delays)}"
            )
        check_one(config, "WAIT", "OUT", "IDX")
        check_datatypes(
            config, IN="INT32", DELAY="UINT32", WAIT="UINT32", OUT="INT32", IDX="UINT32"
        )

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance."""
        return _Instance(context.name)


class _Instance(BackendInstance):
    # It waits: the thread of a caller must go on, to read what has come meanwhile.
    any_thread = False

    def __init__(self, name: str) -> None:
        self._answering = Answering(name)

    def execute(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> None:
        timer.inputs_ready()
        for request in requests:
            self._answering.start(request, partial(_repeat, request))
            wait_ms = int(to_numpy(request.inputs["WAIT"]).reshape(-1)[0])
            time.sleep(wait_ms / 1000)

    def finalize(self) -> None:
        self._answering.join()


def _repeat(request: BackendRequest) -> None:
    given, delays = request.inputs["IN"], request.inputs["DELAY"]
    if shape_of(given) != shape_of(delays):
        raise InvalidArgumentError(
            f"{_MISMATCH}{format_shape(shape_of(given))} and {format_shape(shape_of(delays))}"
        )
    for index, (value, delay_ms) in enumerate(
        zip(to_numpy(given).tolist(), to_numpy(delays).tolist(), strict=True)
    ):
        time.sleep(delay_ms / 1000)
        if request.is_cancelled():
            return
        outputs: dict[str, Array] = {
            "OUT": np.array([value], np.int32),
            "IDX": np.array([index], np.uint32),
        }
        wanted = {
            name: array for name, array in outputs.items() if name in request.requested_outputs
        }
        request.send(Response(wanted), final=False)
