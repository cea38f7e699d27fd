"""The parts of a server, for the code built on them, and what the code of models gets of it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

import numpy as np

from nbtriton.backends.base import RequestOptions, Response
from nbtriton.backends.core.executing import EXECUTING
from nbtriton.backends.forking import elsewhere, keep_forever, notify_in_children
from nbtriton.common.errors import EngineStoppedError, InternalError, TritonError
from nbtriton.model.tensors import Array
from nbtriton.runtime.engine.core.dispatch import Registry, RequestDispatcher
from nbtriton.runtime.engine.diagnostics.deadlocks import DEADLOCKS
from nbtriton.runtime.engine.diagnostics.inspection import Inspection
from nbtriton.runtime.engine.lifecycle.model_lifecycle import ModelLifecycle
from nbtriton.runtime.engine.lifecycle.options import ServerOptions

if TYPE_CHECKING:
    from nbtriton.runtime.engine.core.future import InferenceFuture
    from nbtriton.runtime.engine.diagnostics.tracing import Trace


_log = logging.getLogger("nbtriton.runtime.engine")


class ModelRepository(Protocol):
    """A source of models by name: Triton's model control."""

    def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Load a model; ``config`` and ``file:<path>`` replace the repository's."""

    def unload(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Unload a model; ``unload_dependents``."""


class ModelServer:
    """The part of a server that model code gets (`nbtriton.backends.base.ServerHandle`): business logic scripting (B1 to B10)."""

    def __init__(self, engine: Engine) -> None:
        # Weakly: the threads of its models refer to this object, and would keep the server alive forever.
        self._held = weakref.ref(engine)
        # The models that the code of a model has called, in the order of the first calls.
        self._calls: dict[str, dict[str, None]] = {}

    @property
    def _engine(self) -> Engine:
        engine = self._held()
        if engine is None:
            raise EngineStoppedError("the server of this model was dropped")
        return engine

    def called_by(self, name: str) -> tuple[str, ...]:
        """Return the models that the code of a model has called since this server began."""
        return tuple(self._calls.get(name, ()))

    def note_call(self, caller: str, callee: str) -> None:
        """Note that the code of a model calls another one."""
        called = self._calls.get(caller)
        if called is None:
            called = self._calls.setdefault(caller, {})
        if callee not in called:
            called[callee] = None

    def submit(
        self,
        model_name: str,
        version: int,
        inputs: Mapping[str, Array],
        options: RequestOptions,
        on_response: Callable[[Response, bool], None] | None = None,
        trace: Trace | None = None,
    ) -> InferenceFuture:
        """Send a request through normal scheduling (B1)."""
        _, future = self._engine.dispatcher.submit(
            model_name, version, inputs, options, on_response, trace, _caller()
        )
        return future

    def call(
        self, model_name: str, version: int, inputs: Mapping[str, Array], options: RequestOptions
    ) -> Response:
        """Send a request and wait for its response; see `ServerHandle.call`."""
        request, response = self._engine.dispatcher.call(
            model_name, version, inputs, options, _caller()
        )
        if response.error is not None:
            # The caller gets only its text. Its cause refers to frames of the model's code, which
            # refer to this frame, and so to the error.
            response.error.__cause__ = response.error.__context__ = None
        for array in response.outputs.values():
            if type(array) is not np.ndarray or request.kind != "numpy":
                # Of the kind of the inputs, as `Server.infer` gives them.
                result = request.result_of(response)
                return Response(dict(result), response.error, response.parameters)
        return response

    def awaits(self, future: InferenceFuture) -> None:
        """Note that a coroutine of the model that calls may await this answer."""
        request = future._request  # noqa: SLF001 - the engine's side of it
        if request is not None:
            end = DEADLOCKS.begin_call(request)
            future.add_done_callback(lambda _: end())

    def wait_for_coroutine(self, wait: Callable[[float], bool]) -> None:
        """Wait for a coroutine of the model that executes here; see `ServerHandle`."""
        DEADLOCKS.wait_for_coroutine(wait)

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        """Return True if the model takes requests; False for an unknown one as well."""
        return self._engine.inspection.is_model_ready(name, version)

    def is_decoupled(self, name: str, version: int = -1) -> bool:
        """Return True if the model answers with any number of responses."""
        try:
            return self._engine.inspection.is_decoupled(name, version)
        except TritonError:
            return False

    def max_unread_responses(self, name: str, version: int = -1) -> int:
        """Return how many responses of a request may wait for their reader; 0 for any number."""
        return self._engine.inspection.max_unread_responses(name, version)

    def load_model(
        self, name: str, config: str = "", files: Mapping[str, bytes] | None = None
    ) -> None:
        """Load a model again, with another configuration if one is given.

        Without a repository neither an unknown model nor new files can be loaded. As in Triton, files need a
        configuration, and one whose path does not begin with ``file:`` is left out.
        """
        control = self._engine.model_control
        if control is not None and (config or not files):
            parameters: dict[str, Any] = {}
            for path, content in (files or {}).items():
                if path.startswith("file:"):
                    parameters[path] = content
                else:
                    _log.warning(
                        "load_model: the file '%s' for '%s' is left out: write 'file:%s'",
                        path, name, path,
                    )  # fmt: skip
            if config:
                parameters["config"] = config
            control.load(name, parameters)
            return
        if files or not self._engine.inspection.is_ready(name):
            raise InternalError(f"failed to load '{name}', failed to poll from model repository")
        if config:
            self._engine.lifecycle.load(config, name=name)

    def unload_model(self, name: str, unload_dependents: bool = False) -> None:
        """Unload a model; an unknown one is ignored (L18)."""
        control = self._engine.model_control
        if control is not None:
            control.unload(name, {"unload_dependents": unload_dependents})
            return
        self._engine.lifecycle.unload(name, unload_dependents)


class Engine:
    """The parts behind a `nbtriton.Server`: endpoints and repositories use them directly.

    Parameters
    ----------
    options : ServerOptions

    Attributes
    ----------
    registry : Registry
        The models that serve now.
    lifecycle : ModelLifecycle
        Loads, replaces and unloads models.
    inspection : Inspection
        Readiness, configurations, statistics.
    dispatcher : RequestDispatcher
        The entrance of requests.
    model_server : ModelServer
        The part of the server that model code gets; models' own metrics are kept under it.
    model_control : ModelRepository or None
        The model repository that clients and models may load from.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.registry = Registry()
        self.dispatcher = RequestDispatcher(self.registry)
        self.model_server = ModelServer(self)
        self.lifecycle = ModelLifecycle(self.registry, options, self.model_server)
        lifecycle = self.lifecycle
        self.inspection: Inspection = Inspection(
            self.registry,
            lifecycle.runtimes,
            lambda: lifecycle.builder.recorder,
            lambda: lifecycle.builder.limiter,
        )
        self.model_control: ModelRepository | None = None
        self.in_parent = False
        notify_in_children(self)

    @property
    def state(self) -> str:
        """``"open"``, ``"closed"`` or ``"in the parent process"``."""
        if self.in_parent:
            return "in the parent process"
        return "open" if self.registry.closed is None else "closed"

    def check_open(self) -> None:
        """Check that the server is open.

        Raises
        ------
        EngineStoppedError
            It is closed, or lives in the parent process.
        """
        self.registry.check_open()

    def close(self, *, timeout_s: float) -> None:
        """Unload all models and end all threads; see `nbtriton.Server.close`."""
        if not self.in_parent:
            try:
                self.lifecycle.close(timeout_s=timeout_s)
            finally:  # after Ctrl-C too
                self.dispatcher.close()

    def in_child(self) -> None:
        """Become a substitute for a server whose threads are in the parent process."""
        self.in_parent = True
        self.registry.closed = elsewhere
        self.lifecycle.detach()
        keep_forever(self.registry, self.lifecycle)
        absent = _Elsewhere()
        self.registry = cast("Registry", absent)
        self.inspection = cast("Inspection", absent)
        self.dispatcher = cast("RequestDispatcher", absent)
        self.lifecycle = cast("ModelLifecycle", absent)


class _Elsewhere:
    """Any part of a server in a child process."""

    def __getattr__(self, name: str) -> NoReturn:
        raise elsewhere()


def _caller() -> int:
    """Return the number of the first request of the batch whose model calls; 0 if that is unknown."""
    callers = EXECUTING.get().callers
    running = callers[-1].running if callers else ()
    return running[0].number if running else 0
