"""The rate limiter: an instance runs only while it holds all its resources (scheduling.md §7).

Resources are abstract counters, per device or for the whole server. An instance with work to do is
*staged*; the staged one that has run least, weighted by its priority, is granted its resources as
soon as they are free, and holds them until it has run. Nothing behind it is tried before (R7).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

__all__ = ["RateLimiter", "ResourceNeed", "ResourceShortage"]

_GLOBAL = -1


@dataclass(slots=True, frozen=True)
class ResourceNeed:
    """One entry of ``rate_limiter.resources``: how much of what an execution holds."""

    name: str
    count: int = 1
    is_global: bool = False


class ResourceShortage(Exception):  # noqa: N818 - a finding, told to the user by the engine
    """An instance could never run: the message is Triton's."""


class _Member:
    __slots__ = ("device", "executions", "needs", "staged", "weight")

    def __init__(self, needs: Sequence[ResourceNeed], device: int, priority: int) -> None:
        self.needs = tuple(needs)
        self.device = device
        self.weight = max(1, priority)
        self.executions = 0
        self.staged = False

    def pool(self, need: ResourceNeed) -> tuple[str, int]:
        return (need.name.lower(), _GLOBAL if need.is_global else self.device)


class RateLimiter:
    """Who may run now, over all instances of all models.

    Parameters
    ----------
    limits : mapping of (name, device or None) to int, optional
        Explicit ``--rate-limit-resource`` counts; None stands for every device and for the global
        pool. If any is given, a resource that is not listed counts as 0 (R4). By default every
        pool is as large as the largest need of a single instance (R3).
    """

    def __init__(self, limits: Mapping[tuple[str, int | None], int] | None = None) -> None:
        self._limits = {
            (name.lower(), device): count for (name, device), count in (limits or {}).items()
        }
        self._members: dict[Hashable, _Member] = {}
        self._used: dict[tuple[str, int], int] = {}
        self._pools: dict[tuple[str, int], int] = {}
        self._staged: list[tuple[int, int, Hashable]] = []
        self._sequence = 0

    def add(
        self, key: Hashable, needs: Sequence[ResourceNeed], device: int = 0, priority: int = 0
    ) -> None:
        """Register an instance.

        Raises
        ------
        ResourceShortage
            It could never run, or uses a name both as a global and a device resource; nothing
            has changed.
        """
        member = _Member(needs, device, priority)
        self._check_kinds([*self._members.values(), member])
        for need in needs:
            limit = self._limit(need, device)
            if limit is not None and limit < need.count:
                raise ResourceShortage(
                    f'Resource count for "{need.name}" is limited to {limit} which will prevent '
                    "scheduling of one or more model instances, the minimum required count is "
                    f"{need.count}"
                )
        self._members[key] = member
        self._resize()

    def remove(self, key: Hashable) -> list[Hashable]:
        """Forget an instance that holds nothing; returns who is granted because of it."""
        self._members.pop(key, None)
        self._resize()
        return self._grant()

    def stage(self, key: Hashable) -> list[Hashable]:
        """An idle instance has work; returns the instances granted now, perhaps this one."""
        member = self._members[key]
        if not member.staged:
            member.staged = True
            self._sequence += 1
            heappush(self._staged, (member.executions * member.weight, self._sequence, key))  # R6
        return self._grant()

    def release(self, key: Hashable, *, executed: bool = True) -> list[Hashable]:
        """An instance gives its resources back; returns who is granted because of it (R8)."""
        member = self._members[key]
        for need in member.needs:
            self._used[member.pool(need)] -= need.count
        member.executions += executed
        return self._grant()

    def pools(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return (used, size) of every pool; device -1 is the global one."""
        return {pool: (self._used.get(pool, 0), size) for pool, size in self._pools.items()}

    def _grant(self) -> list[Hashable]:
        granted: list[Hashable] = []
        while self._staged:
            key = self._staged[0][2]
            member = self._members.get(key)
            if member is not None and not self._fits(member):
                break
            heappop(self._staged)
            if member is None:
                continue
            for need in member.needs:
                pool = member.pool(need)
                self._used[pool] = self._used.get(pool, 0) + need.count
            member.staged = False
            granted.append(key)
        return granted

    def _fits(self, member: _Member) -> bool:
        return all(
            self._used.get(pool, 0) + need.count <= self._pools[pool]
            for need in member.needs
            for pool in (member.pool(need),)
        )

    def _limit(self, need: ResourceNeed, device: int) -> int | None:
        if not self._limits:
            return None
        name = need.name.lower()
        if need.is_global:  # the device of an explicit limit is ignored (R4)
            return max((c for (n, _), c in self._limits.items() if n == name), default=0)
        everywhere = self._limits.get((name, None), 0)
        return self._limits.get((name, device), everywhere)

    def _resize(self) -> None:
        self._pools = {}
        for member in self._members.values():
            for need in member.needs:
                pool = member.pool(need)
                limit = self._limit(need, member.device)
                largest = max(self._pools.get(pool, 0), need.count)
                self._pools[pool] = largest if limit is None else limit

    @staticmethod
    def _check_kinds(members: Iterable[_Member]) -> None:
        kinds: dict[str, bool] = {}
        for member in members:
            for need in member.needs:
                if kinds.setdefault(need.name.lower(), need.is_global) != need.is_global:
                    raise ResourceShortage(
                        f'Resource "{need.name}" is present as both global and device-specific '
                        "resource in the model configuration."
                    )
