"""How one batch runs: the interface to the engine, and the backends that are found behind it."""

from nbtriton.backends.base import (
    SETTINGS_OF_ALL,
    Backend,
    BackendInstance,
    BackendRequest,
    BatchTimer,
    InstanceContext,
    ModelContext,
    Response,
    ServerHandle,
)
from nbtriton.backends.registry import backend_for, find_backend

__all__ = [
    "SETTINGS_OF_ALL",
    "Backend",
    "BackendInstance",
    "BackendRequest",
    "BatchTimer",
    "InstanceContext",
    "ModelContext",
    "Response",
    "ServerHandle",
    "backend_for",
    "find_backend",
]
