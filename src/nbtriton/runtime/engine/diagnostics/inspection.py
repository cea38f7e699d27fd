"""What changes nothing: readiness, configurations and statistics of models, and the records of the recorder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from time import monotonic_ns
from typing import Any, TypeVar

from nbtriton.backends.devices.device_set import DeviceSet
from nbtriton.common.checks import Kind, check, is_number, optional, whole
from nbtriton.common.errors import NotFoundError, TritonError, UnavailableError, nearest
from nbtriton.model.config import (
    ModelConfig,
    all_input_specs,
    all_output_specs,
    copy_config,
    enum_name,
    max_unread_responses,
)
from nbtriton.runtime.engine.core.dispatch import (
    Registry,
    checked_name,
    checked_version,
    versions_to_keep,
)
from nbtriton.runtime.engine.core.execution import Execution, RequestDetail, Statistics
from nbtriton.runtime.engine.core.history import ModelHistory, Recorder, RequestEntry
from nbtriton.runtime.engine.core.instance_set import Limiter
from nbtriton.runtime.engine.core.model_runtime import ModelRuntime
from nbtriton.runtime.engine.core.request import InferenceRequest
from nbtriton.runtime.engine.core.runtime import ModelSignature, Runtime
from nbtriton.runtime.engine.core.snapshot import (
    BatchRecord,
    ModelHistorySnapshot,
    ModelSnapshot,
    RequestRecord,
    ServerHistory,
    ServerSnapshot,
)
from nbtriton.runtime.engine.core.summaries import LatencySummaries
from nbtriton.scheduling import SEQUENCE_START

_Ended = TypeVar("_Ended")

_NO_DETAIL = RequestDetail("", "", "", 0, 0, 0, False)


def read_records(
    history: ModelHistory, since_ns: int = 0, most: int | None = None
) -> tuple[list[BatchRecord], Iterator[RequestRecord]]:
    """Return the batches that have ended, and the requests that are answered: made only for who takes them.

    Parameters
    ----------
    history : ModelHistory
    since_ns : int, optional
        Only those that ended after this time; reading costs what they are.
    most : int, optional
        At most this number of batches, the newest, and of requests of batches of several.
    """
    entries = _newest(history.requests(), lambda entry: entry.answered_ns, since_ns, most)
    together: dict[Execution, list[int]] = {}
    for entry in entries:
        if entry.execution is not None:
            together.setdefault(entry.execution, []).append(entry.number)
    executions = _newest(history.executions(), lambda execution: execution.end_ns, since_ns, most)
    # One that failed before its model saw it, or that the other ring has lost, is known by its requests.
    known = {
        execution: execution.record(
            history.name, history.version, tuple(together.get(execution, (execution.number,)))
        )
        for execution in (*executions, *together)
    }
    alone = (_alone(execution) for execution in executions if execution.answered_ns)
    requests = (
        _record(history, entry, known[entry.execution] if entry.execution is not None else None)
        for entry in chain(alone, entries)
    )
    return [known[execution] for execution in executions], requests


def records_of(runtime: Runtime) -> list[RequestRecord]:
    """Return the requests of a version that are accepted and not answered; times to come are 0."""
    together: dict[Execution, list[InferenceRequest]] = {}
    inside = [(request, _batch_of(request)) for request in runtime.requests_inside()]
    for request, execution in inside:
        if execution is not None:
            together.setdefault(execution, []).append(request)
    batches = {
        execution: execution.record(
            runtime.name, runtime.version, tuple(request.number for request in requests)
        )._replace(queue_ns=execution.start_ns - min(one.enqueued_ns for one in requests))
        for execution, requests in together.items()
    }
    return [
        RequestRecord(
            runtime.name, runtime.version, request.number, _readable(request.request_id), request.caller,
            request.step, request.size, request.start_ns, request.enqueued_ns, 0, request.first_ns,
            request.responses, batches[execution] if execution is not None else None,
            request.outcome, "", "", request.correlation_id, bool(request.flags & SEQUENCE_START),
        )
        for request, execution in inside
    ]  # fmt: skip


def _batch_of(request: InferenceRequest) -> Execution | None:
    """Return the execution of a request; none while it waits, also to be executed once more."""
    return request.execution if request.executes else None


def _readable(text: str) -> str:
    """Return a text as it can be written in UTF-8: a client's bytes that are none are lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _newest(
    found: list[_Ended], ended_ns: Callable[[_Ended], int], since_ns: int, most: int | None
) -> list[_Ended]:
    """Return those that ended after a time, and of these the newest, up to a number."""
    first = 0 if most is None else max(0, len(found) - most)
    if not since_ns:
        return found[first:]
    at = len(found)
    while at > first and ended_ns(found[at - 1]) > since_ns:
        at -= 1
    return found[at:]


