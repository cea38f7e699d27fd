"""The newest C++ perf_analyzer: the ways in which it drives a server, over HTTP and gRPC."""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.until import until

__all__ = ["ON_TRITON", "OPENAI", "Addresses", "Analyzer", "write_models"]

REQUESTS = 60
_TIMEOUT_S = 100

_CONFIG = """
name: "{name}" backend: "python" max_batch_size: 16
input [{{ name: "IN" data_type: TYPE_{datatype} dims: [ {dims} ] }}]
output [{{ name: "OUT" data_type: TYPE_{datatype} dims: [ {dims} ] }}]
{extra}
"""
_ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(one, "IN").as_numpy() for one in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one)]) for one in given]
"""
_THREE_TIMES = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            sender = request.get_response_sender()
            for _ in range(3):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_SEQUENCE = """
sequence_batching { max_sequence_idle_microseconds: 60000000 control_input [{ name: "START" control [{
  kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }] }] }
"""
_TWICE = """
name: "twice" platform: "ensemble" max_batch_size: 16
input [{ name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }]
ensemble_scheduling { step [
  { model_name: "echo" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "between" } },
  { model_name: "echo" model_version: -1
    input_map { key: "IN" value: "between" } output_map { key: "OUT" value: "OUT" } } ] }
"""
_MODELS = {
    "echo": ("FP32", "4", "dynamic_batching { }", _ECHO),
    "strings": ("STRING", "1", "", _ECHO),
    "flexible": ("INT32", "-1", "", _ECHO),
    "sequence": ("FP32", "4", _SEQUENCE, _ECHO),
    "three": ("FP32", "4", "model_transaction_policy { decoupled: true }", _THREE_TIMES),
}


def write_models(repository: Path) -> None:
    """Lay the models out that `ON_TRITON` asks."""
    for name, (datatype, dims, extra, code) in _MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        config = _CONFIG.format(name=name, datatype=datatype, dims=dims, extra=extra)
        (repository / name / "config.pbtxt").write_text(config)
        (repository / name / "1" / "model.py").write_text(code)
    (repository / "twice" / "1").mkdir(parents=True)
    (repository / "twice" / "config.pbtxt").write_text(_TWICE)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a server listens, as ``host:port``."""

    http: str
    grpc: str
    metrics: str
    openai: str = ""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to drive a server; its flags name files of `_inputs` and the addresses in braces.

    ``requests`` is 0 where perf_analyzer takes no count. ``responses`` are those that it sees of each
    request, 0 for any number; ``served`` is how many requests that is for the server.
    """

    flags: str
    protocols: tuple[str, ...] = ("http", "grpc")
    requests: int = REQUESTS
    responses: int = 1
    served: int = 1


_WINDOW = "--measurement-interval 300 --stability-percentage 999"
ON_TRITON: Mapping[str, Mode] = {
    "sync": Mode("-m echo --sync --concurrency-range 2"),
    "async": Mode("-m echo --async --concurrency-range 8"),
    "batches": Mode("-m echo -b 4"),
    "data whose outputs it checks": Mode("-m echo --input-data {checked}"),
    "strings": Mode("-m strings --string-length 12"),
    "variable shape": Mode("-m flexible --shape IN:32"),
    "warm-up": Mode("-m echo --warmup-request-count 20"),
    "request rate": Mode("-m echo --request-rate-range 50 --request-distribution poisson"),
    "intervals": Mode("-m echo --request-intervals {intervals}"),
    "shared memory": Mode("-m echo --shared-memory system"),
    "sequences": Mode("-m sequence --concurrency-range 4 --sequence-length 5"),
    "sequences at a rate": Mode(
        "-m sequence --request-rate-range 50 --num-of-sequences 4 --serial-sequences"
    ),
    "ensemble": Mode("-m twice --async --concurrency-range 4"),
    "binary search": Mode(
        f"-m echo {_WINDOW} --concurrency-range 1:4:1 --binary-search -l 10000", requests=0
    ),
    "metrics": Mode(
        f"-m echo {_WINDOW} --collect-metrics --verbose-csv --metrics-url {{metrics}}/metrics"
        " --metrics-interval 50", requests=0,
    ),
    "tensors in JSON": Mode(
        "-m echo --input-tensor-format json --output-tensor-format json", ("http",)
    ),
    "stream": Mode("-m echo --async --streaming --concurrency-range 8", ("grpc",)),
    "sequences in a stream": Mode(
        "-m sequence --async --streaming --concurrency-range 4 --sequence-length 5", ("grpc",)
    ),
    # The fourth says that there are no more.
    "decoupled": Mode("-m three --async --streaming", ("grpc",), responses=4),
    "rising concurrency": Mode(
        "-m three --async --streaming --periodic-concurrency-range 1:8:1 --request-period 3",
        ("grpc",), requests=0, responses=4,
    ),
    "compression": Mode("-m echo --grpc-compression-algorithm gzip", ("grpc",)),
    "request parameters": Mode("-m echo --request-parameter size:7:int", ("grpc",)),
    # It sees the end of a stream of three requests, and not whether they failed.
    "any method": Mode(
        "-m echo --service-kind dynamic_grpc --grpc-method"
        " inference.GRPCInferenceService/ModelStreamInfer --input-data {messages}",
        ("grpc",), served=3,
    ),
}  # fmt: skip
_CHAT = "-m words --service-kind openai --endpoint v1/chat/completions --async"
OPENAI: Mapping[str, Mode] = {
    "chat": Mode(f"{_CHAT} --input-data {{chats}}", ("openai",)),
    # The four words, and what ends the stream: their last pieces may come at once.
    "chat in a stream": Mode(
        f"{_CHAT} --concurrency-range 4 --input-data {{streams}}", ("openai",), responses=0
    ),
    "schedule": Mode(
        f"{_CHAT} --fixed-schedule --input-data {{schedule}}", ("openai",), requests=0
    ),
    "chats of several turns": Mode(
        f"{_CHAT} --session-concurrency 2 --input-data {{sessions}}", ("openai",), requests=0
    ),
}  # fmt: skip


def _chat(number: int, *, stream: bool = False) -> dict[str, Any]:
    said = [{"role": "user", "content": f"say {number}"}]
    return {"payload": [{"model": "words", "messages": said, "max_tokens": 4, "stream": stream}]}


# Written by the environment's own tritonclient: a stream is several messages, each after its length.
_GENERATOR = """
import sys
from tritonclient.grpc import service_pb2 as pb

