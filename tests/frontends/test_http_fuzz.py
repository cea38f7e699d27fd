"""A short run of `tests.frontends.http_fuzz`; ``NBTRITON_FUZZ`` sets another number of inputs."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from nbtriton.engine import Server
from tests.frontends.fuzzing import fuzz, load_models
from tests.frontends.http_fuzz import fuzz_endpoint, fuzz_handlers

INPUTS = int(os.environ.get("NBTRITON_FUZZ", "20000"))


@pytest.mark.timeout(3600)
def test_every_request_has_an_answer(tmp_path: Path) -> None:
    with Server(gpus=()) as server:
        load_models(server, tmp_path)
        seed = random.SystemRandom().getrandbits(32)
        fuzz(server, INPUTS, seed, handlers=fuzz_handlers, endpoint=fuzz_endpoint)
