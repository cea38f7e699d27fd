"""No process, segment or descriptor is left behind by a server that was closed or a kernel that was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nbtriton.backends.python import install_pb_utils
from nbtriton.runtime.engine import Server
from nbtriton.runtime.workers.launching import end_idle_servers
from tests.children import finish
from tests.until import until
from tests.workers.support import children, is_alive, own_children
from tests.workers.test_faults import load, pid

pytestmark = pytest.mark.slow


def test_a_server_of_processes_is_ready_to_start_them_before_its_first_model():
    end_idle_servers()
    others = {*own_children(os.getpid())}  # of fixtures that all tests share
    with Server(gpus=(), isolation="process"):
        assert len({*own_children(os.getpid())} - others) == 1
    assert until(lambda: {*own_children(os.getpid())} <= others)


KERNEL = """
import sys
import numpy as np
from nbtriton.backends.python import install_pb_utils
from nbtriton.runtime.engine import Server
from tests.workers import test_faults as faults
install_pb_utils()
server = Server(gpus=())
faults.load(server, count=2)
server.infer("m", {"IN": np.zeros(1 << 18, np.float32)})  # in shared memory
server.submit("m", {"IN": faults.IN}, parameters={"how": "deaf"})
sys.stdout.write(f"\\n{faults.pid(server)}\\n")  # at once: the worker prints, too
sys.stdout.flush()
sys.stdin.read()
"""


def shared_segments(pid: int) -> set[str]:
    """The shared memory that a process has mapped, by the names of ``/proc/PID/maps``."""
    fields = (line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    names = {entry[5] for entry in fields if len(entry) > 5}
    return {name for name in names if name.startswith(("/memfd:", "/dev/shm/"))}


def test_nothing_is_left_of_a_kernel_that_is_killed_with_its_models():
    kernel = subprocess.Popen(
        [sys.executable, "-c", KERNEL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert kernel.stdout is not None
    lines = iter(kernel.stdout.readline, "")
    serving = next(int(line) for line in lines if line.strip().isdecimal())
    started = {*children(kernel.pid)}
    assert serving in started
    assert len(started) == 3
    # Shared memory without a name ends with the last process that has it open.
    segments = {path for pid in (kernel.pid, *started) for path in shared_segments(pid)}
    assert segments == {"/memfd:nbtriton (deleted)"}
    kernel.kill()
    finish(kernel)
    assert until(lambda: not any(map(is_alive, started)))


def test_a_server_that_is_closed_leaves_no_process():
    install_pb_utils()
    end_idle_servers()
    others = {*own_children(os.getpid())}
    server = Server(gpus=())
    with Server(gpus=()) as other:
        load(other)
        load(server)
        (fork_server,) = {*own_children(os.getpid())} - others
    assert pid(server)  # whose workers need it
    server.close()
    assert until(lambda: not is_alive(fork_server))
    assert until(lambda: {*own_children(os.getpid())} <= others)
