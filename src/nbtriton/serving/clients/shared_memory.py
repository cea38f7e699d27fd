"""Shared memory of clients: one owner that allocates, reuses and releases it."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import mmap
import os
import re
import threading
import traceback
import warnings
import weakref
from bisect import bisect, insort
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nbtriton.common.closing import Closing, remove_left
from nbtriton.common.errors import InvalidArgumentError, UnsupportedError
from nbtriton.model import tensors
from nbtriton.serving.clients.base import Client, SharedTensor, tensor_bytes

_DIRECTORY = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is
_PREFIX = "nbtriton-pool-"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
# Alignment of blocks, for the widest vector instructions.
ALIGNED = 64
_numbers = itertools.count(1)


class Leak(NamedTuple):
    """A block that was not released: its place in the pool, and who allocated it if the pool notes that."""

    offset: int
    byte_size: int
    where: str


class SharedBlock(Closing):
    """A part of a pool, for one tensor at a time; `release` or the end of a ``with`` block gives it back.

    Attributes
    ----------
    capacity : int
        Its size in bytes.
    byte_size : int
        Size of the tensor in it; of a block that nothing was written to, its capacity.
    offset : int
        In the pool.
    datatype, shape
        Of the tensor that was written; empty before.
    """

    __slots__ = ("_pool", "byte_size", "capacity", "datatype", "offset", "shape", "where")

    def __init__(self, pool: SharedMemoryPool, offset: int, capacity: int, where: str) -> None:
        self._pool: SharedMemoryPool | None = pool
        self.offset = offset
        self.capacity = self.byte_size = capacity
        self.where = where
        self.datatype = ""
        self.shape: tuple[int, ...] = ()

    def __repr__(self) -> str:
        what = f"{self.datatype} {list(self.shape)}" if self.datatype else "empty"
        state = what if self._pool is not None else "released"
        return f"<SharedBlock of {self.capacity:,} bytes at {self.offset:,}: {state}>"

    @property
    def place(self) -> tuple[str, int, int]:
        """Region, size and offset: the arguments of tritonclient's ``set_shared_memory``."""
        return self._owner().region, self.byte_size, self.offset

    @property
    def tensor(self) -> SharedTensor:
        """The tensor or the room for an output, for `nbtriton.serving.clients`."""
        return SharedTensor(
            self.datatype, self.shape, self._owner().region, self.byte_size, self.offset
        )

    def write(self, value: Any) -> SharedBlock:
        """Write a tensor and return the block.

        Raises
        ------
        InvalidArgumentError
            The tensor is larger than the block, or the block was released.
        """
        memory = self._owner().part(self.offset, self.capacity)
        datatype, shape = tensors.datatype_of(value), tuple(tensors.shape_of(value))
        if datatype == "BYTES":
            data = tensor_bytes(value)
            self._fit(len(data))
            memory[: len(data)] = data
        else:
            array = tensors.to_numpy(value)
            self._fit(array.nbytes)
            np.copyto(np.ndarray(array.shape, array.dtype, memory), array)
        self.datatype, self.shape = datatype, shape
        return self

    def as_numpy(self, datatype: str = "", shape: Sequence[int] | None = None) -> Any:
        """Return the tensor as a view of the memory; one of BYTES as a copy.

        Parameters
        ----------
        datatype, shape : optional
            Of an output that a server has written, or of what is to be written here; by default of the tensor that
            was written last.

        Raises
        ------
        InvalidArgumentError
            The tensor is larger than the block, or the block was released.
        """
        datatype, shape = datatype or self.datatype, self.shape if shape is None else shape
        memory = self._owner().part(self.offset, self.capacity)
        if not datatype:
            raise InvalidArgumentError("the block is empty", hint="give datatype and shape")
        if datatype == "BYTES":
            return tensors.deserialize_bytes(
                memory[: _text_bytes(memory, math.prod(shape))]
            ).reshape(shape)
        dtype = tensors.numpy_dtype(datatype)
        self._fit(math.prod(shape) * dtype.itemsize)
        self.datatype, self.shape = datatype, tuple(shape)
        return np.ndarray(self.shape, dtype, memory)

    def release(self) -> None:
        """Give the block back, once no request uses it; harmless when repeated."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.free(self)

    def close(self) -> None:
        """As `release`."""
        self.release()

    def _fit(self, size: int) -> None:
        if size > self.capacity:
            raise InvalidArgumentError(
                f"a tensor of {size:,} bytes does not fit into a block of {self.capacity:,}"
            )
        self.byte_size = size

    def _owner(self) -> SharedMemoryPool:
        if self._pool is None:
            raise InvalidArgumentError("the block was released", hint="allocate another one")
        return self._pool


def byte_size_of(value: Any) -> int:
    """Return the size of a tensor in shared memory; nothing is copied, but for strings that are no `bytes` yet."""
    array = tensors.to_numpy(value)
    text = tensors.datatype_of(value) == "BYTES"
    return tensors.nbytes_of(tensors.as_bytes_array(array) if text else array)


def _taken(byte_size: int) -> int:
    """Return what a block takes of a pool."""
    return max(ALIGNED, byte_size + -byte_size % ALIGNED)


def _text_bytes(memory: memoryview, count: int) -> int:
    """Return the size of a number of strings in Triton's form."""
    size = 0
    for _ in range(count):
        size += 4 + int.from_bytes(memory[size : size + 4], "little")
    return size


