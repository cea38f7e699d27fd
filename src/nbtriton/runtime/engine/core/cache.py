"""The response cache: responses to requests that were answered before (K1 to K11).

Differences from the reference, all deliberate: the key also holds datatypes, shapes and the
requested outputs, and errors are never kept. Both the stored and the returned outputs are copies.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from time import monotonic_ns

import numpy as np

from nbtriton.backends.core.place import copies_of
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.model.tensors import (
    Array,
    datatype_of,
    nbytes_of,
    serialize_bytes,
    shape_of,
    to_numpy,
)
from nbtriton.scheduling import MIN_CACHE_BYTES, CacheSpace, header_bytes


@dataclass(slots=True, frozen=True)
class CacheStatistics:
    """Counts and nanoseconds since the server started, and the bytes in use."""

    hits: int
    misses: int
    evictions: int
    entries: int
    used_bytes: int
    size_bytes: int
    lookup_ns: int
    insertion_ns: int


class ResponseCache:
    """Least recently used answers, bounded by their size in bytes.

    Parameters
    ----------
    size_bytes : int
        Triton's ``--cache-config local,size=N``.
    """

    def __init__(self, size_bytes: int) -> None:
        if size_bytes < MIN_CACHE_BYTES:
            raise InvalidArgumentError(
                f"the response cache needs {MIN_CACHE_BYTES} bytes or more, found {size_bytes}"
            )
        self._lock = threading.Lock()
        self._space = CacheSpace(size_bytes)
        self._contents: dict[Hashable, dict[str, Array]] = {}
        self._hits = self._misses = self._evictions = 0
        self._lookup_ns = self._insertion_ns = 0

    @staticmethod
    def key(
        model: str, version: int, inputs: Mapping[str, Array], outputs: frozenset[str]
    ) -> bytes:
        """Return the key of a request: everything that its response may depend on."""
        from hashlib import blake2b  # loads OpenSSL, which a server without a cache need not

        digest = blake2b(digest_size=16)
        digest.update(f"{model}\0{version}\0{sorted(outputs)}".encode())
        for name in sorted(inputs):
            array = inputs[name]
            datatype = datatype_of(array)
            digest.update(f"\0{name}\0{datatype}\0{shape_of(array)}\0".encode())
            host = to_numpy(array)
            if datatype == "BYTES":
                digest.update(serialize_bytes(host))
            else:
                digest.update(np.ascontiguousarray(host).view(np.uint8).data)
        return digest.digest()

    def look_up(self, key: bytes) -> dict[str, Array] | None:
        """Return the outputs kept under a key, and make them the most recent; None for a miss."""
        start_ns = monotonic_ns()
        with self._lock:
            found = self._contents.get(key)
            if found is None:
                self._misses += 1
            else:
                self._space.use(key)
                self._hits += 1
            self._lookup_ns += monotonic_ns() - start_ns
        return None if found is None else copies_of(found)

    def insert(self, key: bytes, outputs: Mapping[str, Array]) -> bool:
        """Keep outputs, evicting the least recent ones, if they fit and none is empty.

        False if the key already has outputs: then nothing was missing.
        """
        start_ns = monotonic_ns()
        kept = copies_of(outputs)
        sizes = [nbytes_of(array) for array in kept.values()]
        header = header_bytes(
            [(name, datatype_of(array), len(shape_of(array))) for name, array in kept.items()]
        )
        space = self._space
        with self._lock:
            if space.holds(key):
                return False
            if 0 in sizes:
                return True
            for gone in space.insert(key, header + sum(sizes)):
                del self._contents[gone]
                self._evictions += 1
            if space.holds(key):
                self._contents[key] = kept
                self._insertion_ns += monotonic_ns() - start_ns
            return True

    def statistics(self) -> CacheStatistics:
        """Return the counts and what is held."""
        with self._lock:
            return CacheStatistics(
                self._hits, self._misses, self._evictions, len(self._space),
                self._space.used_bytes, self._space.size_bytes, self._lookup_ns, self._insertion_ns,
            )  # fmt: skip
