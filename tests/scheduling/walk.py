"""A seeded random walk over a scheduler, each step compared with its oracle.

One million steps of each: ``python -m tests.scheduling.walk --steps 1000000``
A failure names the seed of its episode: ``python -m tests.scheduling.walk --seed 1234 --steps 1``
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from random import Random
from time import perf_counter

from tests.scheduling.batcher_pair import (
    BatcherPair,
    random_request,
    random_settings,
    random_volume,
)
from tests.scheduling.ensemble_oracle import random_ensemble
from tests.scheduling.limiter_oracle import LimiterPair
from tests.scheduling.order_oracle import OrderPair
from tests.scheduling.sequence_oracle import US, SequencePair
from tests.scheduling.sequence_oracle import random_settings as random_sequences

EPISODE = 150
SEQUENCE_EPISODE = 200


def batcher_episode(random: Random) -> tuple[int, set[str]]:
    """Walk with one random configuration until nothing is left; return steps and reasons met."""
    config = random_settings(random)
    pair = BatcherPair(
        config, random.choice((1, 1, 2, 3)), random_volume(random), gated=random.random() < 0.3
    )
    shapes = random.choice((1, 1, 2, 4))
    load = random.choice((0.25, 0.5, 0.8))
    for _ in range(EPISODE):
        chance = random.random()
        wake = pair.batcher.wake_at()
        if chance < load / 20:
            many = [random_request(random, config, shapes) for _ in range(random.randrange(9))]
            pair.submit_many(many)
        elif chance < load:
            pair.submit(*random_request(random, config, shapes))
        elif chance < load + 0.04 and pair.staged:
            pair.grant(random.choice(sorted(pair.staged)))
        elif chance < load + 0.1 and pair.busy:
            pair.finish(random.choice(list(pair.busy)))
        elif chance < load + 0.13 and pair.tickets:
            cancel = pair.cancel_formed if random.random() < 0.3 else pair.cancel
            cancel(random.randrange(max(0, len(pair.tickets) - 20), len(pair.tickets)))
        elif chance < load + 0.132:
            pair.clear()
        elif chance < load + 0.14 and len(pair.instances) < 5:
            pair.add_instance()
        elif chance < load + 0.15 and pair.instances:  # the last one too
            pair.remove_instance(random.choice(sorted(pair.instances)))
        elif chance < load + 0.16 and pair.running_well:
            pair.suspend(random.choice(pair.running_well))
        elif chance < load + 0.18 and pair.suspended:
            pair.resume(random.choice(sorted(pair.suspended)))
        elif wake is not None and random.random() < 0.6:
            pair.now = max(pair.now, wake)
            pair.tick()
        else:
            # Late timers too: the next event may come long after `wake_at`.
            pair.now += random.choice((0, 1, 3, 10, 30, 100, 300))
            if wake is not None and wake <= pair.now and random.random() < 0.5:
                pair.tick()
            elif pair.busy:
                pair.finish(random.choice(list(pair.busy)))
    pair.drain()
    return pair.steps, pair.reasons


def ensemble_episode(random: Random) -> tuple[int, set[str]]:
    """Run one request through a random graph until no step runs."""
    pair = random_ensemble(random)
    steps = 1
    answered: set[tuple[int, int]] = set()  # steps that are not decoupled answer once
    fails = random.random() < 0.1
    while pair.running:
        steps += 1
        at = random.randrange(len(pair.running))
        index, iteration = pair.running[at]
        if fails and random.random() < 0.05:
            pair.fail()
        elif index in pair.decoupled:
            if random.random() < 0.5 and pair.responses < EPISODE:
                pair.respond(at)
            else:
                pair.finish(at)
        elif (index, iteration) in answered or pair.failed:
            pair.finish(at)
        else:
            answered.add((index, iteration))
            (pair.answer if random.random() < 0.5 else pair.respond)(at)
    assert pair.done
    assert not pair.iterations
    if not pair.failed and not pair.decoupled:
        assert pair.emitted == [0]
        assert len(answered) == len(pair.needed)
    met = {"decoupled"} if pair.decoupled else {"one iteration"}
    return steps, met | ({"failed"} if pair.failed else set())


def order_episode(random: Random) -> tuple[int, set[str]]:
    """Answer requests in any order until all are answered."""
    pair = OrderPair()
    steps = 0
    while steps < EPISODE or pair.open:
        steps += 1
        if steps < EPISODE and (not pair.open or random.random() < 0.4):
            pair.accept(random)
        elif pair.open:
            pair.respond(random.randrange(len(pair.open)), final=random.random() < 0.6)
    assert len(pair.sent) == sum(map(len, pair.made.values()))
    return steps, set()


def sequence_episode(random: Random) -> tuple[int, set[str]]:
    """Walk with one random configuration until nothing is left; return steps and reasons met."""
    pair = SequencePair(
        random_sequences(random), random.choice((1, 1, 2, 3)), gated=random.random() < 0.3
    )
    ids = random.choice((2, 5, 12))
    load = random.choice((0.3, 0.5, 0.75))
    for _ in range(SEQUENCE_EPISODE):
        chance = random.random()
        wake = pair.batcher.wake_at()
        if chance < load:
            name = random.randrange(ids + 1)
            if random.random() < 0.9:  # most clients use the flags correctly
                flags = (0 if name in pair.live else 1) | 2 * (random.random() < 0.3)
            else:
                flags = random.randrange(4)
            timeout = random.choice((0, 0, 0, 50, 1000)) * US
            size = 2 if random.random() < 0.01 else 1
            pair.submit(name, flags, timeout, random.choice((0, 0, 0, 1)), size)
        elif chance < load + 0.06 and pair.staged:
            pair.grant(random.choice(sorted(pair.staged)))
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
        elif chance < load + 0.19 and pair.running_well:
            pair.suspend(random.choice(pair.running_well))
        elif chance < load + 0.21 and pair.suspended:
            pair.resume(random.choice(sorted(pair.suspended)))
        elif wake is not None and random.random() < 0.5:
            pair.now = max(pair.now, wake)
            pair.tick()
        else:  # late timers too: the next event may come long after `wake_at`
            pair.now += random.choice((0, 1, 40, 200, 1000, 40_000)) * US
            if wake is not None and wake <= pair.now and random.random() < 0.5:
                pair.tick()
    pair.drain()
    return pair.steps, pair.reasons


def limiter_episode(random: Random) -> tuple[int, set[str]]:
    """Add, remove, stage and release instances of random needs."""
    pair = LimiterPair(random)

    def add() -> None:
        names = [name for name in LimiterPair.NAMES if random.random() < 0.6]
        pair.add(
            [(name, random.randint(1, 4)) for name in names],
            random.randrange(2),
            random.choice((0, 1, 1, 2, 5)),
        )

    for _ in range(random.randint(2, 6)):
        add()
    for _ in range(250):
        chance = random.random()
        idle = [key for key in pair.members if key not in pair.running]
        if chance < 0.03:
            add()
        elif chance < 0.06 and pair.members:
            pair.remove(random.choice(list(pair.members)))
        elif chance < 0.5 and idle:
            pair.stage(random.choice(idle))
        elif pair.running:
            pair.release(random.choice(list(pair.running)), random.random() < 0.6)
    pair.drain()
    return pair.steps, set()


def walk(episode: Callable[[Random], tuple[int, set[str]]], steps: int, seed: int = 0):
    """Walk at least this many steps; return their number and the reasons met."""
    done = 0
    met: set[str] = set()
    while done < steps:
        try:
            count, found = episode(Random(seed))
        except Exception as error:
            error.add_note(f"episode {episode.__name__}, seed {seed}")
            raise
        done += count
        met |= found
        seed += 1
    return done, met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for episode in EPISODES:
        start = perf_counter()
        done, met = walk(episode, options.steps, options.seed)
        took = perf_counter() - start
        print(f"{episode.__name__}: {done} steps in {took:.1f} s", *sorted(met))


EPISODES = (
    batcher_episode,
    sequence_episode,
    ensemble_episode,
    order_episode,
    limiter_episode,
)

if __name__ == "__main__":
    main()
