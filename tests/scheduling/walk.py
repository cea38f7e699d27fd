"""A seeded random walk over a scheduler, each step compared with its oracle.

One million steps of each: ``python -m tests.scheduling.walk --steps 1000000``
A failure names the seed of its episode: ``python -m tests.scheduling.walk --seed 1234 --steps 1``
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from random import Random
from time import perf_counter

from tests.scheduling.books import Books
from tests.scheduling.driver import Pair, random_request, random_settings, random_volume
from tests.scheduling.flow import random_flow
from tests.scheduling.order import Line
from tests.scheduling.sequence_oracle import US, SequencePair
from tests.scheduling.sequence_oracle import random_settings as random_sequences

EPISODE = 150
SEQUENCE_EPISODE = 200


def batcher_episode(random: Random) -> tuple[int, set[str]]:
    """Walk with one random configuration until nothing is left; steps, and reasons met."""
    config = random_settings(random)
    pair = Pair(
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
            give_up = pair.refuse if random.random() < 0.3 else pair.cancel
            give_up(random.randrange(max(0, len(pair.tickets) - 20), len(pair.tickets)))
        elif chance < load + 0.132:
            pair.clear()
        elif chance < load + 0.14 and len(pair.instances) < 5:
            pair.add_instance()
        elif chance < load + 0.15 and pair.instances:  # the last one too
            pair.remove_instance(random.choice(sorted(pair.instances)))
        elif wake is not None and random.random() < 0.6:
            pair.now = max(pair.now, wake)
            pair.tick()
        else:
            # Late timers too: the next fact may come long after `wake_at`.
            pair.now += random.choice((0, 1, 3, 10, 30, 100, 300))
            if wake is not None and wake <= pair.now and random.random() < 0.5:
                pair.tick()
            elif pair.busy:
                pair.finish(random.choice(list(pair.busy)))
    pair.drain()
    return pair.facts, pair.reasons


def ensemble_episode(random: Random) -> tuple[int, set[str]]:
    """Take one request through a random graph until nothing runs."""
    flow = random_flow(random)
    facts = 1
    answered: set[tuple[int, int]] = set()  # steps that are not decoupled answer once
    fails = random.random() < 0.1
    while flow.running:
        facts += 1
        at = random.randrange(len(flow.running))
        index, iteration = flow.running[at]
        if fails and random.random() < 0.05:
            flow.fail()
        elif index in flow.decoupled:
            if random.random() < 0.5 and flow.responses < EPISODE:
                flow.respond(at)
            else:
                flow.finish(at)
        elif (index, iteration) in answered or flow.failed:
            flow.finish(at)
        else:
            answered.add((index, iteration))
            (flow.answer if random.random() < 0.5 else flow.respond)(at)
    assert flow.done
    assert not flow.iterations
    if not flow.failed and not flow.decoupled:
        assert flow.emitted == [0]
        assert len(answered) == len(flow.needed)
    met = {"decoupled"} if flow.decoupled else {"one iteration"}
    return facts, met | ({"failed"} if flow.failed else set())


def order_episode(random: Random) -> tuple[int, set[str]]:
    """Let requests answer in any order until all have."""
    line = Line()
    facts = 0
    while facts < EPISODE or line.open:
        facts += 1
        if facts < EPISODE and (not line.open or random.random() < 0.4):
            line.accept(random)
        elif line.open:
            line.respond(random.randrange(len(line.open)), final=random.random() < 0.6)
    assert len(line.sent) == sum(map(len, line.made.values()))
    return facts, set()


def sequence_episode(random: Random) -> tuple[int, set[str]]:
    """Walk with one random configuration until nothing is left; facts, and reasons met."""
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
            if random.random() < 0.9:  # most clients know what they do
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
        elif wake is not None and random.random() < 0.5:
            pair.now = max(pair.now, wake)
            pair.tick()
        else:  # late timers too: the next fact may come long after `wake_at`
            pair.now += random.choice((0, 1, 40, 200, 1000, 40_000)) * US
            if wake is not None and wake <= pair.now and random.random() < 0.5:
                pair.tick()
    pair.drain()
    return pair.facts, pair.reasons


def limiter_episode(random: Random) -> tuple[int, set[str]]:
    """Let instances of random needs come, go and work."""
    books = Books(random)

    def add() -> None:
        names = [name for name in Books.NAMES if random.random() < 0.6]
        books.add(
            [(name, random.randint(1, 4)) for name in names],
            random.randrange(2),
            random.choice((0, 1, 1, 2, 5)),
        )

    for _ in range(random.randint(2, 6)):
        add()
    for _ in range(250):
        chance = random.random()
        idle = [key for key in books.members if key not in books.running]
        if chance < 0.03:
            add()
        elif chance < 0.06 and books.members:
            books.remove(random.choice(list(books.members)))
        elif chance < 0.5 and idle:
            books.stage(random.choice(idle))
        elif books.running:
            books.release(random.choice(list(books.running)), random.random() < 0.6)
    books.drain()
    return books.facts, set()


def walk(episode: Callable[[Random], tuple[int, set[str]]], steps: int, seed: int = 0):
    """Walk at least so many steps; answer how many there were, and what was met."""
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
