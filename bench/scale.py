"""Cost of scheduling with many waiting requests and many loaded models, which must stay constant.

Requests at four priority levels, each with a queue timeout, wait in one batcher; one instance runs batches
of four. Each measurement is the best of several without garbage collection, as other load can only add to
it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np

import nbtriton
from bench.figures import Figure, Sides, ratio_at_most
from bench.session import Session
from nbtriton.scheduling import Batcher, BatcherSettings, QueuePolicy, RunBatch, Ticket

__all__ = ["FIGURES"]

SECOND = 1_000_000_000
LEVELS = 4
BATCH = 4
STEPS = 100
REPEATS = 10
FEW_WAITING = 10
REQUESTS = 2000
CONFIG = """
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
"""


def waiting_batcher(waiting: int, delay_ns: int) -> Batcher:
    settings = BatcherSettings(
        max_batch_size=BATCH,
        dynamic=True,
        preferred=(BATCH,),
        max_queue_delay_ns=delay_ns,
        priority_levels=LEVELS,
        default_policy=QueuePolicy(default_timeout_ns=3600 * SECOND),
    )
    batcher = Batcher(settings, 1)
    batcher.submit(0, Ticket(BATCH, priority=1))
    for number in range(waiting):
        batcher.submit(number, Ticket(priority=1 + number % LEVELS))
    return batcher


class Turn:
    """Submits batches of requests to a batcher, forms as many batches, and measures both."""

    def __init__(self, waiting: int, delay_ns: int) -> None:
        self._batcher = waiting_batcher(waiting, delay_ns)
        self._waiting = waiting
        self._now = SECOND

    def cost_us(self) -> tuple[float, float]:
        """Return the microseconds of one submit and of one formed batch, the best of several."""
        gc.collect()
        gc.disable()
        try:
            costs = [self._once() for _ in range(REPEATS)]
        finally:
            gc.enable()
        assert self._batcher.waiting == self._waiting
        return min(a for a, _ in costs), min(b for _, b in costs)

    def _once(self) -> tuple[float, float]:
        batcher = self._batcher
        tickets = [Ticket(priority=1 + index % LEVELS) for index in range(BATCH * STEPS)]
        begin = perf_counter_ns()
        for ticket in tickets:
            self._now += 1
            batcher.submit(self._now, ticket)
            batcher.wake_at()
        middle = perf_counter_ns()
        for _ in range(STEPS):
            self._now += 1
            (run,) = batcher.finish(self._now, 0)
            assert isinstance(run, RunBatch)
            batcher.wake_at()
        end = perf_counter_ns()
        return (middle - begin) / len(tickets) / 1000, (end - middle) / STEPS / 1000


def waiting(
    count: int, which: int, delay_ns: int
) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(_session: Session) -> Iterator[Sides]:
        many, few = Turn(count, delay_ns), Turn(FEW_WAITING, delay_ns)
        yield Sides(lambda: many.cost_us()[which], lambda: few.cost_us()[which])

    return sides


def double(IN: Any) -> dict[str, Any]:  # noqa: N803  the tensor's name
    return {"OUT": IN * 2}


def p50_us(server: nbtriton.Server) -> float:
    x = {"IN": np.ones((1, 4), np.float32)}
    times = []
    for _ in range(REQUESTS):
        begin = perf_counter_ns()
        server.infer("model_0", x)
        times.append(perf_counter_ns() - begin)
    return median(times) / 1000


def loaded(count: int) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(_session: Session) -> Iterator[Sides]:
        with nbtriton.Server(gpus=()) as many, nbtriton.Server(gpus=()) as one:
            one.load(CONFIG, double, name="model_0")
            for number in range(count):
                many.load(CONFIG, double, name=f"model_{number}")
            yield Sides(lambda: p50_us(many), lambda: p50_us(one))

    return sides


FIGURES = (
    *(
        Figure(
            f"scale.{name}.{count}{suffix}", f"{words} with {count:,} waiting{beside}",
            "us", "flat", f"{FEW_WAITING} waiting", (ratio_at_most(2),),
            waiting(count, which, delay_ns), first=f"{count:,} waiting",
        )
        for which, (name, words) in enumerate((("submit", "one submit"), ("batch", "one batch")))
        for delay_ns, suffix, beside in ((0, "", ""), (SECOND // 1000, ".delay", ", delay 1 ms"))
        for count in (1_000, 100_000)
    ),
    *(
        Figure(
            f"scale.models.{count}", f"a request with {count:,} models loaded, p50",
            "us", "flat", "1 model", (ratio_at_most(2),), loaded(count), first=f"{count:,} models",
        )
        for count in (10, 1_000)
    ),
)  # fmt: skip
