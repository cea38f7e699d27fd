"""The record of each model in a model control, and the errors of models that fail to load."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from nbtriton.engine.lifecycle.loading import CODE_TEXTS
from nbtriton.engine.lifecycle.model_lifecycle import UNLOADED
from nbtriton.errors import LoadError, TritonError
from nbtriton.repository.polling import PolledModel

__all__ = [
    "LOADS",
    "UNLOADED",
    "ModelRecord",
    "VersionState",
    "load_error",
    "load_reason",
    "with_hint",
]

# The logger of loads and their failures. Callers get errors in another way too, so nothing is
# printed by a program without logging.
LOADS = "nbtriton.repository.loads"
logging.getLogger(LOADS).addHandler(logging.NullHandler())

# Triton's state of a version, and the reason for it.
VersionState = tuple[str, str]


@dataclass(slots=True)
class ModelRecord:
    """The state of one model; dicts are replaced, never changed, for readers."""

    name: str
    explicit: bool = False
    loaded: PolledModel | None = None  # serves, or served before an unload
    waiting: PolledModel | None = None  # an ensemble that failed, until its composing models load
    # Of versions that do not serve; and READY with a reason for those that a failed update left.
    states: dict[int, VersionState] = field(default_factory=dict)
    error: TritonError | None = None  # of the last load
    polled_error: str = ""  # logged already
    busy: threading.RLock = field(default_factory=threading.RLock)

    def set_unloaded(self, versions: Collection[int]) -> None:
        """Record that versions were unloaded on purpose."""
        self.states = self.states | dict.fromkeys(versions, ("UNAVAILABLE", UNLOADED))

    def version_states(
        self, serving: Mapping[int, VersionState], unloading: Collection[int]
    ) -> dict[int, VersionState]:
        """Return the state of every version, with those that the server serves and unloads."""
        states = {version: state for version, state in self.states.items() if state[0] != "READY"}
        if self.loaded is not None:
            # Without the control, by `Server.unload`.
            for version in self.loaded.versions:
                states.setdefault(version, ("UNAVAILABLE", UNLOADED))
        for version, (_, reason) in states.items():
            if reason == UNLOADED and version in unloading:
                states[version] = ("UNLOADING", "")
        for version, state in serving.items():
            failed = self.states.get(version, state)  # READY with the reason of a failed update
            states[version] = failed if failed[0] == state[0] == "READY" else state
        return states


def load_reason(name: str, version: int, error: TritonError) -> str:
    """Return the reason of a version that failed, such as ``Internal: no such file``."""
    for state in ("UNAVAILABLE", "READY"):
        prefix = f"load failed for model '{name}': version {version} is at {state} state: "
        if error.message.startswith(prefix):
            return error.message.removeprefix(prefix).removesuffix(";")
    return f"{CODE_TEXTS[error.status]}: {error.message}"


def load_error(name: str, error: TritonError) -> LoadError:
    """Return the error of a model that failed before it had a version."""
    return LoadError(f"load failed for model '{name}': {error.message}\n", hint=error.hint)


def with_hint(error: TritonError) -> str:
    """Return an error for the log: its text, and its hint in brackets."""
    return error.message.strip() + f" ({error.hint})" * bool(error.hint)
