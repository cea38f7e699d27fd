"""Cost of the recorder: two servers in this process, with and without it, measured in turns.

An idle server's throughput is limited by the processor time of a request.
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
# Processor time of a turn: so short that the machine's speed is the same for both sides of a pair of turns.
TURN_S = 0.02

Load = Callable[[nbtriton.Server], int]


def sequential(model: str) -> Load:
    """Return a load of ten requests, one after another."""

    def submit(server: nbtriton.Server) -> int:
        for _ in range(10):
            server.infer(model, X)
        return 10

    return submit


def burst(model: str) -> Load:
    """Return a load that submits a number of requests and waits for all."""

    def submit(server: nbtriton.Server) -> int:
        futures = [server.submit(model, X) for _ in range(IN_FLIGHT)]
        for future in futures:
            future.result()
        return IN_FLIGHT

    return submit


def spent_us(server: nbtriton.Server, submit: Load) -> float:
    """Return the processor time of a request in one turn, of all threads; other programs do not count."""
    count, spent = 0, 0.0
    begin = process_time()
    while spent < TURN_S:
        count += submit(server)
        spent = process_time() - begin
    return spent / count * 1e6


def beside(submit: Load) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        with (
            nbtriton.Server(gpus=(), recorder=True) as on,
            nbtriton.Server(gpus=(), recorder=False) as off,
        ):
            for server in (on, off):
                load(server, MODELS, session.folder())
                # Full rings, in which an entry replaces another.
                for _ in range(int(2500 / IN_FLIGHT)):
                    burst("noop")(server)
                    submit(server)

            def measure() -> tuple[float, float]:
                gc.collect()
                turns = max(10, int(session.interval_ms / 1000 / TURN_S) * 2)
                pairs = []
                for turn in range(turns):
                    order = (on, off) if turn % 2 else (off, on)
                    found = {id(server): spent_us(server, submit) for server in order}
                    pairs.append((found[id(on)], found[id(off)]))
                without = median(b for _, b in pairs)
                return without * median(a / b for a, b in pairs), without

            yield together(measure)

    return sides


FIGURES = tuple(
    Figure(
        f"recorder.{name}", f"{title}: processor time of a request", "us", "lower", "recorder off",
        (ratio_at_least(0.97),), beside(submit), first="recorder on",
    )
    for name, title, submit in (
        ("one", "one request at a time, no-op python model", sequential("noop")),
        ("many", f"{IN_FLIGHT} in flight, dynamic batching", burst("double")),
        ("steps", f"{STEPS}-step ensemble, one request at a time", sequential(f"steps_{STEPS}")),
        ("steps_many", f"{STEPS}-step ensemble, {IN_FLIGHT} in flight", burst(f"steps_{STEPS}")),
    )
)  # fmt: skip
