"""What clients of both servers see over gRPC when a signal comes while requests are in flight."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")
pytest.importorskip("tritonclient.grpc", reason="Triton's stubs need grpcio")

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from nbtriton.extensions.verify.reference import RunningServer
from tests.children import finish
from tests.differential.servers import COMPLETE, launch_ours, noted
from tests.frontends.grpc_support import Seen, ask, infer, open_call, stream, tensor
from tests.until import until

MODEL = """
import os
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        found = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if x.max() > 1:
                open({folder!r} + "/running", "w").close()
                while not os.path.exists({folder!r} + "/open"):
                    time.sleep(0.01)
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x * 2)]))
        return found
"""
TENSORS = """
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
max_batch_size: 4
"""
PYTHON = f'backend: "python" {TENSORS}'
CONFIGS = {
    "plain": PYTHON,
    "sequences": PYTHON + "sequence_batching { max_sequence_idle_microseconds: 60000000 }",
    "pipeline": f'platform: "ensemble" {TENSORS}'
    'ensemble_scheduling { step { model_name: "plain" model_version: -1 '
    'input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } }',
}
STOPPED = "Server is stopping, scheduler for model has stopped accepting new inference requests"
FLAGS = (COMPLETE, "--exit-timeout-secs=30", "--model-control-mode=explicit", "--load-model=*")
UNBEGUN = (
    "inference request for sequence 9 to model 'sequences' must specify the START flag on the first "
    "request of the sequence"
)
NO_ID = "[request id: <id_unknown>] "


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, config in CONFIGS.items():
        version = tmp_path / "models" / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(config)
        if name != "pipeline":
            (version / "model.py").write_text(MODEL.format(folder=str(tmp_path)))
    return tmp_path / "models"


@pytest.fixture(
    params=["ours", pytest.param("real", marks=[pytest.mark.reference, pytest.mark.slow])]
)
def server(request: pytest.FixtureRequest, repository: Path) -> Iterator[RunningServer]:
    log = repository.parent / "log"
    running: AbstractContextManager[RunningServer]
    if request.param == "real":
        reference = request.getfixturevalue("reference")
        running = reference.server(repository, *FLAGS, log=log)
    else:
        running = launch_ours(repository, *FLAGS, log=log)
    with running as opened:
        yield opened


def one(model: str, value: float = 0.0, **rest: Any) -> Any:
    raw = np.full((1, 1), value, np.float32).tobytes()
    return infer(model, [tensor(shape=(1, 1))], [raw], **rest)


def part(correlation_id: int, *, start: bool = False, end: bool = False, value: float = 0) -> Any:
    parameters: dict[str, Any] = {"sequence_start": start, "sequence_end": end}
    if correlation_id:
        parameters["sequence_id"] = correlation_id
    return one("sequences", value, parameters=parameters)


def answered(seen: Seen) -> float:
    assert seen.code == "OK", seen
    return float(np.frombuffer(seen.response.raw_output_contents[0], np.float32)[0])


QUESTIONS = {
    "live": ("ServerLive", pb.ServerLiveRequest(), "UNAVAILABLE", "Server exiting"),
    "ready": ("ServerReady", pb.ServerReadyRequest(), "UNAVAILABLE", "Server exiting"),
    "model ready": ("ModelReady", pb.ModelReadyRequest(name="plain"), "UNAVAILABLE", "Server not ready"),
    "server": ("ServerMetadata", pb.ServerMetadataRequest(), "OK", ""),
    "metadata": ("ModelMetadata", pb.ModelMetadataRequest(name="plain"), "UNAVAILABLE", "Server not ready"),
    "no metadata": (
        "ModelMetadata", pb.ModelMetadataRequest(name="unknown"),
        "NOT_FOUND", "Request for unknown model: 'unknown' is not found",
    ),
    "config": ("ModelConfig", pb.ModelConfigRequest(name="plain"), "OK", ""),
    "statistics": ("ModelStatistics", pb.ModelStatisticsRequest(), "UNAVAILABLE", "Server not ready"),
    "index": ("RepositoryIndex", pb.RepositoryIndexRequest(), "UNAVAILABLE", "Server not ready"),
    "load": ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="plain"), "UNAVAILABLE", "Server not ready"),
    "unload": ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="plain"), "UNAVAILABLE", "Server not ready"),
    "memory": ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(), "OK", ""),
    "trace": ("TraceSetting", pb.TraceSettingRequest(), "OK", ""),
    "log": ("LogSettings", pb.LogSettingsRequest(), "OK", ""),
    "a request": ("ModelInfer", one("plain"), "UNAVAILABLE", NO_ID + STOPPED),
    "its id": ("ModelInfer", one("plain", request_id="i"), "UNAVAILABLE", f"[request id: i] {STOPPED}"),
    "an ensemble": ("ModelInfer", one("pipeline"), "UNAVAILABLE", f"in ensemble 'pipeline', {NO_ID}{STOPPED}"),
    "a bad one": (
        "ModelInfer", infer("plain", [tensor("X", shape=(1, 1))], [bytes(4)]),
        "INVALID_ARGUMENT", "unexpected inference input 'X' for model 'plain'",
    ),
    "an unknown model": ("ModelInfer", one("unknown"), "NOT_FOUND", "Request for unknown model: 'unknown' is not found"),
    "a new sequence": ("ModelInfer", part(8, start=True), "UNAVAILABLE", STOPPED),
    "the same anew": ("ModelInfer", part(7, start=True), "UNAVAILABLE", STOPPED),
    "no sequence": (
        "ModelInfer", part(9), "INVALID_ARGUMENT", UNBEGUN,
    ),
    "without an id": (
        "ModelInfer", part(0, start=True), "INVALID_ARGUMENT",
        "inference request to model 'sequences' must specify a non-zero or non-empty correlation ID",
    ),
}  # fmt: skip


@pytest.mark.medium
def test_what_runs_is_answered_and_what_is_new_refused(
    server: RunningServer, tmp_path: Path
) -> None:
    with noted("the server", server), grpc.insecure_channel(server.grpc_url) as channel:
        assert answered(ask(channel, "ModelInfer", part(7, start=True))) == 0
        held = open_call(channel).future(one("plain", 2.0), timeout=60)
        assert until((tmp_path / "running").exists)
        server.process.send_signal(signal.SIGTERM)
        # It says what is inside once it accepts nothing new.
        inside = "Model 'sequences' (version 1) has 1 in-flight inferences"
        assert until(lambda: inside in server.log.read_text())
        live = partial(ask, channel, "ServerLive", pb.ServerLiveRequest())
        assert until(lambda: live().code != "OK")
        wanted = {what: Seen(code, text) for what, (_, _, code, text) in QUESTIONS.items()}
        found = {
            what: ask(channel, method, message)
            for what, (method, message, _, _) in QUESTIONS.items()
        }
        assert found == wanted
        # Health checks of gRPC's own service, streams, clients that come now, sequences that go on.
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.RpcError, match="Server exiting"):
            check(b"", timeout=60)
        (refused,) = stream(channel, [one("plain", request_id="i")])
        assert refused.error_message == f"[request id: i] {STOPPED}"
        with grpc.insecure_channel(server.grpc_url) as late:
            assert ask(late, "ServerLive", pb.ServerLiveRequest()) == wanted["live"]
            assert answered(ask(late, "ModelInfer", part(7, value=0.5))) == 1
        (tmp_path / "open").touch()
        assert answered(Seen("OK", "", held.result())) == 4
        assert answered(ask(channel, "ModelInfer", part(7, end=True))) == 0
        finish(server.process)
        assert server.process.returncode == 0
    assert "Waiting for in-flight requests to complete." in server.log.read_text()
