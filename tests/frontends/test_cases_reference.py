"""The real server answers the same cases with the same status and body, byte for byte, and over gRPC with the same message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")
pytest.importorskip("tritonclient.grpc", reason="Triton's stubs need grpcio")

import grpc

from tests.differential.servers import COMPLETE, kill
from tests.frontends.cases import CASES, Case, Seen, ask
from tests.frontends.grpc_cases import CASES as GRPC_CASES
from tests.frontends.grpc_cases import Case as GrpcCase
from tests.frontends.grpc_support import ask as call
from tests.frontends.grpc_support import infer, stream, tensor
from tests.frontends.models import MODELS

SERVED = tuple(MODELS)

pytestmark = [pytest.mark.reference, pytest.mark.slow]

# What the two may say in orders or numbers of their own.
_KEYS_IN_ANY_ORDER = {
    "KS50 parameters",
    "KS50 the first of equal parameters counts",
    "KS34 custom parameters",
}


@pytest.fixture(scope="module")
def real(reference, repository: Path) -> Iterator[Any]:
    with reference.server(repository, COMPLETE, timeout_s=180) as server:
        yield server
        kill(server)


@pytest.fixture(scope="module")
def real_channel(real: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(real.grpc_url) as opened:
        yield opened


def _comparable(case: Case, seen: Seen) -> Any:
    body: Any = seen.body
    if case.id in _KEYS_IN_ANY_ORDER:
        found = json.loads(body)
        text = found["OUT"] if "OUT" in found else found["outputs"][0].pop("data")[0]
        body = json.loads(text)
    elif case.id.startswith("KS10"):
        body = json.loads(body)
    headers = {
        name: seen.headers.get(name)
        for name in (
            "content-type", "inference-header-content-length", "content-encoding",
            "accept-encoding", "transfer-encoding",
        )
    }  # fmt: skip
    return seen.status, seen.reason, body, headers


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.ours_only], ids=lambda case: case.id
)
def test_KS4_KS7_same_answer(case: Case, port: int, real: Any) -> None:
    assert _comparable(case, ask(port, case)) == _comparable(case, ask(real.http_port, case))


@pytest.mark.parametrize(
    "case", [case for case in GRPC_CASES if not case.ours_only], ids=lambda case: case.id
)
def test_same_answer(case: GrpcCase, channel: grpc.Channel, real_channel: grpc.Channel) -> None:
    ours, theirs = (call(at, case.method, case.request) for at in (channel, real_channel))
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


@pytest.mark.parametrize("name", STREAMS)
def test_same_stream(name: str, channel: grpc.Channel, real_channel: grpc.Channel) -> None:
    assert stream(channel, STREAMS[name]) == stream(real_channel, STREAMS[name])
