"""MAX_UNREAD_RESPONSES: a model that sends waits for a reader that is behind."""

from __future__ import annotations

import threading
from collections.abc import Callable


class UnreadResponses:
    """Count the responses of one request that wait for their reader, and hold the sender.

    Parameters
    ----------
    limit : callable
        Returns how many may wait when the sender goes on; 0 for any number. Asked once the first
        response has come, by its sender or by a reader that is faster.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._most = -1  # not asked yet
        self._count = 0
        self._ended = False
        self._changed = threading.Condition(threading.Lock())

    def sent(self, *, final: bool) -> None:
        """Note a response, and wait while there are too many; the last one never waits."""
        if not self.is_limited:
            return
        with self._changed:
            self._count += 1
            if final:
                self._ended = True
                self._changed.notify_all()  # the end of a server comes on another thread
            while self._count > self._most and not self._ended:
                self._changed.wait()

    def read(self) -> None:
        """Note that the reader has taken one."""
        if self.is_limited:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def end(self) -> None:
        """Let the sender go on: nobody reads any more, or it is to end."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def is_limited(self) -> bool:
        """Whether the model's configuration has a limit; asked once the first response has come."""
        if self._most < 0:
            self._most = self._limit()
        return self._most > 0
