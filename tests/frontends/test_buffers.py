"""The buffer pool: no buffer is reused while a reference to it exists."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from nbtriton.serving.frontends import buffers as module
from nbtriton.serving.frontends.buffers import Buffers

with_a_gil = pytest.mark.skipif(not module._COUNTS, reason="nothing is used again without a GIL")


def address(memory: memoryview) -> int:
    return np.frombuffer(memory, np.uint8).ctypes.data


@with_a_gil
def test_a_buffer_without_references_is_reused() -> None:
    pool = Buffers(1 << 20)
    first = pool.acquire(1000)
    where = address(first)
    tensor = np.ndarray((10, 10), np.float32, first, 40)
    del first
    assert address(pool.acquire(1000)) != where  # a tensor still views it
    row = tensor[3]
    del tensor
    assert address(pool.acquire(1000)) != where  # and now a part of it
    del row
    assert address(pool.acquire(900)) == where


@with_a_gil
def test_the_smallest_sufficient_buffer_is_acquired() -> None:
    pool = Buffers(1 << 20)
    held = [pool.acquire(size) for size in (5000, 1000, 3000)]
    where = [address(memory) for memory in held]
    held.clear()
    assert address(pool.acquire(2000)) == where[2]
    assert len(pool.acquire(1000)) == 1000


def test_the_pool_is_bounded() -> None:
    pool = Buffers(10_000)
    held = [pool.acquire(3000) for _ in range(20)]
    assert sum(array.nbytes for array in pool._arrays) <= 10_000
    assert len({address(memory) for memory in held}) == 20
    assert len(pool.acquire(1 << 20)) == 1 << 20  # larger than all that may be kept
    assert not pool._arrays


def test_threads_never_share_memory() -> None:
    pool = Buffers(1 << 20)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(500):
            mine = np.frombuffer(pool.acquire(4096), np.uint8)
            mine[:] = number
            if (mine != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
