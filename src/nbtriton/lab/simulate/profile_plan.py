"""The plan of a profile: models, their inputs as an ensemble passes them on, batch sizes, and concurrent executions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbtriton.common.errors import InvalidArgumentError, UnsupportedError
from nbtriton.lab.perf.data import Request
from nbtriton.lab.perf.prepare import Data, sequence_plan, workloads
from nbtriton.lab.perf.remote import RemoteServer, Target
from nbtriton.lab.perf.sweep import model_tree
from nbtriton.lab.perf.traffic import SequencePlan
from nbtriton.model.config import ModelConfig, is_ensemble
from nbtriton.model.tensors import Array, shape_of
from nbtriton.runtime.engine import Server as EngineServer
from nbtriton.runtime.engine.core.scheduler_settings import ensemble_plan
from nbtriton.scheduling import EnsembleRun


def step_requests(
    target: Target, ensembles: Mapping[str, ModelConfig], model: str, roots: Mapping[int, Request]
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


# Defaults: these numbers of concurrent executions, and at most this number of batch sizes.
_AT_ONCE = (1, 2, 4)
_MOST_SIZES = 8


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """The plan of a profile.

    Parameters
    ----------
    model : str
    ensembles, others : mapping
        As `model_tree` returns them.
    sizes : mapping of str to tuple of int
        Batch sizes of each model.
    requests : mapping of str to mapping of int to Request
        Requests to each model, by rows.
    roots : mapping of int to Request
        Requests to the ensemble itself, by rows.
    sequences : mapping of str to SequencePlan
        Of the models with a sequence batcher.
    levels : tuple of int
        Numbers of concurrent executions.
    request_of : callable or None
        Makes a request of any size, where sizes between the planned ones may be measured.
    """

    model: str
    ensembles: Mapping[str, ModelConfig]
    others: Mapping[str, ModelConfig]
    sizes: Mapping[str, tuple[int, ...]]
    requests: Mapping[str, Mapping[int, Request]]
    roots: Mapping[int, Request]
    sequences: Mapping[str, SequencePlan]
    levels: tuple[int, ...]
    request_of: Callable[[int], Request] | None


def profile_plan(
    target: Target,
    model: str,
    data: Data,
    at_once: int | Sequence[int] | None,
    batch_sizes: Sequence[int] | None,
) -> ProfilePlan:
    """Return the plan of a profile from options of `nbtriton.profile`."""
    ensembles, others = model_tree(target, model)
    for name, config in (ensembles | others).items():
        if config.model_transaction_policy.decoupled:
            raise UnsupportedError(
                f"model '{name}' is decoupled: how it sends its responses cannot be profiled"
            )
        if isinstance(target, EngineServer) and target.engine.inspection.forms_own_batches(name):
            raise UnsupportedError(
                f"model '{name}' has a custom batching strategy, which reads its requests: it cannot "
                "be simulated"
            )
    sequences = {}
    for name, config in others.items():
        found = sequence_plan({name: config}, SequencePlan(length=10**9, variation=0), serial=True)
        if found is not None:
            sequences[name] = found
    if sequences and ensembles:
        raise UnsupportedError(
            f"model '{next(iter(sequences))}' of the ensemble has a sequence batcher",
            hint="profile that model by itself",
        )
    root = (ensembles | others)[model]
    sizes = _sizes(root.max_batch_size, batch_sizes)

    def request_of(rows: int) -> Request:
        return workloads(root, [rows], data, None, root.max_batch_size)[0][0].requests[0]

    if sequences:  # a request has one row; its batches are formed from several sequences
        roots = dict.fromkeys(sizes, request_of(1))
    else:
        roots = {size: request_of(size) for size in sizes}
    requests = step_requests(target, ensembles, model, roots) if ensembles else {model: roots}
    return ProfilePlan(
        model=model,
        ensembles=ensembles,
        others=others,
        sizes={name: tuple(sorted(found)) for name, found in requests.items()},
        requests=requests,
        roots=roots,
        sequences=sequences,
        levels=_levels(target, others, at_once),
        request_of=None if sequences or ensembles or batch_sizes is not None else request_of,
    )


def _sizes(largest: int, chosen: Sequence[int] | None) -> tuple[int, ...]:
    if chosen is not None:
        if not chosen or min(chosen) < 1 or max(chosen) > max(1, largest):
            raise InvalidArgumentError(
                f"batch_sizes must be from 1 to max_batch_size, {max(1, largest)}; found "
                f"{list(chosen)}"
            )
        return tuple(sorted({1, *chosen}))
    sizes = {max(1, largest)}
    size = 1
    while size < largest:
        sizes.add(size)
        size *= 2
    sizes_of_model = sorted(sizes)
    while len(sizes_of_model) > _MOST_SIZES:  # drop every other one in the middle
        sizes_of_model = sorted({sizes_of_model[0], *sizes_of_model[::-2]})
    return tuple(sizes_of_model)


def _levels(
    target: Target, others: Mapping[str, ModelConfig], at_once: int | Sequence[int] | None
) -> tuple[int, ...]:
    configured = max(sum(group.count for group in c.instance_group) for c in others.values())
    if isinstance(target, RemoteServer):
        return tuple(sorted({1, max(1, configured)}))
    if at_once is None:
        return tuple(sorted({*_AT_ONCE, configured}))
    if isinstance(at_once, int):
        levels = {1, at_once, *(level for level in _AT_ONCE if level < at_once)}
    else:
        levels = {1, *at_once}
    if min(levels) < 1:
        raise InvalidArgumentError(f"at_once must be at least 1, found {at_once!r}")
    return tuple(sorted(levels))
