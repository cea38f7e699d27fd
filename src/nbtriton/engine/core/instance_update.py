"""Other instances for a version that goes on serving: what stays, what comes, what goes (L16)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import TYPE_CHECKING

from nbtriton.config import InstancePlan, ModelConfig

if TYPE_CHECKING:
    from nbtriton.engine.core.instance import Instance
    from nbtriton.engine.core.model_runtime import ModelRuntime

__all__ = ["InstanceUpdate", "match_instances"]


@dataclass(frozen=True, slots=True)
class InstanceUpdate:
    """What is ready to be put in force on one version; see `ModelRuntime.prepare_update`.

    Attributes
    ----------
    runtime : ModelRuntime
        The version.
    before : mapping of int to InstancePlan
        The instances, by number, that the update was prepared for.
    config : ModelConfig
        What the version has from then on.
    added : mapping of int to Instance
        Created and warmed up.
    plans : mapping of int to InstancePlan
        Of those that are added.
    removed : sequence of int
        They finish what they have begun.
    """

    runtime: ModelRuntime
    before: Mapping[int, InstancePlan]
    config: ModelConfig
    added: Mapping[int, Instance]
    plans: Mapping[int, InstancePlan]
    removed: Sequence[int]


def match_instances(
    present: Mapping[int, InstancePlan], wanted: Iterable[InstancePlan]
) -> tuple[list[InstancePlan], list[int]]:
    """Return the instances to add, and the numbers of those to remove.

    Of several instances with the same settings the last ones stay. Nobody is renamed, and a new
    one whose name is taken gets the next free number of its group.

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
        alike = by_settings.get(_settings(plan))
        if alike:
            alike.pop()
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
    group = plan.name.rpartition("_")[0]
    names = chain((plan.name,), (f"{group}_{number}" for number in count()))
    return replace(plan, name=next(n for n in names if (n, plan.device_id) not in taken))
