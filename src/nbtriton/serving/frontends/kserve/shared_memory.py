"""Regions of shared memory that clients register and name in their requests (KS40 to KS45).

HTTP and gRPC share one `SharedMemory`. Two defects of Triton are not copied (KS43): a second region on
the same key is accepted, and a region's offset counts once.

A client may truncate an object at any time, and access to a page beyond its end raises SIGBUS. Reads and writes
through the file descriptor fail with an error instead. Only for a model that reads its inputs where they lie
(READ_ONLY_INPUTS) a region is mapped: the handler of SIGBUS in guard.c puts zeros in place of the missing pages, and
the request fails. It is built with the compiled core; without it tensors are copied for every model.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import stat
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np

from nbtriton.common.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
)
from nbtriton.common.packages import needed
from nbtriton.serving.frontends.buffers import LONG, buffers

LIBRARY = Path(__file__).with_name("guard.so")
_ROOT = Path("/dev/shm")  # noqa: S108 - where shm_open puts its objects on Linux
_NAME_MAX = 255
# Largest read on the loop: a tenth of a millisecond.
READ_AT_ONCE = 1 << 20
_OUTSIDE = "Invalid offset + byte size for shared memory region: '{}'"
_INT64_MAX = (1 << 63) - 1


@functools.cache
def guard(library: Path = LIBRARY) -> Any:
    """Return the functions of guard.c; None where they were not built."""
    try:
        functions = ctypes.CDLL(str(library))
    except OSError:
        return None
    functions.guard_add.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
    return functions


class GuardedMapping(mmap.mmap):
    """Memory of an open file, which may be truncated; the last view of it unmaps it."""

    _functions: Any = None
    _slot = -1

    @classmethod
    def of(cls, descriptor: int, offset: int, size: int) -> GuardedMapping | None:
        """Map a part of a file; None where that is not safe or not possible."""
        functions = guard()
        if functions is None or functions.guard_install():
            return None
        try:
            mapped = cls(descriptor, size, offset=offset)
        except (OSError, ValueError):  # no address space, or truncated already
            return None
        start = np.frombuffer(mapped, np.uint8).ctypes.data
        slot = functions.guard_add(start, size + -size % mmap.PAGESIZE)
        if slot < 0:
            return None
        mapped._functions, mapped._slot = functions, slot
        return mapped

    @property
    def broken(self) -> bool:
        """Whether something was read that the file no longer had."""
        return bool(self._functions.guard_broken(self._slot))

    def __del__(self) -> None:
        # Before the memory is unmapped: other memory may get its addresses.
        if self._slot >= 0:
            self._functions.guard_remove(self._slot)


@dataclass(slots=True)
class _Region:
    name: str
    byte_size: int
    leases: int = field(default=0, init=False)
    closed: bool = field(default=False, init=False)


@dataclass(slots=True)
class _SystemRegion(_Region):
    word: ClassVar = "system"

    key: str
    offset: int
    descriptor: int
    mapping: GuardedMapping | None = field(default=None, init=False, repr=False)

    def mapped(self) -> GuardedMapping | None:
        """Return the region's memory, mapped once; None where it cannot be guarded."""
        mapping = self.mapping
        if mapping is None or mapping.broken:
            mapping = GuardedMapping.of(self.descriptor, self.offset, self.byte_size)
            self.mapping = mapping
        return mapping

    def existing(self) -> int:
        """Return the current size of the region in bytes: the object may have shrunk."""
        return os.fstat(self.descriptor).st_size - self.offset

    def part(self, start: int, end: int) -> None:
        """Return None: the memory is read by its descriptor, or mapped when a model wants it."""

    def status(self) -> dict[str, Any]:
        fields = ("name", "key", "offset", "byte_size")
        return {field: getattr(self, field) for field in fields}

    def close(self) -> None:
        """Close the descriptor; no request may use it any more, as another file may get its number."""
        self.closed = True
        if not self.leases:
            os.close(self.descriptor)
            self.mapping = None  # unmapped with its last view


@dataclass(slots=True)
class _CudaRegion(_Region):
    word: ClassVar = "CUDA"

    device_id: int
    memory: Any  # a torch tensor of bytes on that GPU

    def existing(self) -> int:
        return self.byte_size

    def part(self, start: int, end: int) -> Any:
        return self.memory[start:end]

    def status(self) -> dict[str, Any]:
        return {"name": self.name, "device_id": self.device_id, "byte_size": self.byte_size}

    def close(self) -> None:
        # Unmapped with the last view of the memory.
        self.closed = True
        self.memory = None


