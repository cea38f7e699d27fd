"""Overhead of a call around the torch module, with a fast and a slow module.

The module does nothing: it returns at once, or loops for some milliseconds without touching the processor's
caches. Plain Python without nbtriton is measured in the same way: if it also slows down after the loop, the
cause is the machine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter_ns
from typing import ClassVar

import torch

import nbtriton
from bench.figures import Figure, Sides
from bench.nets import Net
from bench.session import Session

__all__ = ["FIGURES"]

CALLS = 100
LONG_NS = 5_000_000


class Idle(torch.nn.Module):
    """Module that loops for a time, and records when it began and ended."""

    # Class attributes, as a server runs a copy of the module.
    ns: ClassVar[int] = 0
    began: ClassVar[int] = 0
    ended: ClassVar[int] = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Idle.began = perf_counter_ns()
        idle(Idle.ns)
        y = x + 1
        Idle.ended = perf_counter_ns()
        return y


NET = Net("idle", Idle, (4,), 4)


def idle(ns: int) -> None:
    """Loop for a time."""
    end = perf_counter_ns() + ns
    while perf_counter_ns() < end:
        pass


def overhead_us(call: Callable[[], object], ns: int) -> float:
    """Return the median time of a call without the module, which takes `ns`."""
    Idle.ns = ns
    times = []
    for _ in range(CALLS):
        begin = perf_counter_ns()
        call()
        times.append(perf_counter_ns() - Idle.ended + Idle.began - begin)
    return median(times) / 1000


def python_us(ns: int) -> float:
    """Return the median time of some plain Python after a loop of `ns`."""
    times = []
    for _ in range(CALLS):
        idle(ns)
        begin = perf_counter_ns()
        inspect.signature(overhead_us)
        times.append(perf_counter_ns() - begin)
    return median(times) / 1000


@contextmanager
def besides_the_module(_session: Session) -> Iterator[Sides]:
    """Prepare a call to a torch model."""
    inputs = {"INPUT__0": NET.rows(8)}
    with nbtriton.Server(gpus=()) as server:
        server.load(NET.config(8), NET.make().eval(), name=NET.name)

        def call() -> object:
            return server.infer(NET.name, inputs)

        yield Sides(lambda: overhead_us(call, 0), lambda: overhead_us(call, LONG_NS))


@contextmanager
def plain_python(_session: Session) -> Iterator[Sides]:
    """Prepare the plain Python to compare with."""
    yield Sides(lambda: python_us(0), lambda: python_us(LONG_NS))


FIGURES = (
    Figure(
        "torch.overhead", "what a call to a torch model costs besides the module",
        "us", "lower", "the module loops 5 ms over nothing", (), besides_the_module,
        first="it is done at once",
    ),
    Figure(
        "torch.overhead.python", "some plain Python, none of it nbtriton's, after a loop over nothing",
        "us", "lower", "of 5 ms", (), plain_python, first="of 0 ms",
    ),
)  # fmt: skip