class SharedMemoryPool(Closing):
    """Shared memory for the tensors of requests: allocated once, registered with a server once, and reused.

    Its memory is given back by `close`, with the object, or at the end of the process; what a killed process has
    left, by the next pool. All methods may be called from any thread.

    Parameters
    ----------
    name : str
        Begins the names of the region and of the object.
    bytes : int
        Size of all blocks together.
    check : bool
        Note where each block is allocated, and warn at the end about those that were not released.

    Attributes
    ----------
    region, key : str
        Name of the memory in requests, and of its object in ``/dev/shm``: both are of this pool alone.
    byte_size : int

    Raises
    ------
    InvalidArgumentError
        The name has other characters than letters, digits and ``._-``, or there is no room for the memory.
    UnsupportedError
        This machine has no shared memory in files.

    Examples
    --------
    >>> pool = nt.SharedMemoryPool("models", bytes=1 << 20)
    >>> with pool.put(np.ones((1, 4), np.float32)) as block:
    ...     block.as_numpy().sum(), pool.used
    (np.float32(4.0), 64)

    A client of this package, or of tritonclient, tells its server of it; requests then name its blocks.

    >>> from nbtriton.serving.clients.http import HttpClient
    >>> with server.serve(http_port=0, grpc_port=None, metrics_port=None) as endpoints:
    ...     client = HttpClient(f"127.0.0.1:{endpoints.http_port}")
    ...     pool.register(client)
    ...     room = pool.allocate(64)
    ...     pool.unregister(client)
    ...     client.close()
    >>> len(pool.leaks())
    1
    >>> pool.close()
    """

    def __init__(self, name: str, *, bytes: int, check: bool = False) -> None:  # noqa: A002
        if not _DIRECTORY.is_dir():
            raise UnsupportedError(
                f"shared memory needs '{_DIRECTORY}', which this machine does not have"
            )
        if not _NAME.fullmatch(name):
            raise InvalidArgumentError(
                f"'{name}' cannot name shared memory",
                hint="up to 100 letters, digits, '.', '_' and '-'",
            )
        if bytes < 1:
            raise InvalidArgumentError(f"bytes of a pool must be at least 1, not {bytes}")
        remove_left(_DIRECTORY.glob(f"{_PREFIX}*"), "", Path.unlink)
        self.byte_size = bytes
        self.region = f"{name}-{os.getpid()}-{next(_numbers)}"
        self.key = f"/{_PREFIX}{self.region}"
        self._check = check
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._free = [(0, bytes)]  # by offset; neighbours are joined
        self._blocks: dict[int, tuple[int, str]] = {}  # size and origin by offset
        self._clients: list[Any] = []
        path = _DIRECTORY / self.key[1:]
        descriptor = _create(path, bytes)
        try:
            self._memory: mmap.mmap | None = mmap.mmap(descriptor, bytes)
        except BaseException:
            path.unlink()
            os.close(descriptor)
            raise
        self._dispose = weakref.finalize(
            self, _dispose, path, descriptor, self._process, name, self._blocks, check
        )

    def __repr__(self) -> str:
        return (
            f"<SharedMemoryPool '{self.region}': {len(self._blocks)} blocks, "
            f"{self.used:,} of {self.byte_size:,} bytes in use>"
        )

    @property
    def used(self) -> int:
        """Bytes of the blocks in use."""
        with self._lock:
            return self.byte_size - sum(size for _, size in self._free)

    def leaks(self) -> list[Leak]:
        """Return the blocks that are not released, by their place."""
        with self._lock:
            return [Leak(offset, *block) for offset, block in sorted(self._blocks.items())]

    def allocate(self, byte_size: int) -> SharedBlock:
        """Return a block, such as room for an output.

        Raises
        ------
        InvalidArgumentError
            The size is negative, or no free piece is as large; the pool is closed, or belongs to another process.
        """
        self._opened()
        if byte_size < 0:
            raise InvalidArgumentError(f"a block cannot have {byte_size:,} bytes")
        where = ""
        if self._check:
            # The last frame that is not of this file.
            frames = (f for f in reversed(traceback.extract_stack()) if f.filename != __file__)
            where = next((f"{frame.filename}:{frame.lineno}" for frame in frames), "")
        wanted = _taken(byte_size)
        with self._lock:
            for index, (offset, size) in enumerate(self._free):
                # The last piece may be shorter than its alignment.
                if byte_size <= size and (wanted <= size or offset + size == self.byte_size):
                    taken = min(wanted, size)
                    self._free[index : index + 1] = (
                        [(offset + taken, size - taken)] if size > taken else []
                    )
                    self._blocks[offset] = byte_size, where
                    return SharedBlock(self, offset, byte_size, where)
            sizes = [size for _, size in self._free]
        free, largest = sum(sizes), max(sizes, default=0)
        raise InvalidArgumentError(
            f"no room for {byte_size:,} bytes in the pool '{self.region}': {free:,} of "
            f"{self.byte_size:,} are free, {largest:,} in one piece",
            hint="release blocks, or make a larger pool",
        )

    def put(self, value: Any) -> SharedBlock:
        """Return a new block with a tensor."""
        block = self.allocate(byte_size_of(value))
        try:
            return block.write(value)
        except BaseException:
            block.release()
            raise

    def register(self, client: Any) -> Any:
        """Tell a server on this machine of the memory; `close` takes it back.

        Parameters
        ----------
        client : client of this package, or of tritonclient
            Of an asynchronous one, what is returned is to be awaited, and `unregister` is left to the caller.
        """
        self._opened()
        if any(known is client for known in self._clients):
            return None
        try:
            if isinstance(client, Client):
                client.register_memory(self.region, self.key, self.byte_size)
            else:
                register = getattr(client, "register_system_shared_memory", None)
                if register is None:
                    raise InvalidArgumentError(
                        f"a {type(client).__name__} is no client of a Triton server"
                    )
                done = register(self.region, self.key, self.byte_size)
                if inspect.isawaitable(done):
                    return done
        except Exception as error:
            # By another client of the same server: the name is of this pool alone.
            if "already in manager" not in str(error):
                raise
        with self._lock:
            self._clients.append(client)
        return None

    def unregister(self, client: Any) -> Any:
        """Take the memory back from a client's server."""
        with self._lock:
            self._clients = [known for known in self._clients if known is not client]
        if isinstance(client, Client):
            return client.unregister_memory(self.region)
        return client.unregister_system_shared_memory(self.region)

    def close(self) -> None:
        """Unregister and free the memory; views of it stay valid. May be called twice."""
        for client in list(self._clients):
            # The server, or the client, may have ended; tritonclient's errors are its own.
            with contextlib.suppress(Exception):
                self.unregister(client)
        # Unmapped with the last view: an array of numpy does not keep `mmap.close` from it.
        self._memory = None
        self._dispose()

    def part(self, offset: int, size: int) -> memoryview:
        """Return the memory of a block."""
        return memoryview(self._opened())[offset : offset + size]

    def free(self, block: SharedBlock) -> None:
        """Take a block back; `SharedBlock.release` calls this."""
        with self._lock:
            byte_size, _ = self._blocks.pop(block.offset)
            start = block.offset
            end = min(start + _taken(byte_size), self.byte_size)
            index = bisect(self._free, (start, 0))
            if index < len(self._free) and self._free[index][0] == end:
                end += self._free.pop(index)[1]
            if index and sum(self._free[index - 1]) == start:
                start = self._free.pop(index - 1)[0]
            insort(self._free, (start, end - start))

    def _opened(self) -> mmap.mmap:
        if self._memory is None:
            raise InvalidArgumentError(f"the pool '{self.region}' is closed")
        if os.getpid() != self._process:
            raise InvalidArgumentError(
                f"the pool '{self.region}' belongs to process {self._process}",
                hint="make a pool in each process",
            )
        return self._memory


