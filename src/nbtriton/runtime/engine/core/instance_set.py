"""The instances of a version: created, updated while it serves (L16), and ended; and what limits their rate (R1 to R9)."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nbtriton.backends.base import Backend, InstanceContext, ModelContext
from nbtriton.common.errors import InvalidArgumentError, TritonError
from nbtriton.model.config import InstancePlan, ModelConfig
from nbtriton.runtime.engine.core.instance import Instance, InstanceOwner
from nbtriton.runtime.engine.core.request import InferenceRequest
from nbtriton.runtime.interrupts import interrupts_allowed, interrupts_deferred
from nbtriton.scheduling import RateLimiter, ResourceNeed, ResourceShortage


class Limiter:
    """Rate limiter of a server, for the instances of all models: batches wait until theirs has its resources.

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
                granted = []
                if instance in self._running:  # who was to release its resources comes later
                    self._running.remove(instance)
                    granted = self._limiter.release(instance)
                starts = self._pop_starts(granted + self._limiter.remove(instance))
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
        """Release an instance's resources, unless it was removed with them."""
        with self._lock:
            if instance not in self._running:
                return
            self._running.remove(instance)
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


class UpdatableRuntime(InstanceOwner):
    """A version whose instances can be exchanged while it serves."""

    @abstractmethod
    def is_current(self, update: InstanceUpdate) -> bool:
        """Return True if nothing has changed since the update was prepared."""

    @abstractmethod
    def apply_update(self, update: InstanceUpdate) -> None:
        """Apply a current update; removed instances finish what they have begun."""

    @abstractmethod
    def discard_update(self, update: InstanceUpdate) -> None:
        """End the instances made for an update."""


@dataclass(frozen=True, slots=True)
class InstanceUpdate:
    """An update that is ready to apply; see `ModelRuntime.prepare_update`.

    Attributes
    ----------
    runtime : UpdatableRuntime
        The version.
    before : mapping of int to InstancePlan
        The instances, by number, that the update was prepared for.
    config : ModelConfig
        The version's configuration once the update is applied.
    added : mapping of int to Instance
        Created and warmed up.
    plans : mapping of int to InstancePlan
        Plans of the added instances.
    removed : sequence of int
        Numbers of the removed instances, which finish what they have begun.
    """

    runtime: UpdatableRuntime
    before: Mapping[int, InstancePlan]
    config: ModelConfig
    added: Mapping[int, Instance]
    plans: Mapping[int, InstancePlan]
    removed: Sequence[int]