_AnyRegion = _SystemRegion | _CudaRegion
Kind = Literal["system", "cuda"]
_KINDS: dict[Kind, type[_AnyRegion]] = {"system": _SystemRegion, "cuda": _CudaRegion}


# Returns the lease of a region's part: `SharedMemory.lease`, perhaps with a limit.
Leasing = Callable[[str, int, int], "Lease"]


class LongReadError(Exception):
    """A read is too long for the event loop."""


@dataclass(slots=True)
class Lease:
    """A part of a region in use by a request; the region cannot be unregistered before `release`.

    Attributes
    ----------
    byte_size : int
    tensor : torch.Tensor, optional
        The bytes as uint8, for memory of a GPU.
    mapping : GuardedMapping, optional
        The mapped region, after `view`.
    """

    byte_size: int
    tensor: Any
    _offset: int  # in the region
    _owner: SharedMemory
    _region: _AnyRegion | None = field(repr=False)
    _at_once: int | None  # limit of a read in bytes
    mapping: GuardedMapping | None = field(default=None, init=False, repr=False)

    def data(self) -> Any:
        """Return a copy of the bytes, or `tensor`.

        Raises
        ------
        InvalidArgumentError
            The memory no longer exists.
        LongReadError
            The size exceeds the limit of a read.
        """
        if self.tensor is not None:
            return self.tensor
        size = self.byte_size
        if self._at_once is not None and size > self._at_once:
            raise LongReadError
        descriptor, at = self._place()
        content = buffers.acquire(size) if size >= LONG else np.empty(size, np.uint8).data
        done = 0
        while done < size:
            count = os.preadv(descriptor, [content[done:]], at + done)
            if not count:
                self._refuse()
            done += count
        return content

    def view(self) -> Any:
        """Return the bytes where they lie, for a model that only reads them; `data` where that is not possible.

        Raises
        ------
        InvalidArgumentError, LongReadError
            As `data`.
        """
        region = self._region
        if self.tensor is None and self.byte_size and isinstance(region, _SystemRegion):
            self.mapping = self._owner.mapped(region)
        if self.mapping is None:
            return self.data()
        return memoryview(self.mapping)[self._offset : self._offset + self.byte_size]

    def check(self) -> None:
        """Raise InvalidArgumentError if memory was missing that was read through `view`."""
        if self.mapping is not None and self.mapping.broken:
            self._refuse()

    def write(self, data: bytes | memoryview) -> None:
        """Write to the beginning of system memory; `data` must fit.

        Raises
        ------
        InvalidArgumentError
            The memory no longer exists.
        """
        descriptor, at = self._place()
        # A write beyond the end would extend the object.
        if os.fstat(descriptor).st_size < at + len(data):
            self._refuse()
        done = 0
        while done < len(data):
            done += os.pwrite(descriptor, memoryview(data)[done:], at + done)

    def _place(self) -> tuple[int, int]:
        region = self._region
        assert isinstance(region, _SystemRegion), "released, or not in system memory"
        return region.descriptor, region.offset + self._offset

    def _refuse(self) -> NoReturn:
        assert self._region is not None
        raise InvalidArgumentError(_OUTSIDE.format(self._region.name))

    def release(self) -> None:
        """End the lease; harmless when repeated."""
        region, self._region = self._region, None
        if region is not None:
            self._owner.end_lease(region)