def _create(path: Path, size: int) -> int:
    """Create an object, held by a lock while its owner lives; return its descriptor."""
    import fcntl

    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not os.fstat(descriptor).st_nlink:  # taken for one that was left, before the lock
                os.close(descriptor)
                continue
            # Allocated now: a write without available memory would kill the process.
            os.posix_fallocate(descriptor, 0, size)
            return descriptor
        except OSError as error:
            free = os.statvfs(_DIRECTORY)
            path.unlink()
            os.close(descriptor)
            raise InvalidArgumentError(
                f"there is no room for {size:,} bytes of shared memory: {error.strerror}",
                hint=f"{_DIRECTORY} has {free.f_bavail * free.f_frsize:,} bytes left; "
                "docker run --shm-size gives a container more",
            ) from None


def _dispose(
    path: Path,
    descriptor: int,
    process: int,
    name: str,
    blocks: dict[int, tuple[int, str]],
    check: bool,
) -> None:
    """Remove a pool's object; a forked child leaves it to its parent."""
    if os.getpid() == process:
        path.unlink(missing_ok=True)
        os.close(descriptor)
        if check and blocks:
            sizes = "; ".join(f"{size:,} bytes of {where}" for size, where in blocks.values())
            warnings.warn(
                f"the pool '{name}' ends with {len(blocks)} blocks that were not released: {sizes}",
                RuntimeWarning,
                stacklevel=2,
            )
