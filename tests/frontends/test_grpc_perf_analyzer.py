"""The real C++ perf_analyzer against our gRPC endpoint: every way in which it drives a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")

from nbtriton.runtime.engine import Server
from nbtriton.serving.frontends import serve
from tests.frontends.measured import measured

pytestmark = [pytest.mark.reference, pytest.mark.slow]

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(
                "OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() * 2)])
            for request in requests
        ]
"""
CONFIG = """
name: "%s" max_batch_size: 16
input { name: "IN" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 16 ] }
%s
"""
SEQUENCE = """
sequence_batching {
  max_sequence_idle_microseconds: 600000000
  control_input { name: "START" control {
    kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
}
"""
ENSEMBLE = """
name: "twice" platform: "ensemble" max_batch_size: 16
input { name: "IN" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 16 ] }
ensemble_scheduling {
  step { model_name: "double" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "between" } }
  step { model_name: "double" model_version: -1
    input_map { key: "IN" value: "between" } output_map { key: "OUT" value: "OUT" } }
}
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    source: Path = tmp_path_factory.mktemp("model") / "model.py"
    source.write_text(MODEL)
    with Server(gpus=()) as server:
        server.load(CONFIG % ("double", "dynamic_batching { }"), source)
        server.load(CONFIG % ("follows", SEQUENCE), source)
        server.load(ENSEMBLE)
        with serve(server, http_port=None, metrics_port=None, grpc_port=0) as endpoints:
            yield server, f"127.0.0.1:{endpoints.grpc_port}"


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("double", "--concurrency-range 4"),
        ("double", "--async --concurrency-range 16"),
        ("double", "--async --streaming --concurrency-range 16"),
        ("double", "-b 4 --request-rate-range 200"),
        ("double", "--shared-memory system --output-shared-memory-size 1024 --concurrency-range 2"),
        ("double", "--grpc-compression-algorithm gzip --concurrency-range 2"),
        ("follows", "--concurrency-range 4 --sequence-length 5"),
        ("follows", "--async --streaming --concurrency-range 4 --sequence-length 5"),
        ("twice", "--concurrency-range 4"),
    ],
    ids=["sync", "async", "streaming", "request rate", "shared memory", "compression",
         "sequences", "sequences in a stream", "ensemble"],
)  # fmt: skip
def test_perf_analyzer(reference, served: tuple[Server, str], model: str, flags: str) -> None:
    server, url = served
    done = measured(reference, server, model, "-i", "grpc", "-u", url, *flags.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "throughput" in done.stdout
    # The breakdown comes from our statistics.
    assert "Inference count" in done.stdout
    assert "compute infer" in done.stdout
    assert "Failed" not in done.stdout + done.stderr
