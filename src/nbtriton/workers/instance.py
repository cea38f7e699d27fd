"""An instance in a process of its own, behind the engine's instance interface."""

from __future__ import annotations

from collections.abc import Sequence

from nbtriton.backends.base import BackendInstance, BackendRequest, BatchTimer, Response
from nbtriton.workers.connection import Connection

__all__ = ["WorkerInstance"]


class WorkerInstance(BackendInstance):
    """Passes batches on to a worker.

    Parameters
    ----------
    connection : Connection
        To a worker whose instance is created.
    all_outputs : frozenset of str
        The outputs of the model.
    ready : bool
        Whether the model can be asked if it is ready.
    """

    def __init__(self, connection: Connection, all_outputs: frozenset[str], ready: bool) -> None:
        self._connection = connection
        self._all_outputs = all_outputs
        if ready:
            self.readiness = connection.ask_ready

    def execute(
        self, requests: Sequence[BackendRequest], timer: BatchTimer
    ) -> Sequence[Response | None] | None:
        """Run one batch; see `BackendInstance.execute`."""
        return self._connection.execute(requests, timer, self._all_outputs)

    def cancelled(self, request: BackendRequest) -> None:
        """Hear that a request was cancelled, which the worker may have."""
        self._connection.cancel(request)

    def finalize(self) -> None:
        """Finalize the model and end its process."""
        self.readiness = None
        self._connection.finalize()
