"""Requests that a stopping server still accepts: those that continue a sequence."""

from __future__ import annotations

from nbtriton.common.errors import TritonError, UnavailableError
from nbtriton.runtime.engine.core.ensemble_runtime import EnsembleRuntime
from nbtriton.runtime.engine.core.request import InferenceRequest
from nbtriton.runtime.engine.core.runtime import Runtime
from nbtriton.runtime.engine.core.step_values import placed
from nbtriton.scheduling import SEQUENCE_START

__all__ = ["refusal"]

_STOPPED = "Server is stopping, scheduler for model has stopped accepting new inference requests"


def refusal(runtime: Runtime, request: InferenceRequest) -> TritonError | None:
    """Return the error of a request that begins something new, in Triton's words.

    None for what may go on: the requests of a sequence that has begun, also through an ensemble. A
    request that breaks a rule of sequences is left to the batcher, which refuses it.
    """
    if isinstance(runtime, EnsembleRuntime):
        return _of_ensemble(runtime, request)
    if not runtime.config.HasField("sequence_batching"):
        return _error(request.log_prefix + _STOPPED)
    begins = bool(request.flags & SEQUENCE_START)
    if not request.correlation_id:
        begins = runtime.config.sequence_batching.iterative_sequence  # it is given an id
    return _error(_STOPPED) if begins and request.batch_size <= 1 else None


def _of_ensemble(ensemble: EnsembleRuntime, request: InferenceRequest) -> TritonError | None:
    plan = ensemble.plan
    try:
        steps = [ensemble.resolve(step.model_name, step.model_version) for step in plan.steps]
        continues = request.correlation_id and not request.flags & SEQUENCE_START
        if continues and any(map(_has_sequences, steps)):
            return None
    except TritonError:  # a model is missing, which the ensemble says
        return None
    for step, reads in zip(steps, plan.step_inputs, strict=True):
        if reads <= plan.inputs:
            error = refusal(step, request)
            return None if error is None else placed(error, ensemble.name)
    return None


def _has_sequences(runtime: Runtime) -> bool:
    if not isinstance(runtime, EnsembleRuntime):
        return runtime.config.HasField("sequence_batching")
    return any(
        _has_sequences(runtime.resolve(step.model_name, step.model_version))
        for step in runtime.plan.steps
    )


def _error(text: str) -> UnavailableError:
    error = UnavailableError(text)
    error.accepted = False
    return error
