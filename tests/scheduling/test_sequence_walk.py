"""Random traffic through `SequenceBatcher`, every step compared with the naive rules.

More steps: ``NBTRITON_WALK_STEPS=1000000 pytest tests/scheduling/test_sequence_walk.py``. A failure
names the seed of its episode.
"""

from __future__ import annotations

import os
from random import Random

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.scheduling.sequence_oracle import US, SequencePair, random_settings

STEPS = int(os.environ.get("NBTRITON_WALK_STEPS", "100000"))
EPISODE = 200


def episode(random: Random) -> tuple[int, set[str]]:
    """Walk with one random configuration until nothing is left; facts, and reasons met."""
    pair = SequencePair(random_settings(random), random.choice((1, 1, 2, 3)))
    ids = random.choice((2, 5, 12))
    load = random.choice((0.3, 0.5, 0.75))
    for _ in range(EPISODE):
        chance = random.random()
        wake = pair.batcher.wake_at()
        if chance < load:
            name = random.randrange(ids + 1)
            if random.random() < 0.9:  # most clients know what they do
                flags = (0 if name in pair.live else 1) | 2 * (random.random() < 0.3)
            else:
                flags = random.randrange(4)
            timeout = random.choice((0, 0, 0, 50, 1000)) * US
            size = 2 if random.random() < 0.01 else 1
            pair.submit(name, flags, timeout, random.choice((0, 0, 0, 1)), size)
        elif chance < load + 0.12 and pair.busy:
            pair.finish(random.choice(list(pair.busy)), random.random() < 0.5)
        elif chance < load + 0.16 and pair.tickets:
            pair.cancel(random.randrange(max(0, len(pair.tickets) - 20), len(pair.tickets)))
        elif chance < load + 0.162:
            pair.clear()
        elif chance < load + 0.17 and len(pair.staying) < 4:
            pair.add_instance()
        elif chance < load + 0.18 and pair.staying:  # the last one too
            pair.remove_instance(random.choice(pair.staying))
        elif wake is not None and random.random() < 0.5:
            pair.now = max(pair.now, wake)
            pair.tick()
        else:  # late timers too: the next fact may come long after `wake_at`
            pair.now += random.choice((0, 1, 40, 200, 1000, 40_000)) * US
            if wake is not None and wake <= pair.now and random.random() < 0.5:
                pair.tick()
    pair.drain()
    return pair.facts, pair.reasons


def test_a_random_walk_keeps_every_rule():
    done = seed = 0
    met: set[str] = set()
    while done < STEPS:
        try:
            count, found = episode(Random(seed))
        except Exception as error:
            error.add_note(f"episode with seed {seed}")
            raise
        done += count
        met |= found
        seed += 1
    assert met >= {
        "sequence_ready", "minimum_slot_utilization", "max_queue_delay", "preferred_batch_size",
        "max_batch_size", "sequence_rule", "timeout", "cancelled", "stopped", "removed",
    }  # fmt: skip


class SequenceMachine(RuleBasedStateMachine):
    """The same in small steps that hypothesis can shrink."""

    @initialize(seed=st.integers(0, 10_000), instances=st.integers(1, 3))
    def begin(self, seed: int, instances: int) -> None:
        self.pair = SequencePair(random_settings(Random(seed)), instances)

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

    def teardown(self):
        if hasattr(self, "pair"):
            self.pair.drain()


TestSequenceMachine = SequenceMachine.TestCase
TestSequenceMachine.settings = hypothesis_settings(
    max_examples=max(40, STEPS // 1500), stateful_step_count=40, deadline=None
)
