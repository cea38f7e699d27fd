"""The requests of a replay: target models, inputs and due times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbtriton.common.checks import NAMES, check
from nbtriton.common.errors import InternalError, InvalidArgumentError
from nbtriton.lab.perf.data import Request, fill, generate
from nbtriton.lab.perf.recording import RecordedRequest, RecordedTensor, Recording
from nbtriton.lab.perf.settings import STRING_LENGTH
from nbtriton.lab.perf.sweep import Configured
from nbtriton.lab.perf.traffic import Call
from nbtriton.model.config import ModelConfig, TensorSpec
from nbtriton.options.blocks import CallOptions
from nbtriton.serving.clients.base import tensor_of


@dataclass(frozen=True, slots=True)
class Planned:
    """One request of a replay.

    Parameters
    ----------
    recorded : RecordedRequest
    call : Call
        The call of the target's model.
    sequence : tuple or None
        Model and correlation id of its sequence, whose requests keep their order.
    """

    recorded: RecordedRequest
    call: Call
    sequence: tuple[str, int | str] | None


def chosen_models(
    recording: Recording, models: str | Sequence[str] | Mapping[str, str] | None
) -> dict[str, str]:
    """Return the recorded models to replay, each with the target's model for its requests.

    Raises
    ------
    NotFoundError
        The recording has no requests for one of them.
    InvalidArgumentError
        The recording has no requests at all.
    """
    counts = recording.counts
    if not counts:
        raise InvalidArgumentError("the recording has no requests")
    if models is None:
        chosen = {name: name for name in counts}
    elif isinstance(models, Mapping):
        chosen = dict(models)
    else:
        listed = [models] if isinstance(models, str) else models
        check({"models": listed}, {"models": NAMES})
        chosen = {name: name for name in listed}
    if not chosen:
        raise InvalidArgumentError("models names none", hint="leave it out for all")
    for name in chosen:
        recording.arrivals_ns(name)
    return chosen


def planned_traffic(
    recording: Recording,
    chosen: Mapping[str, str],
    target: Configured,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    empty: bool = False,
) -> list[Planned]:
    """Return the requests of some models, with their inputs.

    Parameters
    ----------
    recording : Recording
    chosen : mapping of str to str
        From `chosen_models`.
    target : Configured
        A server or a profile, with the models' configurations.
    shapes : mapping, optional
        Shapes of inputs with variable dimensions, if the recording lacks them.
    seed : int
        Seed of generated inputs, if the recording has none.
    empty : bool
        Make no arrays: the simulator needs only sizes.

    Raises
    ------
    NotFoundError
        The target has no such model.
    InvalidArgumentError
        The shapes of inputs are unknown.
    """
    configs = {name: target.config(name) for name in dict.fromkeys(chosen.values())}
    # Equal recorded inputs are one object: encoded once, and equal for the simulator's cache.
    cache: dict[tuple[int, str, int], Request] = {}
    planned = []
    for each in recording.requests:
        model = chosen.get(each.model)
        if model is None:
            continue
        key = (each.inputs, model if each.inputs < 0 else "", each.rows if each.inputs < 0 else 0)
        inputs = cache.get(key)
        if inputs is None:
            inputs = cache[key] = (
                {} if empty else _inputs(recording, each, configs[model], shapes, seed + len(cache))
            )
        options: CallOptions = {**each.options}  # type: ignore[typeddict-item]
        sequence_id = options.get("sequence_id")
        sequence = None if sequence_id is None else (model, sequence_id)
        call = Call(inputs, options, ends=bool(options.get("sequence_end")), model=model)
        planned.append(Planned(each, call, sequence))
    return planned


def due_times_ns(planned: Sequence[Planned], speed: float) -> list[int]:
    """Return the due time of each request, in nanoseconds after the start.

    Examples
    --------
    >>> from nbtriton.lab.perf.recording import RecordedRequest
    >>> from nbtriton.lab.perf.traffic import Call
    >>> planned = [Planned(RecordedRequest(at, "m", 0, 1, {}), Call({}), None) for at in (0, 3000)]
    >>> due_times_ns(planned, 1.5)
    [0, 2000]
    """
    return [round(each.recorded.at_ns / speed) for each in planned]


def _inputs(
    recording: Recording,
    request: RecordedRequest,
    config: ModelConfig,
    shapes: Mapping[str, Sequence[int]] | None,
    seed: int,
) -> Request:
    if request.inputs < 0:
        return generate(config, batch_size=request.rows, shapes=shapes, seed=seed)
    try:
        recorded = recording.inputs[request.inputs]
    except IndexError:
        raise InvalidArgumentError(
            f"the recording has no inputs with number {request.inputs}"
        ) from None
    random = np.random.default_rng(seed)
    return {name: _array(name, tensor, random) for name, tensor in recorded.items()}


def _array(name: str, tensor: RecordedTensor, random: np.random.Generator) -> Any:
    if tensor.data is not None:
        try:
            return tensor_of(tensor.datatype, list(tensor.shape), tensor.data)
        except InternalError:  # as a server would have refused it
            raise InvalidArgumentError(
                f"the recording has {len(tensor.data)} bytes for its input '{name}' of "
                f"{tensor.datatype} with shape {list(tensor.shape)}"
            ) from None
    spec = TensorSpec(name, tensor.datatype, tensor.shape)
    return fill(spec, tensor.shape, "random", random, STRING_LENGTH, None)
