"""Models and configurations of the repositories in these tests."""

from __future__ import annotations

from pathlib import Path

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(8)
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]})
        return config

    def initialize(self, args):
        self.factor = FACTOR * int(args["model_version"])

    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(r, "IN").as_numpy() for r in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.factor * v)]) for v in values
        ]

FACTOR = 1
"""
BROKEN = MODEL.replace(
    "self.factor = FACTOR", 'raise ValueError("no luck")\n        self.factor = 1'
)
ENSEMBLE = """
platform: "ensemble" max_batch_size: 4
input {{ name: "{into}" data_type: TYPE_FP32 dims: 4 }}
output {{ name: "{out}" data_type: TYPE_FP32 dims: 4 }}
ensemble_scheduling {{ step [ {{ model_name: "{member}" model_version: {version}
  input_map {{ key: "IN" value: "{into}" }} output_map {{ key: "OUT" value: "{out}" }} }} ] }}
"""
UNKNOWN = """
backend: "tensorrt"
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""


def times(factor: int) -> str:
    """A model that answers OUT = factor * version * IN."""
    return MODEL.replace("FACTOR = 1", f"FACTOR = {factor}")


def ensemble(member: str, *, version: int = -1, into: str = "IN", out: str = "OUT") -> str:
    """An ensemble of one step; with the default names it can be a step itself."""
    return ENSEMBLE.format(member=member, version=version, into=into, out=out)


def add(
    root: Path,
    name: str,
    *,
    config: str | None = None,
    source: str | None = MODEL,
    versions: tuple[str, ...] = ("1",),
) -> Path:
    """Write one model into a repository."""
    for version in versions:
        folder = root / name / version
        folder.mkdir(parents=True, exist_ok=True)
        if source is not None:
            (folder / "model.py").write_text(source)
    if config is not None:
        (root / name / "config.pbtxt").write_text(config)
    return root / name
