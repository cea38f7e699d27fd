"""Instances in processes: the gain of a second one, and the cost of the hop.

The same model.py in tritonserver, in this process's threads, and in workers, in one run.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache, partial
from statistics import median
from time import perf_counter_ns

import numpy as np
import torch
from torch import nn

import nbtriton
from bench.figures import Figure, Sides, Target, ratio_at_least, together, value_at_most
from bench.load import analyzer, in_process
from bench.models import DOUBLE, NOOP, Model, python_model
from bench.session import Session
from nbtriton.extensions.verify.reference import Reference, RunningServer

__all__ = ["FIGURES"]

IN_FLIGHT = 32
# Two for each of two instances: one waits while the other runs.
BUSY_IN_FLIGHT = 4
CALLS = 300
X = {"IN": np.ones((1, 16), np.float32)}
LARGE = {"IN": np.random.default_rng(0).random((1, 150528), np.float32)}
PROCESS = 'parameters { key: "INSTANCE_ISOLATION" value { string_value: "process" } }'

# Milliseconds of plain Python per request.
BUSY = python_model("busy", "out = x + sum(number * number for number in range(20_000)) * 0")
LARGE_ECHO = python_model("large", "out = x", dims="150528", out_dims="150528")
ECHO_SERVER = """
import socket, sys
end = socket.socket(fileno=int(sys.argv[1]))
while data := end.recv(1 << 16):
    end.sendall(data)
