"""How much of nbtriton's Python one request runs through, in pure Python."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import nbtriton as nt

SOURCES = str(Path(nt.__file__).parent)
X = {"IN": np.ones((1, 4), np.float32)}
CODE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(one, "IN").as_numpy() * 2)]
            )
            for one in requests
        ]
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
dynamic_batching { }
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
ensemble_scheduling {
  step { model_name: "model" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "T" } }
  step { model_name: "model" model_version: -1 input_map { key: "IN" value: "T" } output_map { key: "OUT" value: "OUT" } }
}
"""


@pytest.mark.skipif(nt.compiled, reason="compiled functions are not seen by a profile function")
@pytest.mark.parametrize(
    ("name", "calls_at_most", "files_at_most"), [("model", 70, 15), ("two_steps", 189, 19)]
)
def test_calls_and_files_inside_nbtriton_of_one_request(
    server: nt.Server, tmp_path: Path, name: str, calls_at_most: int, files_at_most: int
) -> None:
    """One more call for each request shows here, not only in a bench; so does one more file to read."""
    path = tmp_path / "model.py"
    path.write_text(CODE)
    server.load(CONFIG, path, name="model")
    server.load(ENSEMBLE, name="two_steps")
    for _ in range(3):  # what happens once is done
        server.infer(name, X)
    # The least of several: a collection, or the end of a moment of the recorder, may fall into one.
    calls = min((_calls(lambda: server.infer(name, X)) for _ in range(5)), key=Counter.total)
    assert calls.total() <= calls_at_most, calls
    files = {name.partition(" ")[0] for name in calls}
    assert len(files) <= files_at_most, sorted(files)


def _calls(run: Callable[[], object]) -> Counter[str]:
    """Return the calls of nbtriton's functions on this thread, by file and function."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCES):
            calls[f"{code.co_filename.removeprefix(SOURCES)} {code.co_qualname}"] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(before)
    return calls
