"""The base of all live views: which pages show them, and when they are sent something."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from nbtriton.widgets.publisher import Hub, Publisher, hub
from nbtriton.widgets.static import StaticView

__all__ = ["LiveView", "asset"]

_HERE = Path(__file__).parent
# Every frame drawn is acknowledged, so a view that is silent for this long has ended: its page was
# closed or reloaded without a message. Long, as some hosts deliver no message while a cell runs.
_SILENT_S = 30.0
# A host may take a view down and put it up again, as when an output moves.
_GRACE_S = 2.0


def asset(name: str) -> str:
    """Return the shared front-end code followed by that of one widget."""
    shared, own = (_HERE / f"{part}" for part in (f"shared{Path(name).suffix}", name))
    return shared.read_text(encoding="utf-8") + own.read_text(encoding="utf-8")


class LiveView(anywidget.AnyWidget):
    """Base of the live views.

    A view is sent something only while a page shows it. The page says ``open``, ``ack`` and
    ``close``; all three count as signs of life.

    Parameters
    ----------
    clock : callable, optional
        Seconds, monotonic.
    on_hub : Hub, optional
        Ticks this view; the shared one if not given.

    Attributes
    ----------
    frames_sent : int
    """

    frame = traitlets.Bytes(b"").tag(sync=True)

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_hub: Hub | None = None,
        **traits: Any,
    ) -> None:
        self._clock = clock
        self._hub = on_hub or hub()
        self._last_seen: dict[str, float] = {}
        self._closed_s = -float("inf")
        self._expected_until = -float("inf")
        self._recordings = 0
        self._shown = False
        self._on_closed: list[Callable[[], None]] = []
        self.frames_sent = 0
        super().__init__(**traits)
        self._publisher: Publisher[Any] = Publisher(self._send_state, clock=clock)
        self.on_msg(lambda _widget, content, _buffers: self.handle_message(content))

    # -- the page -----------------------------------------------------------------------------

    def handle_message(self, content: dict[str, Any]) -> None:
        """A page said something."""
        kind, view = content.get("kind"), str(content.get("view", ""))
        if kind == "close":
            self._last_seen.pop(view, None)
            self._closed_s = self._clock()
        elif kind in ("open", "ack"):
            self._last_seen[view] = self._clock()
            self._expected_until = -float("inf")
            if kind == "ack":
                self._publisher.ack()
            self._hub.open(self)
        else:
            self._handle_command(content)

    def _handle_command(self, content: dict[str, Any]) -> None:
        """A page said something that only this kind of view understands."""

    def open(self) -> None:
        """Open the comm to the pages (called by ipywidgets)."""
        super().open()
        self._address_replies()

    def _send(self, msg: Any, buffers: Any = None) -> None:
        super()._send(msg, buffers=buffers)
        self._address_replies()

    def _address_replies(self) -> None:
        """Let what a page says arrive where the page sent it: on a subshell, while cells run.

        ipykernel 7.4 hands it to the shell that last sent something on the comm instead. For a
        cell or a thread that is the main shell, which is busy while a cell runs: "Stop" would
        arrive when nothing is left to stop.
        """
        with suppress(AttributeError):
            del self.comm._reply_subshell_id  # noqa: SLF001 -- no public way

    # -- the hub ------------------------------------------------------------------------------

    def watched(self) -> bool:
        """Whether a page shows this view, or is about to."""
        now = self._clock()
        recently = any(now - at < _SILENT_S for at in list(self._last_seen.values()))
        return recently or (self._shown and (self._recordings > 0 or now < self._expected_until))

    def alive(self) -> bool:
        """Whether the hub is to keep ticking."""
        return self._recordings > 0 or self.watched() or self._clock() - self._closed_s < _GRACE_S

    def tick(self) -> None:
        """Observe, and send the state if it is time and a page shows it."""
        state = self._observe()
        if state is not None and self.watched():
            self._publisher.offer(state)
        self._publisher.poll()

    def refresh(self) -> None:
        """Send the state of this moment now, whether a page shows it or not."""
        state = self._observe()
        if state is not None:
            self._send_state(state)

    def handle_closed(self) -> None:
        """No page shows this view any more."""
        callbacks, self._on_closed = self._on_closed, []
        for call in callbacks:
            call()

    def _observe(self) -> Any:
        """Return the state to be sent, or None if it has not changed."""
        return None

    def _send_state(self, state: Any) -> None:
        """Set the traits that carry this state."""

    # -- Python -------------------------------------------------------------------------------

    def handle_displayed(self) -> None:
        """It was displayed just now: a page will show it in a moment."""
        self._shown = True
        self._expected_until = self._clock() + _SILENT_S
        self._hub.open(self)

    def on_closed(self, call: Callable[[], None]) -> None:
        """Call back once, from the hub's thread, when no page shows this view any more."""
        self._on_closed.append(call)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Follow what happens inside this block even where no page can show it."""
        self._recordings += 1
        self._hub.open(self)
        try:
            yield
        finally:
            self._recordings -= 1

    def finish(self) -> None:
        """Send the last state, and stop following."""
        if self._shown or self._last_seen:
            state = self._observe()
            if state is not None:
                self._publisher.offer(state)
            self._publisher.flush()
        self._hub.close(self)
        self._last_seen.clear()
        self._shown = False
        self._on_closed.clear()

    def close(self) -> None:
        """Stop following and take the view off every page."""
        self._hub.close(self)
        super().close()

    def static(self) -> StaticView:
        """Return what it shows now as something that needs no script."""
        raise NotImplementedError

    def __repr__(self) -> str:
        # ipywidgets would print every trait, pictures included.
        return f"<{type(self).__name__}>"