"""


class RowReader(nn.Module):
    """Recurrent network of the quickstart, which reads a picture row by row in both directions."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)
        self.rows = nn.GRU(16, 48, num_layers=2, batch_first=True, bidirectional=True)
        self.digit = nn.Linear(2 * 48, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return ten scores per picture."""
        read, _ = self.rows(images[:, 0])
        scores: torch.Tensor = self.digit(read.mean(1))
        return scores


RECURRENT = """
backend: "pytorch"
max_batch_size: 32
input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 1, 16, 16 ] }
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 10 ] }
"""


def apart(model: Model) -> Model:
    """Return a model with instances in processes."""
    return replace(model, name=f"{model.name}_apart", config=model.config + PROCESS)


def instances(model: Model, count: int) -> Model:
    """Return a model with a number of instances."""
    return replace(
        model,
        name=f"{model.name}_{count}",
        config=model.config.replace("count: 1", f"count: {count}"),
    )


@cache
def socket_pair() -> socket.socket:
    """Return a socket to a process that echoes messages until this process ends."""
    ours, theirs = socket.socketpair()
    subprocess.Popen(
        [sys.executable, "-c", ECHO_SERVER, str(theirs.fileno())], pass_fds=(theirs.fileno(),)
    )
    theirs.close()
    return ours


def hop_us(calls: int) -> list[float]:
    """Return the round-trip times of messages of 200 bytes to an echoing process."""
    end, message, times = socket_pair(), bytes(200), []
    for _ in range(calls):
        begin = perf_counter_ns()
        end.sendall(message)
        end.recv(1 << 16)
        times.append((perf_counter_ns() - begin) / 1000)
    return times


def request_us(server: nbtriton.Server, name: str, calls: int) -> list[float]:
    """Return the times of requests sent one at a time."""
    times = []
    inputs = LARGE if name.startswith("large") else X
    for _ in range(calls):
        begin = perf_counter_ns()
        server.infer(name, inputs)
        times.append((perf_counter_ns() - begin) / 1000)
    return times


def added(model: Model) -> Callable[[Session], AbstractContextManager[Sides]]:
    """Measure the cost of a process per request and of a bare socket pair, in turns of a few calls."""

    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        names = (model.name, apart(model).name)
        server = session.ours(model, apart(model))

        def measure() -> tuple[float, float]:
            here: list[float] = []
            there: list[float] = []
            bare: list[float] = []
            for _ in range(CALLS // 10):
                here += request_us(server, names[0], 10)
                there += request_us(server, names[1], 10)
                bare += hop_us(10)
            return median(there) - median(here), median(bare)

        measure()  # with cold caches
        yield together(measure)

    return sides


@contextmanager
def large(session: Session) -> Iterator[Sides]:
    server, ms = session.ours(LARGE_ECHO, apart(LARGE_ECHO)), session.interval_ms
    yield session.beside(
        (LARGE_ECHO,),
        lambda: median(request_us(server, "large_apart", CALLS)),
        lambda real, at: analyzer(real, at.grpc_url, "large", interval_ms=ms).p50_us,
    )


@contextmanager
def many(session: Session) -> Iterator[Sides]:
    models, ms = (DOUBLE, apart(DOUBLE)), session.interval_ms
    server = session.ours(*models)
    yield session.beside(
        (DOUBLE,),
        lambda: (
            in_process(server, "double_apart", X, concurrency=IN_FLIGHT, interval_ms=ms).infer_per_s
        ),
        lambda real, at: (
            analyzer(real, at.grpc_url, "double", concurrency=IN_FLIGHT, interval_ms=ms).infer_per_s
        ),
    )


@contextmanager
def one(session: Session) -> Iterator[Sides]:
    server, ms = session.ours(NOOP, apart(NOOP)), session.interval_ms
    yield session.beside(
        (NOOP,),
        lambda: in_process(server, "noop_apart", X, interval_ms=ms).p50_us,
        lambda real, at: analyzer(real, at.grpc_url, "noop", interval_ms=ms).p50_us,
    )


def second_instance(where: str) -> Callable[[Session], AbstractContextManager[Sides]]:
    """Measure the gain of a second instance for a model in plain Python, here and in tritonserver."""

    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        ms = session.interval_ms
        plain = instances(BUSY, 1), instances(BUSY, 2)
        ours = [apart(model) for model in plain] if where == "process" else list(plain)
        server = session.ours(*ours)

        def gain(rate: Callable[[str], float]) -> float:
            alone, both = (rate(model.name) for model in ours)
            return both / alone

        def here(name: str) -> float:
            return in_process(
                server, name, X, concurrency=BUSY_IN_FLIGHT, interval_ms=ms
            ).infer_per_s

        def there(real: Reference, at: RunningServer) -> float:
            rates = [
                analyzer(
                    real,
                    at.grpc_url,
                    model.name,
                    concurrency=BUSY_IN_FLIGHT,
                    interval_ms=ms,
                ).infer_per_s
                for model in plain
            ]
            return rates[1] / rates[0]

        yield session.beside(plain, partial(gain, here), there)

    return sides


@contextmanager
def recurrent(session: Session) -> Iterator[Sides]:
    ms = session.interval_ms
    inputs = {"INPUT__0": np.random.default_rng(0).random((8, 1, 16, 16), np.float32)}
    module = RowReader().eval()
    with nbtriton.Server(gpus=()) as server:
        for where, more in (("here", ""), ("apart", PROCESS)):
            for count in (1, 2):
                group = f"instance_group {{ count: {count} kind: KIND_CPU }}"
                server.load(RECURRENT + group + more, module, name=f"{where}_{count}")

        def gain(where: str) -> float:
            alone, both = (
                in_process(
                    server, f"{where}_{count}", inputs, concurrency=BUSY_IN_FLIGHT, interval_ms=ms
                ).infer_per_s
                for count in (1, 2)
            )
            return both / alone

        yield Sides(partial(gain, "apart"), partial(gain, "here"))


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()

FIGURES = (
    Figure(
        "workers.added", "what a process adds to a no-op request, p50",
        "us", "lower", "a bare socket pair, there and back", (value_at_most(80),), added(NOOP),
    ),
    Figure(
        "workers.one", "one request at a time to a worker, no-op python model, p50",
        "us", "lower", "tritonserver over gRPC", (ratio_at_least(1),), one,
    ),
    Figure(
        "workers.many", f"{IN_FLIGHT} in flight to one worker, dynamic batching",
        "infer/s", "higher", "tritonserver over gRPC",
        (Target("value", at_least=40_000), ratio_at_least(1)), many,
    ),
    Figure(
        "workers.large", "a tensor of 602 kB to a worker and back, p50",
        "us", "lower", "tritonserver over gRPC", (ratio_at_least(1),), large,
    ),
    Figure(
        "workers.scale", f"a second instance of a model in plain Python, processes, {CORES} cores",
        "x", "higher", "tritonserver", (Target("value", at_least=1.9), ratio_at_least(1)),
        second_instance("process"),
    ),
    Figure(
        "workers.threads", f"a second instance of a model in plain Python, threads, {CORES} cores",
        "x", "higher", "tritonserver", (), second_instance("thread"),
    ),
    Figure(
        "workers.recurrent", "a second instance of the quickstart's recurrent network, processes",
        "x", "higher", "in threads", (Target("value", at_least=1.7),), recurrent,
    ),
)  # fmt: skip
