"""What a model control knows of each model, and the texts of what may be wrong with one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from nbtriton.engine.lifecycle.loading import CODE_TEXTS
from nbtriton.engine.lifecycle.versions import UNLOADED
from nbtriton.errors import ConfigError, LoadError, TritonError
from nbtriton.repository.polling import Polled

__all__ = ["LOADS", "UNLOADED", "Known", "by_dependency", "load_error", "load_reason", "with_hint"]

# The logger of what is loaded and what fails. Whoever loads is told of it in another way, so nothing is
# printed where nobody listens.
LOADS = "nbtriton.repository.loads"
logging.getLogger(LOADS).addHandler(logging.NullHandler())


@dataclass(slots=True)
class Known:
    """What the control knows of one model; dicts are replaced, never changed, for readers."""

    name: str
    explicit: bool = False
    loaded: Polled | None = None  # what serves, or served before an unload
    waiting: Polled | None = None  # an ensemble that failed, until its composing models come
    # Of what does not serve; and READY with a reason, of what serves as before a failed update.
    states: dict[int, tuple[str, str]] = field(default_factory=dict)
    error: TritonError | None = None  # why the last load failed
    polled_error: str = ""  # logged already
    busy: threading.RLock = field(default_factory=threading.RLock)


def load_reason(name: str, version: int, error: TritonError) -> str:
    """Return ``Internal: what was wrong`` of a version that failed."""
    for state in ("UNAVAILABLE", "READY"):
        prefix = f"load failed for model '{name}': version {version} is at {state} state: "
        if error.message.startswith(prefix):
            return error.message.removeprefix(prefix).removesuffix(";")
    return f"{CODE_TEXTS[error.status]}: {error.message}"


def load_error(name: str, error: TritonError) -> LoadError:
    """Return the error of a model that failed before it had a version."""
    return LoadError(f"load failed for model '{name}': {error.message}\n", hint=error.hint)


def with_hint(error: TritonError) -> str:
    """Return an error for the log: its text, and what to do in brackets."""
    return error.message.strip() + f" ({error.hint})" * bool(error.hint)


def by_dependency(
    ensembles: Mapping[str, Polled],
) -> tuple[list[str], dict[str, ConfigError]]:
    """Order ensembles after those they use; those in a circle are errors instead."""
    graph = {
        name: {member for member in found.members if member in ensembles}
        for name, found in ensembles.items()
    }
    circles: dict[str, ConfigError] = {}
    while True:
        try:
            return list(TopologicalSorter(graph).static_order()), circles
        except CycleError as error:
            circle: list[str] = error.args[1][:-1]
            for index, name in enumerate(circle):
                following = circle[index - 1]
                circles[name] = ConfigError(
                    f"circular dependency between ensembles: {name} -> ... -> {following} -> {name}"
                )  # V116
                graph.pop(name)
            graph = {name: members & graph.keys() for name, members in graph.items()}
