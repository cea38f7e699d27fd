"""The torch models of the benches: an MLP, a small CNN and a transformer of six layers, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import median
from time import perf_counter, process_time_ns

import torch
from torch import nn

__all__ = ["NETS", "Net", "bare_rows_per_s", "prepared", "rows_per_s", "seeded"]

# Beyond 64 the MLP still gains a tenth.
LARGEST_BATCH = 256


@dataclass(frozen=True, slots=True)
class Net:
    """A module and the shape of one row of its input."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    outputs: int

    def rows(self, count: int) -> torch.Tensor:
        """Return so many rows of input."""
        return torch.rand(count, *self.shape)

    def config(self, max_batch_size: int) -> str:
        """Return its configuration, with dynamic batching."""
        return f"""
        backend: "pytorch"
        max_batch_size: {max_batch_size}
        input {{ name: "INPUT__0" data_type: TYPE_FP32 dims: {list(self.shape)} }}
        output {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ {self.outputs} ] }}
        instance_group {{ count: 1 kind: KIND_CPU }}
        dynamic_batching {{ preferred_batch_size: [ {max_batch_size} ] }}
        """


class Mean(nn.Module):
    """The mean over the tokens of a sequence."""

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


def rows_per_s(call: Callable[[], object], rows: int, seconds: float) -> float:
    """Return the throughput of calls in a row, by their median processor time.

    One thread computes, so on a machine with nothing else to do it is the time that passes; on a
    busy one it is what the call itself costs.
    """
    took: list[int] = []
    end = perf_counter() + seconds
    while perf_counter() < end:
        begin = process_time_ns()
        call()
        took.append(process_time_ns() - begin)
    return rows / median(took) * 1e9


def bare_rows_per_s(module: nn.Module, x: torch.Tensor, seconds: float) -> float:
    """Return the throughput of a loop that does nothing but call the module."""
    with torch.inference_mode():
        return rows_per_s(lambda: module(x), len(x), seconds)


def seeded(name: str) -> nn.Module:
    """Return the module of a net as seed 0 makes it, ready to infer."""
    (net,) = (net for net in NETS if net.name == name)
    torch.manual_seed(0)
    return net.make().eval()


@cache
def prepared(net: Net) -> tuple[nn.Module, int]:
    """Return the module, and the smallest batch with which a bare loop is within 3% of its best."""
    module = seeded(net.name)
    sizes = [2**at for at in range(LARGEST_BATCH.bit_length())]
    rates = {size: bare_rows_per_s(module, net.rows(size), 0.3) for size in sizes}
    return module, next(size for size in sizes if rates[size] >= 0.97 * max(rates.values()))
