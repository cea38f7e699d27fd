"""A short run of `tests.frontends.grpc_fuzz`; ``NBTRITON_FUZZ`` sets another number of inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")
pytest.importorskip("tritonclient.grpc", reason="Triton's stubs need grpcio")

from tests.frontends.fuzzing import short_run
from tests.frontends.grpc_fuzz import fuzz_endpoint, fuzz_handlers


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_message_has_an_answer(tmp_path: Path) -> None:
    short_run(tmp_path, fuzz_handlers, fuzz_endpoint)
