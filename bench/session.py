"""Shared state of a bench's figures: options, servers, folders."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import nbtriton
from bench.figures import Measure, Missing, Sides
from bench.models import Model, load, write
from nbtriton.common.errors import TritonError
from nbtriton.extensions.verify.install import ensure_reference
from nbtriton.extensions.verify.reference import Reference, RunningServer, launch

__all__ = ["Session"]

T = TypeVar("T")
# Timeout for a server to listen.
START_S = 30


@dataclass
class Session:
    """State of one run of a bench; a server is started for the first figure that needs it.

    Parameters
    ----------
    stack : ExitStack
        Closed at the end of the bench, with all that was started.
    interval_ms : int
        Nominal length of a measurement window.
    short : bool
        Whether figures that take minutes use their short form.
    """

    stack: ExitStack
    interval_ms: int = 400
    short: bool = False
    _ours: dict[tuple[Model, ...], nbtriton.Server] = field(default_factory=dict)
    _kept: dict[object, Any] = field(default_factory=dict)
    _current: tuple[object, Any] | None = None
    _current_stack: ExitStack = field(default_factory=ExitStack)
    _served: dict[tuple[tuple[Model, ...], tuple[str, ...]], RunningServer] = field(
        default_factory=dict
    )
    _real: dict[tuple[tuple[Model, ...], tuple[str, ...]], RunningServer] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self.stack.push(self._current_stack)

    @cached_property
    def reference(self) -> Reference:
        """The installed reference; raises `Missing` if it is not available."""
        try:
            return ensure_reference(on_progress=lambda line: print(f"reference server: {line}"))
        except TritonError as error:
            raise Missing(f"no tritonserver here: {error.message}") from error

    def folder(self) -> Path:
        """Return a temporary folder, removed at the end of the bench."""
        return Path(self.stack.enter_context(tempfile.TemporaryDirectory()))

    def ours(self, *models: Model) -> nbtriton.Server:
        """Return a server in this process with these models."""
        if models not in self._ours:
            server = self.stack.enter_context(nbtriton.Server())
            load(server, models, self.folder())
            self._ours[models] = server
        return self._ours[models]

    def real(self, *models: Model, flags: tuple[str, ...] = ()) -> RunningServer:
        """Return a running tritonserver with these models; raises `Missing` without one."""
        key = (models, flags)
        if key not in self._real:
            folder = self.folder()
            write(models, folder)
            self._real[key] = self.stack.enter_context(self.reference.server(folder, *flags))
        return self._real[key]

    def served(self, *models: Model, flags: tuple[str, ...] = ()) -> RunningServer:
        """Return a running `nbtriton serve` with these models, in its own process."""
        key = (models, flags)
        if key not in self._served:
            folder = self.folder()
            write(models, folder)
            self._served[key] = self.serve(folder, *flags)
        return self._served[key]

    def serve(self, repository: Path, *flags: str) -> RunningServer:
        """Run `nbtriton serve` over a repository until the bench ends."""
        command = [sys.executable, "-m", "nbtriton", "serve", *flags]
        server = self.stack.enter_context(launch(command, repository, os.environ))
        # Readiness by HTTP, which listens before grpcio is imported.
        _wait_for_port(server.grpc_port)
        return server

    def resource(self, key: object, start: Callable[[], AbstractContextManager[T]]) -> T:
        """Return the resource of a key, started on first use and ended with the bench."""
        if key not in self._kept:
            self._kept[key] = self.stack.enter_context(start())
        found: T = self._kept[key]
        return found

    def one_at_a_time(self, key: object, start: Callable[[], AbstractContextManager[T]]) -> T:
        """Return the resource of a key, after ending that of another key.

        A failed start is not repeated: its `Missing` is raised again.
        """
        if self._current is None or self._current[0] != key:
            self._current_stack.close()
            try:
                self._current = (key, self._current_stack.enter_context(start()))
            except Missing as error:
                self._current = (key, error)
        if isinstance(self._current[1], Missing):
            raise self._current[1]
        found: T = self._current[1]
        return found

    def beside(
        self,
        models: Sequence[Model],
        ours: Measure,
        theirs: Callable[[Reference, RunningServer], float],
    ) -> Sides:
        """Return sides for nbtriton and tritonserver with these models; `theirs` gets the running server."""
        try:
            reference, server = self.reference, self.real(*models)
        except Missing as error:
            return Sides(ours, None, str(error))
        return Sides(ours, lambda: theirs(reference, server))


def _wait_for_port(port: int) -> None:
    """Wait until a server listens on a port."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise Missing(f"nothing listens on port {port}") from error
            time.sleep(0.05)
