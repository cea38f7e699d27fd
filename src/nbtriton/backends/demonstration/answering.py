"""Responses that come after `execute` returned: one thread a request, awaited at the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from nbtriton.backends.base import BackendRequest, Response
from nbtriton.errors import InternalError, TritonError

__all__ = ["Answering"]

_log = logging.getLogger("nbtriton.backends")


class Answering:
    """The requests that an instance answers in the background.

    Parameters
    ----------
    name : str
        The instance's, for the names of threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()

    def start(self, request: BackendRequest, answer: Callable[[], None]) -> None:
        """Call a function that sends a request's responses; the final flag follows by itself."""
        thread = threading.Thread(
            target=self._run, args=(request, answer), name=f"nbtriton-{self._name}", daemon=True
        )
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def join(self) -> None:
        """Wait for all answers under way."""
        with self._lock:
            threads = tuple(self._threads)
        for thread in threads:
            thread.join()

    def _run(self, request: BackendRequest, answer: Callable[[], None]) -> None:
        last = None
        try:
            answer()
        except TritonError as error:
            last = Response(error=error)
        except Exception as error:
            _log.exception("answering a request of %s", self._name)
            last = Response(error=InternalError(f"{type(error).__name__}: {error}"))
        finally:
            if not request.is_answered():
                request.send(last, final=True)
            with self._lock:
                self._threads.discard(threading.current_thread())
