"""What all live views share: who looks at them, and when they are sent something."""

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
# Every frame drawn is acknowledged, so a view that is silent for so long is gone: its page was
# closed or reloaded without a word. Long, since some hosts deliver no word while a cell runs.
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
        Who asks this view; the shared one if not given.
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
        self._heard: dict[str, float] = {}
        self._closed_s = -float("inf")
        self._expected_until = -float("inf")
        self._holds = 0
        self._shown = False
        self._gone: list[Callable[[], None]] = []
        self._sequence = 0
        super().__init__(**traits)
        self._publisher: Publisher[Any] = Publisher(self._send_state, clock=clock)
        self.on_msg(self._on_word)

    # -- the page -----------------------------------------------------------------------------

    def _on_word(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        kind, view = content.get("kind"), str(content.get("view", ""))
        if kind == "close":
            self._heard.pop(view, None)
            self._closed_s = self._clock()
        elif kind in ("open", "ack"):
            self._heard[view] = self._clock()
            self._expected_until = -float("inf")
            if kind == "ack":
                self._publisher.ack()
            self._hub.open(self)
        else:
            self._on_message(content)

    def _on_message(self, content: dict[str, Any]) -> None:
        """Hear what only this kind of view says."""

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
        be heard when there is nothing left to stop.
        """
        with suppress(AttributeError):
            del self.comm._reply_subshell_id  # noqa: SLF001 -- no public way

    # -- the hub ------------------------------------------------------------------------------

    def watched(self) -> bool:
        """Whether a page shows this view, or is about to."""
        now = self._clock()
        recently = any(now - at < _SILENT_S for at in list(self._heard.values()))
        return recently or (self._shown and (self._holds > 0 or now < self._expected_until))

    def alive(self) -> bool:
        """Whether the hub shall keep asking."""
        return self._holds > 0 or self.watched() or self._clock() - self._closed_s < _GRACE_S

    def tick(self) -> None:
        """Look at what is shown, and send it if it is time and somebody looks."""
        state = self._observe()
        if state is not None and self.watched():
            self._publisher.offer(state)
        self._publisher.poll()

    def ended(self) -> None:
        """Tell those who wait for it that nobody looks any more."""
        gone, self._gone = self._gone, []
        for call in gone:
            call()

    def _observe(self) -> Any:
        """Return the state to be sent, or None if there is nothing new."""
        return None

    def _send_state(self, state: Any) -> None:
        """Set the traits that carry this state."""

    # -- Python -------------------------------------------------------------------------------

    def shown(self) -> None:
        """Hear that it was displayed just now, so a page will show it in a moment."""
        self._shown = True
        self._expected_until = self._clock() + _SILENT_S
        self._hub.open(self)

    def on_gone(self, call: Callable[[], None]) -> None:
        """Call back once, from the hub's thread, when no page shows this view any more."""
        self._gone.append(call)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Follow what happens inside this block even where no page can show it."""
        self._holds += 1
        self._hub.open(self)
        try:
            yield
        finally:
            self._holds -= 1

    def finish(self) -> None:
        """Take a last look, send it, and stop following."""
        if self._shown or self._heard:
            state = self._observe()
            if state is not None:
                self._publisher.offer(state)
            self._publisher.flush()
        self._hub.close(self)
        self._heard.clear()
        self._shown = False
        self._gone.clear()

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
