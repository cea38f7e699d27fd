"""The pool of shared memory: allocation, reuse and release, and its use by every client against both servers."""

# ruff: noqa: F821, N803, UP037 - function models: Triton's datatypes as annotations

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.serving.clients.base import tensor_bytes
from nbtriton.serving.clients.http import HttpClient
from nbtriton.serving.clients.shared_memory import (
    ALIGNED,
    SharedBlock,
    SharedMemoryPool,
    byte_size_of,
)
from tests.children import finish, run_python
from tests.forked import in_child

SHM = Path("/dev/shm")
pytestmark = pytest.mark.skipif(not SHM.is_dir(), reason="no POSIX shared memory here")
PAGE = 4096


@pytest.fixture
def pool() -> Iterator[SharedMemoryPool]:
    with SharedMemoryPool("test", bytes=PAGE) as made:
        yield made


def test_blocks_are_aligned_apart_and_reused(pool):
    first, second = pool.allocate(100), pool.allocate(1)
    assert [first.offset, second.offset] == [0, 128]
    assert pool.used == 192
    first.release()
    first.release()
    assert pool.used == 64
    again = pool.allocate(128)
    assert again.offset == 0
    for block in (again, second):
        block.release()
    assert pool.allocate(PAGE).offset == 0  # one piece again


def test_what_is_free_is_said_in_bytes(pool):
    blocks = [pool.allocate(PAGE // 4) for _ in range(4)]
    blocks[0].release()
    blocks[2].release()
    with pytest.raises(InvalidArgumentError) as caught:
        pool.allocate(1025)
    assert caught.value.message == (
        f"no room for 1,025 bytes in the pool '{pool.region}': 2,048 of 4,096 are free, "
        "1,024 in one piece"
    )
    assert (
        repr(pool) == f"<SharedMemoryPool '{pool.region}': 2 blocks, 2,048 of 4,096 bytes in use>"
    )


def test_random_allocations_never_overlap_and_leave_one_piece():
    chance = random.Random(7)
    with SharedMemoryPool("walk", bytes=10_001) as pool:  # its end is not aligned
        held: list[SharedBlock] = []
        refused = 0
        for _ in range(3000):
            if held and chance.random() < 0.5:
                held.pop(chance.randrange(len(held))).release()
                continue
            try:
                held.append(pool.allocate(chance.randrange(1500)))
            except InvalidArgumentError:
                refused += 1
            ends = [(b.offset, b.offset + max(1, b.capacity)) for b in held]
            assert all(
                e <= s for (_, e), (s, _) in zip(sorted(ends), sorted(ends)[1:], strict=False)
            )
            assert all(end <= 10_001 for _, end in ends)
            assert all(start % ALIGNED == 0 for start, _ in ends)
        assert refused
        for block in held:
            block.release()
        assert pool.used == 0
        assert pool.allocate(10_001).offset == 0


@pytest.mark.medium
def test_threads_share_a_pool():
    with SharedMemoryPool("threads", bytes=64 * 100) as pool:
        wrong = []

        def work(number: int) -> None:
            for _ in range(300):
                with pool.put(np.full(100, number, np.int32)) as block:
                    if (block.as_numpy() != number).any():
                        wrong.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (wrong, pool.used, pool.leaks()) == ([], 0, [])


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(12, dtype=np.int64).reshape(3, 4)[:, ::2],
        np.array([True, False]),
        np.array([[b"a", "ü"], [b"", b"\0\xff"]], object),
        np.zeros((0, 4), np.uint8),
    ],
)
def test_a_tensor_comes_back(pool, value):
    block = pool.put(value)
    found = block.as_numpy()
    wanted = value
    if value.dtype.kind == "O":
        wanted = np.array([[b"a", "ü".encode()], [b"", b"\0\xff"]], object)
    assert (found.tolist(), found.shape) == (wanted.tolist(), wanted.shape)
    assert block.place == (pool.region, block.byte_size, block.offset)
    assert block.tensor.shape == value.shape


def test_a_view_is_the_memory_that_servers_see(pool):
    block = pool.allocate(16)
    block.as_numpy("FP32", (4,))[:] = [1, 2, 3, 4]
    seen = (SHM / pool.key[1:]).read_bytes()[:16]
    assert np.frombuffer(seen, np.float32).tolist() == [1, 2, 3, 4]
    (SHM / pool.key[1:]).open("r+b").write(np.float32(7).tobytes())
    assert block.as_numpy()[0] == 7


