"""The schedulers under any sequence of events, each compared with its oracle at every step.

A million steps: ``python -m tests.scheduling.walk``.
"""

from __future__ import annotations

import pytest

from tests.scheduling.walk import EPISODES, walk

# The fewest in which every reason comes up: the seed is fixed, so more would be the same in each run.
STEPS = 20_000


@pytest.mark.medium
@pytest.mark.parametrize("episode", EPISODES, ids=lambda episode: episode.__name__)
def test_walk(episode):
    done, met = walk(episode, STEPS)
    print(f"\n{episode.__name__}: {done} steps")
    assert done >= STEPS
    assert met >= EXPECTED[episode.__name__]


EXPECTED = {
    # Every reason of a batcher.
    "batcher_episode": {
        "batching_off",
        "cancelled",
        "custom_batching",
        "custom_batching_failed",
        "custom_batching_refused",
        "joined",
        "max_batch_size",
        "max_queue_delay",
        "merged",
        "no_batch_dimension",
        "no_delay",
        "preferred_batch_size",
        "preferred_exceeded",
        "queue_full",
        "removed",
        "resources",
        "shape",
        "stopped",
        "timeout",
    },
    "ensemble_episode": {"decoupled", "failed", "one iteration"},
    "order_episode": set(),
    # Of both strategies, direct and oldest.
    "sequence_episode": {
        "cancelled",
        "max_batch_size",
        "max_queue_delay",
        "minimum_slot_utilization",
        "preferred_batch_size",
        "removed",
        "resources",
        "sequence_ready",
        "sequence_rule",
        "stopped",
        "timeout",
    },
    "limiter_episode": set(),
}
