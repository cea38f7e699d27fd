"""The parts of a server, for the code built on them."""

from __future__ import annotations

from typing import NoReturn, cast

from nbtriton.backends.forking import elsewhere, keep_forever, notify_in_children
from nbtriton.runtime.engine.bls import ModelRepository, ModelServer
from nbtriton.runtime.engine.core.dispatch import Registry, RequestDispatcher
from nbtriton.runtime.engine.diagnostics.inspection import Inspection
from nbtriton.runtime.engine.lifecycle.model_lifecycle import ModelLifecycle
from nbtriton.runtime.engine.lifecycle.options import ServerOptions


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
            self.lifecycle.close(timeout_s=timeout_s)
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