def test_a_block_holds_one_tensor_after_another(pool):
    block = pool.allocate(64)
    assert block.place[1] == 64
    block.write(np.zeros(3, np.float32))
    assert block.place[1] == 12
    block.write(np.zeros(16, np.float32))
    assert (block.place[1], block.shape, block.datatype) == (64, (16,), "FP32")


def test_misuse_is_told(pool):
    block = pool.allocate(8)
    for use, text in (
        (lambda: block.write(np.zeros(3, np.float32)), "12 bytes does not fit into a block of 8"),
        (lambda: block.as_numpy("INT64", (2,)), "16 bytes does not fit into a block of 8"),
        (block.as_numpy, "the block is empty"),
        (lambda: pool.put(np.zeros(PAGE, np.float32)), "no room for 16,384 bytes"),
        (lambda: pool.allocate(-1), "cannot have -1 bytes"),
        (lambda: pool.register(object()), "a object is no client of a Triton server"),
        (lambda: SharedMemoryPool("a/b", bytes=1), "'a/b' cannot name shared memory"),
        (lambda: SharedMemoryPool("a", bytes=0), "must be at least 1, not 0"),
        (
            lambda: SharedMemoryPool("a", bytes=1 << 60),
            "no room for 1,152,921,504,606,846,976 bytes",
        ),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            use()
    block.release()
    for use in (lambda: block.place, lambda: block.write(np.zeros(1, np.uint8))):
        with pytest.raises(InvalidArgumentError, match="the block was released"):
            use()
    pool.close()
    with pytest.raises(InvalidArgumentError, match="is closed"):
        pool.allocate(1)
    assert not list(SHM.glob(f"*{pool.region}"))


def test_the_object_goes_with_the_pool_and_views_stay():
    pool = SharedMemoryPool("gone", bytes=PAGE)
    path = SHM / pool.key[1:]
    view = pool.put(np.arange(4)).as_numpy()
    assert path.stat().st_mode & 0o777 == 0o600
    pool.close()
    pool.close()
    assert not path.exists()
    assert view.tolist() == [0, 1, 2, 3]
    second = SharedMemoryPool("collected", bytes=PAGE)
    path = SHM / second.key[1:]
    del second
    assert not path.exists()


def test_what_is_not_released_is_reported_with_its_place():
    pool = SharedMemoryPool("leaky", bytes=PAGE, check=True)
    kept = pool.allocate(100)
    pool.allocate(4).release()
    (leak,) = pool.leaks()
    assert leak[:2] == (kept.offset, 100)
    assert Path(leak.where.rpartition(":")[0]) == Path(__file__)
    with pytest.warns(
        RuntimeWarning, match="ends with 1 blocks that were not released: 100 bytes of"
    ):
        pool.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet = SharedMemoryPool("quiet", bytes=PAGE)
        quiet.allocate(1)
        quiet.close()


def test_a_forked_child_neither_uses_nor_removes_the_pool_of_its_parent(pool):
    refusal = in_child(lambda: pool.allocate(1))
    assert isinstance(refusal, InvalidArgumentError)
    assert f"belongs to process {os.getpid()}" in refusal.message
    in_child(pool.close)
    assert (SHM / pool.key[1:]).exists()


CHILD = """
import sys
from nbtriton import SharedMemoryPool
pool = SharedMemoryPool("child", bytes=4096, check=True)
block = pool.allocate(10)
print(pool.key[1:], flush=True)
if sys.argv[1] == "stay":
    sys.stdin.read()
"""


@pytest.mark.slow
def test_the_end_of_a_process_frees_its_memory():
    ended = run_python("-c", CHILD, "end", check=True)
    assert not (SHM / ended.stdout.strip()).exists()
    assert "ends with 1 blocks that were not released: 10 bytes of <string>:5" in ended.stderr
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    stays = subprocess.Popen([sys.executable, "-c", CHILD, "stay"], text=True, **pipes)
    left = SHM / stays.stdout.readline().strip()
    assert left.exists()  # once it is killed, the pool of any process removes it
    stays.kill()
    finish(stays)
    SharedMemoryPool("next", bytes=1).close()
    assert not left.exists()


# -- by clients --------------------------------------------------------------------------------------


def both(IN: "FP32[4]", TEXT: "BYTES[1]") -> {"OUT": "FP32[4]", "TWICE": "BYTES[1]"}:
    twice = np.array([[text[0] * 2] for text in TEXT], object)
    return {"OUT": IN * 2, "TWICE": twice}


X = np.arange(8, dtype=np.float32).reshape(2, 4)
TEXT = np.array([[b"a"], [b"bcd"]], object)


@pytest.fixture(scope="module")
def endpoints():
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", both, name="both")
        yield server.serve(http_port=0, grpc_port=0, metrics_port=None)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, reference: Any):
    folder = tmp_path_factory.mktemp("pool")
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", both, name="both")
        server.export(folder / "models")
    with reference.server(folder / "models") as running:
        yield running


