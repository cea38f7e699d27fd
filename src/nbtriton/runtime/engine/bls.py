"""The part of a server that model code uses: business logic scripting (B1 to B10)."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nbtriton.backends.base import RequestOptions, Response
from nbtriton.backends.core.executing import EXECUTING
from nbtriton.common.errors import EngineStoppedError, InternalError, TritonError
from nbtriton.model.tensors import Array
from nbtriton.runtime.engine.core.dispatch import RequestDispatcher
from nbtriton.runtime.engine.diagnostics.deadlocks import DEADLOCKS
from nbtriton.runtime.engine.diagnostics.inspection import Inspection
from nbtriton.runtime.engine.lifecycle.model_lifecycle import ModelLifecycle

if TYPE_CHECKING:
    from nbtriton.runtime.engine.core.future import InferenceFuture
    from nbtriton.runtime.engine.diagnostics.tracing import Trace


_log = logging.getLogger("nbtriton.runtime.engine")


class ModelRepository(Protocol):
    """A source of models by name: Triton's model control."""

    def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Load a model; ``config`` and ``file:<path>`` replace the repository's."""
        ...

    def unload(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Unload a model; ``unload_dependents``."""
        ...


class _Engine(Protocol):
    """The parts of a server that models use: `nbtriton.runtime.engine.engine.Engine`."""

    dispatcher: RequestDispatcher
    inspection: Inspection
    lifecycle: ModelLifecycle
    model_control: ModelRepository | None


class ModelServer:
    """The part of a server that model code gets (`nbtriton.backends.base.ServerHandle`)."""

    def __init__(self, engine: _Engine) -> None:
        # Weakly: the threads of its models refer to this object, and would keep the server alive forever.
        self._held = weakref.ref(engine)
        # The models that the code of a model has called, in the order of the first calls.
        self._calls: dict[str, dict[str, None]] = {}

    @property
    def _engine(self) -> _Engine:
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


def _caller() -> int:
    """Return the number of the first request of the batch whose model calls; 0 if that is unknown."""
    callers = EXECUTING.get().callers
    running = callers[-1].running if callers else ()
    return running[0].number if running else 0
