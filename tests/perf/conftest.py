"""A server with one model, once per module."""

from __future__ import annotations

import pytest

import nbtriton as nt
from tests.perf.models import double


@pytest.fixture(scope="module")
def server():
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", double, name="double")
        yield server
