"""A cluster of two nodes, of which the kernel's driver has joined the one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest

from bench.processes import family, free_ports
from nbtriton.common.errors import TritonError
from nbtriton.runtime.engine import Server
from tests.until import until

pytestmark = pytest.mark.slow

pytest.importorskip("ray", reason="needs Ray: pip install 'nbtriton[ray]'")

CONFIG = """
max_batch_size: 0 instance_group { kind: KIND_CPU count: 2 }
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }
parameters { key: "INSTANCE_ISOLATION" value { string_value: "ray" } }
parameters { key: "INSTANCE_RESTARTS" value { string_value: "number=1" } }
"""
# A dead node is missed after two seconds in place of fifteen.
SOON = {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "4"} | {
    "PYTHONUNBUFFERED": "1"
}
WAIT_S = 120.0


@contextmanager
def node(host: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
        *(f"--node-ip-address={host}", "--num-cpus=2", f"--object-store-memory={80 << 20}"),
    ]
    with subprocess.Popen(
        [*command, *options],
        env=os.environ | SOON,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert any("Ray runtime started" in line for line in process.stdout)
            yield process
        finally:
            lose(process)


def lose(process: subprocess.Popen[str]) -> None:
    for pid in family(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_cluster_is_joined_by_the_client_protocol_with_an_environment_for_the_instances():
    def variable(IN):  # noqa: N803 - a tensor
        import os

        return {"OUT": [os.environ.get("NBTRITON_FAR", "unset")]}

    environment = """parameters { key: "INSTANCE_RUNTIME_ENV" value {
        string_value: '{"env_vars": {"NBTRITON_FAR": "set there"}}' } }"""
    gcs, port = free_ports(2)
    options = (f"--port={gcs}", f"--ray-client-server-port={port}", "--include-dashboard=false")
    with (
        node("127.0.0.2", "--head", *options),
        Server(gpus=(), ray=f"ray://127.0.0.2:{port}") as server,
    ):
        server.load(CONFIG + environment, variable, name="m")
        result = server.infer("m", {"IN": np.zeros(1, np.float32)})
        assert result["OUT"].tolist() == [b"set there"]


def test_instances_come_back_after_the_node_of_the_driver_has_gone():
    """Each instance is lost once, one with its node and one with the driver, and may be restarted once."""

    def where(IN):  # noqa: N803 - a tensor
        import time

        from ray import get_runtime_context

        if IN[0]:
            time.sleep(600)
        return {"OUT": [get_runtime_context().get_node_id()]}

    (port,) = free_ports(1)
    with ExitStack() as stack:
        stack.enter_context(
            node("127.0.0.2", "--head", f"--port={port}", "--include-dashboard=false")
        )
        # Ray takes the last node for the one of this machine.
        second = stack.enter_context(node("127.0.0.3", f"--address=127.0.0.2:{port}"))
        server = stack.enter_context(Server(gpus=(), ray=f"127.0.0.2:{port}"))
        server.load(CONFIG, where, name="m")
        inside = [server.submit("m", {"IN": np.ones(1, np.float32)}) for _ in range(2)]
        lose(second)
        for request in inside:
            with pytest.raises(TritonError, match=r"Stub process 'm_0_\d' is not healthy"):
                request.result(WAIT_S)

        def states():
            (model,) = server.snapshot().models
            return [one.restart for one in model.instances]

        assert until(lambda: all(one.restarts == 1 for one in states()), WAIT_S), states()
        for _ in range(4):
            assert len(server.infer("m", {"IN": np.zeros(1, np.float32)})["OUT"]) == 1
