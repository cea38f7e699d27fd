"""Requests whose tensors are in shared memory, over HTTP and gRPC."""

# ruff: noqa: F821, N803, UP037 - function models: Triton's datatypes as annotations

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError, TritonError, UnsupportedError
from nbtriton.lab.perf.remote import RemoteServer
from nbtriton.model.tensors import deserialize_bytes
from nbtriton.serving.clients.grpc import GrpcClient
from nbtriton.serving.clients.http import HttpClient
from tests.simulate.profiles import profile

X = np.arange(8, dtype=np.float32).reshape(2, 4)
pytestmark = pytest.mark.skipif(
    not Path("/dev/shm").is_dir(), reason="this machine has no shared memory in files"
)


def both(IN: "FP32[4]", TEXT: "BYTES[1]") -> {"OUT": "FP32[4]", "TWICE": "BYTES[1]"}:
    twice = np.array([[text[0] * 2] for text in TEXT], object)
    return {"OUT": IN * 2, "TWICE": twice}


@pytest.fixture(scope="module")
def server():
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", both, name="both")
        server.serve(http_port=0, grpc_port=0, metrics_port=None)
        yield server


def left() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob(f"nbtriton-pool-perf-{os.getpid()}-*")}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_server_reads_and_writes_the_regions(server, protocol):
    (served,) = server.endpoints
    kind = HttpClient if protocol == "http" else GrpcClient
    request = {"IN": X, "TEXT": np.array([[b"a"], [b"bcd"]], object)}
    address = f"127.0.0.1:{getattr(served, f'{protocol}_port')}"
    with kind(address) as client, RemoteServer(kind(address)) as remote:
        remote.share(server.config("both"), [request], rows=2, output_bytes=100)
        remote.infer("both", request)
        ((_, inputs),), outputs = remote._shared.values(), remote._outputs
        (region,) = {tensor.region for tensor in outputs.values()}
        content = Path(f"/dev/shm/nbtriton-pool-{region}").read_bytes()
        out, twice = outputs["OUT"], outputs["TWICE"]
        found = np.frombuffer(content[out.offset :][: out.byte_size], np.float32)
        assert found.tolist() == (X * 2).reshape(-1).tolist()
        assert twice.byte_size == 200
        # The strings, in Triton's form, at the beginning of their room.
        size = 2 * 4 + len(b"aa") + len(b"bcdbcd")
        text = deserialize_bytes(content[twice.offset :][:size])
        assert text.tolist() == [b"aa", b"bcdbcd"]
        remote.close()
        with pytest.raises(TritonError, match="Unable to find"):
            client.send(client.encode("both", inputs, outputs=outputs))
    assert not left()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_level_is_measured_and_nothing_is_left(server, protocol):
    report = nt.perf(
        server, "both", protocol=protocol, concurrency=3, request_count=20, batch_size=[1, 4],
        shared_memory="system", string_length=10,
    )  # fmt: skip
    assert [(p.request_count, p.error_count) for p in report.points] == [(20, 0)] * 2
    assert report.settings["shared_memory"] == "system"
    assert not left()


def test_sweeps_share_memory_too(server):
    report = nt.perf(
        server, "both", protocol="grpc", request_count=4, batch_size=[1, 2], instances=[1, 2],
        max_batch_size=[2, 4], shared_memory="system",
    )  # fmt: skip
    assert [(p.request_count, p.error_count) for p in report.points] == [(4, 0)] * 8
    assert not left()


def test_room_that_is_too_small_is_the_servers_error(server):
    (point,) = nt.perf(
        server, "both", protocol="http", request_count=3, shared_memory="system",
        output_shared_memory_size=16,
    ).points  # fmt: skip
    assert point.error_count == 3
    assert "shared memory" in point.first_error
    assert not left()


def test_what_cannot_be_is_refused(server):
    for options, text in (
        ({"shared_memory": "system"}, "nothing is sent"),
        ({"shared_memory": "sysv", "protocol": "http"}, "Failed to parse --shared-memory. Unsupp"),
        ({"output_shared_memory_size": 0}, "Failed to parse --output-shared-memory-size"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            nt.perf(server, "both", **options)
    with pytest.raises(UnsupportedError, match="CUDA"):
        nt.perf(server, "both", protocol="http", shared_memory="cuda")
    with pytest.raises(InvalidArgumentError, match="shared_memory has no meaning"):
        nt.whatif(profile(), shared_memory="system")
    assert not left()
