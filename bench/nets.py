"""Torch models of the benches: an MLP, a small CNN and a transformer of six layers, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from statistics import median
from time import perf_counter, process_time_ns

import torch
from torch import nn

__all__ = [
    "NETS", "PASSES", "SIZES", "Net", "Turn", "bare", "in_a_row_ns", "prepared", "seeded", "times_ns",
    "turns_of",
]  # fmt: skip

# Makes a number of calls, and returns the time of each in ns.
Turn = Callable[[int], list[int]]

# As OMP_NUM_THREADS of `make`: instances are the parallelism here, and the processor time of a second thread
# would count in calls to which it does not contribute.
torch.set_num_threads(1)

# The MLP gains up to this size.
LARGEST_BATCH = 512
SIZES = [2**exponent for exponent in range(LARGEST_BATCH.bit_length())]
# Passes and calls of the search for the best size.
PASSES, WHILE_NS = 3, 200_000_000


@dataclass(frozen=True, slots=True)
class Net:
    """A module and the shape of one row of its input."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    outputs: int

    def rows(self, count: int) -> torch.Tensor:
        """Return rows of input."""
        return torch.rand(count, *self.shape)

    def config(self, max_batch_size: int) -> str:
        """Return the configuration with dynamic batching."""
        return f"""
        backend: "pytorch"
        max_batch_size: {max_batch_size}
        input {{ name: "INPUT__0" data_type: TYPE_FP32 dims: {list(self.shape)} }}
        output {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ {self.outputs} ] }}
        instance_group {{ count: 1 kind: KIND_CPU }}
        dynamic_batching {{ preferred_batch_size: [ {max_batch_size} ] }}
        """


class Mean(nn.Module):
    """Mean over the tokens of a sequence."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 6), Mean())


NETS = (
    Net("mlp", mlp, (784,), 10),
    Net("cnn", cnn, (3, 64, 64), 10),
    Net("transformer", transformer, (32, 128), 128),
)


def turns_of(
    call: Callable[[], object], within: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Turn:
    """Return a function that makes some calls in a row, and returns the processor time of each in ns.

    One thread computes: on an idle machine this is the elapsed time, on a busy one the call's own time.
    """

    def turn(count: int) -> list[int]:
        took = []
        with within():
            for _ in range(count):
                begin = process_time_ns()
                call()
                took.append(process_time_ns() - begin)
        return took

    return turn


def bare(module: nn.Module, x: torch.Tensor) -> Turn:
    """Return turns of a loop that calls the module."""
    return turns_of(lambda: module(x), torch.inference_mode)


def times_ns(turns: Sequence[Turn], count: int, seconds: float) -> list[list[int]]:
    """Return the times of each side's calls, in turns of `count` calls."""
    took: list[list[int]] = [[] for _ in turns]
    end = perf_counter() + seconds
    while perf_counter() < end:
        for turn, times in zip(turns, took, strict=True):
            times.extend(turn(count))
    return took


def seeded(name: str) -> nn.Module:
    """Return the module of a net with the weights of seed 0, in evaluation mode."""
    (net,) = (net for net in NETS if net.name == name)
    torch.manual_seed(0)
    return net.make().eval()


@cache
def prepared(net: Net) -> tuple[nn.Module, int]:
    """Return the module, and the batch size with the highest throughput of a bare loop.

    Each pass over the sizes is evaluated separately, as the machine's speed may change between passes.
    """
    module = seeded(net.name)
    shares: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(PASSES):
        rates = {size: size / in_a_row_ns(bare(module, net.rows(size))) for size in SIZES}
        for size, rate in rates.items():
            shares[size].append(rate / sum(rates.values()))
    return module, max(SIZES, key=lambda size: median(shares[size]))


def in_a_row_ns(turn: Turn) -> float:
    """Return the median time of consecutive calls."""
    (first,) = turn(1)
    return median(turn(max(1, WHILE_NS // first)))
