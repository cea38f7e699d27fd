"""Immutable snapshots of a running server: all that views and tables read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from nbtriton.workers.supervisor import NEVER_LOST, RestartState

__all__ = [
    "BatchRecord",
    "InstanceSnapshot",
    "InterpreterWait",
    "ModelSnapshot",
    "ServerSnapshot",
]


class BatchRecord(NamedTuple):
    """One execution, kept in a ring buffer per model.

    Times are `time.monotonic_ns` values. ``reason`` is the scheduler's own word for why the batch
    was released then and with that size; ``queue_ns`` is the longest wait among its requests.
    """

    model: str
    version: int
    instance: str
    requests: tuple[int, ...]
    batch_size: int
    reason: str
    queue_ns: int
    start_ns: int
    end_ns: int
    failed: bool


class InterpreterWait(NamedTuple):
    """Samples of the interpreter, taken while several instances of a model executed.

    ``waits`` is a sum: a sample in which an instance had to wait, one of n that executed, adds
    (n - 1) / n.
    """

    probes: int = 0
    waits: float = 0.0

    @property
    def share(self) -> float:
        """The share of their time that instances waited, from 0 to 1; 0 without samples."""
        return self.waits / self.probes if self.probes else 0.0

    def since(self, earlier: InterpreterWait) -> InterpreterWait:
        """Return the samples that were taken after an earlier moment."""
        return InterpreterWait(self.probes - earlier.probes, self.waits - earlier.waits)


_NO_SAMPLES: Final = InterpreterWait()


@dataclass(frozen=True, slots=True)
class InstanceSnapshot:
    """One instance: ``batch_size`` is 0 while it is idle; ``restart`` is for one in a process."""

    name: str
    kind: str
    device_id: int
    batch_size: int
    executions: int
    busy_ns: int
    restart: RestartState = NEVER_LOST


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """One version of one model: counters are totals since load, durations in nanoseconds."""

    name: str
    version: int
    state: str  # "LOADING", "READY", "UNLOADING", "UNAVAILABLE"
    reason: str
    platform: str
    max_batch_size: int
    queued: int  # requests waiting in the scheduler, not yet handed to an instance
    executing: int  # requests inside an instance (an ensemble: requests in flight)
    instances: tuple[InstanceSnapshot, ...]
    inference_count: int
    execution_count: int
    success_count: int
    fail_count: int
    success_ns: int
    queue_ns: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int
    batch_sizes: Mapping[int, int]  # executions per total batch size
    ignored: tuple[str, ...] = ()  # fields of the configuration that have no effect here
    isolation: str = "thread"  # where its instances live: "thread" or "process"
    interpreter: InterpreterWait = _NO_SAMPLES


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """All models at one moment (`time.monotonic_ns`)."""

    now_ns: int
    models: tuple[ModelSnapshot, ...]
