"""The latency/throughput curve that grows while a sweep runs, its progress and a Stop button."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import traitlets

from nbtriton.drawing.curve import Limits, Series, curve_finding, curve_limits
from nbtriton.drawing.panels import curve_scenes
from nbtriton.drawing.scene import to_json
from nbtriton.widgets.static import StaticView, curve_view
from nbtriton.widgets.view import LiveView, asset


class CurveView(LiveView):
    """A curve that grows, a progress line, and a button that asks to stop.

    Methods may be called from any thread.

    Parameters
    ----------
    title : str, optional
        Written above the curve.
    on_stop : callable, optional
        Called once when the button is pressed, on whichever thread the host delivers that.

    Attributes
    ----------
    stop_requested : threading.Event
        Set when the button is pressed.
    """

    _esm = asset("curve.js", "chart.js")
    _css = asset("curve.css", "chart.css")

    scenes: Any = traitlets.List().tag(sync=True)
    finding = traitlets.Unicode("").tag(sync=True)
    progress = traitlets.Unicode("").tag(sync=True)
    fraction = traitlets.Float(-1.0).tag(sync=True)
    running = traitlets.Bool(True).tag(sync=True)
    stopping = traitlets.Bool(False).tag(sync=True)

    def __init__(
        self, *, title: str = "", on_stop: Callable[[], None] | None = None, **options: Any
    ) -> None:
        self.stop_requested = threading.Event()
        self._on_stop = on_stop
        self._title = title
        self._series: tuple[Series, ...] = ()
        self._line = ("", -1.0)
        self._news = True
        self._target_ms: float | None = None
        self._limits: Limits | None = None
        super().__init__(finding=curve_finding(()), **options)

    def update(
        self,
        series: Sequence[Series],
        *,
        loads: Sequence[float] = (),
        target_ms: float | None = None,
    ) -> None:
        """Show these curves.

        Parameters
        ----------
        series : sequence of Series
            Everything measured so far.
        loads : sequence of float, optional
            All loads that will be measured, so that the axes change as little as possible during a sweep.
        target_ms : float, optional
            A limit of the latency.
        """
        self._series, self._target_ms = tuple(series), target_ms
        self._limits = curve_limits(
            self._series, target_ms=target_ms, loads=loads, before=self._limits
        )
        self._news = True

    def show_progress(self, line: str, fraction: float | None = None) -> None:
        """Show a line such as ``concurrency 8 of 16 · window 2/3``, and how much is done (0 to 1)."""
        self._line = (line, -1.0 if fraction is None else min(1.0, max(0.0, fraction)))
        self._news = True

    def stop(self) -> None:
        """Send the last state; the Stop button no longer has an effect."""
        self._news = True
        self.running = False
        super().stop()

    def _handle_command(self, content: dict[str, Any]) -> None:
        if content.get("kind") == "stop" and not self.stop_requested.is_set():
            self.stop_requested.set()
            self.stopping = True
            if self._on_stop is not None:
                self._on_stop()

    def _observe(self) -> tuple[tuple[Series, ...], str, float] | None:
        if not self._news:
            return None
        self._news = False
        return (self._series, *self._line)

    def _send_state(self, state: tuple[tuple[Series, ...], str, float]) -> None:
        series, line, fraction = state
        self.frames_sent += 1
        with self.hold_sync():
            self.scenes = self._scenes(series)
            self.finding = curve_finding(series, self._target_ms)
            self.progress, self.fraction = line, fraction
            # The frame gets its own number: every message is acknowledged, even if the picture is unchanged.
            self.frame = self.frames_sent.to_bytes(8, "little")

    def _scenes(self, series: Sequence[Series]) -> list[Any]:
        if not any(one.drawn for one in series):
            return []  # the page writes a sentence
        scenes = curve_scenes(
            series, title=self._title, target_ms=self._target_ms, limits=self._limits
        )
        return [to_json(scene) for scene in scenes]

    def static(self) -> StaticView:
        """Return the current curves; before the first point, the progress."""
        if self.running and self._line[0] and not any(one.drawn for one in self._series):
            return StaticView(
                f'<p class="nbt-curve nbt-static">{escape(self._line[0])}</p>', self._line[0]
            )
        return curve_view(self._series, title=self._title, target_ms=self._target_ms)
