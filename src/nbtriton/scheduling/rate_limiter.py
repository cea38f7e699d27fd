"""Rate limiter: an instance runs only while it holds all its resources (R1 to R9).

Resources are abstract counters, per device or for the whole server. An instance with a batch is
*staged*. The staged instance with the fewest executions, weighted by priority, is granted its
resources when they are free, and holds them for one execution. No instance behind it is tried first
(R7). Each staging and each release grants at most one instance (R8).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

_GLOBAL = -1


@dataclass(slots=True, frozen=True)
class ResourceNeed:
    """One entry of ``rate_limiter.resources``: name and count of a resource that an execution holds."""

    name: str
    count: int = 1
    is_global: bool = False


class ResourceShortage(Exception):  # noqa: N818 - the engine turns it into an error of the model
    """An instance could never run. The message is Triton's."""


class _Member:
    __slots__ = ("executions", "needs", "running", "staged", "weight")

    def __init__(self, needs: Sequence[ResourceNeed], device: int, priority: int) -> None:
        # As in Triton, the last entry of a name counts.
        self.needs = {
            (need.name.lower(), _GLOBAL if need.is_global else device): need for need in needs
        }
        self.weight = max(1, priority)
        # As in Triton, initialization and warm-up count as executions.
        self.executions = 2
        self.staged = False
        self.running = False  # holds its resources


class RateLimiter:
    """Grants resources to the instances of all models.

    Parameters
    ----------
    limits : mapping of (name, device or None) to int, optional
        Explicit ``--rate-limit-resource`` counts; None means every device and the global pool. If
        any is given, a resource that is not listed has count 0 (R4). By default the size of a pool
        is the largest need of a single instance (R3).
    """

    def __init__(self, limits: Mapping[tuple[str, int | None], int] | None = None) -> None:
        self._limits = {
            (name.lower(), device): count for (name, device), count in (limits or {}).items()
        }
        self._members: dict[Hashable, _Member] = {}
        self._used: dict[tuple[str, int], int] = {}
        self._pools: dict[tuple[str, int], int] = {}
        self._staged: list[tuple[int, int, Hashable, _Member]] = []
        self._sequence = 0

    def add(
        self, key: Hashable, needs: Sequence[ResourceNeed], device: int = 0, priority: int = 0
    ) -> None:
        """Register an instance. Nothing is granted, even if a pool grows (R3).

        Raises
        ------
        ResourceShortage
            The instance could never run, or uses one name for both a global and a device resource.
            Nothing has changed.
        """
        member = _Member(needs, device, priority)
        kinds = {name: device == _GLOBAL for name, device in self._pools}
        for (name, _), need in member.needs.items():
            if kinds.setdefault(name, need.is_global) != need.is_global:
                raise ResourceShortage(
                    f'Resource "{need.name}" is present as both global and device-specific '
                    "resource in the model configuration."
                )
        for pool, need in member.needs.items():
            limit = self._limit(pool)
            if limit is not None and limit < need.count:
                raise ResourceShortage(
                    f'Resource count for "{need.name}" is limited to {limit} which will prevent '
                    "scheduling of one or more model instances, the minimum required count is "
                    f"{need.count}"
                )
        self._members[key] = member
        self._resize()

    def remove(self, key: Hashable) -> list[Hashable]:
        """Remove an instance that holds no resources; return the instances granted because of it."""
        member = self._members.pop(key, None)
        if member is not None:
            member.staged = False
        self._resize()
        return self._grant()

    def stage(self, key: Hashable) -> list[Hashable]:
        """Queue an idle instance that has a batch; return the granted one, if any."""
        member = self._members[key]
        if not member.staged:
            member.staged = True
            self._sequence += 1
            heappush(self._staged, (self.rank(key), self._sequence, key, member))
        return self._grant()

    def release(self, key: Hashable, *, more: bool = False) -> list[Hashable]:
        """Release the resources of an instance; return the instances granted because of it (R8).

        With ``more``, another batch is ready for it. It is staged again first, because only then
        does it compete with the waiting instances by priority (R6); two instances may then be
        granted.
        """
        member = self._members[key]
        for pool, need in member.needs.items():
            self._used[pool] -= need.count
        member.executions += 1
        member.running = False
        if not more:
            return self._grant()
        return [*self.stage(key), *self._grant()]

    def rank(self, key: Hashable) -> int:
        """Executions of an instance times its priority; the lowest rank is granted first (R6)."""
        member = self._members[key]
        return member.executions * member.weight

    def blocked_by(self, key: Hashable) -> list[Hashable]:
        """Return the holders of what the head of the queue lacks, if the instance is staged."""
        member = self._members.get(key)
        if member is None or not member.staged:
            return []
        first = min(entry for entry in self._staged if entry[-1].staged)[-1]
        lacking = set(self._lacking(first))
        return [
            other
            for other, member in self._members.items()
            if member.running and not lacking.isdisjoint(member.needs)
        ]

    def pools(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return (used, size) of every pool; device -1 is the global one."""
        return {pool: (self._used.get(pool, 0), size) for pool, size in self._pools.items()}

    def _grant(self) -> list[Hashable]:
        """Grant the head of the queue its resources if they are free."""
        while self._staged and not self._staged[0][-1].staged:  # removed in the meantime
            heappop(self._staged)
        if not self._staged or self._lacking(self._staged[0][-1]):
            return []
        _, _, key, member = heappop(self._staged)
        for pool, need in member.needs.items():
            self._used[pool] = self._used.get(pool, 0) + need.count
        member.staged = False
        member.running = True
        return [key]

    def _lacking(self, member: _Member) -> list[tuple[str, int]]:
        """Return the pools that have too little left for an instance."""
        return [
            pool
            for pool, need in member.needs.items()
            if self._used.get(pool, 0) + need.count > self._pools[pool]
        ]

    def _limit(self, pool: tuple[str, int]) -> int | None:
        """Return the explicit size of a pool, None without explicit limits (R4)."""
        if not self._limits:
            return None
        name, device = pool
        # The device of an explicit limit is ignored for a global resource.
        counts = (
            count
            for (limited, where), count in self._limits.items()
            if limited == name and (device == _GLOBAL or where in (None, device))
        )
        return max(counts, default=0)

    def _resize(self) -> None:
        self._pools = {}
        for member in self._members.values():
            for pool, need in member.needs.items():
                limit = self._limit(pool)
                largest = max(self._pools.get(pool, 0), need.count)
                self._pools[pool] = largest if limit is None else limit
