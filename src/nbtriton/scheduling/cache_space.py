"""Space of a response cache: what is kept, and what is evicted for it (K7, K11).

Triton's local cache keeps its entries in one block of memory, by Boost's `managed_external_buffer`.
The numbers here come from its overhead: they were measured on a server, byte by byte.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Final

# Memory is given in units.
_UNIT: Final = 16
# Bytes of the block that describe it, and the bytes after the last piece.
_OWN: Final = 128
_END: Final = 16
# Bytes before a piece, and the smallest size of a piece with them.
_PIECE: Final = 8
_SMALLEST: Final = 48
# A smaller block has no room for its own description and one piece.
MIN_CACHE_BYTES: Final = _OWN + _END + _SMALLEST


def header_bytes(outputs: Iterable[tuple[str, str, int]]) -> int:
    """Return the overhead of an entry: its size without the bytes of its tensors.

    Parameters
    ----------
    outputs : iterable of (str, str, int)
        Name, datatype as the protocol spells it, and number of dimensions of each.
    """
    total = 4  # the number of outputs
    for name, datatype, dimensions in outputs:
        # Its size, and those of its name, datatype, shape and bytes.
        total += 8 + (4 + len(name.encode())) + (4 + len(datatype)) + (4 + 8 * dimensions) + 8
    return total


class CacheSpace:
    """The entries that a cache holds, without their contents; the least recently used one is evicted first.

    Parameters
    ----------
    size_bytes : int
        At least `MIN_CACHE_BYTES`.
    """

    __slots__ = ("_entries", "_free", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._free = self._usable - _OWN
        self._entries: OrderedDict[Hashable, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def holds(self, key: Hashable) -> bool:
        """Return whether the cache has an entry."""
        return key in self._entries

    def use(self, key: Hashable) -> None:
        """Mark an existing entry as the most recently used one."""
        self._entries.move_to_end(key)

    def insert(self, key: Hashable, content_bytes: int) -> list[Hashable]:
        """Add a new entry if there can be room for it; return the entries evicted for it.

        As in Triton, an entry larger than the whole cache evicts nothing, and one that fits only
        without the cache's own data evicts everything in vain.
        """
        evicted: list[Hashable] = []
        if content_bytes > self.size_bytes:
            return evicted
        needed = max(_SMALLEST, -(-(content_bytes + _PIECE) // _UNIT) * _UNIT)
        while self._free < needed and self._entries:
            gone, freed = self._entries.popitem(last=False)
            self._free += freed
            evicted.append(gone)
        if needed <= self._free:
            self._entries[key] = needed
            self._free -= needed
        return evicted

    @property
    def used_bytes(self) -> int:
        """Bytes in use, including the cache's own."""
        return self._usable - self._free

    @property
    def _usable(self) -> int:
        return self.size_bytes // _UNIT * _UNIT - _END
