"""A Ray of this machine, for all tests of a run: it takes some ten seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nbtriton.backends.python import install_pb_utils
from nbtriton.runtime.engine import Server
from tests.workers.conftest import CONFIG, MODELS, add_targets, ask, both

__all__ = ["ask", "both"]

ADDRESS = "local:3"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    pytest.importorskip("ray", reason="needs Ray: pip install 'nbtriton[ray]'")
    install_pb_utils()
    with Server(gpus=(), ray=ADDRESS) as running:
        add_targets(running)
        for name, isolation in (("here", "thread"), ("apart", "ray")):
            running.load(
                CONFIG.format(name=name, isolation=isolation),
                model=MODELS / "probe" / "1" / "model.py",
            )
        yield running
