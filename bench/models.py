"""Models of the benches, as text of the files for both sides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbtriton

__all__ = [
    "DOUBLE",
    "NOOP",
    "READ_ONLY",
    "Model",
    "chain",
    "ensemble",
    "load",
    "python_model",
    "write",
]

BATCH = 32
SMALL = "16"


@dataclass(frozen=True, slots=True)
class Model:
    """A model of a repository: ``config.pbtxt``, and ``model.py`` unless it is an ensemble."""

    name: str
    config: str
    code: str = ""
    dims: str = SMALL
    out_dims: str = SMALL


# nbtriton's parameter for inputs without a copy; unknown to Triton.
READ_ONLY = 'parameters { key: "READ_ONLY_INPUTS" value { string_value: "yes" } }'


def python_model(
    name: str,
    body: str,
    *,
    dims: str = SMALL,
    out_dims: str = SMALL,
    datatype: str = "FP32",
    extra: str = "",
) -> Model:
    """Return a python model from IN to OUT of a datatype; `body` makes ``out`` from ``x``."""
    config = f"""
backend: "python"
max_batch_size: {BATCH}
input {{ name: "IN" data_type: TYPE_{datatype} dims: [ {dims} ] }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [ {out_dims} ] }}
instance_group {{ count: 1 kind: KIND_CPU }}
dynamic_batching {{ }}
{extra}
"""
    code = f"""
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            {body}
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return responses
"""
    return Model(name, config, code, dims, out_dims)


NOOP = python_model("noop", "out = x")
DOUBLE = python_model("double", "out = x * 2")


def ensemble(name: str, steps: Sequence[Model]) -> Model:
    """Return an ensemble of models one after the other."""
    tensors = ["IN", *(f"T{index}" for index in range(1, len(steps))), "OUT"]
    each = "\n".join(
        f'  step {{ model_name: "{step.name}" model_version: -1'
        f' input_map {{ key: "IN" value: "{a}" }} output_map {{ key: "OUT" value: "{b}" }} }}'
        for step, a, b in zip(steps, tensors, tensors[1:], strict=False)
    )
    config = f"""
platform: "ensemble"
max_batch_size: {BATCH}
input {{ name: "IN" data_type: TYPE_FP32 dims: [ {steps[0].dims} ] }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [ {steps[-1].out_dims} ] }}
ensemble_scheduling {{
{each}
}}
"""
    return Model(name, config)


def chain(name: str, step: Model, steps: int) -> Model:
    """Return an ensemble of one model several times in a row."""
    return ensemble(name, [step] * steps)


def write(models: Iterable[Model], repository: Path) -> None:
    """Write a model repository."""
    for model in models:
        folder = repository / model.name
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(f'name: "{model.name}"\n{model.config}')
        if model.code:
            (folder / "1" / "model.py").write_text(model.code)


def load(server: nbtriton.Server, models: Iterable[Model], folder: Path) -> None:
    """Load the same files into nbtriton's server."""
    write(models, folder)
    for model in models:
        code = folder / model.name / "1" / "model.py" if model.code else None
        server.load(model.config, code, name=model.name)