class SharedMemory:
    """Regions of one server by name; all methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._regions: dict[str, _AnyRegion] = {}

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a POSIX shared memory object.

        Parameters
        ----------
        name : str
            Name of the region in requests.
        key : str
            Name of the object, with or without its leading slash.
        offset, byte_size : int
            Part of the object in bytes; the offset is a multiple of the page size.

        Raises
        ------
        AlreadyExistsError
            A region of that name exists.
        InternalError
            The object does not exist.
        InvalidArgumentError
            The part is empty, not inside the object, or not aligned to a page.
        """
        with self._adding(name):
            descriptor = _open(key)
            try:
                if offset + byte_size > min(os.fstat(descriptor).st_size, _INT64_MAX):
                    _refuse(name, "invalid args")
                if byte_size == 0 or offset % mmap.ALLOCATIONGRANULARITY:
                    _refuse(name, "unable to process address spaceInvalid argument")
                try:
                    # As in Triton, refuse a part that cannot be mapped.
                    mmap.mmap(descriptor, byte_size, offset=offset).close()
                except (OSError, ValueError, OverflowError) as error:
                    reason = getattr(error, "strerror", None) or str(error)
                    _refuse(name, f"unable to process address space{reason}")
            except BaseException:
                os.close(descriptor)
                raise
            self._regions[name] = _SystemRegion(name, byte_size, key, offset, descriptor)

    def register_cuda(self, name: str, raw_handle: bytes, device_id: int, byte_size: int) -> None:
        """Register GPU memory of another process.

        Parameters
        ----------
        name : str
            Name of the region in requests.
        raw_handle : bytes
            The memory's ``cudaIpcMemHandle_t``.
        device_id, byte_size : int
            GPU and size of the memory.

        Raises
        ------
        AlreadyExistsError
            A region of that name exists.
        InvalidArgumentError
            The GPU does not exist, the handle cannot be opened, or the memory is smaller.
        """
        with self._adding(name):
            memory = open_cuda_memory(raw_handle, device_id, byte_size)
            self._regions[name] = _CudaRegion(name, byte_size, device_id, memory)

    @contextmanager
    def _adding(self, name: str) -> Iterator[None]:
        with self._lock:
            if name in self._regions:
                raise AlreadyExistsError(f"shared memory region '{name}' already in manager")
            yield

    def status(self, kind: Kind, name: str = "") -> list[dict[str, Any]]:
        """Return Triton's report of a region, or by name of all regions of a kind.

        Raises
        ------
        NotFoundError
            The region does not exist or is of the other kind.
        """
        wanted = _KINDS[kind]
        with self._lock:
            found = self._regions.get(name)
            if name and found is None:
                raise NotFoundError(
                    f"Unable to find {wanted.word.lower()} shared memory region: '{name}'"
                )
            if found is not None and not isinstance(found, wanted):
                raise NotFoundError(
                    f"The region named '{name}' is registered as {found.word} shared "
                    f"memory, not {wanted.word} shared memory"
                )
            return [region.status() for region in self._of_kind(wanted, name)]

    def unregister(self, kind: Kind, name: str = "") -> None:
        """Remove a region, or all regions of a kind; ignore an unknown name (KS41).

        Raises
        ------
        InternalError
            A request is using it.
        """
        wanted = _KINDS[kind]
        busy = []
        with self._lock:
            for region in self._of_kind(wanted, name):
                if region.leases:
                    busy.append(region.name)
                else:
                    self._regions.pop(region.name).close()
        if busy and name:
            raise InternalError(
                f"Cannot unregister shared memory region '{name}', it is currently in use."
            )
        if busy:
            names = "".join(f"{found} ," for found in busy)
            raise InternalError(
                f"Failed to unregister the following {wanted.word.lower()} shared memory "
                f"regions: {names}"
            )

    def _of_kind(self, kind: type[_AnyRegion], name: str) -> list[_AnyRegion]:
        """Return the region of a name, or all regions for an empty name, ordered by name."""
        return [
            region
            for _, region in sorted(self._regions.items())
            if isinstance(region, kind) and name in ("", region.name)
        ]

    def lease(self, name: str, offset: int, byte_size: int, *, at_once: int | None = None) -> Lease:
        """Return a part of a region for one request.

        Parameters
        ----------
        name : str
        offset, byte_size : int
            Inside the region, in bytes.
        at_once : int, optional
            Limit of a read in bytes, for a caller on the event loop.

        Raises
        ------
        NotFoundError
            The region does not exist.
        InvalidArgumentError
            The part is not inside the region, or the object has shrunk since.
        """
        with self._lock:
            region = self._regions.get(name)
            if region is None:
                raise NotFoundError(f"Unable to find shared memory region: '{name}'")
            if offset >= region.byte_size:
                raise InvalidArgumentError(f"Invalid offset for shared memory region: '{name}'")
            # As in Triton, an empty part is refused at the region's start, and accepted elsewhere.
            if not offset + byte_size or offset + byte_size > min(
                region.byte_size, region.existing()
            ):
                raise InvalidArgumentError(_OUTSIDE.format(name))
            region.leases += 1
            part = region.part(offset, offset + byte_size)
            return Lease(byte_size, part, offset, self, region, at_once)

    def mapped(self, region: _SystemRegion) -> GuardedMapping | None:
        """Return the memory of a region in use, mapped; None where that is not possible."""
        with self._lock:
            return region.mapped()

    def end_lease(self, region: _AnyRegion) -> None:
        """End one lease."""
        with self._lock:
            region.leases -= 1
            if region.closed and not region.leases:
                region.close()

    def close(self) -> None:
        """Remove all regions; a region in use is closed with its last lease."""
        with self._lock:
            while self._regions:
                self._regions.popitem()[1].close()


