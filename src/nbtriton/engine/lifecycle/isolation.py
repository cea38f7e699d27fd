"""Whether the instances of a model live in threads of this process or in processes of their own."""

from __future__ import annotations

from collections.abc import Callable

from nbtriton.backends import BackendSettings
from nbtriton.backends.base import Backend
from nbtriton.config import ModelConfig
from nbtriton.engine.interrupts import interrupts_allowed, interrupts_deferred, wait_in_slices
from nbtriton.workers.isolation import wants_process

__all__ = ["isolated"]


def isolated(backend: Backend, config: ModelConfig, settings: BackendSettings) -> Backend:
    """Return the backend that runs the instances of a model where its configuration wants them.

    Raises
    ------
    ConfigError
        The parameter INSTANCE_ISOLATION has a value that is none.
    """
    if not wants_process(config):
        return backend
    # Where no model has processes, nothing of them is imported.
    from nbtriton.workers.backend import WorkerBackend
    from nbtriton.workers.waiting import Waiting

    return WorkerBackend(backend, settings, Waiting(interrupts_deferred, _wait))


def _wait(wait: Callable[[float], bool]) -> None:
    interrupts_allowed(wait_in_slices, wait, None)