@pytest.fixture(params=["nbtriton", pytest.param("tritonserver", marks=pytest.mark.reference)])
def ports(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("endpoints" if request.param == "nbtriton" else "real")


def open_client(kind: str, ports: Any) -> Any:
    place = f"127.0.0.1:{ports.http_port if 'http' in kind else ports.grpc_port}"
    if kind == "http":
        return HttpClient(place)
    if kind == "grpc":
        pytest.importorskip("grpc", reason="grpcio is not installed")
        from nbtriton.serving.clients.grpc import GrpcClient

        return GrpcClient(place)
    module = pytest.importorskip(kind, reason="tritonclient is not installed")
    return module.InferenceServerClient(place)


def ask(client: Any, kind: str, inputs: dict[str, SharedBlock], outputs: dict[str, SharedBlock]):
    """Send one request whose tensors all are in the pool."""
    if not kind.startswith("tritonclient"):
        sent = {name: block.tensor for name, block in inputs.items()}
        rooms = {name: block.tensor for name, block in outputs.items()}
        client.send(client.encode("both", sent, outputs=rooms))
        return
    module = pytest.importorskip(kind)
    given = []
    for name, block in inputs.items():
        given.append(module.InferInput(name, list(block.shape), block.datatype))
        given[-1].set_shared_memory(*block.place)
    wanted = [module.InferRequestedOutput(name) for name in outputs]
    for output, block in zip(wanted, outputs.values(), strict=True):
        output.set_shared_memory(*block.place)
    client.infer("both", given, outputs=wanted)


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["http", "grpc", "tritonclient.http", "tritonclient.grpc"])
def test_requests_by_every_client_to_both_servers(kind, ports):
    with open_client(kind, ports) as client, SharedMemoryPool("both", bytes=1 << 16) as pool:
        pool.register(client)
        pool.register(client)
        inputs = {"IN": pool.put(X), "TEXT": pool.put(TEXT)}
        outputs = {"OUT": pool.allocate(X.nbytes), "TWICE": pool.allocate(100)}
        for factor in (1, 3):  # the same memory again
            inputs["IN"].as_numpy()[:] = X * factor
            ask(client, kind, inputs, outputs)
            assert (outputs["OUT"].as_numpy("FP32", X.shape) == X * factor * 2).all()
        assert outputs["TWICE"].as_numpy("BYTES", (2, 1)).tolist() == [[b"aa"], [b"bcdbcd"]]
        pool.unregister(client)
        with pytest.raises(Exception, match=f"Unable to find.*{pool.region}"):
            ask(client, kind, inputs, outputs)


def test_one_registration_is_enough_for_both_protocols(ports):
    with ExitStack() as stack:
        clients = {kind: stack.enter_context(open_client(kind, ports)) for kind in ("http", "grpc")}
        pool = stack.enter_context(SharedMemoryPool("both", bytes=1 << 16))
        inputs = {"IN": pool.put(X), "TEXT": pool.put(TEXT)}
        outputs = {"OUT": pool.allocate(X.nbytes), "TWICE": pool.allocate(100)}
        for kind, client in clients.items():
            pool.register(client)
            ask(client, kind, inputs, outputs)
        pool.close()
        with pytest.raises(InvalidArgumentError, match="is closed"):
            pool.register(clients["http"])


@pytest.mark.medium
def test_an_asynchronous_client_registers_when_it_is_awaited(endpoints):
    import asyncio

    aio = pytest.importorskip("tritonclient.grpc.aio", reason="tritonclient is not installed")

    async def run() -> list[str]:
        client = aio.InferenceServerClient(f"127.0.0.1:{endpoints.grpc_port}")
        try:
            with SharedMemoryPool("aio", bytes=PAGE) as pool:
                await pool.register(client)
                known = await client.get_system_shared_memory_status(pool.region)
                await pool.unregister(client)
                return [pool.region, *known.regions]
        finally:
            await client.close()

    region, *known = asyncio.run(run())
    assert known == [region]


@pytest.mark.parametrize(
    "value",
    [
        np.ones((3, 2), np.float32), np.ones((3, 2), np.float32).T, np.array([b"", b"abc"], object),
        np.array([b"a", b"bcd"]), np.array(["é", 7, b"x"], object), np.zeros((0, 4)),
    ],
)  # fmt: skip
def test_the_size_of_a_tensor_is_that_of_its_bytes(value):
    assert byte_size_of(value) == len(tensor_bytes(value))