for _ in range(3):
    request = pb.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(16)])
    request.inputs.add(name="IN", datatype="FP32", shape=[1, 4])
    data = request.SerializeToString()
    sys.stdout.buffer.write(len(data).to_bytes(4, sys.byteorder) + data)
"""


def _inputs(folder: Path, python: str) -> dict[str, str]:
    """Write the files that modes name; return their paths."""
    rows = [[float(at + number) for at in range(4)] for number in range(5)]
    turns = [
        # The last turn of a session has no delay after it.
        {**_chat(turn), "session_id": [f"session {session}"], **({} if last else {"delay": [5]})}
        for session in range(4)
        for turn, last in enumerate((False, False, True))
    ]
    generator = folder / "generator.py"
    generator.write_text(_GENERATOR)
    data = {
        "checked": {
            "data": [{"IN": row} for row in rows],
            "validation_data": [{"OUT": row} for row in rows],
        },
        "messages": {"data": [{"message_generator": f"{python} {generator}"}]},
        "chats": {"data": [_chat(number) for number in range(5)]},
        "streams": {"data": [_chat(number, stream=True) for number in range(5)]},
        "schedule": {
            "data": [{**_chat(number), "timestamp": [20 * number]} for number in range(10)]
        },
        "sessions": {"data": turns},
    }
    paths = {name: folder / f"{name}.json" for name in data} | {"intervals": folder / "intervals"}
    for name, content in data.items():
        paths[name].write_text(json.dumps(content))
    paths["intervals"].write_text("2000\n500\n8000\n")
    return {name: str(path) for name, path in paths.items()}


def _answered(at: Addresses, model: str) -> int:
    """Return how many requests of a model the server has answered without an error."""
    with urllib.request.urlopen(f"http://{at.http}/v2/models/{model}/stats", timeout=60) as got:
        return json.load(got)["model_stats"][0]["inference_stats"]["success"]["count"]


@dataclass(frozen=True, slots=True)
class Analyzer:
    """A perf_analyzer: what starts it, and a Python with the messages of its own tritonclient."""

    command: Sequence[str]
    python: str = sys.executable
    env: Mapping[str, str] | None = None

    def run(
        self, modes: Iterable[tuple[str, Mode]], at: Addresses, folder: Path
    ) -> dict[str, float]:
        """Drive a server in each mode over each of its protocols; return inferences per second.

        Raises
        ------
        AssertionError
            It failed, or its files say something else than what was asked.
        """
        inputs = _inputs(folder, self.python)
        return {
            f"{name}, {protocol}": self._drive(mode, protocol, at, inputs, folder)
            for name, mode in modes
            for protocol in mode.protocols
        }

    def _drive(
        self, mode: Mode, protocol: str, at: Addresses, inputs: Mapping[str, str], folder: Path
    ) -> float:
        table, profile = folder / "report.csv", folder / "profile.json"
        table.unlink(missing_ok=True)
        profile.unlink(missing_ok=True)
        model = mode.flags.split()[1]
        before = _answered(at, model)
        flags = shlex.split(mode.flags.format(metrics=at.metrics, **inputs))
        count = ["--request-count", str(mode.requests)] if mode.requests else []
        done = subprocess.run(
            [*self.command, *flags, *count, "-f", str(table), "--profile-export-file", str(profile),
             *([] if protocol == "openai" else ["-i", protocol]), "-u", getattr(at, protocol)],
            env=self.env, text=True, capture_output=True, check=False, timeout=_TIMEOUT_S,
        )  # fmt: skip
        said = f"{mode.flags} ({protocol}): {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert done.returncode == 0, said
        assert "Failed" not in done.stdout + done.stderr, said
        requests = [
            one
            for part in json.loads(profile.read_text())["experiments"]
            for one in part["requests"]
        ]
        assert len(requests) >= max(mode.requests, 1), said
        for one in requests:
            answered = one["response_timestamps"]
            assert len(answered) == mode.responses or not mode.responses, (said, one)
            assert one["timestamp"] < answered[0], (said, one)
        # Triton counts a request after its response.
        assert until(lambda: _answered(at, model) - before >= mode.served * len(requests)), said
        if not table.exists():
            return 0
        (*_, row) = csv.DictReader(table.read_text().splitlines())
        return float(row["Inferences/Second"])
