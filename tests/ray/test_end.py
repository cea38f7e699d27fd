"""The end of a kernel and the end of a cluster: no actor is left, and no request waits for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from bench.processes import lives
from nbtriton.common.errors import TritonError
from nbtriton.extensions.ray import cluster
from nbtriton.runtime.engine import Server
from tests.until import until

pytestmark = pytest.mark.slow

pytest.importorskip("ray", reason="needs Ray: pip install 'nbtriton[ray]'")

CONFIG = """
max_batch_size: 0 instance_group {{ kind: KIND_CPU count: 1 }}
input {{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }} output {{ name: "OUT" data_type: TYPE_INT64 dims: [ 1 ] }}
parameters {{ key: "INSTANCE_ISOLATION" value {{ string_value: "ray" }} }}
parameters {{ key: "INSTANCE_RESTARTS" value {{ string_value: "number={number}" }} }}
"""
KERNEL = f"""
import os, sys, time
import nbtriton as nt
def pid(IN):
    return {{"OUT": [os.getpid()]}}
server = nt.Server(gpus=(), ray="local:1")
server.load({CONFIG.format(number=0)!r}, pid, name="m")
print(server.infer("m", {{"IN": [1.0]}})["OUT"][0], flush=True)
time.sleep(600)
"""
WAIT_S = 120.0


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children(pid: int) -> list[int]:
    return [
        int(one)
        for each in Path(f"/proc/{pid}/task").glob("*/children")
        for one in each.read_text().split()
    ]


def test_a_killed_kernel_leaves_no_actor_and_no_local_cluster():
    with subprocess.Popen([sys.executable, "-c", KERNEL], stdout=subprocess.PIPE) as kernel:
        actor = int(kernel.stdout.readline())
        raylet = parent(actor)
        driver = parent(raylet)
        assert all(map(lives, (actor, raylet, driver)))
        kernel.kill()
    until(lambda: not any(map(lives, (actor, raylet, driver))), WAIT_S)


def test_what_is_inside_fails_with_the_cluster_and_what_comes_later_is_refused():
    """Its raylet, its control service and its driver are killed, while a request is executed."""

    def slow(IN):  # noqa: N803 - a tensor
        import os
        import time

        if IN[0]:
            time.sleep(600)
        return {"OUT": [os.getpid()]}

    with Server(gpus=(), ray="local:1") as server:
        server.load(CONFIG.format(number=0), slow, name="m")
        actor = int(server.infer("m", {"IN": np.zeros(1, np.float32)})["OUT"][0])
        inside = server.submit("m", {"IN": np.ones(1, np.float32)})
        waiting = server.submit("m", {"IN": np.zeros(1, np.float32)})
        raylet = parent(actor)
        driver = parent(raylet)
        for pid in (raylet, *children(driver), driver):
            os.kill(pid, signal.SIGKILL)
        for request in (inside, waiting):
            with pytest.raises(TritonError, match="Stub process 'm_0_0' is not healthy"):
                request.result(WAIT_S)
        with pytest.raises(TritonError, match="Stub process 'm_0_0' is not healthy"):
            server.infer("m", {"IN": np.zeros(1, np.float32)})


def test_a_start_that_is_interrupted_leaves_the_cluster_idle(monkeypatch: pytest.MonkeyPatch):
    joined = cluster.Cluster("local:1")
    main = threading.main_thread().ident

    def interrupt() -> None:
        assert until(lambda: joined._starts, WAIT_S)
        monkeypatch.setattr(cluster, "_LINGER_S", 0.1)
        signal.pthread_kill(main, signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt):  # it has no room
        joined.start("m_0", {"num_cpus": 9.0, "num_gpus": 0.0, "resources": {}})
    sender.join()
    assert until(lambda: not joined._thread.is_alive(), WAIT_S)
