"""What a model may ask of the server that runs it (business logic scripting, B1 to B10)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nbtriton.backends.base import RequestOptions, Response
from nbtriton.backends.core.executing import EXECUTING
from nbtriton.engine.diagnostics.deadlocks import waits
from nbtriton.errors import EngineStoppedError, InternalError, TritonError
from nbtriton.tensors import Array

if TYPE_CHECKING:
    from nbtriton.engine.core.future import InferenceFuture
    from nbtriton.engine.diagnostics.tracing import Trace
    from nbtriton.engine.server import Server

__all__ = ["ModelRepository", "ModelServer"]


class ModelRepository(Protocol):
    """Where models come from by name: Triton's model control."""

    def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Load a model; ``config`` and ``file:<path>`` replace what the repository has."""
        ...

    def unload(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Unload a model; ``unload_dependents``."""
        ...


class ModelServer:
    """The part of a `Server` that model code gets (`nbtriton.backends.base.ServerHandle`)."""

    def __init__(self, server: Server) -> None:
        # Not to keep it alive: the threads of its models hold this, and would hold it for ever.
        self._held = weakref.ref(server)
        # Which models the code of a model has called, in the order of the first calls.
        self.calls: dict[str, dict[str, None]] = {}

    @property
    def _server(self) -> Server:
        server = self._held()
        if server is None:
            raise EngineStoppedError("the server of this model was dropped")
        return server

    def note_call(self, caller: str, callee: str) -> None:
        """Note that the code of a model calls another one."""
        known = self.calls.get(caller)
        if known is None:
            known = self.calls.setdefault(caller, {})
        if callee not in known:
            known[callee] = None

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
        return self._server.send(model_name, version, inputs, options, on_response, trace).expect()

    def call(
        self, model_name: str, version: int, inputs: Mapping[str, Array], options: RequestOptions
    ) -> Response:
        """Send a request and wait for its response; see `ServerHandle.call`."""
        request, response = self._server.ask(model_name, version, inputs, options)
        for array in response.outputs.values():
            if type(array) is not np.ndarray or request.kind != "numpy":
                # Of the kind of the inputs, as `Server.infer` gives them.
                result = request.result_of(response)
                return Response(dict(result), response.error, response.parameters)
        return response

    def awaits(self, future: InferenceFuture, idle: Callable[[], bool]) -> None:
        """Note that a coroutine of the model that calls may await this answer."""
        callers, request = EXECUTING.get().callers, future.pending
        if not callers or request is None:
            return
        waits.begin_await(callers[-1], request, idle)
        future.add_done_callback(lambda _: waits.end_await(callers[-1], request))

    def look_for_circles(self) -> None:
        """Answer calls that wait for each other; called when coroutines have come to rest."""
        waits.check()

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        """Return True if the model takes requests; False also for an unknown one."""
        return self._server.is_model_ready(name, version)

    def is_decoupled(self, name: str, version: int = -1) -> bool:
        """Return True if the model answers with any number of responses."""
        try:
            return self._server.is_decoupled(name, version)
        except TritonError:
            return False

    def load_model(
        self, name: str, config: str = "", files: Mapping[str, bytes] | None = None
    ) -> None:
        """Load a model again, with another configuration if one is given.

        Without a repository there is nothing to take an unknown model or new files from.
        """
        control = self._server.model_control
        if control is not None:
            parameters: dict[str, Any] = dict(files or {})
            if config:
                parameters["config"] = config
            control.load(name, parameters)
            return
        if files or not self._server.is_ready(name):
            raise InternalError(f"failed to load '{name}', failed to poll from model repository")
        if config:
            self._server.load(config, name=name)

    def unload_model(self, name: str, unload_dependents: bool = False) -> None:
        """Unload a model; an unknown one is no error (L18)."""
        control = self._server.model_control
        if control is not None:
            control.unload(name, {"unload_dependents": unload_dependents})
            return
        self._server.unload(name, unload_dependents)
