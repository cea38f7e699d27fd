"""A model that calls another one: what a call costs beside the same model.py in tritonserver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from bench.figures import Figure, Sides, value_at_most
from bench.load import analyzer, in_process
from bench.models import NOOP, python_model
from bench.session import Session

__all__ = ["FIGURES"]

FEW, MANY = 1, 5
CALL = """
            for _ in range({calls}):
                answer = pb_utils.InferenceRequest(
                    model_name="noop",
                    requested_output_names=["OUT"],
                    inputs=[pb_utils.Tensor("IN", x)],
                ).exec()
                if answer.has_error():
                    raise pb_utils.TritonModelException(answer.error().message())
                x = pb_utils.get_output_tensor_by_name(answer, "OUT").as_numpy()
            out = x
""".strip()
MODELS = (
    NOOP,
    *(python_model(f"calls_{calls}", CALL.format(calls=calls)) for calls in (FEW, MANY)),
)
X = {"IN": np.ones((1, 16), np.float32)}


@contextmanager
def call(session: Session) -> Iterator[Sides]:
    """The difference between five calls in a row and one, for each of the four."""
    server, ms = session.ours(*MODELS), session.interval_ms

    def per_call(p50_us: Callable[[str], float]) -> float:
        return (p50_us(f"calls_{MANY}") - p50_us(f"calls_{FEW}")) / (MANY - FEW)

    yield session.beside(
        MODELS,
        lambda: per_call(lambda model: in_process(server, model, X, interval_ms=ms).p50_us),
        lambda real, at: per_call(
            lambda model: analyzer(real, at.grpc_url, model, interval_ms=ms).p50_us
        ),
    )


FIGURES = (
    Figure(
        "bls.call", "a call from model to model (BLS) on an idle server, p50",
        "us", "lower", "tritonserver", (value_at_most(30),), call,
    ),
)  # fmt: skip
