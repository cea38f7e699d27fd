"""Regions of shared memory that clients register and name in their requests (protocol.md §5).

Protocol-neutral: HTTP and gRPC share one `SharedMemory`. Two defects of the reference are not
copied (P-43): a second region on the same key is accepted, and a region's offset counts once.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from nbtriton.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
)

__all__ = ["Lease", "SharedMemory"]

_ROOT = Path("/dev/shm")  # noqa: S108 - where shm_open puts its objects on Linux
_NAME_MAX = 255
_INT64_MAX = (1 << 63) - 1


@dataclass(slots=True)
class _Region:
    name: str
    key: str
    offset: int
    byte_size: int
    descriptor: int
    memory: mmap.mmap
    leases: int = 0

    def close(self) -> None:
        os.close(self.descriptor)
        # Somebody may have kept a view of it: then the last one to go unmaps it.
        with contextlib.suppress(BufferError):
            self.memory.close()


@dataclass(slots=True)
class Lease:
    """A part of a region that a request uses: it cannot be unregistered before `release`."""

    view: memoryview
    _owner: SharedMemory
    _region: _Region | None = field(repr=False)

    def release(self) -> None:
        """Give the part back; harmless when repeated."""
        region, self._region = self._region, None
        if region is not None:
            self._owner.give_back(region)


class SharedMemory:
    """The regions of one server, by name; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._regions: dict[str, _Region] = {}

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map a POSIX shared memory object.

        Parameters
        ----------
        name : str
            How requests call the region.
        key : str
            The object, with or without its leading slash.
        offset, byte_size : int
            The part of it, in bytes; the offset in whole pages.

        Raises
        ------
        AlreadyExistsError
            There is a region of that name.
        InternalError
            There is no such object.
        InvalidArgumentError
            The part is not inside the object, is empty, or does not start at a page.
        """
        with self._lock:
            if name in self._regions:
                raise AlreadyExistsError(f"shared memory region '{name}' already in manager")
            descriptor = _open(key)
            try:
                if offset + byte_size > min(os.fstat(descriptor).st_size, _INT64_MAX):
                    _refuse(name, "invalid args")
                if byte_size == 0 or offset % mmap.ALLOCATIONGRANULARITY:
                    _refuse(name, "unable to process address spaceInvalid argument")
                try:
                    memory = mmap.mmap(descriptor, byte_size, offset=offset)
                except (OSError, ValueError, OverflowError) as error:
                    reason = getattr(error, "strerror", None) or str(error)
                    _refuse(name, f"unable to process address space{reason}")
            except BaseException:
                os.close(descriptor)
                raise
            self._regions[name] = _Region(name, key, offset, byte_size, descriptor, memory)

    def register_cuda(self, name: str, raw_handle: bytes, device_id: int, byte_size: int) -> None:  # noqa: ARG002
        """Refuse a CUDA region: no memory of another process can be opened here.

        Raises
        ------
        AlreadyExistsError
            There is a region of that name.
        InvalidArgumentError
            The handle cannot be opened.
        """
        with self._lock:
            if name in self._regions:
                raise AlreadyExistsError(f"shared memory region '{name}' already in manager")
        raise InvalidArgumentError("failed to register shared memory region: invalid args")

    def status_system(self, name: str = "") -> list[dict[str, Any]]:
        """Return name, key, offset and size of a region, or of all of them by name.

        Raises
        ------
        NotFoundError
            There is no such region.
        """
        with self._lock:
            if name and name not in self._regions:
                raise NotFoundError(f"Unable to find system shared memory region: '{name}'")
            return [
                {
                    "name": region.name,
                    "key": region.key,
                    "offset": region.offset,
                    "byte_size": region.byte_size,
                }
                for region in sorted(self._regions.values(), key=lambda region: region.name)
                if name in ("", region.name)
            ]

    def status_cuda(self, name: str = "") -> list[dict[str, Any]]:
        """Return the CUDA regions: there are none.

        Raises
        ------
        NotFoundError
            There is no such region, or it is not in a GPU's memory.
        """
        with self._lock:
            if name in self._regions:
                raise NotFoundError(
                    f"The region named '{name}' is registered as system shared memory, not CUDA "
                    "shared memory"
                )
        if name:
            raise NotFoundError(f"Unable to find cuda shared memory region: '{name}'")
        return []

    def unregister_system(self, name: str = "") -> None:
        """Forget a region, or all of them; an unknown one is no error (P-41).

        Raises
        ------
        InternalError
            A request is using it.
        """
        with self._lock:
            busy = []
            for region in [r for r in self._regions.values() if name in ("", r.name)]:
                if region.leases:
                    busy.append(region.name)
                else:
                    del self._regions[region.name]
                    region.close()
        if busy and name:
            raise InternalError(
                f"Cannot unregister shared memory region '{name}', it is currently in use."
            )
        if busy:
            names = "".join(f"{found} ," for found in sorted(busy))
            raise InternalError(
                f"Failed to unregister the following system shared memory regions: {names}"
            )

    def unregister_cuda(self, name: str = "") -> None:
        """Forget a CUDA region, or all of them: there are none, and that is no error (P-41)."""

    def lease(self, name: str, offset: int, byte_size: int) -> Lease:
        """Return a part of a region for one request.

        Parameters
        ----------
        name : str
        offset, byte_size : int
            Inside the region, in bytes.

        Raises
        ------
        NotFoundError
            There is no such region.
        InvalidArgumentError
            The part is empty or not inside the region, or the object has shrunk meanwhile.
        """
        with self._lock:
            region = self._regions.get(name)
            if region is None:
                raise NotFoundError(f"Unable to find shared memory region: '{name}'")
            if offset >= region.byte_size:
                raise InvalidArgumentError(f"Invalid offset for shared memory region: '{name}'")
            # Touching a page that was cut off would end the process.
            there = os.fstat(region.descriptor).st_size - region.offset
            if byte_size == 0 or offset + byte_size > min(region.byte_size, there):
                raise InvalidArgumentError(
                    f"Invalid offset + byte size for shared memory region: '{name}'"
                )
            region.leases += 1
            view = memoryview(region.memory)[offset : offset + byte_size]
            return Lease(view, self, region)

    def give_back(self, region: _Region) -> None:
        """End one lease."""
        with self._lock:
            region.leases -= 1

    def close(self) -> None:
        """Forget everything, used or not."""
        with self._lock:
            while self._regions:
                self._regions.popitem()[1].close()


def _open(key: str) -> int:
    name = key.lstrip("/")
    # As shm_open: one name in one folder, nothing that leads out of it.
    fits = 0 < len(os.fsencode(name)) <= _NAME_MAX and name not in (".", "..")
    if fits and "/" not in name and "\0" not in name:
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
    raise InternalError(f"Unable to open shared memory region: '{key}'")


def _refuse(name: str, reason: str) -> NoReturn:
    raise InvalidArgumentError(f"failed to register shared memory region '{name}': {reason}")
