"""The running instance: the link from code inside a model to the instance that called it.

`triton_python_backend_utils` is one module for the whole process, but several instances of several servers
run concurrently. A context variable around every call of the model has the running instance
(`nbtriton.backends.core.executing`). A thread that a model starts does not inherit the variable; there the
server is known only if all live instances have the same one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from nbtriton.backends.base import ServerHandle
from nbtriton.backends.core.executing import EXECUTING
from nbtriton.backends.forking import after_fork, per_process


@dataclass(slots=True, eq=False)
class Running:
    """An instance, for the code inside its model.

    ``initialized`` is True between the end of ``initialize`` and the start of ``finalize``: Triton allows
    business logic scripting only then.
    """

    model_name: str
    instance_name: str
    version_directory: Path | None = None
    server: ServerHandle | None = None
    decoupled: bool = False
    initialized: bool = False


_live: set[Running] = set()
_live_lock = per_process(threading.Lock)
after_fork(_live.clear)  # instances are threads: a forked child has none


def enter_live(running: Running) -> None:
    """Register an instance as initialized."""
    running.initialized = True
    with _live_lock():
        _live.add(running)


def leave_live(running: Running) -> None:
    """Deregister an instance before its ``finalize``."""
    running.initialized = False
    with _live_lock():
        _live.discard(running)


def any_live() -> bool:
    """Return True if an instance is initialized in this process."""
    with _live_lock():
        return bool(_live)


def current() -> Running | None:
    """Return the instance whose code calls, or None if unknown."""
    running = EXECUTING.get().running
    if isinstance(running, Running):
        return running
    with _live_lock():
        return next(iter(_live)) if len(_live) == 1 else None


def current_server() -> ServerHandle | None:
    """Return the server for calls to other models, or None outside of a running model."""
    running = EXECUTING.get().running
    if isinstance(running, Running):
        return running.server if running.initialized else None
    with _live_lock():
        servers = {r.server for r in _live if r.server is not None}
    return servers.pop() if len(servers) == 1 else None


def with_instance(text: str) -> str:
    """Return the message of a failed call, with the name of the calling instance."""
    running = current()
    name = running.instance_name if running is not None else ""
    return f"Failed to process the request for model '{name}', message: {text}"
