"""A DataFrame that stays up to date in the output of the cell that showed it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self

from nbtriton.closing import Stopping
from nbtriton.widgets.publisher import Hub, Publisher, hub
from nbtriton.widgets.show import display, live_wanted, notebook_shell
from nbtriton.widgets.static import StaticView, frame_view

__all__ = ["LiveTable"]

# Faster than this a table cannot be read, and every host redraws it whole.
_HZ = 2.0


class LiveTable(Stopping):
    """Show a table as plain HTML and replace it in place when it changes, twice a second at most.

    It needs no script, so what stays in the notebook is the last table.

    Parameters
    ----------
    source : callable
        Returns the DataFrame as it is now.

    Examples
    --------
    >>> with LiveTable(lambda: frame_of(server)):  # doctest: +SKIP
    ...     run()
    """

    def __init__(
        self,
        source: Callable[[], Any],
        *,
        clock: Callable[[], float] = time.monotonic,
        on_hub: Hub | None = None,
    ) -> None:
        self._source = source
        self._hub = on_hub or hub()
        self._handle: Any = None
        self._html = ""
        self._running = False
        # Nothing is acknowledged by a plain output.
        self._publisher: Publisher[Callable[[], StaticView]] = Publisher(
            lambda make: self._send(make()), clock=clock, hz=_HZ, forget_s=0.0
        )

    @property
    def frame(self) -> Any:
        """The DataFrame as it is now."""
        return self._source()

    def static(self) -> StaticView:
        """Return the table as it is now."""
        return frame_view(self._source())

    def _moving(self) -> StaticView:
        """Return the table as it is now, without what a reader opens: each renewal would close it."""
        return frame_view(self._source(), rest=False)

    def show(self) -> Self:
        """Display the table in the running cell and keep it up to date until `stop`."""
        if notebook_shell() is None:
            return self
        view = self._moving() if live_wanted() else self.static()
        self._html = view.html
        self._handle = display(view, display_id=True)
        if live_wanted():
            self._running = True
            self._hub.open(self)
        return self

    def stop(self) -> None:
        """Show the last state; it changes no more."""
        if self._running:
            self._running = False
            self._hub.close(self)
            self._send(self.static())

    def alive(self) -> bool:
        """Whether it is to be kept up to date."""
        return self._running

    def tick(self) -> None:
        """Read the source, at most twice a second."""
        self._publisher.offer(self._moving)
        self._publisher.poll()

    def handle_closed(self) -> None:
        """The hub ticks it no more: what is shown stays."""
        self._running = False

    def _send(self, view: StaticView) -> None:
        if view.html != self._html:
            self._html = view.html
            self._handle.update(view)

    def __enter__(self) -> Self:
        return self.show()
