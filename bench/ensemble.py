"""Ensembles in the kernel compared with the same repository in tritonserver: throughput, and one more step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np

from bench.figures import Figure, Sides, ratio_at_least, value_at_most
from bench.load import analyzer, in_process
from bench.marginal import marginal_cost
from bench.models import NOOP, chain
from bench.processor import IN_FLIGHT, processor_figure
from bench.session import Session

__all__ = ["FIGURES"]

FEW, MANY = 2, 8
MODELS = (NOOP, *(chain(f"steps_{steps}", NOOP, steps) for steps in (FEW, MANY)))
X = {"IN": np.ones((1, 16), np.float32)}


def in_flight(steps: int) -> Callable[[Session], AbstractContextManager[Sides]]:
    model = f"steps_{steps}"

    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        server, ms = session.ours(*MODELS), session.interval_ms
        yield session.beside(
            MODELS,
            lambda: in_process(server, model, X, concurrency=IN_FLIGHT, interval_ms=ms).infer_per_s,
            lambda real, running: (
                analyzer(
                    real, running.grpc_url, model, concurrency=IN_FLIGHT, interval_ms=ms
                ).infer_per_s
            ),
        )

    return sides


FIGURES = (
    *(
        Figure(
            f"ensemble.{name}", f"{name}-step ensemble, {IN_FLIGHT} in flight",
            "infer/s", "higher", "tritonserver over gRPC", (ratio_at_least(10),), in_flight(steps),
        )
        for name, steps in (("two", FEW), ("eight", MANY))
    ),
    *(
        processor_figure(f"ensemble.processor.{name}", f"{name}-step ensemble", MODELS, f"steps_{steps}", X)
        for name, steps in (("two", FEW), ("eight", MANY))
    ),
    Figure(
        "ensemble.step", "each further ensemble step on an idle server, p50",
        "us", "lower", "tritonserver", (value_at_most(10),),
        marginal_cost(MODELS, "steps", FEW, MANY, X),
    ),
)  # fmt: skip
