"""Rate limiter: batches wait until their instance has its resources (R1 to R9)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.model.config import InstancePlan, ModelConfig
from nbtriton.runtime.engine.core.instance import Instance
from nbtriton.scheduling import RateLimiter, ResourceNeed, ResourceShortage


class Limiter:
    """One per server, shared by the instances of all models.

    Parameters
    ----------
    limits : mapping
        As `scheduler_settings.parse_resources` returns it.
    """

    def __init__(self, limits: dict[tuple[str, int | None], int]) -> None:
        self._lock = threading.Lock()
        self._limiter = RateLimiter(limits)
        self._starts: dict[Instance, Callable[[], None]] = {}
        self._running: set[Instance] = set()

    def add(
        self, config: ModelConfig, plans: Sequence[InstancePlan], instances: Sequence[Instance]
    ) -> None:
        """Register a model's instances with what their groups need.

        Raises
        ------
        InvalidArgumentError
            An instance could never run (V91, V92); none is registered.
        """
        with self._lock:
            for at, (plan, instance) in enumerate(zip(plans, instances, strict=True)):
                rule = config.instance_group[plan.group].rate_limiter
                needs = [
                    ResourceNeed(r.name, r.count, getattr(r, "global")) for r in rule.resources
                ]
                try:
                    self._limiter.add(instance, needs, plan.device_id, rule.priority)
                except ResourceShortage as shortage:
                    for added in instances[:at]:  # no instance waits for their resources
                        self._limiter.remove(added)
                    raise InvalidArgumentError(str(shortage)) from None

    def remove(self, instances: Sequence[Instance]) -> None:
        """Forget instances that have finished."""
        for instance in instances:
            with self._lock:
                starts = self._pop_starts(self._limiter.remove(instance))
            self._start(starts)

    def stage(self, instance: Instance, start: Callable[[], None]) -> None:
        """Call ``start`` as soon as an instance, which has a batch, is granted its resources."""
        with self._lock:
            self._starts[instance] = start
            # An instance that still holds resources is staged when it releases them (R8).
            granted = [] if instance in self._running else self._limiter.stage(instance)
            starts = self._pop_starts(granted)
        self._start(starts)

    def finished(self, instance: Instance) -> None:
        """Release an instance's resources."""
        with self._lock:
            self._running.discard(instance)
            more = instance in self._starts
            starts = self._pop_starts(self._limiter.release(instance, more=more))
        self._start(starts)

    def rank(self, instance: Instance) -> int:
        """Of several idle instances of a model the one with the lowest rank goes first (R6)."""
        with self._lock:
            return self._limiter.rank(instance)

    def blocked_by(self, instance: Instance) -> list[Instance]:
        """Return the instances that hold the resources that a staged one waits for; none for other instances."""
        with self._lock:
            found = self._limiter.blocked_by(instance)
        return [other for other in found if isinstance(other, Instance)]

    def resources(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return (used, size) of every pool by name and device; device -1 is the global one."""
        with self._lock:
            return self._limiter.pools()

    def _pop_starts(self, granted: Sequence[object]) -> list[Callable[[], None]]:
        starts = []
        for instance in granted:
            assert isinstance(instance, Instance)
            self._running.add(instance)
            starts.append(self._starts.pop(instance))
        return starts

    @staticmethod
    def _start(starts: Sequence[Callable[[], None]]) -> None:
        """Start instances; without the lock, because that may stage others."""
        for start in starts:
            start()