class InstanceSet:
    """The instances of one version, by number: those that execute batches come first.

    Parameters
    ----------
    owner : UpdatableRuntime
    backend : Backend
    context : ModelContext
    plans : sequence of InstancePlan
    limiter : Limiter, optional
        If the server limits rates.

    Attributes
    ----------
    active, passive : dict of int to Instance
        Instances that execute batches, with the batcher's numbers from 0; and instances that are
        loaded but never scheduled (P7).
    plans : mapping of int to InstancePlan
        Of all of them.
    leaving : list of Instance
        Instances that updates have removed from the plans, or made in vain; their threads may still run.
    """

    def __init__(
        self,
        owner: UpdatableRuntime,
        backend: Backend,
        context: ModelContext,
        plans: Sequence[InstancePlan],
        limiter: Limiter | None,
    ) -> None:
        self._owner = owner
        self._backend = backend
        self._context = context
        self._limiter = limiter
        self._next_number = 0
        self.plans: Mapping[int, InstancePlan] = self._numbered(
            sorted(plans, key=lambda plan: plan.passive)
        )
        self.active = self._new(self.plans, passive=False)
        self.passive = self._new(self.plans, passive=True)
        self.leaving: list[Instance] = []

    def all(self) -> dict[int, Instance]:
        """Return the active and the passive instances."""
        return {**self.active, **self.passive}

    def running(self) -> list[InferenceRequest]:
        """Return the requests that instances execute now."""
        return [request for instance in self.all().values() for request in instance.running]

    def readiness_checks(self) -> list[Callable[[], bool]]:
        """Return the readiness checks of the active instances that have one."""
        checks = [instance.readiness for instance in [*self.active.values()]]
        return [check for check in checks if check is not None]

    def create(self) -> BaseException | None:
        """Create all instances, each on its own thread; return the first error."""
        return self._create(self._context.config, self.plans, self.all())

    def prepare_update(self, config: ModelConfig, plans: Sequence[InstancePlan]) -> InstanceUpdate:
        """Create what a configuration asks for; see `ModelRuntime.prepare_update`."""
        before = self.plans
        wanted, removed = match_instances(before, plans)
        fresh = self._numbered(wanted)
        added = self._new(fresh, passive=False) | self._new(fresh, passive=True)
        update = InstanceUpdate(self._owner, before, config, added, fresh, removed)
        try:
            first = interrupts_allowed(self._create, config, fresh, added)
        except BaseException:
            self.discard(added.values())
            raise
        if first is not None:
            self.remove(added.values())
            for instance in added.values():
                instance.join()
            raise first
        return update

    def plan_update(self, update: InstanceUpdate) -> None:
        """Adopt the plans of an update."""
        removed = set(update.removed)
        present = self.all().items()
        for one in [*self.leaving]:  # in place: other threads add to it
            if one.join(0):
                self.leaving.remove(one)
        self.leaving += [instance for number, instance in present if number in removed]
        kept = {number: plan for number, plan in update.before.items() if number not in removed}
        self.plans = {**kept, **update.plans}

    def apply_update(self, update: InstanceUpdate) -> tuple[list[int], list[int]]:
        """Exchange the passive instances; return the active ones to add, and those to retire."""
        added = []
        for number, instance in update.added.items():
            if update.plans[number].passive:
                self.passive[number] = instance
            else:
                self.active[number] = instance
                added.append(number)
        retiring = []
        for number in update.removed:
            if number in self.passive:
                self.remove([self.passive.pop(number)])
            else:
                retiring.append(number)
        return added, retiring

    def retire(self, number: int) -> None:
        """End an active instance that the batcher no longer uses."""
        self.remove([self.active.pop(number)])

    def discard(self, instances: Collection[Instance]) -> None:
        """End instances that were made in vain."""
        self.leaving += instances
        self.remove(instances)

    def abandon(self) -> None:
        """Abort the running executions, whose requests have been answered."""
        for instance in self.all().values():
            instance.abandon()

    def remove(self, instances: Collection[Instance]) -> None:
        """End instances once they have finished what they have begun."""
        for instance in instances:
            instance.stop()
        if self._limiter is not None:
            self._limiter.remove([*instances])

    def end(self) -> None:
        """End all of them and wait for their threads."""
        instances = [*self.all().values(), *self.leaving]
        for instance in instances:
            instance.stop()
        for instance in instances:
            instance.join()
        if self._limiter is not None:
            self._limiter.remove(instances)

    def _numbered(self, plans: Iterable[InstancePlan]) -> dict[int, InstancePlan]:
        numbered = dict(enumerate(plans, self._next_number))
        self._next_number += len(numbered)
        return numbered

    def _new(self, plans: Mapping[int, InstancePlan], *, passive: bool) -> dict[int, Instance]:
        return {
            number: Instance(
                self._owner,
                self._backend,
                InstanceContext(
                    self._context, plan.name, plan.kind, plan.device_id, plan.host_policy
                ),
                number,
                plan.label,
            )
            for number, plan in plans.items()
            if plan.passive is passive
        }

    def _create(
        self,
        config: ModelConfig,
        plans: Mapping[int, InstancePlan],
        instances: Mapping[int, Instance],
    ) -> BaseException | None:
        """Create instances in parallel; return the first error."""
        for instance in instances.values():  # Ctrl-C may come between any two of them
            with interrupts_deferred():  # a half-started thread could not be ended
                instance.start()
        errors = [instance.wait_created() for instance in instances.values()]
        first = next((error for error in errors if error is not None), None)
        if first is None and self._limiter is not None:
            active = [number for number, plan in plans.items() if not plan.passive]
            try:
                self._limiter.add(
                    config, [plans[n] for n in active], [instances[n] for n in active]
                )
            except TritonError as error:
                return error
        return first


def match_instances(
    present: Mapping[int, InstancePlan], wanted: Iterable[InstancePlan]
) -> tuple[list[InstancePlan], list[int]]:
    """Return the instances to add, and the numbers of those to remove.

    Of several instances with the same settings the last ones stay. No instance is renamed; if the
    name of a new one is taken, it gets the next free number of its group.

    Examples
    --------
    >>> def plan(name):
    ...     return InstancePlan(name, "KIND_CPU", 0, "cpu", False)
    >>> match_instances({0: plan("m_0"), 1: plan("m_1"), 2: plan("m_2")}, [plan("m_0")])
    ([], [0, 1])
    """
    by_settings: dict[tuple[bytes, str, int, bool], list[int]] = {}
    for number, plan in present.items():
        by_settings.setdefault(_settings(plan), []).append(number)
    fresh = []
    for plan in wanted:
        same = by_settings.get(_settings(plan))
        if same:
            same.pop()
        else:
            fresh.append(plan)
    removed = [number for numbers in by_settings.values() for number in numbers]
    taken = {(p.name, p.device_id) for number, p in present.items() if number not in removed}
    added = []
    for plan in fresh:
        named = _with_free_name(plan, taken)
        taken.add((named.name, named.device_id))
        added.append(named)
    return added, sorted(removed)


def _settings(plan: InstancePlan) -> tuple[bytes, str, int, bool]:
    return plan.settings, plan.kind, plan.device_id, plan.passive


def _with_free_name(plan: InstancePlan, taken: set[tuple[str, int]]) -> InstancePlan:
    name, number = plan.name, 0
    while (name, plan.device_id) in taken:
        name = f"{plan.name.rpartition('_')[0]}_{number}"
        number += 1
    return replace(plan, name=name)
