"""What the recorder costs: two servers in this process, with it and without, asked in turns.

An idle server's throughput is what the processor time of a request allows.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from statistics import median
from time import process_time

import numpy as np

import nbtriton
from bench.figures import Figure, Sides, ratio_at_least, together
from bench.models import DOUBLE, NOOP, chain, load
from bench.processor import IN_FLIGHT
from bench.session import Session

__all__ = ["FIGURES"]

STEPS = 8
MODELS = (NOOP, DOUBLE, chain(f"steps_{STEPS}", NOOP, STEPS))
X = {"IN": np.ones((1, 16), np.float32)}
# A turn takes so much processor time: so little that the machine is the same for both sides of a pair of turns.
TURN_S = 0.02

Load = Callable[[nbtriton.Server], int]


def one(model: str) -> Load:
    """Return a load that asks one request after another, ten at a go."""

    def ask(server: nbtriton.Server) -> int:
        for _ in range(10):
            server.infer(model, X)
        return 10

    return ask


def burst(model: str) -> Load:
    """Return a load that keeps a number of requests in flight, and waits for all of them."""

    def ask(server: nbtriton.Server) -> int:
        futures = [server.submit(model, X) for _ in range(IN_FLIGHT)]
        for future in futures:
            future.result()
        return IN_FLIGHT

    return ask


def spent_us(server: nbtriton.Server, ask: Load) -> float:
    """Return the processor time of a request of one turn: all threads', so that other work counts least."""
    count, spent = 0, 0.0
    begin = process_time()
    while spent < TURN_S:
        count += ask(server)
        spent = process_time() - begin
    return spent / count * 1e6


def beside(ask: Load) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        with (
            nbtriton.Server(gpus=(), recorder=True) as on,
            nbtriton.Server(gpus=(), recorder=False) as off,
        ):
            for server in (on, off):
                load(server, MODELS, session.folder())
                # The rings are full: an entry pushes out another one.
                for _ in range(int(2500 / IN_FLIGHT)):
                    burst("noop")(server)
                    ask(server)

            def measure() -> tuple[float, float]:
                gc.collect()
                turns = max(10, int(session.interval_ms / 1000 / TURN_S) * 2)
                pairs = []
                for at in range(turns):
                    order = (on, off) if at % 2 else (off, on)
                    found = {id(server): spent_us(server, ask) for server in order}
                    pairs.append((found[id(on)], found[id(off)]))
                without = median(b for _, b in pairs)
                return without * median(a / b for a, b in pairs), without

            yield together(measure)

    return sides


FIGURES = tuple(
    Figure(
        f"recorder.{name}", f"{title}: processor time of a request", "us", "lower", "recorder off",
        (ratio_at_least(0.97),), beside(ask), first="recorder on",
    )
    for name, title, ask in (
        ("one", "one request at a time, no-op python model", one("noop")),
        ("many", f"{IN_FLIGHT} in flight, dynamic batching", burst("double")),
        ("steps", f"{STEPS}-step ensemble, one request at a time", one(f"steps_{STEPS}")),
        ("steps_many", f"{STEPS}-step ensemble, {IN_FLIGHT} in flight", burst(f"steps_{STEPS}")),
    )
)  # fmt: skip
