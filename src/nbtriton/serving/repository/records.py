"""Records of the models in a model control, and errors of models that fail to load."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from nbtriton.common.errors import LoadError, TritonError
from nbtriton.model.config import ModelConfig
from nbtriton.runtime.engine.lifecycle.loading import CODE_TEXTS
from nbtriton.runtime.engine.lifecycle.model_lifecycle import UNLOADED
from nbtriton.serving.repository.polling import PolledModel

__all__ = [
    "LOADS",
    "UNLOADED",
    "ModelRecord",
    "VersionState",
    "load_error",
    "load_reason",
    "with_hint",
]

# Logger of loads and their failures. Silent in a program without logging, as callers also get the
# errors.
LOADS = "nbtriton.serving.repository.loads"
logging.getLogger(LOADS).addHandler(logging.NullHandler())

# Triton's state of a version, and its reason.
VersionState = tuple[str, str]


@dataclass(slots=True)
class ModelRecord:
    """State of one model; dicts are replaced, not changed, as other threads read them."""

    name: str
    explicit: bool = False
    loaded: PolledModel | None = None  # is serving, or was before an unload
    waiting: PolledModel | None = None  # an ensemble that failed and waits for its composing models
    # States of versions that do not serve; READY with a reason for versions left by a failed update.
    states: dict[int, VersionState] = field(default_factory=dict)
    error: TritonError | None = None  # error of the last load
    kept: ModelConfig | None = None  # as given, of what served when that failed, and serves on
    polled_error: str = ""  # the poll failure that was logged last
    busy: threading.RLock = field(default_factory=threading.RLock)

    def set_unloaded(self, versions: Collection[int]) -> None:
        """Record that versions were unloaded on purpose."""
        self.states = self.states | dict.fromkeys(versions, ("UNAVAILABLE", UNLOADED))

    def version_states(
        self, serving: Mapping[int, VersionState], unloading: Collection[int]
    ) -> dict[int, VersionState]:
        """Return the state of every version, those included that the server serves or unloads."""
        states = {version: state for version, state in self.states.items() if state[0] != "READY"}
        if self.loaded is not None:
            # Unloaded by `Server.unload`, without the control.
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
    """Return an error's text for the log, with its hint in brackets."""
    return error.message.strip() + f" ({error.hint})" * bool(error.hint)
