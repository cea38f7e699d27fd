"""The instance of a worker, made from its description by the same code as in the engine's process."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtriton.backends.base import (
    Backend,
    BackendInstance,
    InstanceContext,
    ModelContext,
    ServerHandle,
)
from nbtriton.backends.python.model import PythonModel, install_pb_utils
from nbtriton.runtime.workers import protocol
from nbtriton.runtime.workers.worker.limits import bind, set_threads

__all__ = ["CreatedInstance", "InstanceFactory", "follow_levels"]

# For backends with as many threads as cores unless a number is set.
_THREADS = {"onnxruntime": "intra_op_thread_count", "openvino": "INFERENCE_NUM_THREADS"}


@dataclass(frozen=True, slots=True)
class CreatedInstance:
    """An instance, with the worker's data about its model."""

    instance: BackendInstance
    all_outputs: frozenset[str]
    iterative: bool


class InstanceFactory:
    """Completes a configuration, creates an instance, or one after the other."""

    def __init__(self) -> None:
        self._backend: Backend | None = None

    def create(self, description: Mapping[str, Any], server: ServerHandle) -> CreatedInstance:
        """Create an instance.

        Parameters
        ----------
        description : mapping
            See `nbtriton.runtime.workers.description`.
        server : ServerHandle
        """
        _check_version(description)
        asked = description["instance"]
        limits = description["limits"]
        bind(limits["cores"], limits["numa_node"])
        set_threads(limits["threads"])
        instance: BackendInstance
        if "python" in description:
            model = _python_model(description)
            instance = model.create_instance(
                asked["name"], asked["kind"], asked["device_id"], server, model.modules()
            )
        else:
            backend, context = self._open(description, server)
            key = _THREADS.get(description["backend"])
            if key is not None and key not in context.config.parameters:
                context.config.parameters[key].string_value = str(limits["threads"])
            backend.open(context)
            instance = backend.create_instance(
                InstanceContext(context, asked["name"], asked["kind"], asked["device_id"])
            )
        return CreatedInstance(
            instance, frozenset(description["outputs"]), description["iterative"]
        )

    def complete(self, description: Mapping[str, Any]) -> Any:
        """Complete a configuration, or check it against the model.

        Returns
        -------
        dict or None
            The result of `PythonModel.complete`.
        bytes
            The configuration's message, of any other model.
        """
        _check_version(description)
        if "python" in description:
            return _python_model(description).complete()[1]
        backend, context = self._open(description, None)
        if description["auto_complete"]:
            return backend.complete_config(context).SerializeToString()
        backend.check(context)
        return None

    def close(self) -> None:
        """Release the shared resources of the instances."""
        if self._backend is not None:
            self._backend.close()

    def _open(
        self, description: Mapping[str, Any], server: ServerHandle | None
    ) -> tuple[Backend, ModelContext]:
        # Needs protobuf, which the environment of a `TritonPythonModel` may lack.
        from nbtriton.backends.devices import DeviceSet
        from nbtriton.backends.registry import find_backend
        from nbtriton.model.config import ModelConfig

        config = ModelConfig.FromString(description["config"])
        example = description["example"]
        context = ModelContext(
            config.name,
            description["model_version"],
            config,
            _restored(description["source"]),
            _restored(description["directory"]),
            server,
            None if example is None else pickle.loads(example),  # noqa: S301 - of our own process
            description["settings"],
            DeviceSet(None).managed,
        )
        if self._backend is None:
            self._backend = find_backend(description["backend"], description["all_settings"])()
        return self._backend, context


def follow_levels(model: int, root: int) -> None:
    """Set the levels of the model's logger and of the root in the engine's process."""
    logging.getLogger("nbtriton").setLevel(model)
    logging.root.setLevel(root)


def _python_model(description: Mapping[str, Any]) -> PythonModel:
    install_pb_utils()
    values = {name: _restored(value) for name, value in description["python"].items()}
    return PythonModel(
        source=_restored(description["source"]),
        directory=_restored(description["directory"]),
        **values,
    )


def _restored(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    kind, content = value
    if kind == "path":
        return Path(content)
    from nbtriton.runtime.workers.carry import unpack

    return unpack(content)


def _check_version(description: Mapping[str, Any]) -> None:
    if description["version"] != protocol.VERSION:
        raise RuntimeError(
            f"this worker speaks version {protocol.VERSION} of the protocol, the engine version "
            f"{description['version']}"
        )
