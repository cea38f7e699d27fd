"""A server for ready steps."""

from __future__ import annotations

import pytest

import nbtriton as nt


@pytest.fixture
def server():
    with nt.Server(gpus=()) as server:
        yield server