def _open(key: str) -> int:
    name = key.lstrip("/")
    # As shm_open: a single file name, without a path.
    fits = 0 < len(os.fsencode(name)) <= _NAME_MAX and name not in (".", "..")
    here = _ROOT.is_dir()
    if here and fits and "/" not in name and "\0" not in name:
        try:
            descriptor = os.open(
                _ROOT / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            )
        except OSError:
            pass
        else:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            os.close(descriptor)
    hint = "" if here else f"regions of clients are opened in {_ROOT}, which only Linux has"
    raise InternalError(f"Unable to open shared memory region: '{key}'", hint=hint)


def _refuse(name: str, reason: str) -> NoReturn:
    raise InvalidArgumentError(f"failed to register shared memory region '{name}': {reason}")


# GPU memory of another process, by its CUDA IPC handle. The driver is called through ctypes, as torch cannot open the
# raw handles that Triton's clients send, and is loaded when a client first registers such memory.
HANDLE_BYTES = 64
_LAZY_ENABLE_PEER_ACCESS = 1
_REFUSED = "failed to register shared memory region: invalid args"


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class _Mapping:
    """Mapped memory, viewed by torch without a copy; the last view unmaps it."""

    def __init__(self, pointer: int, byte_size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (byte_size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 2,
        }


def open_cuda_memory(raw_handle: bytes, device_id: int, byte_size: int) -> Any:
    """Map memory of another process.

    Parameters
    ----------
    raw_handle : bytes
        A ``cudaIpcMemHandle_t``.
    device_id : int
        GPU of the memory.
    byte_size : int
        Size of the view.

    Returns
    -------
    torch.Tensor
        Shape ``[byte_size]``, uint8, on that GPU. The tensor and its views keep the mapping.

    Raises
    ------
    InvalidArgumentError
        The GPU does not exist, the handle cannot be opened, or the memory is smaller.
    """
    if len(raw_handle) != HANDLE_BYTES or byte_size <= 0:
        raise InvalidArgumentError(_REFUSED)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise InvalidArgumentError(_REFUSED, hint="this machine has no NVIDIA driver") from None
    with needed("CUDA shared memory"):
        import torch

    count = torch.cuda.device_count()
    if not 0 <= device_id < count:
        raise InvalidArgumentError(
            _REFUSED, hint=f"this machine has {count} GPUs; device_id is {device_id}"
        )
    with torch.cuda.device(device_id):
        torch.cuda.current_stream().synchronize()  # creates the device's context
        pointer = _open_handle(driver, raw_handle)
        try:
            size = _size(driver, pointer)
            if byte_size > size:
                raise InvalidArgumentError(
                    _REFUSED, hint=f"byte_size is {byte_size}, the memory has {size} bytes"
                )
            mapping = _Mapping(pointer, byte_size)
        except BaseException:
            driver.cuIpcCloseMemHandle(ctypes.c_uint64(pointer))
            raise
        weakref.finalize(mapping, _close, driver, device_id, pointer)
        return torch.as_tensor(mapping, device=f"cuda:{device_id}")


def _open_handle(driver: Any, raw_handle: bytes) -> int:
    pointer = ctypes.c_uint64()
    handle = _Handle.from_buffer_copy(raw_handle)
    driver.cuIpcOpenMemHandle_v2.argtypes = (
        ctypes.POINTER(ctypes.c_uint64),
        _Handle,
        ctypes.c_uint,
    )
    status = driver.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), handle, _LAZY_ENABLE_PEER_ACCESS)
    if status:
        raise InvalidArgumentError(_REFUSED, hint=f"the driver refuses the handle: error {status}")
    return pointer.value


def _size(driver: Any, pointer: int) -> int:
    """Return the number of bytes from an address to the end of its allocation."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    status = driver.cuMemGetAddressRange_v2(
        ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer)
    )
    return 0 if status else base.value + size.value - pointer


def _close(driver: Any, device_id: int, pointer: int) -> None:
    import torch

    # At the interpreter's end the driver may be unloaded already.
    with contextlib.suppress(RuntimeError), torch.cuda.device(device_id):
        driver.cuIpcCloseMemHandle(ctypes.c_uint64(pointer))
