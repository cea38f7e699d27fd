"""The versions of models that serve now (A1, A2, L2).

The registry is read on every request and changed rarely, so readers take no lock: every change
puts a new immutable `Entry` in the place of the old one. Who walks through them takes a list first:
that is made in one go, with and without a GIL, while others load and unload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any

from nbtriton.common.errors import (
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
    UnsupportedError,
    nearest,
)
from nbtriton.model.config import ModelConfig, is_ensemble
from nbtriton.runtime.engine.core.runtime import Runtime

__all__ = ["Entry", "Registry", "Slot", "checked_name", "checked_version", "versions_to_keep"]

_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"  # Y5


@dataclass(slots=True, frozen=True)
class Slot:
    """One version: its runtime, and its state as the repository index has it."""

    runtime: Runtime
    state: str = "READY"
    reason: str = ""


@dataclass(slots=True, frozen=True)
class Entry:
    """One model: its versions, its configuration as given, and which fields of it have no effect.

    Attributes
    ----------
    ready : dict of int to Runtime
        The versions that are ready; -1 is the highest.
    members : frozenset of str
        Of an ensemble: the models that its steps name.
    """

    slots: Mapping[int, Slot]
    user_config: ModelConfig
    ignored: Sequence[tuple[str, str]] = ()
    ready: dict[int, Runtime] = field(init=False)
    members: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        ready = {n: slot.runtime for n, slot in self.slots.items() if slot.state == "READY"}
        if ready:
            ready[-1] = ready[max(ready)]
        object.__setattr__(self, "ready", ready)
        configs = [slot.runtime.config for slot in self.slots.values()]
        steps = [
            step for one in configs if is_ensemble(one) for step in one.ensemble_scheduling.step
        ]
        object.__setattr__(self, "members", frozenset([step.model_name for step in steps]))

    @property
    def latest(self) -> Runtime | None:
        """The highest version that is ready."""
        return self.ready.get(-1)

    def with_slot(self, version: int, slot: Slot) -> Entry:
        """Return the entry with one version added or replaced."""
        return replace(self, slots={**self.slots, version: slot})


class Registry:
    """All models by name, and whether the server accepts requests for them.

    Attributes
    ----------
    entries : dict of str to Entry
        The loaded models.
    absent : dict of str to dict of int to str
        The versions that were loaded or whose load has begun, and why they do not serve. A name
        without versions is one whose version policy left none. Versions that serve now may be among
        them.
    refusal : str
        Why no question about a model is answered; empty if they are.
    stopping : bool
        True once clients may begin nothing new.
    closed : callable, optional
        Makes the error of calls after the end of the server.
    """

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.absent: dict[str, dict[int, str]] = {}
        self.refusal = ""
        self.stopping = False
        self.closed: Callable[[], TritonError] | None = None

    def check_open(self) -> None:
        """Check that the server is open.

        Raises
        ------
        EngineStoppedError
            It is closed, or lives in the parent process.
        """
        if self.closed is not None:
            raise self.closed()

    def runtimes(self) -> list[Runtime]:
        """Return every version of every model; other threads may load and unload meanwhile."""
        entries = list(self.entries.values())
        return [slot.runtime for entry in entries for slot in entry.slots.values()]

    def record_absent(self, name: str, versions: Mapping[int, str]) -> None:
        """Record versions that do not serve, and why."""
        self.absent.setdefault(name, {}).update(versions)

    def record_loading(self, name: str, version: int) -> None:
        """Record that a load of a version begins; why an earlier one does not serve is kept."""
        self.absent.setdefault(name, {}).setdefault(version, "")

    def record_unwanted(self, name: str, version: int) -> None:
        """Record that the version policy does not want a version whose load had begun."""
        versions = self.absent.setdefault(name, {})
        if not versions.get(version):
            versions.pop(version, None)

    def find(self, name: object, version: object, decoupled: bool) -> Runtime:
        """Return the version that serves a request.

        Parameters
        ----------
        name, version
            As `resolve`.
        decoupled : bool
            Whether the sender takes any number of responses.

        Raises
        ------
        EngineStoppedError
            The server is closed.
        InvalidArgumentError, NotFoundError, UnavailableError, UnsupportedError
            As `resolve`; with Triton's text where the model is decoupled and the sender is not.
        """
        if self.closed is not None:
            raise self.closed()
        runtime = self.resolve(name, version)
        if runtime.signature.decoupled and not decoupled:
            raise UnsupportedError(_DECOUPLED, hint="use server.stream(…)")
        return runtime

    def resolve(self, name: object, version: object = -1) -> Runtime:
        """Return the runtime of a version; -1 is the highest that is ready (A1, A2).

        Raises
        ------
        InvalidArgumentError
            The name is no text, or the version no whole number, of Python's or NumPy's.
        NotFoundError, UnavailableError
            With Triton's texts.
        """
        known = name if type(name) is str else checked_name(name)
        number = version if type(version) is int else checked_version(version)
        entry = self.entries.get(known)
        runtime = None if entry is None else entry.ready.get(number)
        if runtime is None:
            raise self._missing(known, number)
        return runtime

    def entry(self, name: object, version: object = -1) -> Entry:
        """Return the entry of a model of which a version serves; arguments and errors as `resolve`.

        It is looked up once: another thread may unload the model in between.
        """
        known = checked_name(name)
        number = checked_version(version)
        entry = self.entries.get(known)
        if entry is None or number not in entry.ready:
            raise self._missing(known, number)
        return entry

    def _missing(self, name: str, number: int) -> TritonError:
        """Return the error of a version that does not serve now."""
        if self.refusal:
            return UnavailableError(self.refusal)
        entry = self.entries.get(name)
        reasons = dict(self.absent.get(name, {}))
        if entry is None and name not in self.absent:
            return NotFoundError(
                f"Request for unknown model: '{name}' is not found",
                hint=nearest(name, self.entries) or "no model is loaded",
            )
        if entry is not None:
            reasons |= {version: slot.reason for version, slot in entry.slots.items()}
        if number == -1:
            return NotFoundError(
                f"Request for unknown model: '{name}' has no available versions",
                hint="; ".join(dict.fromkeys(filter(None, reasons.values()))),
            )
        if number not in reasons:
            return NotFoundError(
                f"Request for unknown model: '{name}' version {number} is not found",
                hint="versions: " + ", ".join(str(version) for version in sorted(reasons)),
            )
        return UnavailableError(
            f"Request for unknown model: '{name}' version {number} is not at ready state",
            hint=reasons[number],
        )

    def configs(self) -> dict[str, ModelConfig]:
        """Return the configuration of the latest ready version of every model."""
        return {
            name: entry.latest.config
            for name, entry in list(self.entries.items())
            if entry.latest is not None
        }

    def versions(self) -> dict[str, list[int]]:
        """Return the ready versions of every model that has one."""
        return {
            name: [number for number, slot in entry.slots.items() if slot.state == "READY"]
            for name, entry in list(self.entries.items())
            if entry.latest is not None
        }

    def dependents(self, name: str) -> list[str]:
        """Return the ensembles that use a model, directly or through other ensembles."""
        found: list[str] = []
        front = [name]
        while front:
            used = front.pop()
            for other, entry in list(self.entries.items()):
                if used in entry.members and other not in found:
                    found.append(other)
                    front.append(other)
        return found


def checked_name(name: object) -> str:
    """Return the name of a model as a caller gave it.

    Raises
    ------
    InvalidArgumentError
        It is no text.
    """
    if isinstance(name, str):
        return name
    raise InvalidArgumentError(f"the name of a model is a text, found {name!r}")


def checked_version(version: Any) -> int:
    """Return the version of a model as a caller gave it; it may be NumPy's integer too.

    Raises
    ------
    InvalidArgumentError
        It is no whole number.
    """
    if isinstance(version, int):
        return version
    try:
        return index(version)
    except TypeError:
        number = isinstance(version, str) and version.isdecimal()
        raise InvalidArgumentError(
            f"the version of a model is a whole number, found {version!r}",
            hint=f"version={version}" if number else "-1 is the highest that is ready",
        ) from None


def versions_to_keep(config: ModelConfig, versions: Iterable[int]) -> set[int]:
    """Return the versions that the version policy wants of those that exist (L2)."""
    policy = config.version_policy
    present = sorted(versions)
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return set(present)
    if choice == "specific":
        return set(present) & set(policy.specific.versions)
    count = policy.latest.num_versions if choice == "latest" else 1
    return set(present[-count:]) if count else set()
