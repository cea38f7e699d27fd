"""A model's own ``is_ready``: whether it can accept requests now (PB10)."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from nbtriton.backends.core.executing import running_as
from nbtriton.backends.python.running import Running
from nbtriton.backends.tracebacks import describe

# Triton's timeout for an answer.
TIMEOUT_S = 5.0

_log = logging.getLogger("nbtriton.python")


class Readiness:
    """Asks a model whether it is ready; concurrent callers get the same answer.

    Parameters
    ----------
    is_ready : callable
        The model's, which returns a bool or is a coroutine function; it runs on a separate thread,
        even while the model executes.
    running : Running
        Its instance.
    """

    def __init__(self, is_ready: Callable[[], object], running: Running) -> None:
        self._is_ready = is_ready
        self._running = running
        self._lock = threading.Lock()
        self._answer: Future[bool] | None = None

    def ask(self) -> bool:
        """Return the model's answer; False also for an error, another type or a timeout."""
        name = self._running.instance_name
        with self._lock:
            answer = self._answer
            if answer is None:
                answer = Future()
                threading.Thread(
                    target=self._run, args=(answer,), name=f"nbtriton-ready-{name}", daemon=True
                ).start()
                self._answer = answer  # once its thread runs, which may not start
        try:
            return answer.result(TIMEOUT_S)
        except TimeoutError:
            _log.error("is_ready of '%s' did not answer in %g s", name, TIMEOUT_S)
            return False

    def _run(self, answer: Future[bool]) -> None:
        ready = False
        try:
            with running_as(self._running):
                ready = self._checked()
        except BaseException as error:
            _log.error("is_ready of '%s': %s", self._running.instance_name, describe(error))
        with self._lock:
            self._answer = None
        answer.set_result(ready)

    def _checked(self) -> bool:
        answer = self._is_ready()
        if inspect.iscoroutine(answer):
            import asyncio

            answer = asyncio.run(answer)
        if not isinstance(answer, bool):
            raise TypeError("is_ready() must return a boolean value")
        return answer
