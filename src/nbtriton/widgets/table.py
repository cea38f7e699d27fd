"""A DataFrame that stays up to date in the output of the cell that showed it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import traitlets

from nbtriton.widgets.static import StaticView, frame_view
from nbtriton.widgets.view import LiveView, asset, movement_of

# Faster than twice a second a table cannot be read, and its source takes milliseconds.
_PERIOD_S = 0.5


class TableView(LiveView):
    """A table that is replaced in place when it changes, twice a second at most.

    Parameters
    ----------
    source : callable
        Returns the DataFrame as it is now.
    server : Server
        The table follows its counters.

    Examples
    --------
    >>> show_live(TableView(lambda: frame_of(server), server))  # doctest: +SKIP
    """

    _esm = asset("table.js")
    _css = asset("table.css")

    html = traitlets.Unicode("").tag(sync=True)

    def __init__(self, source: Callable[[], Any], server: Any, **options: Any) -> None:
        self._source = source
        self._server = server
        self._read_s = -float("inf")
        super().__init__(html=frame_view(source(), rest=False).html, **options)

    def movement(self) -> Hashable:
        """Return a value that changes with every request and every load."""
        return movement_of(self._server, self._clock())

    def refresh(self) -> None:
        """Send the current table."""
        self._read_s = -float("inf")
        super().refresh()

    def _observe(self) -> str | None:
        now = self._clock()
        if now - self._read_s < _PERIOD_S:
            return None
        self._read_s = now
        # Without foldable parts: each update would close them.
        html = frame_view(self._source(), rest=False).html
        return None if self.frame and html == self.html else html

    def _send_state(self, state: str) -> None:
        self.frames_sent += 1
        with self.hold_sync():
            self.html = state
            # The page acknowledges frames by their numbers.
            self.frame = self.frames_sent.to_bytes(8, "little")

    def to_frame(self) -> Any:
        """Return the DataFrame as it is now."""
        return self._source()

    def static(self) -> StaticView:
        """Return the table as it is now."""
        return frame_view(self._source())
