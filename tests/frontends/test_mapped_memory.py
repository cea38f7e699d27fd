"""READ_ONLY_INPUTS over shared memory: the model reads where the client has written, and survives what it does."""

# ruff: noqa: N803 - function models: Triton's names as arguments

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbtriton.common.errors import InvalidArgumentError, TritonError
from nbtriton.runtime.engine import Server
from nbtriton.serving.clients.http import HttpClient
from nbtriton.serving.clients.shared_memory import SharedBlock, SharedMemoryPool
from nbtriton.serving.frontends import serve
from nbtriton.serving.frontends.kserve import shared_memory
from nbtriton.serving.frontends.kserve.shared_memory import SharedMemory
from scripts.compiled import GUARD, build_guard
from tests.children import run_python
from tests.engine.support import Gate

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="clients register shared memory on Linux"),
    pytest.mark.medium,
]
SOURCE = Path(__file__).parents[2] / "src" / GUARD
CONFIG = """
input {{ name: "IN" data_type: {datatype} dims: -1 }}
output {{ name: "OUT" data_type: TYPE_FP64 dims: 1 }}
parameters {{ key: "READ_ONLY_INPUTS" value {{ string_value: "{reads}" }} }}
"""
SIZE = 40_000  # ten pages


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("guard") / "guard.so"
    if problem := build_guard(SOURCE, path):
        pytest.skip(problem)
    return path


