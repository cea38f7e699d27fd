"""An instance in a worker process, behind the engine's instance interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nbtriton.backends.base import BackendInstance, BackendRequest, BatchTimer, Response
from nbtriton.runtime.workers.core.connection import Connection

__all__ = ["WorkerInstance"]


_NOT_AWAITED = "the server did not wait for it"


class WorkerInstance(BackendInstance):
    """Passes batches on to a worker.

    Parameters
    ----------
    start : callable
        ``start(connected)`` starts a worker, calls ``connected`` with its connection, creates the instance in
        it, and returns whether the model can be asked for its readiness.
    all_outputs : frozenset of str
        The outputs of the model.
    """

    def __init__(
        self, start: Callable[[Callable[[Connection], None]], bool], all_outputs: frozenset[str]
    ) -> None:
        self._start = start
        self._all_outputs = all_outputs
        self._on_lost: Callable[[str], None] | None = None
        self._abandoned = False
        if start(self._connected):
            self.readiness = self._ask_ready

    def execute(
        self, requests: Sequence[BackendRequest], timer: BatchTimer
    ) -> Sequence[Response | None] | None:
        """Run one batch; see `BackendInstance.execute`."""
        return self._connection.execute(requests, timer, self._all_outputs)

    def cancelled(self, request: BackendRequest) -> None:
        """Handle the cancellation of a request that the worker may have."""
        self._connection.cancel(request)

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Set the function to call when the process has ended; see `BackendInstance.watch`."""
        self._on_lost = on_lost
        self._connection.watch(on_lost)

    def restart(self) -> None:
        """Create the instance in a new process; see `BackendInstance.restart`."""
        self._connection.close()
        self._start(self._connected)
        if self._on_lost is not None:
            self._connection.watch(self._on_lost)

    def abandon(self) -> None:
        """End the process, or the one that a restart makes next; see `BackendInstance.abandon`."""
        if not self._connection.alive:
            self._abandoned = True
        self._connection.kill(_NOT_AWAITED)

    def _connected(self, connection: Connection) -> None:
        self._connection = connection
        if self._abandoned:
            connection.kill(_NOT_AWAITED)

    def _ask_ready(self) -> bool:
        return self._connection.ask_ready()

    def finalize(self) -> None:
        """Finalize the model and end its process."""
        self.readiness = None
        self._connection.finalize()
