"""A backend whose instances are worker processes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nbtriton.backends.base import (
    Backend,
    BackendInstance,
    BackendRequest,
    InstanceContext,
    ModelContext,
)
from nbtriton.common.errors import UnsupportedError
from nbtriton.model.config import EXECUTION_ENV_PATH, ModelConfig, complete_from
from nbtriton.runtime.workers import protocol
from nbtriton.runtime.workers.core.connection import Connection
from nbtriton.runtime.workers.description import describe_instance, describe_model, is_python_model
from nbtriton.runtime.workers.environment import Environment, Environments, environment_path
from nbtriton.runtime.workers.instance import WorkerInstance
from nbtriton.runtime.workers.limits import Limits
from nbtriton.runtime.workers.options import WorkerOptions
from nbtriton.runtime.workers.process import start_worker
from nbtriton.runtime.workers.waiting import Waiting

__all__ = ["WorkerBackend"]


class WorkerBackend(Backend):
    """Runs another backend's instances in workers, which also complete and check configurations.

    Parameters
    ----------
    inner : Backend
    settings : mapping
        Of all backends.
    waiting : Waiting
    options : WorkerOptions
    environments : Environments, optional
        Of the server; None for workers in the interpreter of this process.
    """

    isolation = "process"

    def __init__(
        self,
        inner: Backend,
        settings: Mapping[str, Mapping[str, str]],
        waiting: Waiting,
        options: WorkerOptions,
        environments: Environments | None = None,
    ) -> None:
        self.name = inner.name  # type: ignore[misc]  # of the class in other backends
        self.platform = inner.platform  # type: ignore[misc]
        self.runtime = inner.runtime  # type: ignore[misc]
        self.stand_in = inner.stand_in  # type: ignore[misc]
        self.operation = inner.operation  # type: ignore[misc]
        self.inner = inner
        self._settings = settings
        self._waiting = waiting
        self._options = options
        self._environments = environments
        self._environment: Environment | None = None
        self._batches = True
        self._instances: list[WorkerInstance] = []
        # The worker that has completed the configuration; the first instance reuses it if it may keep loaded
        # code.
        self._prepared = _Prepared()
        # A backend that only completes a configuration is not closed.
        self._forget = weakref.finalize(self, self._prepared.close)

    def complete_config(self, context: ModelContext) -> ModelConfig:
        """Complete the configuration in a worker; see `Backend.complete_config`."""
        self._find_environment(context)
        if not is_python_model(self.inner, context.source):
            done = self._ask_prepared(context, auto_complete=True)
            return ModelConfig.FromString(done)
        self.inner.check(context)
        # As in Triton, an instance has a process of its own, with nothing of the one that completes.
        connection = self._connect(context.name, context)
        try:
            completed = connection.ask(
                protocol.COMPLETE, describe_model(context, self.inner, self._settings)
            )
        finally:
            connection.finalize()
        return context.config if completed is None else complete_from(context.config, completed)

    def check(self, context: ModelContext) -> None:
        """Compare the completed configuration with the model; see `Backend.check`."""
        if self._environment is None:
            self._find_environment(context)
        if is_python_model(self.inner, context.source):
            self.inner.check(context)
        else:
            self._ask_prepared(context, auto_complete=False)

    def prefers_gpu(self) -> bool:
        """Return the inner backend's preference."""
        return self.inner.prefers_gpu()

    def batching(self, context: ModelContext) -> object:
        """Return the object that may define the five functions of custom batching for the scheduler.

        A class of the notebook also exists here. The class of a file is in the worker only, which refuses
        these functions.
        """
        self._batches = not (
            isinstance(context.source, Path) and context.config.HasField("dynamic_batching")
        )
        return self.inner.batching(context)

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Start a worker and create the instance in it."""
        model = describe_model(context.model, self.inner, self._settings, batches=self._batches)
        instance = WorkerInstance(partial(self._start, context, model), frozenset(model["outputs"]))
        self._instances.append(instance)
        return instance

    def _start(
        self,
        context: InstanceContext,
        model: dict[str, Any],
        connected: Callable[[Connection], None],
    ) -> bool:
        connection = self._prepared.pop()
        if connection is None:
            connection = self._connect(context.name, context.model)
        else:
            connection.adopt(context.name, context.model.server)
        connected(connection)
        try:
            limits = connection.limits = Limits.of(context, self._options)
            created: dict[str, Any] = connection.ask(
                protocol.CREATE, describe_instance(context, model, limits)
            )
        except BaseException:
            connection.close()
            raise
        ready: bool = created["ready"]
        return ready

    def cancelled(self, request: BackendRequest) -> None:
        """Pass a cancellation on to the worker that has the request."""
        for instance in list(self._instances):
            instance.cancelled(request)

    def served(self, context: ModelContext) -> object:
        """Return the model that the instances run; see `Backend.served`."""
        return self.inner.served(context)

    def close(self) -> None:
        """Release the inner backend's resources."""
        self._instances.clear()
        self._prepared.close()
        self.inner.close()

    def _connect(self, name: str, context: ModelContext) -> Connection:
        own = self._environment
        process = (
            start_worker(name)
            if own is None
            else start_worker(
                name, interpreter=own.interpreter, environment={"LD_LIBRARY_PATH": own.libraries}
            )
        )
        return Connection(
            name, process, context.server, self._waiting, context.name, self._options.timeout_s
        )

    def _find_environment(self, context: ModelContext) -> None:
        """Find the model's own interpreter.

        Raises
        ------
        InternalError
            The environment does not exist, with Triton's text.
        UnsupportedError
            The model is in no file: its code belongs to this interpreter.
        """
        if self._environments is None:
            return
        environment_path(context.config, context.model_directory)
        if not isinstance(context.source, Path):
            raise UnsupportedError(
                f"model '{context.name}' is code of this interpreter, and {EXECUTION_ENV_PATH} names another "
                "one",
                hint="load it from a model.py, or define it in a cell of %%triton_model NAME --env ENVIRONMENT",
            )
        self._environment = self._environments.find(context.config, context.model_directory)

    def _ask_prepared(self, context: ModelContext, *, auto_complete: bool) -> Any:
        model = describe_model(context, self.inner, self._settings)
        connection = self._prepared.pop() or self._connect(context.name, context)
        try:
            completed = connection.ask(protocol.COMPLETE, {**model, "auto_complete": auto_complete})
        except BaseException:
            connection.close()
            raise
        self._prepared.put(connection)
        return completed


class _Prepared:
    """At most one worker without an instance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def put(self, connection: Connection) -> None:
        """Keep a worker."""
        with self._lock:
            self._connection = connection

    def pop(self) -> Connection | None:
        """Remove and return the worker; None without a live one."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None and not connection.alive:
            connection.close()
            return None
        return connection

    def close(self) -> None:
        """End the worker, if any."""
        connection = self.pop()
        if connection is not None:
            connection.close()
