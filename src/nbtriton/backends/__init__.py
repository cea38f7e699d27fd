"""Backends, which run batches: their interface to the engine, and their registry."""

from nbtriton.backends.base import (
    BACKEND_DIRECTORY,
    SETTINGS_OF_ALL,
    Backend,
    BackendInstance,
    BackendRequest,
    BatchTimer,
    InstanceContext,
    ModelContext,
    RequestOptions,
    Response,
    ServerHandle,
)
from nbtriton.backends.registry import BackendSettings, backend_for, check_runtime, find_backend

__all__ = [
    "BACKEND_DIRECTORY",
    "SETTINGS_OF_ALL",
    "Backend",
    "BackendInstance",
    "BackendRequest",
    "BackendSettings",
    "BatchTimer",
    "InstanceContext",
    "ModelContext",
    "RequestOptions",
    "Response",
    "ServerHandle",
    "backend_for",
    "check_runtime",
    "find_backend",
]
