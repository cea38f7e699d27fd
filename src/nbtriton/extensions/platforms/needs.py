"""What a repository takes of a machine, as far as its configurations say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nbtriton.backends.parameters import text_parameter
from nbtriton.model.config import ModelConfig, enum_name, parse_pbtxt

# By backend: the parameter with the threads of one execution. 0 and -1 leave the number to the backend.
_THREADS = {"onnxruntime": "intra_op_thread_count", "pytorch": "INTRA_OP_THREAD_COUNT"}


@dataclass(frozen=True, slots=True)
class Needs:
    """What one server of a repository takes.

    Parameters
    ----------
    cpus : int
        The threads that can compute at the same time: each instance has one, or as many as its
        configuration gives it.
    gpus : int
        GPUs up to the last one that an instance group names; one for ``KIND_GPU`` without a list.
    stateful : bool
        Whether a model has sequences, all of whose requests must come to one server.
    """

    cpus: int
    gpus: int
    stateful: bool


def needs_of(repository: Path, models: Iterable[str]) -> Needs:
    """Return what the models of a written repository take."""
    configs = [parse_pbtxt((repository / name / "config.pbtxt").read_bytes()) for name in models]
    return Needs(
        cpus=max(1, sum(_threads(config) for config in configs)),
        gpus=max((1 + device for config in configs for device in _devices(config)), default=0),
        stateful=any(config.HasField("sequence_batching") for config in configs),
    )


def _threads(config: ModelConfig) -> int:
    if config.HasField("ensemble_scheduling"):
        return 0
    # A group on GPUs has `count` instances on each; without groups Triton makes one instance.
    instances = sum((group.count or 1) * max(1, len(group.gpus)) for group in config.instance_group)
    given = text_parameter(config, _THREADS.get(config.backend, "")) or ""
    return (instances or 1) * (int(given) if given.isdecimal() and int(given) else 1)


def _devices(config: ModelConfig) -> list[int]:
    return [
        device
        for group in config.instance_group
        for device in group.gpus or ([0] if enum_name(group, "kind") == "KIND_GPU" else [])
    ]
