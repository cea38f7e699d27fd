"""A server that every test gets fresh and that must leave nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from nbtriton.backends.python import install_pb_utils
from nbtriton.runtime.engine import Server
from nbtriton.runtime.interrupts import INTERRUPTS
from tests.engine.support import WAIT_S, Gate

# One for the process, not for a server: the python backend's, for requests that a model forgot.
_SHARED = "nbtriton-abandoned-requests"


@pytest.fixture(scope="module", autouse=True)
def pb_utils() -> None:
    """The models of these tests import it; a test that unloaded the extension took it away."""
    install_pb_utils()


@pytest.fixture
def server() -> Iterator[Server]:
    before = set(threading.enumerate())
    with Server(gpus=()) as running:
        yield running
    left = [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.name.startswith("nbtriton") and thread.name != _SHARED
    ]
    assert INTERRUPTS.depth == 0, "the main thread left the engine with interrupts deferred"
    for thread in left:
        thread.join(WAIT_S)  # one may be on its way out: a load that was interrupted
    assert not [thread.name for thread in left if thread.is_alive()], "threads left behind"


@pytest.fixture
def gate(server: Server) -> Iterator[Gate]:
    """A gate that is opened before the server closes, so that a failed test ends quickly."""
    made = Gate()
    yield made
    made.open()
