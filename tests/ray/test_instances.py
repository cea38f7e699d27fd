"""An instance in an actor of Ray does what one in a thread does: the tests of processes, elsewhere."""

from __future__ import annotations

import pytest

from tests.workers.conftest import ARRAY, CONFIG, MODELS
from tests.workers.test_instances import *  # noqa: F403 - they are run again

pytestmark = pytest.mark.slow


def test_an_instance_that_has_ended_leaves_its_room_to_the_next(server):
    for number in range(2):  # the last free processor of the cluster
        server.load(
            CONFIG.format(name="brief", isolation="ray")
            + "instance_group { count: 1 kind: KIND_CPU }",
            model=MODELS / "probe" / "1" / "model.py",
        )
        result = server.infer("brief", {"IN": ARRAY}, parameters={"program": "double"})
        assert result["OUT"].tolist() == (ARRAY * 2).tolist(), number
        assert server.unload("brief", timeout_s=None)
