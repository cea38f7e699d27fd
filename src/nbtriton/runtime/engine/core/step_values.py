"""Values between the steps of an ensemble: tensors, sequence ids and errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from nbtriton.backends.base import Response
from nbtriton.backends.core.synchronize import wait_for_outputs
from nbtriton.common.errors import InternalError, InvalidArgumentError, TritonError
from nbtriton.model.tensors import Array
from nbtriton.runtime.engine.core.request import InferenceRequest
from nbtriton.scheduling import SEQUENCE_END, SEQUENCE_START

__all__ = ["SequenceMark", "adapt", "as_triton_error", "completed", "placed", "sequence_mark"]

# Final: rule 13 of docs/compiled.md.
_ndarray: Final = np.ndarray

_log = logging.getLogger("nbtriton.runtime.engine")

# Sequence id and flags.
SequenceMark = tuple[int | str, int]


def completed(response: Response, request: InferenceRequest) -> Response:
    """Return a response once devices have written its outputs, unless its receiver orders events: a step's does.

    What a device did wrong shows when it is waited for; the response is then that error.
    """
    foreign = False
    for array in response.outputs.values():
        foreign = foreign or type(array) is not _ndarray
    if not foreign or request.orders_events:
        return response
    try:
        wait_for_outputs(response.outputs.values())
    except Exception as raised:
        return Response(error=as_triton_error(raised))
    return response


def placed(error: TritonError, ensemble: str) -> TritonError:
    """Return the same error with the ensemble's name in front of its text."""
    found = error.again()
    found.args = (f"in ensemble '{ensemble}', {error.message}",)
    return found


def as_triton_error(error: Exception) -> TritonError:
    """Return an error as Triton's; one that is not on purpose is logged."""
    if isinstance(error, TritonError):
        return error
    _log.error("a step of an ensemble", exc_info=error)
    return InternalError(f"{type(error).__name__}: {error}")


def sequence_mark(parameters: Mapping[str, bool | int | str]) -> SequenceMark | None:
    """Return the sequence id and flags that a step's response sets for the steps behind it (E6)."""
    if not any(name in parameters for name in ("sequence_id", "sequence_start", "sequence_end")):
        return None
    correlation_id = parameters.get("sequence_id", 0)
    if isinstance(correlation_id, bool) or not isinstance(correlation_id, (int, str)):
        raise InvalidArgumentError(
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or "
            "TRITONSERVER_PARAMETER_STRING"
        )
    flags = 0
    for name, flag in (("sequence_start", SEQUENCE_START), ("sequence_end", SEQUENCE_END)):
        value = parameters.get(name, False)
        if not isinstance(value, bool):
            raise InvalidArgumentError(
                f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL"
            )
        flags |= flag * value
    return correlation_id, flags


def adapt(value: Array, dims: Sequence[int], *, to_batching: bool) -> Array:
    """Pass a tensor between a batching and a non-batching model (E9)."""
    shape = tuple(value.shape)
    fits = len(shape) == len(dims) and all(
        want in (-1, found) for want, found in zip(dims, shape, strict=True)
    )
    if to_batching:
        return value.reshape((1, *shape)) if fits else value
    if fits or not shape or shape[0] != 1:
        return value
    return value.reshape(shape[1:])
