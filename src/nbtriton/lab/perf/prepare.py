"""The workloads of a measurement, made before any load: requests of a batch size, or sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.lab.perf.settings import STRING_LENGTH, Inputs
from nbtriton.lab.perf.traffic import SequenceData, SequencePlan
from nbtriton.model.config import ModelConfig, enum_name
from nbtriton.options.blocks import CallOptions

if TYPE_CHECKING:
    from pathlib import Path

    from nbtriton.lab.perf.data import Request

_GENERATED: tuple[Literal["random"], Literal["zero"]] = ("random", "zero")


@dataclass(frozen=True, slots=True)
class Data:
    """The user's data options; see `nbtriton.perf`."""

    inputs: Inputs | None = None
    shapes: Mapping[str, Sequence[int]] | None = None
    input_data: str | Path = "random"
    string_length: int = STRING_LENGTH
    string_data: str | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of one batch size, sent in turn, or the data of sequences.

    ``options`` has their options apart from those of sequences, given in turn.
    """

    requests: tuple[Request, ...]
    batch_size: int
    sequences: SequenceData | None = None
    options: tuple[CallOptions, ...] = ()


def check_streaming(configs: Mapping[str, ModelConfig], *, streaming: bool) -> None:
    """Refuse to measure a decoupled model without streaming.

    Raises
    ------
    InvalidArgumentError
        Before any load.
    """
    decoupled = [n for n, c in configs.items() if c.model_transaction_policy.decoupled]
    if decoupled and not streaming:
        raise InvalidArgumentError(
            f"model '{decoupled[0]}' is decoupled: it answers a request any number of times, which "
            "is measured with --streaming",
            hint="%triton_perf … --streaming, or streaming=True; in the process or over gRPC",
        )


def sequence_plan(
    configs: Mapping[str, ModelConfig], plan: SequencePlan, *, serial: bool
) -> SequencePlan | None:
    """Return the plan of sequences, None for a model without sequences (PA20).

    Parameters
    ----------
    configs : mapping
        The model's configuration, and those of the composing models of an ensemble.
    plan : SequencePlan
        The user's.
    serial : bool
        Whether requests of one sequence could overtake each other.
    """
    stateful = [c for c in configs.values() if c.HasField("sequence_batching")]
    if not stateful:
        return None
    as_text = any(
        enum_name(control, "data_type") == "TYPE_STRING"
        for config in stateful
        for tensor in config.sequence_batching.control_input
        for control in tensor.control
        if enum_name(control, "kind") == "CONTROL_SEQUENCE_CORRID"
    )
    iterative = any(c.sequence_batching.iterative_sequence for c in stateful)
    return replace(plan, serial=plan.serial or serial, as_text=as_text, iterative=iterative)


def workloads(
    config: ModelConfig,
    sizes: Sequence[int | None],
    data: Data,
    plan: SequencePlan | None,
    largest: int,
) -> tuple[list[Workload], tuple[str, ...]]:
    """Return a workload for each batch size, and notes about the data.

    Parameters
    ----------
    config : ModelConfig
        Normalised.
    sizes : sequence of int or None
        Rows per request; None for those of the data.
    data : Data
    plan : SequencePlan or None
        None for a model without sequences.
    largest : int
        The largest batch size in all configurations.

    Raises
    ------
    InvalidArgumentError
        Data that does not fit the model, or too large a batch; before any load.
    """
    from nbtriton.lab.perf.data import check_batch_size, read_input_file, requests_from  # NumPy

    file = None
    if data.inputs is None and data.input_data not in _GENERATED:
        file = read_input_file(data.input_data, config, data.shapes)
    result = []
    for size in sizes:
        if plan is not None:
            result.append(Workload((), 1, _sequence_data(config, size, data, plan, file)))
            continue
        rows = 1 if size is None else size
        if data.inputs is not None:
            requests, rows = requests_from(config, data.inputs, batch_size=size)
        elif file is None:
            requests = (_generated(config, rows, data),)
        else:
            check_batch_size(config, rows)
            requests = file.requests(batches=config.max_batch_size > 0, batch_size=rows)
        if 0 < largest < rows:
            raise InvalidArgumentError(
                f"batch size {rows} is larger than max_batch_size {largest} of model "
                f"'{config.name}'",
                hint="every such request would be refused",
            )
        result.append(Workload(requests, rows))
    return result, () if file is None else file.notes


def _generated(config: ModelConfig, rows: int, data: Data) -> Request:
    from nbtriton.lab.perf.data import generate

    return generate(
        config,
        batch_size=rows,
        shapes=data.shapes,
        input_data="zero" if data.input_data == "zero" else "random",
        seed=data.seed,
        string_length=data.string_length,
        string_data=data.string_data,
    )


def _sequence_data(
    config: ModelConfig, size: int | None, data: Data, plan: SequencePlan, file: Any
) -> SequenceData:
    from nbtriton.lab.perf.data import requests_from

    if size not in (None, 1):
        raise InvalidArgumentError("can not specify batch size > 1 when using a sequence model")
    if file is not None:
        return SequenceData(plan, file.sequences(batches=config.max_batch_size > 0), given=True)
    if data.inputs is None:
        return SequenceData(plan, [[_generated(config, 1, data)]], given=False)
    given: Any = [data.inputs] if isinstance(data.inputs, Mapping) else list(data.inputs)
    nested = bool(given) and not any(isinstance(step, Mapping) for step in given)
    streams = [
        requests_from(config, steps, batch_size=None) for steps in (given if nested else [given])
    ]
    if any(rows != 1 for _, rows in streams):
        raise InvalidArgumentError("can not specify batch size > 1 when using a sequence model")
    return SequenceData(plan, [steps for steps, _ in streams], given=True)
