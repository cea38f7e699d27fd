"""Every case of the error table over gRPC, at our endpoint; `test_cases_reference` shows them to the real server."""

from __future__ import annotations

import struct
from typing import Any

import pytest

pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")
pytest.importorskip("tritonclient.grpc", reason="Triton's stubs need grpcio")

import grpc
import numpy as np

from tests.frontends.grpc_cases import CASES, Case
from tests.frontends.grpc_support import ask
from tests.frontends.models import MODELS

SERVED = tuple(MODELS)

_KINDS = {"BOOL": np.bool_, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64} | {
    f"{sign}INT{bits}": np.dtype(f"{sign.lower()}int{bits}") for sign in ("U", "")
    for bits in (8, 16, 32, 64)
}  # fmt: skip


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