def _alone(execution: Execution) -> RequestEntry:
    """Return the entry of the only request of a batch, whose sums are its own."""
    return RequestEntry(
        execution.number, execution.caller, execution.step, execution.inferences,
        execution.end_ns - execution.total_ns, execution.start_ns - execution.queue_ns,
        execution.answered_ns, execution.request_id, execution, execution.detail,
    )  # fmt: skip


def _record(history: ModelHistory, entry: RequestEntry, batch: BatchRecord | None) -> RequestRecord:
    detail = entry.detail or _NO_DETAIL
    return RequestRecord(
        history.name, history.version, entry.number, _readable(entry.request_id), entry.caller, entry.step,
        entry.size, entry.start_ns, entry.enqueued_ns, entry.answered_ns,
        detail.first_ns or entry.answered_ns, detail.responses, batch, detail.outcome, detail.status,
        _readable(detail.error), detail.sequence, detail.begins,
    )  # fmt: skip


class Inspection:
    """The models of a `nbtriton.Server`, looked at: readiness, configurations, statistics.

    Parameters
    ----------
    registry : Registry
        Of the server's models.
    runtimes : callable
        Returns every version that has requests, or may get some.
    recorder : callable
        Returns the recorder, None where it is off.
    limiter : callable
        Returns the rate limiter, None where it is off.
    """

    def __init__(
        self,
        registry: Registry,
        runtimes: Callable[[], list[Runtime]],
        recorder: Callable[[], Recorder | None],
        limiter: Callable[[], Limiter | None],
    ) -> None:
        self._registry = registry
        self._runtimes = runtimes
        self._recorder = recorder
        self._limiter = limiter

    def check_answering(self) -> None:
        """Check that the server answers questions about models.

        Raises
        ------
        UnavailableError
            ``Server not ready``: it could not be set up, or stops.
        """
        if self._registry.refusal or self._registry.stopping:
            raise UnavailableError(self._registry.refusal or "Server not ready")

    def is_known(self, name: str) -> bool:
        """Return True once a load of a model has begun: Triton's lifecycle then lists it."""
        return name in self._registry.entries or name in self._registry.absent

    def has_no_version(self, name: str) -> bool:
        """Return True if the version policy of a model left none, from its first load on."""
        return name not in self._registry.entries and self._registry.absent.get(name) == {}

    def missing_versions(self, name: str) -> list[int]:
        """Return the versions that a model's version policy wants and that were loaded once, not now."""
        entry, absent = self._registry.entry(name), self._registry.absent.get(name, {})
        config = self._registry.resolve(name, -1).config
        wanted = versions_to_keep(config, {*entry.slots, *absent})
        return sorted(wanted - set(entry.slots))

    def is_ready(self, name: str, version: int = -1) -> bool:
        """Return True if a request to this version would be accepted."""
        try:
            self._registry.resolve(name, version)
        except (NotFoundError, UnavailableError):
            return False
        return True

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        """Return True if a version `is_ready` and its model's own check passes, as clients see it.

        A Python model may define ``is_ready``, which may take 5 s an instance.
        """
        try:
            checks = self._registry.resolve(name, version).own_checks()
        except TritonError:
            return False
        return all(check() for check in checks)

    def has_own_checks(self) -> bool:
        """Return True if `is_model_ready` may take long, as some model has a check of its own."""
        return any(runtime.own_checks() for runtime in self._registry.runtimes())

    def is_decoupled(self, name: str, version: int = -1) -> bool:
        """Return True if a version answers with any number of responses."""
        return self._registry.resolve(name, version).signature.decoupled

    def signature(self, name: str, version: int = -1) -> ModelSignature:
        """Return the signature of a version: by which the endpoints read requests."""
        return self._registry.resolve(name, version).signature

    def max_unread_responses(self, name: str, version: int = -1) -> int:
        """Return how many responses of a request may be unread when the model goes on; 0 for any number.

        Of a model in a worker one thread takes the responses to all requests, and may not wait for one reader. A model that
        is being unloaded waits for none.
        """
        try:
            runtime = self._registry.resolve(name, version)
        except TritonError:
            return 0
        if isinstance(runtime, ModelRuntime) and runtime.backend.isolation != "thread":
            return 0
        return max_unread_responses(runtime.config)

    def config(self, name: str, version: int = -1) -> ModelConfig:
        """Return a copy of the completed configuration of a version."""
        return copy_config(self._registry.resolve(name, version).config)

    def user_config(self, name: str) -> ModelConfig:
        """Return a copy of a model's configuration as it was given, before completion."""
        return copy_config(self._registry.entry(name).user_config)

    def metadata(self, name: str, version: int = -1) -> dict[str, Any]:
        """Return Triton's model metadata: tensors with the batch dimension (J4)."""
        entry = self._registry.entry(name, version)
        runtime = self._registry.resolve(name, version)
        batch = [-1] if runtime.signature.max_batch_size > 0 else []
        return {
            "name": name,
            "versions": [str(number) for number in sorted(entry.slots)],
            "platform": runtime.snapshot("READY", "").platform,
            **{
                key: [
                    {"name": spec.name, "datatype": spec.datatype, "shape": [*batch, *spec.dims]}
                    for spec in specs
                ]
                for key, specs in (
                    ("inputs", all_input_specs(runtime.config)),
                    ("outputs", all_output_specs(runtime.config)),
                )
            },
        }

    def statistics(self, name: str = "", version: int = -1) -> dict[str, Any]:
        """Return the statistics in the form of Triton's endpoint; see `nbtriton.Server.statistics`."""
        name, version = checked_name(name), checked_version(version)
        if name:
            self._registry.resolve(name, version)
        return {
            "model_stats": [
                slot.runtime.statistics.to_dict(model, number) | _on_simulated(slot.runtime)
                for model, entry in sorted(self._registry.entries.items())
                for number, slot in sorted(entry.slots.items())
                if name in ("", model) and version in (-1, number) and slot.state == "READY"
            ]
        }

    def failures(self, name: str, version: int) -> dict[str, int]:
        """Return how many requests to a version failed, by Triton's reasons; none if it is unloaded."""
        statistics = self._statistics_of(name, version)
        return {} if statistics is None else dict(statistics.failures)

    def summaries(self, name: str, version: int) -> LatencySummaries | None:
        """Return the latency summaries of a version, if the server keeps them."""
        statistics = self._statistics_of(name, version)
        return None if statistics is None else statistics.summaries

    def _statistics_of(self, name: str, version: int) -> Statistics | None:
        entry = self._registry.entries.get(name)
        slot = entry.slots.get(version) if entry is not None else None
        return slot.runtime.statistics if slot is not None else None

    def models(self) -> tuple[ModelSnapshot, ...]:
        """Return every version of every model, by name."""
        found: list[ModelSnapshot] = []
        for _, entry in sorted(self._registry.entries.items()):
            fields = tuple(path for path, _ in entry.ignored)
            for _, slot in sorted(entry.slots.items()):
                snapshot = slot.runtime.snapshot(slot.state, slot.reason)
                found.append(replace(snapshot, ignored=fields) if fields else snapshot)
        return tuple(found)

    def ignored(self, name: str) -> dict[str, str]:
        """Return the fields of a model's configuration that have no effect here, with the reasons.

        Raises
        ------
        NotFoundError
            No such model.
        """
        return dict(self._registry.entry(name).ignored)

    def model_names(self) -> tuple[str, ...]:
        """Return the names of all models; cheap enough for completion."""
        return tuple(sorted(self._registry.entries))

    def snapshot(self) -> ServerSnapshot:
        """Return everything that can be seen at this moment."""
        return ServerSnapshot(monotonic_ns(), self.models())

    def batches(
        self, name: str, version: int = -1, *, since_ns: int = 0, most: int | None = None
    ) -> tuple[BatchRecord, ...]:
        """Return a model's recent executions, oldest first; see `nbtriton.Server.batches`."""
        found = self._records(name, version, since_ns, most)
        batches = [batch for of_version, _ in found for batch in of_version]
        return tuple(sorted(batches, key=attrgetter("end_ns")))

    def requests(
        self, name: str, version: int = -1, *, since_ns: int = 0, most: int | None = None
    ) -> tuple[RequestRecord, ...]:
        """Return a model's recent answered requests; see `nbtriton.Server.requests`."""
        found = self._records(name, version, since_ns, most)
        requests = [request for _, of_version in found for request in of_version]
        return tuple(sorted(requests, key=attrgetter("answered_ns")))

    def in_flight(self, name: str = "", version: int = -1) -> tuple[RequestRecord, ...]:
        """Return the requests that are accepted and not answered; see `nbtriton.Server.in_flight`."""
        name, version = checked_name(name), checked_version(version)
        if name and not self.is_known(name):
            self._registry.entry(name)  # which says so
        found = [
            record
            for one in self._runtimes()
            if name in ("", one.name) and version in (-1, one.version)
            for record in records_of(one)
        ]
        return tuple(sorted(found, key=attrgetter("arrival_ns")))

    def _records(
        self, name: str, version: int, since_ns: int, most: int | None
    ) -> list[tuple[list[BatchRecord], Iterator[RequestRecord]]]:
        """Return the batches and the requests of each version."""
        check(
            {"since_ns": since_ns, "most": most},
            {"since_ns": Kind(is_number, "a number of nanoseconds"), "most": optional(whole(0))},
        )
        return [read_records(history, since_ns, most) for history in self.histories(name, version)]

    def histories(self, name: str = "", version: int = -1) -> list[ModelHistory]:
        """Return the histories of a model, or of all.

        Raises
        ------
        NotFoundError
            Nothing was ever recorded under this name.
        UnavailableError
            The server has no recorder.
        """
        name, version = checked_name(name), checked_version(version)
        recorder = self._recorder()
        if recorder is None:
            raise UnavailableError(
                "the recorder of this server is off", hint="nbtriton.Server(recorder=True)"
            )
        found = recorder.find(name, version)
        if name and not found:
            known = {history.name for history in recorder.find()}
            raise NotFoundError(
                f"Request for unknown model: '{name}' is not found", hint=nearest(name, known)
            )
        return found

    def resources(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return (used, size) of the rate limiter's resources, by name and device; -1 is the global one."""
        limiter = self._limiter()
        return limiter.resources() if limiter is not None else {}

    def forget(self, name: str) -> None:
        """Drop what was recorded of a model."""
        recorder = self._recorder()
        if recorder is not None:
            recorder.forget(name)

    def history(self) -> ServerHistory:
        """Return the last moments of all models; see `nbtriton.Server.history`."""
        recorder = self._recorder()
        models = []
        for model in self.models():
            history = recorder.history(model.name, model.version) if recorder is not None else None
            busy = model.queued + model.executing > 0
            models.append(
                ModelHistorySnapshot(
                    model,
                    history.moments() if history is not None else (),
                    history.changes() if history is not None else (),
                    self._inside_since_ns(model) if busy else 0,
                )
            )
        return ServerHistory(monotonic_ns(), tuple(models))

    def _inside_since_ns(self, model: ModelSnapshot) -> int:
        """Return the arrival of the oldest request in flight; 0 without one. A view asks all the time."""
        arrivals = [
            request.start_ns
            for one in self._runtimes()
            if (one.name, one.version) == (model.name, model.version)
            for request in one.requests_inside()
        ]
        return min(arrivals, default=0)

    def source(self, name: str) -> object:
        """Return the object that a model's highest version was made of; None for an ensemble."""
        return getattr(self._registry.resolve(name, -1), "source", None)

    def directory(self, name: str, version: int = -1) -> Path | None:
        """Return a model's directory; None for one that no files were loaded of."""
        return self._registry.resolve(name, version).directory

    def forms_own_batches(self, name: str, version: int = -1) -> bool:
        """Return True if custom batching decides what a batch of a version is."""
        runtime = self._registry.resolve(name, version)
        return isinstance(runtime, ModelRuntime) and runtime.forms_own_batches

    def served(self, name: str, version: int = -1) -> object:
        """Return what the instances of a version run: the source, or a module with its weights."""
        one = self._registry.resolve(name, version)
        return one.backend.served(one.context) if isinstance(one, ModelRuntime) else None


def _on_simulated(runtime: Runtime) -> dict[str, Any]:
    """Return what the statistics of a version on simulated GPUs say in addition: that, and their times."""
    context = getattr(runtime, "context", None)
    devices = getattr(context, "devices", None)
    if not isinstance(devices, DeviceSet) or devices.simulated is None:
        return {}
    if not any(enum_name(group, "kind") == "KIND_GPU" for group in runtime.config.instance_group):
        return {}
    return {
        "simulated": str(devices.simulated),
        "device_stats": [
            {
                "device": one.device,
                "operation": one.operation,
                "compute": {"count": one.count, "ns": one.time_ns},
            }
            for one in devices.ledger.computations()
            if one.owner == runtime.name
        ],
    }
