"""The plan of a profile: models, batch sizes, requests, and numbers of concurrent executions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nbtriton.common.errors import InvalidArgumentError, UnsupportedError
from nbtriton.lab.perf.data import Request
from nbtriton.lab.perf.prepare import Data, sequence_plan, workloads
from nbtriton.lab.perf.remote import RemoteServer, Target
from nbtriton.lab.perf.sweep import model_tree
from nbtriton.lab.perf.traffic import SequencePlan
from nbtriton.lab.simulate.steps import step_requests
from nbtriton.model.config import ModelConfig
from nbtriton.runtime.engine import Server as EngineServer

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
