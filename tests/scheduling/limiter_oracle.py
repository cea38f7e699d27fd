"""A rate limiter and its oracle under the same events."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from nbtriton.scheduling import RateLimiter, ResourceNeed, ResourceShortage


def needs(*resources: tuple[str, int]) -> list[ResourceNeed]:
    """Return needs: ``("X", 2)`` is a device resource, ``("@X", 2)`` a global one."""
    return [ResourceNeed(name.lstrip("@"), count, name[0] == "@") for name, count in resources]


class LimiterPair:
    """Send each event to the limiter and to plain lists that are searched whole; compare."""

    NAMES = ("X", "Y", "@G")

    def __init__(self, random: Random) -> None:
        limits = None
        if random.random() < 0.3:
            limits = {(name.lstrip("@"), None): random.randint(2, 6) for name in self.NAMES}
        self.size = {name: count for (name, _), count in (limits or {}).items()}
        self.limiter = RateLimiter(limits)
        self.members: dict[int, tuple[dict[tuple[str, int], int], int]] = {}
        self.executions: Counter[int] = Counter()
        self.staged: list[tuple[int, int, int]] = []  # rank, order of staging, key
        self.running: set[int] = set()
        self.count = 0
        self.steps = 0
        self.waits: Counter[int] = Counter()

    def add(self, resources: list[tuple[str, int]], device: int, priority: int) -> None:
        self.count += 1
        key = self.count
        pools = {
            (name.lstrip("@").lower(), -1 if name[0] == "@" else device): count
            for name, count in resources
        }
        impossible = [
            name for name, count in resources if self.size and self.size[name.lstrip("@")] < count
        ]
        if impossible:
            with pytest.raises(ResourceShortage):
                self.limiter.add(key, needs(*resources), device, priority)
            self._compare([], tries=0)
            return
        self.members[key] = (pools, max(1, priority))
        self.executions[key] = 2  # initialization and warm-up
        self.limiter.add(key, needs(*resources), device, priority)
        self._compare([], tries=0)

    def stage(self, key: int) -> None:
        self._stage(key)
        self._compare(self.limiter.stage(key))

    def release(self, key: int, more: bool) -> None:
        self.running.remove(key)
        self.executions[key] += 1
        if more:
            self._stage(key)
        # Staging and release grant one instance each (R8).
        self._compare(self.limiter.release(key, more=more), 2 if more else 1)

    def remove(self, key: int) -> None:
        if key in self.running:
            self.release(key, False)
        del self.members[key]
        self.staged = [entry for entry in self.staged if entry[2] != key]
        self._compare(self.limiter.remove(key))

    def drain(self) -> None:
        while self.running:
            self.release(min(self.running), False)
        assert not self.staged, "an instance waits though all resources are free"
        assert all(used == 0 for used, _ in self.limiter.pools().values())

    def _stage(self, key: int) -> None:
        if key not in [entry[2] for entry in self.staged]:
            self.count += 1
            order = self.executions[key] * self.members[key][1]
            self.staged.append((order, self.count, key))

    def _compare(self, granted: list[int], tries: int = 1) -> None:
        self.steps += 1
        expected: list[int] = []
        while self.staged and len(expected) < tries:
            head = min(self.staged)
            pools, _ = self.members[head[2]]
            used, size = self._used(), self._sizes()
            if any(used[pool] + count > size[pool] for pool, count in pools.items()):
                break
            self.staged.remove(head)
            self.running.add(head[2])
            expected.append(head[2])
        assert granted == expected
        assert self.limiter.pools() == {
            pool: (self._used()[pool], size) for pool, size in self._sizes().items()
        }
        # No grant exceeds its pool; a pool that shrank meanwhile only drains.
        for key in granted:
            for pool in self.members[key][0]:
                held, size = self.limiter.pools()[pool]
                assert held <= size

    def _used(self) -> Counter[tuple[str, int]]:
        return sum((Counter(self.members[key][0]) for key in self.running), Counter())

    def _sizes(self) -> dict[tuple[str, int], int]:
        sizes: dict[tuple[str, int], int] = {}
        for pools, _ in self.members.values():
            for pool, count in pools.items():
                sizes[pool] = max(sizes.get(pool, 0), count)
        if self.size:
            sizes = {(name, d): self.size["G" if d == -1 else name.upper()] for name, d in sizes}
        return sizes
