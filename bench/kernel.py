"""Requests in the kernel compared with the same model.py in tritonserver over gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from bench.figures import Figure, Sides, ratio_at_least, value_at_most
from bench.load import analyzer, in_process
from bench.models import DOUBLE, NOOP
from bench.processor import IN_FLIGHT, processor_figure
from bench.session import Session

__all__ = ["FIGURES"]

MODELS = (NOOP, DOUBLE)
X = {"IN": np.ones((1, 16), np.float32)}


@contextmanager
def one(session: Session) -> Iterator[Sides]:
    server, ms = session.ours(*MODELS), session.interval_ms
    yield session.beside(
        MODELS,
        lambda: in_process(server, "noop", X, interval_ms=ms).p50_us,
        lambda real, running: analyzer(real, running.grpc_url, "noop", interval_ms=ms).p50_us,
    )


@contextmanager
def many(session: Session) -> Iterator[Sides]:
    server, ms = session.ours(*MODELS), session.interval_ms
    yield session.beside(
        MODELS,
        lambda: in_process(server, "double", X, concurrency=IN_FLIGHT, interval_ms=ms).infer_per_s,
        lambda real, running: (
            analyzer(
                real, running.grpc_url, "double", concurrency=IN_FLIGHT, interval_ms=ms
            ).infer_per_s
        ),
    )


FIGURES = (
    Figure(
        "kernel.one", "one request at a time, no-op python model, p50",
        "us", "lower", "tritonserver over gRPC",
        (ratio_at_least(8), value_at_most(20, aim=True)), one,
    ),
    Figure(
        "kernel.many", f"{IN_FLIGHT} in flight, dynamic batching",
        "infer/s", "higher", "tritonserver over gRPC", (ratio_at_least(5),), many,
    ),
    processor_figure("kernel.processor", "dynamic batching", MODELS, "double", X),
)  # fmt: skip
