"""Cost of a call from model to model, compared with the same model.py in tritonserver."""

from __future__ import annotations

import numpy as np

from bench.figures import Figure, value_at_most
from bench.marginal import marginal_cost
from bench.models import NOOP, python_model

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

FIGURES = (
    Figure(
        "bls.call", "a call from model to model (BLS) on an idle server, p50",
        "us", "lower", "tritonserver", (value_at_most(30),),
        marginal_cost(MODELS, "calls", FEW, MANY, X),
    ),
)  # fmt: skip
