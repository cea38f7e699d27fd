"""Every case of the error table over gRPC, at our endpoint; and at the real server beside it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")
pytest.importorskip("tritonclient.grpc", reason="Triton's stubs need grpcio")

import grpc
import numpy as np

from nbtriton.serving.frontends import serve
from tests.frontends.grpc_cases import CASES, Case
from tests.frontends.grpc_support import ask, infer, stream, tensor
from tests.frontends.models import MODELS

SERVED = tuple(MODELS)

_KINDS = {"BOOL": np.bool_, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64} | {
    f"{sign}INT{bits}": np.dtype(f"{sign.lower()}int{bits}") for sign in ("U", "")
    for bits in (8, 16, 32, 64)
}  # fmt: skip


@pytest.fixture(scope="module")
def channel(server) -> Iterator[grpc.Channel]:
    with (
        serve(server, http_port=None, metrics_port=None, grpc_port=0) as endpoints,
        grpc.insecure_channel(f"127.0.0.1:{endpoints.grpc_port}") as opened,
    ):
        yield opened


@pytest.fixture(scope="module")
def real(reference, repository) -> Iterator[grpc.Channel]:
    with (
        reference.server(repository, timeout_s=180) as server,
        grpc.insecure_channel(server.grpc_url) as opened,
    ):
        yield opened


def _value(output: Any, raw: bytes) -> Any:
    if output.datatype != "BYTES":
        return np.frombuffer(raw, _KINDS[output.datatype]).reshape(tuple(output.shape))
    found = []
    while raw:
        (length,) = struct.unpack_from("<I", raw)
        found.append(raw[4 : 4 + length])
        raw = raw[4 + length :]
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_GS11_GS20_answer(case: Case, channel: grpc.Channel) -> None:
    seen = ask(channel, case.method, case.request)
    assert (seen.code, seen.details) == (case.code, case.details)
    if case.outputs is None:
        return
    response = seen.response
    assert response.id == case.request.id
    assert (response.model_name, response.model_version) == (case.request.model_name, "1")
    assert [output.name for output in response.outputs] == list(case.outputs)
    assert not any(output.HasField("contents") for output in response.outputs)
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        np.testing.assert_array_equal(_value(output, raw), case.outputs[output.name])


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.ours_only], ids=lambda case: case.id
)
def test_same_answer(case: Case, channel: grpc.Channel, real: grpc.Channel) -> None:
    ours, theirs = ask(channel, case.method, case.request), ask(real, case.method, case.request)
    assert ours == theirs
    assert ours.response == theirs.response


STREAMS = {
    "GS3 one answer, with the flag": [infer("one", request_id="a")],
    "GS1 a refused request": [infer("nope", request_id="a")],
    "GS1 bad inputs": [infer("one", raw=[b"\0"], request_id="a")],
    "GS1 bad parameters": [infer("one", parameters={"triton_x": 1}, request_id="a")],
    "GS1 refused by the sequence scheduler": [infer("sequence", request_id="a")],
    "GS6 a model's error": [infer("failing", request_id="a")],
    "GS2 GS5 several responses": [
        infer("stream", [tensor(datatype="INT32", shape=[1])], [b"\3\0\0\0"], request_id="a")
    ],
    "GS4 without a word at the end": [
        infer("stream", [tensor(datatype="INT32", shape=[1])], [b"\0\0\0\0"], request_id="a")
    ],
    "GS4 a bare flag on request": [
        infer("stream", [tensor(datatype="INT32", shape=[1])], [b"\1\0\0\0"], request_id="a",
              parameters={"triton_enable_empty_final_response": True})
    ],
    "GS6 a decoupled model's error": [
        infer("stream", [tensor(datatype="INT32", shape=[1])], [b"\xff\xff\xff\xff"],
              request_id="a", parameters={"triton_enable_empty_final_response": True})
    ],
}  # fmt: skip


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_same_stream(name: str, channel: grpc.Channel, real: grpc.Channel) -> None:
    assert stream(channel, STREAMS[name]) == stream(real, STREAMS[name])
