"""A backend whose instances are worker processes."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from nbtriton.backends.base import (
    Backend,
    BackendInstance,
    BackendRequest,
    BatchTimer,
    InstanceContext,
    ModelContext,
    Placement,
    Response,
)
from nbtriton.backends.python.backend import PythonBackend
from nbtriton.common.errors import UnsupportedError
from nbtriton.model.config import EXECUTION_ENV_PATH, ModelConfig, complete_from, output_types
from nbtriton.runtime.interrupts import interrupts_deferred
from nbtriton.runtime.workers import protocol
from nbtriton.runtime.workers.carry import pack
from nbtriton.runtime.workers.core.connection import Connection, Lane
from nbtriton.runtime.workers.environment import Environment, Environments, environment_path
from nbtriton.runtime.workers.process import Peer, start_worker
from nbtriton.runtime.workers.resources import Limits, WorkerOptions


class WorkerBackend(Backend):
    """Runs another backend's instances in workers, which also complete and check configurations.

    Parameters
    ----------
    inner : Backend
    settings : mapping
        Of all backends.
    options : WorkerOptions
    environments : Environments, optional
        Of the server; None for workers in the interpreter of this process.
    """

    isolation = "process"

    def __init__(
        self,
        inner: Backend,
        settings: Mapping[str, Mapping[str, str]],
        options: WorkerOptions,
        environments: Environments | None = None,
    ) -> None:
        for name in ("name", "platform", "runtime", "stand_in", "operation"):  # of other classes
            setattr(self, name, getattr(inner, name))
        self.inner = inner
        self._settings = settings
        self._options = options
        self._environments = environments
        self._environment: Environment | None = None
        self._batches = True
        self._instances: list[WorkerInstance] = []
        # The worker that has completed the configuration, if any; the first instance reuses it if it may keep
        # loaded code.
        self._prepared: list[Lane] = []
        # A backend that only completes a configuration is not closed.
        self._forget = weakref.finalize(self, _close_prepared, self._prepared)

    def complete_config(self, context: ModelContext) -> ModelConfig:
        """Complete the configuration in a worker; see `Backend.complete_config`."""
        self._find_environment(context)
        if not is_python_model(self.inner, context.source):
            done = self._ask_prepared(context, auto_complete=True)
            return ModelConfig.FromString(done)
        self.inner.check(context)
        model = describe_model(context, self.inner, self._settings)
        # As in Triton, an instance has its own process, with nothing from the one that completes.
        with interrupts_deferred():  # a process between two lines would be nobody's
            lane = self._connect(context.name, context)
            try:
                completed = lane.connection.ask(lane, protocol.COMPLETE, model)
            finally:
                lane.connection.finalize(lane)
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
        return WorkerInstance(partial(self._start, context, model), self._instances)

    def _start(
        self, context: InstanceContext, model: dict[str, Any], instance: WorkerInstance
    ) -> bool:
        lane = self._join(context, instance)
        connection = lane.connection
        connection.ledger = context.model.ledger
        connection.all_outputs = frozenset(model["outputs"])
        instance.connected(lane)
        try:
            limits = connection.limits = connection.limits or self._limits(context)
            described = describe_instance(context, model, limits)
            return bool(connection.ask(lane, protocol.CREATE, described)["ready"])
        except BaseException:
            connection.close(lane)
            raise

    def _join(self, context: InstanceContext, instance: WorkerInstance) -> Lane:  # noqa: ARG002 - of who shares
        """Return a lane to a worker for an instance: the prepared one's, or a new one's."""
        lane = _pop_prepared(self._prepared) or self._connect(context.name, context.model)
        lane.connection.adopt(lane, context.name, context.model.server)
        return lane

    def _limits(self, context: InstanceContext) -> Limits:
        return Limits.of(context, self._options)

    def cancelled(self, request: BackendRequest) -> None:
        """Pass a cancellation on to the worker that has the request."""
        for instance in list(self._instances):
            instance.cancelled(request)

    def served(self, context: ModelContext) -> object:
        """Return the model that the instances run; see `Backend.served`."""
        return self.inner.served(context)

    def close(self) -> None:
        """Release the inner backend's resources."""
        _close_prepared(self._prepared)
        self.inner.close()

    def _connect(self, name: str, context: ModelContext) -> Lane:
        """Return a lane of a new worker."""
        process = self._start_process(name, context)
        connection = Connection(process, context.server, context.name, self._options.timeout_s)
        lane = connection.join(name)
        assert lane is not None  # the first one
        return lane

    def _start_process(self, name: str, context: ModelContext) -> Peer:  # noqa: ARG002 - of a node
        own = self._environment
        return start_worker(
            name,
            interpreter=None if own is None else own.interpreter,
            environment=None if own is None else {"LD_LIBRARY_PATH": own.libraries},
        )

    def _find_environment(self, context: ModelContext) -> None:
        """Find the model's own interpreter.

        Raises
        ------
        InternalError
            The environment does not exist, with Triton's text.
        UnsupportedError
            The model is not in a file: its code belongs to this interpreter.
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
        try:
            with interrupts_deferred():
                lane = _pop_prepared(self._prepared) or self._connect(context.name, context)
                self._prepared.append(lane)
                asked = {**model, "auto_complete": auto_complete}
                return lane.connection.ask(lane, protocol.COMPLETE, asked)
        except BaseException:
            _close_prepared(self._prepared)
            raise


def _pop_prepared(prepared: list[Lane]) -> Lane | None:
    """Remove and return a lane of a live worker; None without one."""
    with suppress(IndexError):  # other threads pop too
        while True:
            lane = prepared.pop()
            if lane.connection.alive:
                return lane
            lane.connection.close(lane)
    return None


def _close_prepared(prepared: list[Lane]) -> None:
    while (lane := _pop_prepared(prepared)) is not None:
        lane.connection.close(lane)


_NOT_AWAITED = "the server did not wait for it"


class WorkerInstance(BackendInstance):
    """Passes batches on to a worker.

    Parameters
    ----------
    start : callable
        ``start(instance)`` finds it a worker, calls `connected` with a lane, creates the instance there, and
        returns whether the model can be asked for its readiness.
    among : list of WorkerInstance
        The instances of the model, with this one until it is finalized.

    Attributes
    ----------
    lane : Lane
        Set with `connected`.
    """

    lane: Lane

    def __init__(
        self, start: Callable[[WorkerInstance], bool], among: list[WorkerInstance]
    ) -> None:
        self._start = start
        self._on_lost: Callable[[str], None] | None = None
        self._abandoned = False
        self._among = among
        among.append(self)
        try:
            if start(self):
                self.readiness = lambda: self.lane.connection.ask_ready()  # noqa: PLW0108 - a restart exchanges it
        except BaseException:
            among.remove(self)
            raise

    def execute(
        self, requests: Sequence[BackendRequest], timer: BatchTimer
    ) -> Sequence[Response | None] | None:
        """Run one batch; see `BackendInstance.execute`."""
        return self.lane.connection.execute(self.lane, requests, timer)

    def cancelled(self, request: BackendRequest) -> None:
        """Handle the cancellation of a request that the worker may have."""
        if hasattr(self, "lane"):  # one that starts has none yet
            self.lane.connection.cancel(request)

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Set the function to call when the process has ended; see `BackendInstance.watch`."""
        self._on_lost = on_lost
        self.lane.connection.watch(self.lane, on_lost)

    def restart(self) -> None:
        """Create the instance in a new process; see `BackendInstance.restart`."""
        self.lane.connection.close(self.lane)
        self._start(self)
        if self._on_lost is not None:
            self.watch(self._on_lost)

    def abandon(self) -> None:
        """End the process, or the one that a restart makes next; see `BackendInstance.abandon`."""
        if not self.lane.connection.alive:
            self._abandoned = True
        self.lane.connection.kill(_NOT_AWAITED)

    def placement(self) -> Placement | None:
        """Return the node of a worker on another machine; see `BackendInstance.placement`."""
        return self.lane.placement()

    def connected(self, lane: Lane) -> None:
        """Have another lane from now on."""
        self.lane = lane
        if self._abandoned:
            lane.connection.kill(_NOT_AWAITED)

    def finalize(self) -> None:
        """Finalize the model and end its process."""
        self.readiness = None
        self._among.remove(self)
        self.lane.connection.finalize(self.lane)


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
        "threads": limits.threads,
    }
    return {**model, "instance": instance, "limits": bounds}


def _portable(value: object) -> Any:
    """Return a value for marshal: paths and the notebook's own objects are marked."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Path):
        return "path", str(value.absolute())
    return "packed", pack(value)
