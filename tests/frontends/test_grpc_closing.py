"""A short run of `tests.frontends.grpc_closing`."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")
pytest.importorskip("tritonclient.grpc", reason="Triton's stubs need grpcio")

from tests.frontends.grpc_closing import close_under_load
from tests.seeds import SEED


@pytest.mark.slow
def test_every_call_ends_when_its_endpoint_closes_under_load() -> None:
    close_under_load(10, random.Random(SEED))
