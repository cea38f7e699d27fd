"""Make the pictures of the README: a pipeline is built, asked and measured, and its views are saved.

    python scripts/pictures.py

The models wait as long as theirs would compute, so that the pictures are alike on every machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import nbtriton as nt

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
TENSORS = """input [ { name: "IN" data_type: TYPE_FP32 dims: [ 64 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 64 ] } ]"""


def waiting(first_ms: float, row_ms: float) -> Callable[..., dict[str, Any]]:
    """Return a model whose batch takes so long, and so much longer for each further row."""

    def execute(IN: "FP32[64]") -> {"OUT": "FP32[64]"}:  # noqa: F821, N803, UP037
        time.sleep((first_ms + row_ms * (len(IN) - 1)) / 1000)
        return {"OUT": IN}

    return execute


def step(model: str, takes: str, gives: str) -> str:
    """Return a step of an ensemble, from a tensor to a tensor."""
    return (
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "IN" value: "{takes}" }} '
        f'output_map {{ key: "OUT" value: "{gives}" }} }}'
    )


def load(server: nt.Server) -> None:
    """Load a pipeline: a preprocessing step, and two models side by side."""
    batching = "max_batch_size: 8 dynamic_batching { }"
    server.load(batching, model=waiting(1, 0.1), name="preprocess")
    server.load(batching, model=waiting(6, 0.4), name="classify")
    server.load(batching, model=waiting(4, 0.3), name="segment")
    steps = step("preprocess", "IMAGE", "pixels") + step("classify", "pixels", "CLASS")
    steps += step("segment", "pixels", "MASK")
    ends = 'input [ { name: "IMAGE" data_type: TYPE_FP32 dims: [ 64 ] } ]' + "".join(
        f'output [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ 64 ] }} ]' for name in ("CLASS", "MASK")
    )  # fmt: skip
    server.load(
        f'platform: "ensemble" max_batch_size: 8 {ends} ensemble_scheduling {{ {steps} }}',
        name="pipeline",
    )


def main() -> None:
    """Write the pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with nt.Server(gpus=()) as server:
        load(server)
        server.infer("pipeline", {"IMAGE": np.ones((1, 64), np.float32)})
        report = nt.perf(
            server, "pipeline", concurrency=[1, 2, 4, 8, 16], dynamic_batching=[False, True],
            measurement_interval_ms=400,
        )  # fmt: skip
        report.save(PICTURES / "curves.svg")
        nt.perf(server, "pipeline", concurrency=8, measurement_interval_ms=400)
        nt.dag(server, "pipeline").save(PICTURES / "graph.svg")
        nt.timeline(server, "pipeline", span_ms=60).save(PICTURES / "timeline.svg")


if __name__ == "__main__":
    main()
