"""Two instances that share an actor; `tests/workers/test_sharing.py` has the rest, without Ray."""

from __future__ import annotations

import os
import signal

import pytest

from tests.engine.support import WAIT_S
from tests.until import PATIENCE_S, until
from tests.workers.test_sharing import CONFIG, MODEL, Told, about, instances, submit

pytestmark = pytest.mark.slow


def test_two_instances_share_an_actor_which_is_killed_and_comes_back(server):
    server.load(CONFIG.format(count=2), model=MODEL)
    told = Told(server)
    first = submit(server, "hold")
    told.started.wait_entered()
    second = submit(server, "bls")
    told.queued.wait_entered()
    told.gate.open()
    (pid, before), (same, behind) = about(first), about(second)
    assert (same, behind) == (pid, before + 1)
    assert first.result()["OUT"].tolist() == second.result()["OUT"].tolist() == [2.0]
    nodes = [one.placement.node for one in instances(server)]
    assert nodes[0] == nodes[1] != ""
    first = submit(server, "spin")
    told.started.wait_entered()
    second = submit(server)
    os.kill(pid, signal.SIGKILL)
    for request in (first, second):
        assert "is not healthy" in str(request.exception(PATIENCE_S))
    assert until(lambda: all(one.restart.restarts for one in instances(server)), 2 * PATIENCE_S)
    (pid,) = {about(one)[0] for one in [submit(server) for _ in range(6)]}
    server.load(CONFIG.format(count=1), model=MODEL)
    assert about(submit(server))[0] == pid
    assert server.unload("m", timeout_s=WAIT_S)
