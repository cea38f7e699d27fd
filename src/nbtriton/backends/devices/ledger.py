"""The copy ledger: bytes, direction and time of the copies between memories, by edge."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

# The writer or reader of a copy on behalf of a caller, not of a model.
HOST = "host"
# Separates a model from the line of its own code that reads or writes the device's memory.
BY_LINE = ": line "
# Limit of the work that waits to be counted.
_PENDING = 256


@dataclass(frozen=True, slots=True)
class Copied:
    """All copies over one edge in one direction since the ledger began.

    Attributes
    ----------
    writer : str
        The writer of the tensor, as ``model.OUTPUT``; ``"host"`` for host memory.
    reader : str
        The reader, as ``model.INPUT``; ``"host"`` for a caller; ``model: line 3: y = IN.get()`` for the code of
        a model.
    source, target : str
        The memories, such as ``"CPU"`` and ``"GPU 0"``.
    copies, requests, nbytes, time_ns : int
        Sums. The time is the device's, from the beginning of the copy to its end.
    simulated : bool
        The time is that of a simulated device.
    """

    writer: str
    reader: str
    source: str
    target: str
    copies: int
    requests: int
    nbytes: int
    time_ns: int
    simulated: bool


@dataclass(frozen=True, slots=True)
class Computed:
    """Totals of one model's operations of one class on one device, since the ledger began."""

    owner: str
    device: str
    operation: str
    count: int
    time_ns: int
    simulated: bool


class CopyLedger:
    """Counts copies, computing and waiting of all devices of a server; any thread may write to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copied: dict[tuple[str, str, str, str, bool], list[int]] = {}
        self._computed: dict[tuple[str, str, str, bool], list[int]] = {}
        self._waits: Counter[tuple[str, str]] = Counter()
        # Work whose time is known once it is done: a test for that, and what to count then.
        self._pending: deque[tuple[Callable[[], bool], Callable[[], None]]] = deque()

    def later(self, is_done: Callable[[], bool], count: Callable[[], None]) -> None:
        """Count something once it is done; no thread waits for it."""
        self._pending.append((is_done, count))
        if len(self._pending) > _PENDING:
            self._settle()

    def _settle(self) -> None:
        """Count the work that is done by now."""
        for _ in range(len(self._pending)):
            try:
                one = self._pending.popleft()
            except IndexError:  # another thread may be counting as well
                return
            is_done, count = one
            if is_done():
                count()
            else:
                self._pending.append(one)

    def copied(
        self,
        edge: tuple[str, str],
        memories: tuple[str, str],
        nbytes: int,
        time_ns: int,
        *,
        requests: int = 1,
        simulated: bool,
    ) -> None:
        """Count a copy over the edge ``(writer, reader)`` from one memory to another."""
        with self._lock:
            sums = self._copied.setdefault((*edge, *memories, simulated), [0, 0, 0, 0])
            sums[0] += 1
            sums[1] += requests
            sums[2] += nbytes
            sums[3] += time_ns

    def computed(
        self, owner: str, device: str, operation: str, time_ns: int, *, simulated: bool
    ) -> None:
        """Count an operation."""
        with self._lock:
            sums = self._computed.setdefault((owner, device, operation, simulated), [0, 0])
            sums[0] += 1
            sums[1] += time_ns

    def waited(self, owner: str, device: str) -> None:
        """Count a thread that was blocked until a stream of this owner had done its work."""
        with self._lock:
            self._waits[owner, device] += 1

    def copies(self) -> list[Copied]:
        """Return the copies by edge, in the order of their first ones."""
        self._settle()
        with self._lock:
            return [
                Copied(*key[:4], sums[0], sums[1], sums[2], sums[3], key[4])
                for key, sums in self._copied.items()
            ]

    def computations(self) -> list[Computed]:
        """Return what was computed, by model, device and class of operation."""
        self._settle()
        with self._lock:
            return [
                Computed(*key[:3], sums[0], sums[1], key[3]) for key, sums in self._computed.items()
            ]

    def waits(self) -> dict[tuple[str, str], int]:
        """Return how often a thread waited for a stream, by owner and device."""
        with self._lock:
            return dict(self._waits)

    def clear(self) -> None:
        """Begin anew."""
        with self._lock:
            self._copied.clear()
            self._computed.clear()
            self._waits.clear()
        self._pending.clear()
