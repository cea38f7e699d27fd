"""A seeded random walk over a scheduler, each step compared with its oracle.

One million steps of each: ``python -m tests.scheduling.walk --steps 1000000``
A failure names the seed of its episode: ``python -m tests.scheduling.walk --seed 1234 --steps 1``
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from random import Random
from time import perf_counter

from tests.scheduling.driver import Pair, random_request, random_settings

EPISODE = 150


def batcher_episode(random: Random) -> tuple[int, set[str]]:
    """Walk with one random configuration until nothing is left; steps, and reasons met."""
    config = random_settings(random)
    pair = Pair(config, random.choice((1, 1, 2, 3)))
    shapes = random.choice((1, 1, 2, 4))
    load = random.choice((0.25, 0.5, 0.8))
    for _ in range(EPISODE):
        chance = random.random()
        wake = pair.batcher.wake_at()
        if chance < load:
            pair.submit(*random_request(random, config, shapes))
        elif chance < load + 0.1 and pair.busy:
            pair.finish(random.choice(list(pair.busy)))
        elif chance < load + 0.13 and pair.tickets:
            pair.cancel(random.randrange(max(0, len(pair.tickets) - 20), len(pair.tickets)))
        elif chance < load + 0.132:
            pair.clear()
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
    return EPISODE + len(pair.tickets), pair.reasons


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
        print(f"{episode.__name__}: {done} steps in {took:.1f} s; met {', '.join(sorted(met))}")


EPISODES = (batcher_episode,)

if __name__ == "__main__":
    main()
