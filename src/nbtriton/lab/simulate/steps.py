"""The inputs of an ensemble's composing models, found by passing one request from step to step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbtriton.common.errors import UnsupportedError
from nbtriton.lab.perf.data import Request
from nbtriton.lab.perf.remote import RemoteServer, Target
from nbtriton.model.config import ModelConfig, is_ensemble
from nbtriton.model.tensors import Array, shape_of
from nbtriton.runtime.engine.core.scheduler_settings import ensemble_plan
from nbtriton.scheduling import EnsembleRun


def step_requests(
    target: Target,
    ensembles: Mapping[str, ModelConfig],
    model: str,
    roots: Mapping[int, Request],
) -> dict[str, dict[int, Request]]:
    """Return the requests that each composing model gets, by rows.

    Parameters
    ----------
    target : Server or RemoteServer
    ensembles : mapping of str to ModelConfig
    model : str
        The ensemble.
    roots : mapping of int to Request
        Requests to the ensemble, by rows.
    """
    requests: dict[str, dict[int, Request]] = {}
    for rows, request in roots.items():
        _walk(target, ensembles, model, request, rows, requests)
    return requests


def _walk(
    target: Target,
    ensembles: Mapping[str, ModelConfig],
    model: str,
    request: Request,
    rows: int,
    found: dict[str, dict[int, Request]],
) -> Mapping[str, Array]:
    """Pass a request through an ensemble; return its outputs."""
    config = ensembles[model]
    plan = ensemble_plan(config)
    run = EnsembleRun(plan, frozenset(plan.outputs))
    tensors: dict[str, Array] = dict(request)
    advance = run.start()
    waiting = [start.step for start in advance.starts]
    while waiting:
        index = waiting.pop(0)
        step = plan.steps[index]
        inputs = {
            name: _fitting(tensors[tensor], target.config(step.model_name), name)
            for name, tensor in step.input_map.items()
            if tensor in tensors
        }
        if is_ensemble(target.config(step.model_name)):
            outputs = _walk(target, ensembles, step.model_name, inputs, rows, found)
        else:
            found.setdefault(step.model_name, {}).setdefault(rows, inputs)
            outputs = _outputs(target, step.model_name, inputs)
        for name, tensor in step.output_map.items():
            if name in outputs:
                tensors[tensor] = outputs[name]
        waiting += [start.step for start in run.answered(index, 0).starts]
    return {name: tensors[name] for name in plan.outputs if name in tensors}


def _outputs(target: Target, model: str, inputs: Request) -> Mapping[str, Array]:
    if isinstance(target, RemoteServer):
        raise UnsupportedError(
            "an ensemble of a server at a url is not profiled: what its steps get is not seen there",
            hint="profile its composing models one by one, or load the repository here",
        )
    result: Any = target.infer(model, inputs)
    return {name: result[name] for name in result}


def _fitting(value: Array, config: ModelConfig, name: str) -> Array:
    """Return a tensor with or without the batch dimension, as its reader needs it (E9)."""
    spec = next(each for each in config.input if each.name == name)
    shape = shape_of(value)
    wanted = len(spec.dims) + (config.max_batch_size > 0)
    if len(shape) == wanted:
        return value
    array: Any = value
    fitted: Array = array.reshape((1, *shape) if len(shape) < wanted else shape[1:])
    return fitted