@pytest.fixture(autouse=True)
def guarded(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = shared_memory.guard(library)
    monkeypatch.setattr(shared_memory, "guard", lambda: functions)


class Reader:
    """A model that says where its input is, waits at a gate, and then reads it."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.seen: list[np.ndarray] = []
        self.writable: list[bool] = []
        self.place = ""

    def run(self, IN: Any) -> Any:
        at = IN.ctypes.data
        for line in Path("/proc/self/maps").read_text().splitlines():
            first, _, last = line.split()[0].partition("-")
            if int(first, 16) <= at < int(last, 16):
                self.place = line
        self.seen.append(IN)
        self.writable.append(IN.flags.writeable)
        self.gate.stand([])
        return np.array([IN.sum(dtype=np.float64)])


class Scene:
    """A server with the model, a client, and the client's memory."""

    def __init__(self, server: Server, client: Any, pool: SharedMemoryPool) -> None:
        self.server, self.client, self.pool = server, client, pool
        self.path = Path("/dev/shm" + pool.key)

    def load(self, model: Any, datatype: str = "TYPE_UINT8", reads: str = "yes") -> None:
        config = CONFIG.format(datatype=datatype, reads=reads)
        self.server.load(config, getattr(model, "run", model), name="m")

    def ask(self, block: SharedBlock) -> float:
        sent = self.client.encode("m", {"IN": block.tensor})
        return float(self.client.decode(self.client.send(sent)).outputs["OUT"][0])

    def ask_and(self, model: Reader, block: SharedBlock, then: Callable[[], object]) -> Any:
        """Send a request, do something while the model stands at its gate; return the sum or the error."""
        found: list[Any] = []

        def run() -> None:
            try:
                found.append(self.ask(block))
            except InvalidArgumentError as error:
                found.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        model.gate.wait_entered()
        then()
        model.gate.let()
        thread.join()
        return found[0]


@pytest.fixture(params=["http", "grpc"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with Server(gpus=()) as server:
        endpoints = serve(server, http_port=0, grpc_port=0, metrics_port=None)
        kind: Any = HttpClient
        if request.param == "grpc":
            pytest.importorskip("grpc", reason="grpcio is not installed")
            from nbtriton.serving.clients.grpc import GrpcClient

            kind = GrpcClient
        with (
            endpoints,
            kind(f"127.0.0.1:{getattr(endpoints, f'{request.param}_port')}") as client,
            SharedMemoryPool("mapped", bytes=1 << 20) as pool,
        ):
            pool.register(client)
            yield Scene(server, client, pool)


def test_the_model_reads_the_clients_memory_itself(scene):
    model = Reader()
    scene.load(model)
    block = scene.pool.put(np.zeros(SIZE, np.uint8))
    assert scene.ask_and(model, block, lambda: block.as_numpy().fill(2)) == 2 * SIZE
    assert scene.pool.key in model.place
    assert model.writable == [False]


@pytest.mark.parametrize("missing", ["the guard", "the promise", "a view of its datatype"])
def test_otherwise_it_gets_a_copy(scene, missing, monkeypatch):
    model = Reader()
    datatype = "TYPE_BOOL" if missing == "a view of its datatype" else "TYPE_UINT8"
    scene.load(model, datatype, "no" if missing == "the promise" else "yes")
    if missing == "the guard":
        monkeypatch.setattr(shared_memory, "guard", lambda: None)
    block = scene.pool.put(np.ones(SIZE, bool if datatype == "TYPE_BOOL" else np.uint8))
    assert scene.ask_and(model, block, lambda: block.as_numpy().fill(0)) == SIZE
    assert scene.pool.key not in model.place


@pytest.mark.parametrize("left", [0, 8192])
def test_memory_that_is_truncated_in_use_fails_its_request_alone(scene, left):
    model = Reader()
    scene.load(model)
    block = scene.pool.put(np.ones(SIZE, np.uint8))
    error = scene.ask_and(model, block, lambda: os.truncate(scene.path, left))
    assert isinstance(error, InvalidArgumentError)
    region = scene.pool.region
    assert error.message == f"Invalid offset + byte size for shared memory region: '{region}'"
    with pytest.raises(InvalidArgumentError, match="Invalid offset"):
        scene.ask(block)
    os.truncate(scene.path, 1 << 20)
    block.write(np.ones(SIZE, np.uint8))
    assert scene.ask_and(model, block, lambda: None) == SIZE
    assert scene.pool.key in model.place


def test_a_model_that_breaks_its_promise_fails_and_changes_nothing(scene):
    def careless(IN: Any) -> Any:
        return np.add(IN, 1, out=IN)

    scene.load(careless)
    block = scene.pool.put(np.ones(SIZE, np.uint8))
    with pytest.raises(TritonError, match="has the parameter READ_ONLY_INPUTS"):
        scene.ask(block)
    assert (block.as_numpy() == 1).all()


def test_an_ensemble_passes_memory_on_and_copies_for_a_step_that_writes(scene):
    def writing(IN: Any) -> Any:
        return np.array([np.add(IN, 1, out=IN).sum(dtype=np.float64)])

    model = Reader()
    tensor = "data_type: TYPE_FP64 dims: 1"
    steps = "".join(
        f'step {{ model_name: "{name}" model_version: -1 input_map {{ key: "IN" value: "IN" }} '
        f'output_map {{ key: "OUT" value: "{out}" }} }}'
        for name, out in (("m", "READ"), ("w", "WRITTEN"))
    )
    scene.load(model)
    scene.server.load(CONFIG.format(datatype="TYPE_UINT8", reads="no"), writing, name="w")
    scene.server.load(
        f'name: "both" platform: "ensemble" input {{ name: "IN" data_type: TYPE_UINT8 dims: -1 }} '
        f'output {{ name: "READ" {tensor} }} output {{ name: "WRITTEN" {tensor} }} '
        f"ensemble_scheduling {{ {steps} }} "
        'parameters { key: "READ_ONLY_INPUTS" value { string_value: "yes" } }'
    )
    block = scene.pool.put(np.ones(SIZE, np.uint8))
    model.gate.let()
    sent = scene.client.encode("both", {"IN": block.tensor})
    outputs = scene.client.decode(scene.client.send(sent)).outputs
    assert (outputs["READ"][0], outputs["WRITTEN"][0]) == (SIZE, 2 * SIZE)
    assert scene.pool.key in model.place
    assert (block.as_numpy() == 1).all()


def test_what_the_model_keeps_stays_readable(scene):
    model = Reader()
    scene.load(model)
    block = scene.pool.put(np.ones(SIZE, np.uint8))
    scene.ask_and(model, block, lambda: None)
    scene.pool.unregister(scene.client)
    assert model.seen[0].sum() == SIZE
    os.truncate(scene.path, 0)
    assert model.seen[0].sum() == 0


def test_memory_is_unmapped_with_its_region(scene):
    model = Reader()
    scene.load(model)
    scene.ask_and(model, scene.pool.put(np.ones(SIZE, np.uint8)), lambda: None)
    model.seen.clear()
    # The server's and the pool's own.
    assert Path("/proc/self/maps").read_text().count(scene.pool.key) == 2
    scene.pool.unregister(scene.client)
    assert scene.server.unload("m", timeout_s=60)
    gc.collect()
    assert Path("/proc/self/maps").read_text().count(scene.pool.key) == 1


def test_without_a_free_guard_memory_is_copied():
    memory = SharedMemory()
    with SharedMemoryPool("many", bytes=4096) as pool:
        descriptor = os.open("/dev/shm" + pool.key, os.O_RDWR)
        kept = [shared_memory.GuardedMapping.of(descriptor, 0, 4096) for _ in range(4200)]
        assert kept[0] is not None
        assert kept[-1] is None
        memory.register_system("r", pool.key, 0, 4096)
        lease = memory.lease("r", 0, 8)
        assert bytes(lease.view()) == bytes(8)
        assert lease.mapping is None
        kept.clear()
        lease.view()
        assert lease.mapping is not None
        assert (
            shared_memory.GuardedMapping.of(descriptor, 0, 1 << 20) is None
        )  # larger than its file
    os.close(descriptor)
    memory.close()


FAULTS = """
import ctypes, faulthandler, mmap, os, signal, sys, tempfile
from pathlib import Path
from nbtriton.serving.frontends.kserve import shared_memory
functions = shared_memory.guard(Path(sys.argv[1]))
shared_memory.guard = lambda: functions
before, what = sys.argv[2:]
if before == "faulthandler":
    faulthandler.enable()
file = tempfile.TemporaryFile()
file.truncate(8192)
mapped = shared_memory.GuardedMapping.of(file.fileno(), 0, 8192)
if before == "faulthandler since":
    faulthandler.enable()
    assert shared_memory.GuardedMapping.of(file.fileno(), 0, 8192)
other = mmap.mmap(file.fileno(), 8192)
file.truncate(0)
print(mapped[5000], mapped.broken, flush=True)
if what == "kill":
    os.kill(os.getpid(), signal.SIGBUS)
print(other[5000])
"""


@pytest.mark.slow
@pytest.mark.parametrize("before", ["nothing", "faulthandler", "faulthandler since"])
@pytest.mark.parametrize("what", ["access", "kill"])
def test_any_other_bus_error_is_what_it_was(library, before, what):
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONFAULTHANDLER"
    }
    done = run_python("-c", UNSET + FAULTS, library, before, what, env=environment)
    assert done.stdout == "0 True\n"
    assert done.returncode == -signal.SIGBUS
    assert ("Fatal Python error: Bus error" in done.stderr) is (before != "nothing")


# tests/children.py has enabled it.
UNSET = "import faulthandler; faulthandler.disable()\n"
