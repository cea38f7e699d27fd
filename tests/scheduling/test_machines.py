"""The schedulers under any sequence of events, each compared with its oracle at every step.

The walk is for volume, hypothesis for the shortest failing example. NBTRITON_WALK_STEPS sets the
steps per scheduler; a million: ``python -m tests.scheduling.walk``.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.scheduling.batcher_oracle import FAILS
from tests.scheduling.batcher_pair import BatcherPair, random_settings
from tests.scheduling.ensemble_oracle import random_ensemble
from tests.scheduling.order_oracle import OrderPair
from tests.scheduling.sequence_oracle import US, SequencePair
from tests.scheduling.sequence_oracle import random_settings as random_sequences
from tests.scheduling.walk import EPISODES, walk

# Fewer steps do not meet every reason.
STEPS = max(20_000, int(os.environ.get("NBTRITON_WALK_STEPS", "40000")))

randoms = st.randoms(use_true_random=False)


@pytest.mark.medium
@pytest.mark.timeout(60 + STEPS // 1000)
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


class InstancesMachine(RuleBasedStateMachine):
    """Instances that wait for resources, lose their processes and come back."""

    @precondition(lambda self: self.pair.staged)
    @rule(which=st.integers(0, 2))
    def grant(self, which):
        staged = sorted(self.pair.staged)
        self.pair.grant(staged[which % len(staged)])

    @precondition(lambda self: self.pair.running_well)
    @rule(which=st.integers(0, 3))
    def suspend(self, which):
        instances = self.pair.running_well
        self.pair.suspend(instances[which % len(instances)])

    @precondition(lambda self: self.pair.suspended)
    @rule(which=st.integers(0, 3))
    def resume(self, which):
        instances = sorted(self.pair.suspended)
        self.pair.resume(instances[which % len(instances)])

    def teardown(self):
        if hasattr(self, "pair"):
            self.pair.drain()


class BatcherMachine(InstancesMachine):
    """Requests arrive and are cancelled, instances finish, are added and removed, timers are late."""

    @initialize(
        random=randoms,
        instances=st.integers(1, 3),
        volume=st.sampled_from([None, 4, 12]),
        gated=st.booleans(),
    )
    def configure(self, random, instances, volume, gated):
        self.pair = BatcherPair(random_settings(random), instances, volume, gated=gated)

    @rule(
        share=st.floats(0, 1),
        key=st.integers(0, 1),
        level=st.integers(0, 3),
        timeout=st.sampled_from([0, 5, 50, 500]),
        volume=st.sampled_from([1, 3, 8, FAILS]),
    )
    def submit(self, share, key, level, timeout, volume):
        config = self.pair.config
        size = 1 + int(share * (max(1, config.max_batch_size) - 1))
        level = 1 + level % config.priority_levels if config.priority_levels else 0
        self.pair.submit(size, key, level, timeout, volume)

    @rule(shares=st.lists(st.floats(0, 1), max_size=8), key=st.integers(0, 1))
    def submit_many(self, shares, key):
        most = max(1, self.pair.config.max_batch_size) - 1
        level = min(1, self.pair.config.priority_levels)
        self.pair.submit_many([(1 + int(share * most), key, level, 5, 1) for share in shares])

    @precondition(lambda self: self.pair.busy)
    @rule(which=st.integers(0, 2))
    def finish(self, which):
        busy = sorted(self.pair.busy)
        self.pair.finish(busy[which % len(busy)])

    @precondition(lambda self: len(self.pair.instances) < 4)
    @rule()
    def add_instance(self):
        self.pair.add_instance()

    @precondition(lambda self: self.pair.instances)
    @rule(which=st.integers(0, 3))
    def remove_instance(self, which):
        instances = sorted(self.pair.instances)
        self.pair.remove_instance(instances[which % len(instances)])

    @precondition(lambda self: self.pair.tickets)
    @rule(back=st.integers(1, 12))
    def cancel(self, back):
        self.pair.cancel(max(0, len(self.pair.tickets) - back))

    @rule(by=st.sampled_from([1, 10, 100, 1000]))
    def pass_time(self, by):
        self.pair.now += by

    @rule()
    def tick(self):
        self.pair.tick()

    @precondition(lambda self: self.pair.batcher.wake_at() is not None)
    @rule()
    def wake(self):
        self.pair.now = max(self.pair.now, self.pair.batcher.wake_at())
        self.pair.tick()

    @precondition(lambda self: self.pair.waiting)
    @rule()
    def clear(self):
        self.pair.clear()


class SequenceMachine(InstancesMachine):
    """Requests of sequences arrive, in order or not; instances are added and removed."""

    @initialize(seed=st.integers(0, 10_000), instances=st.integers(1, 3), gated=st.booleans())
    def begin(self, seed: int, instances: int, gated: bool) -> None:
        self.pair = SequencePair(random_sequences(Random(seed)), instances, gated=gated)

    @rule(
        name=st.sampled_from([0, 1, 2, 3, 4, "a", "b"]),
        flags=st.integers(0, 3),
        timeout=st.sampled_from([0, 0, 30, 2000]),
        shape=st.integers(0, 1),
    )
    def submit(self, name, flags, timeout, shape):
        self.pair.submit(name, flags, timeout * US, shape)

    @rule(
        name=st.integers(1, 4),
        length=st.integers(1, 5),
        ends=st.booleans(),
        shape=st.integers(0, 1),
    )
    def submit_sequence(self, name, length, ends, shape):
        for number in range(length):
            flags = (number == 0) | 2 * (ends and number == length - 1)
            self.pair.submit(name, flags, 0, shape)

    @precondition(lambda self: self.pair.busy)
    @rule(pick=st.integers(0, 2), again=st.booleans())
    def finish(self, pick, again):
        busy = sorted(self.pair.busy)
        self.pair.finish(busy[pick % len(busy)], again)

    @precondition(lambda self: self.pair.tickets)
    @rule(back=st.integers(0, 15))
    def cancel(self, back):
        self.pair.cancel(max(0, len(self.pair.tickets) - 1 - back))

    @rule(by=st.sampled_from([0, 20, 200, 3000, 60_000]))
    def wait(self, by):
        self.pair.now += by * US

    @rule()
    def wake(self):
        wake = self.pair.batcher.wake_at()
        if wake is not None:
            self.pair.now = max(self.pair.now, wake)
        self.pair.tick()

    @precondition(lambda self: len(self.pair.staying) < 4)
    @rule()
    def add_instance(self):
        self.pair.add_instance()

    @precondition(lambda self: self.pair.staying)
    @rule(pick=st.integers(0, 3))
    def remove_instance(self, pick):
        staying = self.pair.staying
        self.pair.remove_instance(staying[pick % len(staying)])

    @rule()
    def clear(self):
        self.pair.clear()


class EnsembleMachine(RuleBasedStateMachine):
    """Steps respond, finish and fail in any order; one request after another."""

    def __init__(self):
        super().__init__()
        self.pair = None
        self.answered = set()

    @precondition(lambda self: not self.pair or not self.pair.running)
    @rule(random=randoms)
    def begin(self, random):
        self.pair = random_ensemble(random)
        self.answered = set()

    @precondition(lambda self: self.pair and self.pair.running)
    @rule(which=st.integers(0, 7))
    def respond(self, which):
        at = which % len(self.pair.running)
        if self.pair.running[at] in self.answered:
            return
        if self.pair.running[at][0] not in self.pair.decoupled:
            self.answered.add(self.pair.running[at])
        self.pair.respond(at)

    @precondition(lambda self: self.pair and self.pair.running)
    @rule(which=st.integers(0, 7))
    def answer(self, which):
        at = which % len(self.pair.running)
        if self.pair.running[at][0] in self.pair.decoupled:
            return
        if self.pair.running[at] in self.answered:
            return
        self.pair.answer(at)

    @precondition(lambda self: self.pair and self.pair.running)
    @rule(which=st.integers(0, 7))
    def finish(self, which):
        self.pair.finish(which % len(self.pair.running))

    @precondition(lambda self: self.pair and self.pair.running)
    @rule()
    def fail(self):
        self.pair.fail()

    @invariant()
    def done_when_nothing_runs(self):
        if self.pair:
            assert self.pair.done is (not self.pair.running)
            assert len(self.pair.emitted) == len(set(self.pair.emitted))

    def teardown(self):
        if self.pair:
            while self.pair.running:
                self.pair.finish(0)
            assert not self.pair.iterations


class OrderMachine(RuleBasedStateMachine):
    """Requests are answered in any order, with any number of responses."""

    def __init__(self):
        super().__init__()
        self.pair = OrderPair()

    @rule(random=randoms)
    def accept(self, random):
        self.pair.accept(random)

    @precondition(lambda self: self.pair.open)
    @rule(which=st.integers(0, 20), final=st.booleans())
    def respond(self, which, final):
        self.pair.respond(which % len(self.pair.open), final=final)


@pytest.mark.medium
@pytest.mark.parametrize(
    "machine", [BatcherMachine, SequenceMachine, EnsembleMachine, OrderMachine]
)
def test_machine(machine):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=80,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
