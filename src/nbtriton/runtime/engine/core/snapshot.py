"""Immutable snapshots of a running server, for views and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from nbtriton.runtime.workers.supervisor import NEVER_LOST, RestartState

if TYPE_CHECKING:  # backends import NumPy, which the lessons in a browser do without
    from nbtriton.backends.base import Placement


class BatchRecord(NamedTuple):
    """One execution in the recorder. Times are `time.monotonic_ns` values.

    Attributes
    ----------
    requests : tuple of int
        The numbers of its requests; the first one is also the number of the batch.
    batch_size : int
        Rows.
    reason : str
        A key of `nbtriton.scheduling.REASONS`: why the batch was closed then, at that size.
    queue_ns : int
        The longest wait among its requests.
    start_ns, infer_start_ns, infer_end_ns, end_ns : int
        compute_input is between the first two, compute_infer between those in the middle, and
        compute_output between the last two.
    failed : bool
    formed_ns : int
        When the scheduler gave it to the instance.
    waiting : int
        Requests that were left waiting: with 0 nothing could have made it larger.
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
    formed_ns: int = 0
    waiting: int = 0
    infer_start_ns: int = 0
    infer_end_ns: int = 0


class RequestRecord(NamedTuple):
    """One request in the recorder. Times are `time.monotonic_ns` values.

    For a request in flight, later times are 0, including those of its batch.

    Attributes
    ----------
    number : int
        Unique in the process.
    request_id : str
        The client's.
    caller : int
        The number of the request that led to it: the ensemble's, or the first one of the batch whose
        model called (BLS); 0 for a client's own.
    step : int
        The step of the ensemble.
    size : int
        Rows.
    arrival_ns, enqueued_ns, answered_ns : int
        Times of its arrival, its acceptance by the scheduler, and its final response.
    first_response_ns, responses : int
        Time of its first response, and their number.
    batch : BatchRecord or None
        None if it was never executed, while it waits, and for an ensemble.
    outcome : str
        Why it was never executed: a key of `nbtriton.scheduling.REASONS`, or ``"cache_hit"``.
    status, error : str
        Triton's status and message if it failed, else empty.
    sequence : int or str
        Its correlation id; 0 without a sequence.
    begins : bool
        Whether it is the first request of its sequence (START).
    """

    model: str
    version: int
    number: int
    request_id: str
    caller: int
    step: int
    size: int
    arrival_ns: int
    enqueued_ns: int
    answered_ns: int
    first_response_ns: int
    responses: int
    batch: BatchRecord | None
    outcome: str
    status: str
    error: str
    sequence: int | str = 0
    begins: bool = False


class Change(NamedTuple):
    """A short summary of the configuration that a model version has from a moment on."""

    at_ns: int
    summary: str


class Moment(NamedTuple):
    """The totals of a model version until a moment.

    Attributes
    ----------
    at_ns : int
    deepest : int
        The most requests that waited at once since the previous moment; for an ensemble, that were in
        flight.
    requests, failed, inferences, executions, queue_ns, compute_ns : int
        Totals since its first load, across later loads.
    sizes : mapping of int to int
        Executions per batch size, likewise.
    busy : mapping of (str, str, int) to int
        Nanoseconds that each instance, by name, kind and device, has executed.
    """

    at_ns: int
    deepest: int
    requests: int
    failed: int
    inferences: int
    executions: int
    queue_ns: int
    compute_ns: int
    sizes: Mapping[int, int]
    busy: Mapping[tuple[str, str, int], int]


class InterpreterWait(NamedTuple):
    """Samples of the interpreter, taken while several instances of a model executed.

    ``waits`` is a sum: a sample in which an instance had to wait, one of n that executed, adds
    (n - 1) / n.
    """

    probes: int = 0
    waits: float = 0.0

    @property
    def share(self) -> float:
        """The share of time that instances waited, from 0 to 1; 0 without samples."""
        return self.waits / self.probes if self.probes else 0.0

    def since(self, earlier: InterpreterWait) -> InterpreterWait:
        """Return the samples that were taken after an earlier moment."""
        return InterpreterWait(self.probes - earlier.probes, self.waits - earlier.waits)


_NO_SAMPLES: Final = InterpreterWait()


@dataclass(frozen=True, slots=True)
class InstanceSnapshot:
    """One instance: ``batch_size`` is 0 while it is idle; ``restart`` is for one in a process.

    ``simulated`` is true if its GPU, and so its times, are simulated. ``placement`` is for one on another machine.
    """

    name: str
    kind: str
    device_id: int
    batch_size: int
    executions: int
    busy_ns: int
    restart: RestartState = NEVER_LOST
    simulated: bool = False
    placement: Placement | None = None


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
class ModelHistorySnapshot:
    """A model version now, and its last moments, oldest first; none without a recorder.

    ``inside_since_ns`` is the arrival of its oldest request in flight; 0 without one.
    """

    model: ModelSnapshot
    moments: tuple[Moment, ...]
    changes: tuple[Change, ...]
    inside_since_ns: int = 0


@dataclass(frozen=True, slots=True)
class ServerHistory:
    """The last moments of all models, as seen at one moment (`time.monotonic_ns`)."""

    now_ns: int
    models: tuple[ModelHistorySnapshot, ...]


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """All models at one moment (`time.monotonic_ns`)."""

    now_ns: int
    models: tuple[ModelSnapshot, ...]
