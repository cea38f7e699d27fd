"""What models say to the server and it to them leaves no shared memory behind, as Triton's `TestInferShmLeak` asks."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from nbtriton.common.errors import TritonError
from nbtriton.runtime.engine import Server
from nbtriton.runtime.workers.core.memory import Outgoing
from tests.engine.support import WAIT_S
from tests.until import until
from tests.workers.conftest import Ask
from tests.workers.support import blocks, descriptors

pytestmark = pytest.mark.slow

# Tensors and calls of every kind, answers by sender and late, errors, metrics, a failed load.
PROGRAMS = (
    "double", "write", "by_dlpack", "keep", "text", "error", "fail", "by_sender", "later",
    "bls", "bls_large", "bls_unknown", "bls_failing", "bls_stream", "bls_stream_refused",
    "bls_in_a_thread", "ready", "load", "count",
)  # fmt: skip
LARGE = np.zeros(1 << 16, np.float32)
WORDS = np.array([b"a" * 100_000, b""], object)


@pytest.fixture(scope="module", autouse=True)
def only_what_is_new() -> None:
    """What is there before the server is no shared memory of it: to look at all of it takes a second of each test."""
    gc.collect()
    gc.freeze()


def used_here() -> int:
    gc.collect()
    return sum(blocks(one) for one in gc.get_objects() if isinstance(one, Outgoing))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_leaves_no_shared_memory(server: Server, ask: Ask, program: str) -> None:
    inputs = {"WORDS": WORDS} if program == "text" else {"IN": LARGE}

    def run() -> int:
        """Return how many descriptors are open that are not those of segments."""
        for _ in range(16):
            with suppress(TritonError):
                server.infer("apart", inputs, parameters={"program": program, "n": 1})
        ask("apart", "forget")
        # A message says what the one before has released; threads of the model and a refused stream's target
        # may still hold what they have read.
        assert until(lambda: ask("apart", "shared_memory") == 0 and not used_here(), WAIT_S)
        return descriptors() - Path("/proc/self/maps").read_text().count("/memfd:nbtriton")

    assert run() == run()
