"""Settings of a scheduler, from a model's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import pack, unpack

from nbtriton.scheduling.queueing import QueuePolicy

__all__ = ["BatcherSettings", "SequenceSettings"]


@dataclass(slots=True, frozen=True)
class BatcherSettings:
    """The batcher's part of a model's configuration; times in nanoseconds.

    ``preferred``: the configured sizes, by default (max_batch_size,). ``hand_over_ns``: the time from
    the arrival of a request to its first scan; a queue timeout no longer than this expires even if an
    instance is idle (Q6).
    """

    max_batch_size: int = 0
    dynamic: bool = False
    preferred: tuple[int, ...] = ()
    max_queue_delay_ns: int = 0
    priority_levels: int = 0
    default_policy: QueuePolicy = field(default_factory=QueuePolicy)
    level_policies: Mapping[int, QueuePolicy] = field(default_factory=dict)
    hand_over_ns: int = 0


@dataclass(slots=True, frozen=True)
class SequenceSettings:
    """The sequence batcher's part of a model's configuration; times in nanoseconds.

    ``oldest``: the settings of each instance's dynamic batcher; None for the direct strategy.
    ``iterative``: a request is a sequence, and its model may reschedule it (IT1, IT2).
    """

    model_name: str
    max_batch_size: int = 0
    idle_ns: int = 1_000_000_000
    max_queue_delay_ns: int = 0
    minimum_slot_utilization: float = 0.0
    oldest: BatcherSettings | None = None
    max_candidate_sequences: int = 0
    iterative: bool = False

    @property
    def slots(self) -> int:
        """Slots per instance (SQ4)."""
        if self.oldest is not None and self.max_candidate_sequences > 0:
            return self.max_candidate_sequences
        return max(1, self.max_batch_size)

    @property
    def enough_slots(self) -> int:
        """Number of slots with a request that makes a batch before the delay ends (DI6)."""
        size = max(1, self.max_batch_size)
        # Triton divides and compares in single precision: 3 of 10 slots are 0.3.
        shares = (unpack("f", pack("f", ready / size))[0] for ready in range(1, size + 1))
        wanted = self.minimum_slot_utilization
        return next((n for n, share in enumerate(shares, 1) if share >= wanted), size + 1)
