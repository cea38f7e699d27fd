"""Static in the file, live on the page: a picture that a page replaces by its live view.

A saved widget is blank when the notebook is opened again. So a cell displays the static form, with
a mark at which the page shows the live view instead. The static form is updated now and then while
something moves, when the view rests, and at the end of every cell.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from nbtriton.common.closing import Stopping
from nbtriton.widgets.static import StaticView, marked

if TYPE_CHECKING:
    from nbtriton.widgets.view import LiveView

# How old the picture may be in a notebook that is saved while something moves.
_RENEW_S = 5.0


def notebook_shell() -> Any:
    """Return the running IPython shell, or None; never imports IPython."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None


def display(value: object, *, display_id: bool | None = None) -> Any:
    """Display a value in the running cell; with `display_id` return the handle to replace it."""
    import IPython.display

    untyped: Any = IPython.display.display
    return untyped(value, display_id=display_id)


def has_kernel() -> bool:
    """Whether displayed output can be replaced later."""
    return getattr(notebook_shell(), "kernel", None) is not None


def live_wanted() -> bool:
    """Whether widgets can be shown here (not where a browser is the kernel) and ``NBTRITON_LIVE=0`` does not forbid it."""
    in_a_browser = sys.platform == "emscripten"
    return has_kernel() and not in_a_browser and os.environ.get("NBTRITON_LIVE") != "0"


def makes_views_only() -> bool:
    """Whether this host makes widgets only where it displays one, as VS Code and Colab do."""
    return "VSCODE_PID" in os.environ or "google.colab" in sys.modules


def cell_id() -> object:
    """Return an id that stays the same when the running cell runs again, if the front end provides one."""
    parent: Any = getattr(notebook_shell(), "parent_header", None) or {}
    return (parent.get("metadata") or {}).get("cellId") or object()


class KeptViews:
    """Views that pages may ask for while their outputs exist.

    Views of an earlier run of the same cell are dropped, and only the newest views are kept; of the
    others the picture remains.

    Parameters
    ----------
    most : int
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._views: deque[tuple[object, int, LiveView]] = deque()

    def keep(self, view: LiveView) -> None:
        """Keep a view that the running cell shows."""
        cell, run = cell_id(), int(getattr(notebook_shell(), "execution_count", 0))
        left = [one for one in self._views if one[0] != cell or one[1] == run]
        closed = [one for one in self._views if one not in left]
        closed += left[: max(0, len(left) + 1 - self._most)]
        self._views = deque((*[one for one in left if one not in closed], (cell, run, view)))
        for _, _, one in closed:
            one.close()


def show_live(view: LiveView, static: Callable[[], object] | None = None) -> Shown:
    """Show a live view in the running cell, until it is stopped.

    Parameters
    ----------
    view : LiveView
        Closed at the end.
    static : callable, optional
        Makes the static form that replaces it at the end; ``view.static`` by default.

    Returns
    -------
    Shown
        ``stop()`` it when the run ends, or use it as a context manager around the run.

    Notes
    -----
    With ``NBTRITON_LIVE=0`` only the static form is shown, and updated at the end of every cell.
    Without a kernel it is shown at the end; without IPython nothing is shown at all.

    Examples
    --------
    >>> with show_live(view):  # doctest: +SKIP
    ...     run()
    """
    return Shown(view, static or view.static)


class Shown(Stopping):
    """A live view that was displayed; it rests by itself while nothing moves."""

    def __init__(self, view: LiveView, static: Callable[[], object]) -> None:
        self.view = view
        self._static = static
        self._lock = threading.RLock()
        self._stopped = False
        self._recording = ExitStack()
        self._handle: Any = None
        self._movement: object = None
        self._rests = view.resting
        self._renewed_s = time.monotonic()
        self._events: Any = None
        self._live = live_wanted()
        if has_kernel():
            self._movement = view.movement()
            self._handle = display(self._form(), display_id=True)
            self._events = notebook_shell().events
            # A notebook executed without a page ends with its last cell.
            self._events.register("post_run_cell", self._cell_ended)
            if self._live:
                view.handle_displayed(self._looked)

    def _form(self) -> StaticView:
        """Return the static form, with the mark of the live one."""
        static = self.view.static()
        if not self._live:
            return static
        at = time.strftime("%H:%M:%S")
        as_of = f'<div style="font-size:12px;opacity:.8">as of {at}</div>'
        html = marked(self.view.place, static.html + as_of)
        widget = self.view.widget_data() if makes_views_only() and not self.view.resting else {}
        return StaticView(html, static.text, static.svg, widget)

    def renew(self) -> None:
        """Bring the static form up to date."""
        with self._lock:
            if self._stopped or self._handle is None:
                return
            self._renewed_s = time.monotonic()
            self._movement = self.view.movement()
            self._handle.update(self._form())

    def _looked(self) -> None:
        """Handle a look of the view: update the static form if that is worth its cost."""
        changed, self._rests = self._rests != self.view.resting, self.view.resting
        if self._rests or makes_views_only():  # which would show a new widget at each renewal
            if changed:
                self.renew()
        elif time.monotonic() - self._renewed_s >= _RENEW_S:
            self.renew()

    def _cell_ended(self, *_: object) -> None:
        movement = self.view.movement()
        if movement is not None and movement != self._movement:
            self.renew()

    @property
    def frame(self) -> Any:
        """The current numbers as a DataFrame, if the view has any."""
        return self.view.to_frame()

    @property
    def selection(self) -> Any:
        """The selected requests as a DataFrame, if the view shows requests."""
        return getattr(self.view, "selection", None)

    def select(self, value: Any) -> None:
        """Select in all views of the page, as `SelectingView.select`."""
        view: Any = self.view
        view.select(value)

    def stop(self) -> None:
        """Replace the view by its static form; idempotent."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        with ExitStack() as ends:  # the last first, and each of them whatever another one raises
            ends.callback(self.view.close)
            ends.callback(self._replace)
            ends.callback(self.view.stop)
            if self._events is not None:
                ends.callback(self._events.unregister, "post_run_cell", self._cell_ended)
            ends.callback(self._recording.close)

    def _replace(self) -> None:
        rest = self._static()
        if self._handle is not None:
            self._handle.update(rest)
        elif notebook_shell() is not None and rest is not None:
            display(rest)

    def _display_(self) -> LiveView:
        """Return what marimo shows: it asks by this name, and has no display handles."""
        return self.view

    @property
    def in_terminal(self) -> str:
        """The text that a terminal shows instead of a live view; empty on a page."""
        if has_kernel():
            return ""
        at = time.strftime("%H:%M:%S")
        return f"{self!r}\nas of {at}: a terminal shows nothing live, so run it again; there is nothing to stop"

    def __repr__(self) -> str:
        return self.view.static().text

    def __enter__(self) -> Self:
        with self._lock:
            if self._live and not self._stopped:
                self._recording.enter_context(self.view.recording())
        return self
