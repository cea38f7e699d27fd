"""Shared memory, by itself and over HTTP (KS40 to KS45)."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbtriton.common.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
)
from nbtriton.runtime.engine import Server
from nbtriton.serving.frontends import serve
from nbtriton.serving.frontends.kserve.shared_memory import LongReadError, SharedMemory
from tests.engine.support import Gate
from tests.frontends.cases import Case, ask
from tests.frontends.raw import Client, post

SERVED = ("one", "two", "flexible", "text")

PAGE = mmap.ALLOCATIONGRANULARITY
pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no POSIX shared memory here")


class Object:
    """One shared memory object of three pages."""

    def __init__(self) -> None:
        self.key = f"/nbtriton-{uuid.uuid4().hex}"
        self.path = Path("/dev/shm" + self.key)
        self.path.write_bytes(bytes(3 * PAGE))

    def put(self, offset: int, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def get(self, offset: int, size: int) -> bytes:
        return self.path.read_bytes()[offset : offset + size]


@pytest.fixture
def shm() -> Iterator[Object]:
    made = Object()
    yield made
    made.path.unlink(missing_ok=True)


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    made = SharedMemory()
    yield made
    made.close()


def test_KS40_status_and_both_forms_of_a_key(memory: SharedMemory, shm: Object) -> None:
    memory.register_system("b", shm.key, 0, 100)
    memory.register_system("a", shm.key.lstrip("/"), PAGE, 50)
    assert memory.status("system") == [
        {"name": "a", "key": shm.key.lstrip("/"), "offset": PAGE, "byte_size": 50},
        {"name": "b", "key": shm.key, "offset": 0, "byte_size": 100},
    ]
    assert [entry["name"] for entry in memory.status("system", "b")] == ["b"]
    with pytest.raises(NotFoundError) as caught:
        memory.status("cuda", "b")
    assert "is registered as system shared memory, not CUDA" in caught.value.message


def test_KS41_unregister(memory: SharedMemory, shm: Object) -> None:
    memory.unregister("system", "unknown")
    memory.register_system("a", shm.key, 0, 100)
    memory.register_system("b", shm.key, 0, 100)
    lease = memory.lease("a", 0, 4)
    with pytest.raises(InternalError) as caught:
        memory.unregister("system", "a")
    assert caught.value.message == (
        "Cannot unregister shared memory region 'a', it is currently in use."
    )
    with pytest.raises(InternalError) as caught:
        memory.unregister("system")
    assert caught.value.message == (
        "Failed to unregister the following system shared memory regions: a ,"
    )
    assert [entry["name"] for entry in memory.status("system")] == ["a"]
    lease.release()
    lease.release()
    memory.unregister("system")
    assert memory.status("system") == []


@pytest.mark.parametrize(
    ("offset", "size", "reason"),
    [
        (0, 3 * PAGE + 1, "invalid args"),
        (3 * PAGE, 1, "invalid args"),
        (1 << 63, 1 << 63, "invalid args"),
        (0, (1 << 64) - 1, "invalid args"),
        (1, 10, "unable to process address spaceInvalid argument"),
        (0, 0, "unable to process address spaceInvalid argument"),
    ],
)
def test_KS42_regions_that_cannot_be_mapped(
    memory: SharedMemory, shm: Object, offset: int, size: int, reason: str
) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(InvalidArgumentError) as caught:
        memory.register_system("a", shm.key, offset, size)
    assert caught.value.message == f"failed to register shared memory region 'a': {reason}"
    # Others of this process may be closed meanwhile, such as what earlier tests left to be collected.
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_KS42_a_name_is_registered_once(memory: SharedMemory, shm: Object) -> None:
    memory.register_system("a", shm.key, 0, 4)
    for register in (
        lambda: memory.register_system("a", shm.key, 0, 4),
        lambda: memory.register_cuda("a", bytes(64), 0, 4),
    ):
        with pytest.raises(AlreadyExistsError) as caught:
            register()
        assert caught.value.message == "shared memory region 'a' already in manager"


@pytest.mark.parametrize(
    "key", ["", "/", ".", "..", "../shm/x", "a/b", "/dev/null", "x\0y", "x" * 300, "\udcff" * 200]
)
def test_KS42_keys_stay_in_their_folder(memory: SharedMemory, key: str) -> None:
    with pytest.raises(InternalError) as caught:
        memory.register_system("a", key, 0, 4)
    assert caught.value.message == f"Unable to open shared memory region: '{key}'"


def test_KS42_a_link_or_a_folder_is_no_object(memory: SharedMemory, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    link = Path(f"/dev/shm/nbtriton-{uuid.uuid4().hex}")
    folder = link.with_name(link.name + "-folder")
    link.symlink_to(secret)
    folder.mkdir()
    try:
        for path in (link, folder):
            with pytest.raises(InternalError):
                memory.register_system("a", path.name, 0, 6)
    finally:
        link.unlink()
        folder.rmdir()


def test_KS43_offsets_count_once_and_keys_may_be_shared(memory: SharedMemory, shm: Object) -> None:
    shm.put(PAGE + 8, b"hello")
    memory.register_system("first", shm.key, PAGE, 100)
    memory.register_system("second", shm.key, PAGE, 100)
    for name in ("first", "second"):
        lease = memory.lease(name, 8, 5)
        assert bytes(lease.data()) == b"hello"
        lease.release()


@pytest.mark.parametrize(
    ("offset", "size", "what"),
    [
        (100, 1, "offset"),
        (1 << 64, 1, "offset"),
        (0, 101, "offset + byte size"),
        (99, 2, "offset + byte size"),
        (0, 0, "offset + byte size"),
        (0, (1 << 64) - 1, "offset + byte size"),
    ],
)
def test_KS45_parts_outside_the_region(
    memory: SharedMemory, shm: Object, offset: int, size: int, what: str
) -> None:
    memory.register_system("r", shm.key, 0, 100)
    with pytest.raises(InvalidArgumentError) as caught:
        memory.lease("r", offset, size)
    assert caught.value.message == f"Invalid {what} for shared memory region: 'r'"


def test_KS45_a_part_may_be_empty_except_at_the_beginning(
    memory: SharedMemory, shm: Object
) -> None:
    memory.register_system("r", shm.key, 0, 100)
    for offset in (1, 99):
        lease = memory.lease("r", offset, 0)
        assert len(lease.data()) == 0
        lease.release()
    memory.unregister("system", "r")


def test_an_object_that_shrinks_is_not_touched(memory: SharedMemory, shm: Object) -> None:
    memory.register_system("r", shm.key, 0, 3 * PAGE)
    os.truncate(shm.path, PAGE)
    memory.lease("r", 0, PAGE).release()
    with pytest.raises(InvalidArgumentError):
        memory.lease("r", PAGE, 8)


def test_data_that_was_read_is_a_copy(memory: SharedMemory, shm: Object) -> None:
    shm.put(0, b"kept")
    memory.register_system("r", shm.key, 0, 100)
    lease = memory.lease("r", 0, 4)
    array = np.frombuffer(lease.data(), np.uint8)
    shm.put(0, b"new!")
    lease.release()
    memory.unregister("system", "r")
    assert array.tobytes() == b"kept"
    assert array.flags.writeable


@pytest.mark.parametrize("left", [0, 10, 2 * PAGE + 5])
def test_an_object_that_shrinks_in_use_is_an_error(
    memory: SharedMemory, shm: Object, left: int
) -> None:
    memory.register_system("r", shm.key, PAGE, 2 * PAGE)
    lease = memory.lease("r", 8, PAGE)
    os.truncate(shm.path, left)
    for use in (lease.data, lambda: lease.write(bytes(PAGE))):
        with pytest.raises(InvalidArgumentError) as caught:
            use()
        assert caught.value.message == "Invalid offset + byte size for shared memory region: 'r'"
    assert shm.path.stat().st_size == left
    lease.release()
    memory.unregister("system", "r")


def opened_files() -> set[Path]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found.add(link.readlink())
    return found


def test_a_region_in_use_is_open_until_its_last_lease_ends(shm: Object) -> None:
    memory = SharedMemory()
    shm.put(PAGE, b"there")
    memory.register_system("r", shm.key, PAGE, 5)
    leases = [memory.lease("r", 0, 5) for _ in range(2)]
    memory.close()
    leases[0].release()
    assert bytes(leases[1].data()) == b"there"
    leases[1].write(b"again")
    assert shm.path in opened_files()
    assert shm.get(PAGE, 5) == b"again"
    leases[1].release()
    assert shm.path not in opened_files()


def test_long_reads_are_not_on_the_event_loop(memory: SharedMemory, shm: Object) -> None:
    memory.register_system("r", shm.key, 0, 100)
    assert len(memory.lease("r", 0, 8, at_once=8).data()) == 8
    with pytest.raises(LongReadError):
        memory.lease("r", 0, 9, at_once=8).data()


# -- over HTTP ---------------------------------------------------------------------------------------


@pytest.fixture
def region(port: int, shm: Object) -> Iterator[Object]:
    body = json.dumps({"key": shm.key, "offset": PAGE, "byte_size": 2 * PAGE}).encode()
    seen = ask(port, Case("", 200, "/v2/systemsharedmemory/region/r/register", body))
    assert (seen.status, seen.body) == (200, b"")
    yield shm
    ask(port, Case("", 200, "/v2/systemsharedmemory/unregister"))


def place(offset: int, size: int) -> dict[str, Any]:
    return {
        "shared_memory_region": "r",
        "shared_memory_offset": offset,
        "shared_memory_byte_size": size,
    }


def infer(port: int, in_size: int, out_size: int, model: str = "one") -> Any:
    document = {
        "inputs": [{"name": "IN", "shape": [1, 4], "datatype": "FP32", "parameters": place(0, in_size)}],
        "outputs": [{"name": "OUT", "parameters": place(PAGE, out_size)}],
    }  # fmt: skip
    return ask(port, Case("", 200, f"/v2/models/{model}/infer", json.dumps(document).encode()))


@pytest.mark.medium
def test_KS45_inputs_and_outputs_in_a_region(port: int, region: Object) -> None:
    data = np.arange(4, dtype=np.float32).tobytes()
    region.put(PAGE, data)
    seen = infer(port, 16, 16)
    assert seen.json["outputs"] == [{"name": "OUT", "datatype": "FP32", "shape": [1, 4]}]
    assert region.get(2 * PAGE, 16) == data


@pytest.mark.parametrize("size", [8, 0])
def test_an_output_that_does_not_fit(port: int, region: Object, size: int) -> None:
    seen = infer(port, 16, size)
    assert seen.status == 500
    assert seen.error == (
        f"shared memory size specified with the request for output 'OUT' ({size} bytes) should be at "
        "least 16 bytes to hold the results"
    )


def test_an_input_of_another_size(port: int, region: Object) -> None:
    seen = infer(port, 12, 16)
    assert seen.status == 400
    assert seen.error == (
        "[request id: <id_unknown>] input byte size mismatch for input 'IN' for model 'one'. "
        "Expected 16, got 12"
    )


def test_requests_release_their_regions_however_they_end(port: int, region: Object) -> None:
    infer(port, 16, 16)
    infer(port, 12, 16)
    infer(port, 16, 1 << 40)
    infer(port, 16, 16, "failing")
    infer(port, 16, 16, "two")
    seen = ask(port, Case("", 200, "/v2/systemsharedmemory/region/r/unregister"))
    assert (seen.status, seen.body) == (200, b"")
    assert region.path not in opened_files()


def test_duplicate_names_over_http(port: int, region: Object) -> None:
    body = json.dumps({"key": region.key, "byte_size": 8}).encode()
    seen = ask(port, Case("", 400, "/v2/systemsharedmemory/region/r/register", body))
    assert (seen.status, seen.error) == (400, "shared memory region 'r' already in manager")
    status = ask(port, Case("", 200, "/v2/systemsharedmemory/status", method="GET"))
    assert status.json == [{"name": "r", "key": region.key, "offset": PAGE, "byte_size": 2 * PAGE}]
    with contextlib.suppress(OSError):
        region.path.unlink()  # the mapping stays
    assert infer(port, 16, 16).status == 200


CONFIG = """
input { name: "IN" data_type: TYPE_UINT8 dims: -1 }
output { name: "OUT" data_type: TYPE_UINT8 dims: -1 }
"""


@pytest.fixture(scope="module")
def gate() -> Gate:
    return Gate()


@pytest.fixture(scope="module")
def patient(gate: Gate) -> Iterator[int]:
    def standing(IN: np.ndarray) -> np.ndarray:  # noqa: N803
        gate.stand([])
        return np.add(IN, 1, out=IN)

    with Server(gpus=()) as server:
        server.load(CONFIG, standing, name="m")
        with serve(server, http_port=0, metrics_port=None) as endpoints:
            assert endpoints.http_port is not None
            yield endpoints.http_port


@pytest.mark.medium
@pytest.mark.parametrize("size", [16, 3_000_000])
@pytest.mark.parametrize("attack", ["none", "truncate", "unlink", "write"])
def test_a_client_that_changes_its_memory_harms_only_itself(
    patient: int, gate: Gate, shm: Object, attack: str, size: int
) -> None:
    shm.path.write_bytes(bytes(2 * size))
    body = json.dumps({"key": shm.key, "byte_size": 2 * size}).encode()
    ask(patient, Case("", 200, "/v2/systemsharedmemory/region/r/register", body))
    inside = {"shared_memory_region": "r", "shared_memory_byte_size": size}
    document = {
        "inputs": [{"name": "IN", "shape": [size], "datatype": "UINT8", "parameters": inside}],
        "outputs": [{"name": "OUT", "parameters": {**inside, "shared_memory_offset": size}}],
    }
    with Client(patient) as client:
        client.send(post("/v2/models/m/infer", document))
        gate.wait_entered()
        if attack == "truncate":
            os.truncate(shm.path, 0)
        elif attack == "unlink":
            shm.path.unlink()
        elif attack == "write":
            shm.put(0, b"\xff" * size)
        gate.let()
        received = client.receive()
    if attack == "truncate":
        assert received.status == 400
        assert received.error == "Invalid offset + byte size for shared memory region: 'r'"
        assert shm.path.stat().st_size == 0
    else:
        assert received.status == 200
    if attack in ("none", "write"):
        assert shm.get(size, size) == b"\1" * size
    if attack == "none":  # the model's inputs are its own
        assert shm.get(0, size) == bytes(size)
    seen = ask(patient, Case("", 200, "/v2/systemsharedmemory/region/r/unregister"))
    assert seen.status == 200
