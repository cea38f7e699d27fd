"""The data of an explanation: the recent requests and batches of one model, and its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nbtriton.model.config import ModelConfig, is_ensemble
from nbtriton.runtime.engine import BatchRecord, RequestRecord


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that decide about batches; times in nanoseconds."""

    name: str
    max_batch_size: int = 0
    dynamic: bool = False
    delay_ns: int = 0
    preferred: tuple[int, ...] = ()
    max_queue_size: int = 0
    instances: int = 1
    kind: str = "KIND_CPU"
    ensemble: bool = False
    sequences: bool = False

    @classmethod
    def of(cls, config: ModelConfig) -> Settings:
        """Read the settings from a completed configuration."""
        batching = config.dynamic_batching
        groups = [group for group in config.instance_group if not group.passive]
        return cls(
            config.name,
            config.max_batch_size,
            config.HasField("dynamic_batching"),
            batching.max_queue_delay_microseconds * 1000,
            tuple(batching.preferred_batch_size),
            max(
                batching.default_queue_policy.max_queue_size,
                *(each.max_queue_size for each in batching.priority_queue_policy.values()),
                0,
            ),
            sum(max(1, group.count) * max(1, len(group.gpus)) for group in groups) or 1,
            "KIND_GPU" if any(group.gpus for group in groups) else "KIND_CPU",
            is_ensemble(config),
            config.HasField("sequence_batching"),
        )


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """The records of one model in the recorder's time span.

    Attributes
    ----------
    settings : Settings
    requests, batches : sequence of RequestRecord, of BatchRecord
        Oldest first, since the last change of the configuration.
    children : mapping of int to sequence of RequestRecord
        The requests, to any model, that a request led to, by its number.
    interpreter : str
        A sentence if its instances wait for each other's Python code, else empty.
    inside : str
        A sentence on the requests that are not answered yet; empty without any.
    """

    settings: Settings
    requests: Sequence[RequestRecord]
    batches: Sequence[BatchRecord]
    children: Mapping[int, Sequence[RequestRecord]] = field(default_factory=dict)
    interpreter: str = ""
    inside: str = ""

    @property
    def name(self) -> str:
        """The model's name."""
        return self.settings.name

    @property
    def span_s(self) -> float:
        """From the first arrival to the last response."""
        if not self.requests:
            return 0.0
        begin = min(request.arrival_ns for request in self.requests)
        return (max(request.answered_ns for request in self.requests) - begin) / 1e9

    @property
    def answered(self) -> list[RequestRecord]:
        """The requests without an error."""
        return [request for request in self.requests if not request.status]

    @property
    def busy(self) -> float:
        """The share of time in which the instances executed, 0 to 1."""
        if not self.batches:
            return 0.0
        begin, end = self.batches[0].start_ns, max(batch.end_ns for batch in self.batches)
        spent = sum(batch.end_ns - batch.start_ns for batch in self.batches)
        return min(1.0, spent / max(1, end - begin) / self.settings.instances)
