"""Recovery of an instance that was lost with the process that it runs in."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from nbtriton.common.errors import TritonError
from nbtriton.runtime.engine.core.execution import now_ns
from nbtriton.runtime.workers.supervisor import RestartState, Supervisor

__all__ = ["Recovery", "lost_text"]

_log = logging.getLogger("nbtriton.runtime.engine")


def lost_text(instance: str) -> str:
    """Return Triton's message of a request to an instance whose process has ended (PB92)."""
    return f"Stub process '{instance}' is not healthy."


class Recovery:
    """The restarts of one instance, on its thread, as a `Supervisor` decides them.

    Parameters
    ----------
    name : str
        Of the instance.

    Attributes
    ----------
    wanted : bool
        It is lost and will be restarted.
    restarting : bool
        It is created once more, which may take the time of its model's ``initialize``.
    down : bool
        It is lost and will not be restarted.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._supervisor = Supervisor()
        self._cause = ""
        self._stopped = threading.Event()
        self.wanted = False
        self.restarting = False
        self.down = False

    @property
    def state(self) -> RestartState:
        """What a status says of it."""
        return self._supervisor.state

    def started(self, now: int) -> None:
        """Handle that the instance runs."""
        self._supervisor.started(now)

    def lost(self, cause: str) -> None:
        """Handle a loss, on any thread."""
        self._cause = cause
        self.wanted = True

    def stop(self) -> None:
        """Restart it no more, as it is about to be finalized."""
        self._stopped.set()

    def run(self, restart: Callable[[], None]) -> bool:
        """Restart it until it runs; False if it is given up, or finalized.

        Takes as long as the waits between the restarts.
        """
        while self.wanted and not self.down:
            if self._stopped.is_set():
                return False
            due = self._supervisor.ended(now_ns(), self._cause)
            if due is None:
                self.down, self.wanted = True, False
                _log.error("%s is not restarted any more: %s", self._name, self._cause)
                return False
            _log.warning("%s is restarted: %s", self._name, self._cause)
            if self._stopped.wait(max(0, due - now_ns()) / 1e9):
                return False
            self.wanted = False
            self.restarting = True
            try:
                restart()
            except TritonError as error:
                self.lost(f"{error.message} ({error.hint})" if error.hint else error.message)
            except BaseException as error:  # also SystemExit from a model's initialize
                self.lost(f"{type(error).__name__}: {error}")
            else:
                self._supervisor.started(now_ns())
            finally:
                self.restarting = False
        return not self.down
