"""Which versions of which models serve now (scheduling.md §16).

The registry is read on every request and changed rarely, so readers take no lock: every change
puts a new immutable `Entry` in the place of the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any, SupportsIndex

from nbtriton.config import ModelConfig, is_ensemble
from nbtriton.engine.runtime import Runtime
from nbtriton.errors import NotFoundError, UnavailableError, nearest

__all__ = ["Entry", "Registry", "Slot", "versions_to_keep"]


@dataclass(slots=True, frozen=True)
class Slot:
    """One version: what serves it, and its state as the repository index tells it."""

    runtime: Runtime
    state: str = "READY"
    reason: str = ""


@dataclass(slots=True, frozen=True)
class Entry:
    """One model: its versions, the configuration as the user gave it, and what it sets in vain."""

    slots: Mapping[int, Slot]
    user_config: ModelConfig
    ignored: Sequence[tuple[str, str]] = ()
    latest: Runtime | None = field(init=False)

    def __post_init__(self) -> None:
        ready = [n for n, slot in self.slots.items() if slot.state == "READY"]
        object.__setattr__(self, "latest", self.slots[max(ready)].runtime if ready else None)

    def with_slot(self, version: int, slot: Slot) -> Entry:
        """Return the entry with one version put in or replaced."""
        return replace(self, slots={**self.slots, version: slot})


class Registry:
    """All models by name."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    def resolve(self, name: str, version: SupportsIndex = -1) -> Runtime:
        """Return what serves this version now; -1 is the highest that is ready (A1, A2).

        A version may be numpy's integer too.

        Raises
        ------
        NotFoundError, UnavailableError
            With Triton's texts.
        """
        number = index(version)
        entry = self.entries.get(name)
        if entry is None:
            raise NotFoundError(
                f"Request for unknown model: '{name}' is not found",
                hint=nearest(name, self.entries) or "no model is loaded",
            )
        if number == -1:
            if entry.latest is None:
                reasons = "; ".join(slot.reason for slot in entry.slots.values() if slot.reason)
                raise NotFoundError(
                    f"Request for unknown model: '{name}' has no available versions", hint=reasons
                )
            return entry.latest
        slot = entry.slots.get(number)
        if slot is None:
            raise NotFoundError(
                f"Request for unknown model: '{name}' version {number} is not found",
                hint="versions: " + ", ".join(str(n) for n in sorted(entry.slots)),
            )
        if slot.state != "READY":
            raise UnavailableError(
                f"Request for unknown model: '{name}' version {number} is not at ready state",
                hint=slot.reason,
            )
        return slot.runtime

    def configs(self) -> dict[str, ModelConfig]:
        """Return the configuration of the latest ready version of every model."""
        return {
            name: entry.latest.config
            for name, entry in self.entries.items()
            if entry.latest is not None
        }

    def versions(self) -> dict[str, list[int]]:
        """Return the ready versions of every model that has one."""
        return {
            name: [number for number, slot in entry.slots.items() if slot.state == "READY"]
            for name, entry in self.entries.items()
            if entry.latest is not None
        }

    def dependents(self, name: str) -> list[str]:
        """Return the ensembles that use a model, directly or through other ensembles."""
        found: list[str] = []
        front = [name]
        while front:
            used = front.pop()
            for other, entry in self.entries.items():
                if other not in found and any(
                    step.model_name == used for step in _steps(entry.slots.values())
                ):
                    found.append(other)
                    front.append(other)
        return found


def _steps(slots: Iterable[Slot]) -> Iterable[Any]:
    for slot in slots:
        if is_ensemble(slot.runtime.config):
            yield from slot.runtime.config.ensemble_scheduling.step


def versions_to_keep(config: ModelConfig, versions: Iterable[int]) -> set[int]:
    """Return the versions that the version policy wants of those that are there (L2)."""
    policy = config.version_policy
    there = sorted(versions)
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return set(there)
    if choice == "specific":
        return set(there) & set(policy.specific.versions)
    count = policy.latest.num_versions if choice == "latest" else 1
    return set(there[-count:]) if count else set()
