"""The description of an instance for its worker, as plain values."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from nbtriton.backends.base import Backend, InstanceContext, ModelContext
from nbtriton.backends.python.backend import PythonBackend
from nbtriton.model.config import output_types
from nbtriton.runtime.workers import protocol
from nbtriton.runtime.workers.carry import pack
from nbtriton.runtime.workers.limits import Limits

__all__ = ["describe_instance", "describe_model", "is_python_model"]


def is_python_model(backend: Backend, source: object) -> bool:
    """Return True for a `TritonPythonModel`, which needs only NumPy in a worker."""
    return isinstance(backend, PythonBackend) and backend.has_class(source)


def describe_model(
    context: ModelContext,
    backend: Backend,
    settings: Mapping[str, Mapping[str, str]],
    *,
    batches: bool = True,
) -> dict[str, Any]:
    """Return the description of a model.

    Parameters
    ----------
    context : ModelContext
    backend : Backend
    settings : mapping
        Of all backends, for the look-up of a Python-based backend.
    batches : bool
        See `PythonModel.batches`.

    Raises
    ------
    UnsupportedError
        The model cannot be serialized for another process.
    """
    config = context.config
    described: dict[str, Any] = {
        "version": protocol.VERSION,
        "source": _portable(context.source),
        "directory": _portable(context.model_directory),
        "outputs": list(output_types(config)),
        "iterative": bool(config.sequence_batching.iterative_sequence),
    }
    if is_python_model(backend, context.source):
        assert isinstance(backend, PythonBackend)
        model = backend.describe(context)
        described["python"] = {
            field.name: _portable(getattr(model, field.name))
            for field in fields(model)
            if field.name not in ("source", "directory")
        } | {"batches": batches}
        return described
    return described | {
        "backend": backend.name,
        "config": config.SerializeToString(),
        "model_version": context.version,
        "settings": dict(context.settings),
        "all_settings": {name: dict(values) for name, values in settings.items()},
        "example": None if context.example is None else pickle.dumps(context.example),
    }


def describe_instance(
    context: InstanceContext, model: Mapping[str, Any], limits: Limits
) -> dict[str, Any]:
    """Return the description of an instance of a model."""
    instance = {"name": context.name, "kind": context.kind, "device_id": context.device_id}
    policy = limits.policy
    bounds = {
        "cores": sorted(policy.cores),
        "numa_node": policy.numa_node,
        "threads": limits.share.threads,
    }
    return {**model, "instance": instance, "limits": bounds}


def _portable(value: object) -> Any:
    """Return a value for marshal: paths and the notebook's own objects are marked."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Path):
        return "path", str(value.absolute())
    return "packed", pack(value)
