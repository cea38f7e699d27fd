"""Scheduler settings from a model configuration: names and units change, rules do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.model.config import ModelConfig
from nbtriton.scheduling import (
    BatcherSettings,
    EnsemblePlan,
    QueuePolicy,
    SequenceSettings,
    Step,
    TimeoutAction,
)

# Triton's time from the arrival of a request to the scheduler's first look at it, if the model is
# idle: by then timeouts of 1 to 10 us had always expired, of 20 us mostly, of 100 us never.
_HAND_OVER_NS = 20_000


def batcher_settings(config: ModelConfig) -> BatcherSettings:
    """Return the batcher's settings; without ``dynamic_batching``, those of the default scheduler."""
    if not config.HasField("dynamic_batching"):
        return BatcherSettings(max_batch_size=config.max_batch_size)
    batching = config.dynamic_batching
    return BatcherSettings(
        max_batch_size=config.max_batch_size,
        dynamic=True,
        preferred=tuple(batching.preferred_batch_size),
        max_queue_delay_ns=batching.max_queue_delay_microseconds * 1000,
        priority_levels=batching.priority_levels,
        default_policy=_policy(batching.default_queue_policy),
        level_policies={
            level: _policy(policy) for level, policy in batching.priority_queue_policy.items()
        },
        hand_over_ns=_HAND_OVER_NS,
    )


def preserves_order(config: ModelConfig) -> bool:
    """Return whether responses leave in the order of their requests (D12, OL6)."""
    return bool(
        config.dynamic_batching.preserve_ordering
        or config.sequence_batching.oldest.preserve_ordering
    )


def sequence_settings(config: ModelConfig) -> SequenceSettings:
    """Return the settings of the sequence batcher; the strategy is direct by default."""
    batching = config.sequence_batching
    oldest = None
    if batching.HasField("oldest"):
        oldest = BatcherSettings(
            max_batch_size=config.max_batch_size,
            dynamic=True,
            preferred=tuple(batching.oldest.preferred_batch_size),
            max_queue_delay_ns=batching.oldest.max_queue_delay_microseconds * 1000,
        )
    return SequenceSettings(
        model_name=config.name,
        max_batch_size=config.max_batch_size,
        idle_ns=batching.max_sequence_idle_microseconds * 1000,
        max_queue_delay_ns=batching.direct.max_queue_delay_microseconds * 1000,
        minimum_slot_utilization=batching.direct.minimum_slot_utilization,
        oldest=oldest,
        max_candidate_sequences=batching.oldest.max_candidate_sequences,
        iterative=batching.iterative_sequence,
    )


def ensemble_plan(config: ModelConfig) -> EnsemblePlan:
    """Return the dataflow of an ensemble.

    A protobuf map has a different order in each process; here it is ordered by name.
    """
    return EnsemblePlan(
        [
            Step(
                step.model_name,
                step.model_version,
                dict(sorted(step.input_map.items())),
                dict(sorted(step.output_map.items())),
            )
            for step in config.ensemble_scheduling.step
        ],
        [tensor.name for tensor in config.input],
        [tensor.name for tensor in config.output],
    )


def _policy(policy: Any) -> QueuePolicy:
    return QueuePolicy(
        timeout_action=TimeoutAction(policy.timeout_action),
        default_timeout_ns=policy.default_timeout_microseconds * 1000,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )


def parse_resources(texts: Sequence[str]) -> dict[tuple[str, int | None], int]:
    """Read ``--rate-limit-resource`` values: ``name:count`` or ``name:count:device``.

    Raises
    ------
    InvalidArgumentError
        With Triton's text (R4).
    """
    limits: dict[tuple[str, int | None], int] = {}
    for text in texts:
        parts = text.split(":")
        try:
            name, count = parts[0], int(parts[1])
            device = int(parts[2]) if len(parts) == 3 else None
        except (IndexError, ValueError):
            name = ""
        if not name or len(parts) > 3:
            raise InvalidArgumentError(
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or "
                f"'<resource_name>:<count>'. Got {text}"
            )
        limits[name.lower(), device] = count
    return limits
