"""The place of a model's instances: threads of this process, or a process each."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nbtriton.backends import BackendSettings
from nbtriton.backends.base import Backend
from nbtriton.common import entries
from nbtriton.common.errors import UnsupportedError
from nbtriton.model.config import EXECUTION_ENV_PATH, ModelConfig, enum_name, isolation_of
from nbtriton.model.config.parameters import text_parameter
from nbtriton.runtime.engine.diagnostics.interpreter import has_interpreter_lock, is_waiting
from nbtriton.runtime.workers.environment import Environments
from nbtriton.runtime.workers.resources import WorkerOptions, can_fork, check_fork, usable_cores

if TYPE_CHECKING:
    from nbtriton.backends.python.imports import LocalModules
    from nbtriton.runtime.engine.core.model_runtime import ModelRuntime


_log = logging.getLogger("nbtriton.runtime.engine")


@dataclass(frozen=True, slots=True)
class Isolation:
    """The place of a model's instances, asked for and chosen.

    Attributes
    ----------
    asked : {"thread", "process", "auto", "ray"}
        By the configuration, or by the server for models that do not say.
    chosen : {"thread", "process", "ray"}
    claim : object
        Keeps the names of the model's modules for it while it is loaded.
    """

    asked: str = "thread"
    chosen: str = "thread"
    claim: object = None


def choose_isolation(
    config: ModelConfig, default: str, source: object, before: ModelRuntime | None
) -> Isolation:
    """Return where the instances of a version shall live.

    ``auto`` takes processes where a module beside the model's file has the name of another one in this
    process, and where several instances on the processor are asked for, those of the
    version before have waited for the interpreter, and the model can be carried; then it stays with
    them.

    Parameters
    ----------
    config : ModelConfig
        As given.
    default : {"thread", "process", "auto", "ray"}
        Of the server.
    source : object
        The model's code.
    before : ModelRuntime or None
        The version that is replaced.

    Raises
    ------
    ConfigError
        ``INSTANCE_ISOLATION`` is none of them.
    """
    asked = isolation_of(config) or default
    if asked != "auto":
        return Isolation(asked, asked)
    if not can_fork():
        return Isolation(asked, "thread")
    groups = [group for group in config.instance_group if not group.passive]
    several = sum(max(1, group.count) for group in groups) > 1
    on_gpu = any(enum_name(group, "kind") == "KIND_GPU" for group in groups)
    modules = None if on_gpu else _modules_of(source)
    for name, place in (modules.claim() if modules is not None else {}).items():
        _log.info(
            "the instances of '%s' have processes of their own: its module '%s' is not the one that this "
            "process has by that name, %s", config.name, name, place,
        )  # fmt: skip
        return Isolation(asked, "process")
    if before is None or not several or on_gpu or not has_interpreter_lock() or usable_cores() < 2:
        return Isolation(asked, "thread", modules)
    stays = (before.isolation_asked, before.backend.isolation) == ("auto", "process")
    if (stays or is_waiting(before.interpreter.result())) and _can_be_carried(config.name, source):
        return Isolation(asked, "process")
    return Isolation(asked, "thread", modules)


def _modules_of(source: object) -> LocalModules | None:
    """Return the modules beside a ``model.py``; None for what is none."""
    if not isinstance(source, Path) or source.suffix != ".py":
        return None
    from nbtriton.backends.python.imports import LocalModules

    folder = source.parent
    return LocalModules(1, [folder, *([folder.parent] if folder.name.isdigit() else [])])


def _can_be_carried(name: str, source: object) -> bool:
    if source is None or isinstance(source, Path):
        return True
    from nbtriton.runtime.workers.carry import pack

    try:
        pack(source)
    except UnsupportedError as error:
        _log.warning("the instances of '%s' stay in threads: %s", name, error.message)
        return False
    return True


def start_early(isolation: str) -> None:
    """Start the process that forks workers ahead of the first model, where a server wants processes."""
    if isolation == "process":
        check_fork()
        from nbtriton.runtime.workers.launching import Interpreter, fork_server_of

        fork_server_of(Interpreter())


def isolated(
    backend: Backend,
    config: ModelConfig,
    settings: BackendSettings,
    environments: Environments,
    workers: WorkerOptions,
    *,
    chosen: str | None = None,
) -> Backend:
    """Return the backend that runs the instances of a model where they are to live.

    A model with an environment of its own, which Triton's python backend alone knows, runs in a process.

    Parameters
    ----------
    backend : Backend
    config : ModelConfig
    settings : mapping
        Of all backends.
    environments : Environments
        Of the server.
    workers : WorkerOptions
    chosen : {"thread", "process", "ray"}, optional
        By default what the configuration says.

    Raises
    ------
    UnsupportedError
        It is a process, and this system cannot fork any, or it is elsewhere with an environment of its own.
    """
    own = bool(text_parameter(config, EXECUTION_ENV_PATH)) and _is_python(backend)
    where = chosen or isolation_of(config) or "thread"
    # A stand-in has no code that a process could isolate.
    if backend.stand_in or (where in ("thread", "auto") and not own):
        return backend
    place = entries.place_of("isolations", where)
    if place is not None and own:
        raise UnsupportedError(
            f"model '{config.name}' has {EXECUTION_ENV_PATH}, an environment of this machine, and isolation {where}",
            hint="INSTANCE_ISOLATION: process; for Ray, INSTANCE_RUNTIME_ENV names its environment there",
        )
    if place is None:
        check_fork()
        if not own:
            start_early("process")  # while the rest is imported and the model is read
    # Where no model has processes, nothing of them is imported.
    from nbtriton.runtime.workers.backend import WorkerBackend

    kind: type[WorkerBackend] = WorkerBackend if place is None else entries.load(place)
    return kind(backend, settings, workers, environments if own else None)


def _is_python(backend: Backend) -> bool:
    from nbtriton.backends.python.backend import PythonBackend

    return isinstance(backend, PythonBackend)
