"""Whether the instances of a model live in threads of this process or in processes of their own."""

from __future__ import annotations

from collections.abc import Callable

from nbtriton.backends import BackendSettings
from nbtriton.backends.base import Backend
from nbtriton.backends.parameters import text_parameter
from nbtriton.config import ModelConfig
from nbtriton.engine.interrupts import interrupts_allowed, interrupts_deferred, wait_in_slices
from nbtriton.workers.environment import EXECUTION_ENV_PATH, Environments
from nbtriton.workers.isolation import wants_process

__all__ = ["isolated"]


def isolated(
    backend: Backend, config: ModelConfig, settings: BackendSettings, environments: Environments
) -> Backend:
    """Return the backend that runs the instances of a model where its configuration wants them.

    A model with an environment of its own, which Triton's python backend alone knows, runs in a process.

    Raises
    ------
    ConfigError
        The parameter INSTANCE_ISOLATION has a value that is none.
    """
    own = bool(text_parameter(config, EXECUTION_ENV_PATH)) and _is_python(backend)
    if not (own or wants_process(config)):
        return backend
    # Where no model has processes, nothing of them is imported.
    from nbtriton.workers.backend import WorkerBackend
    from nbtriton.workers.waiting import Waiting

    return WorkerBackend(
        backend, settings, Waiting(interrupts_deferred, _wait), environments if own else None
    )


def _is_python(backend: Backend) -> bool:
    from nbtriton.backends.python.backend import PythonBackend

    return isinstance(backend, PythonBackend)


def _wait(wait: Callable[[float], bool]) -> None:
    interrupts_allowed(wait_in_slices, wait, None)
