"""Live while it runs, static at rest: a live view is replaced in place by its static form."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from nbtriton.widgets.view import LiveView

__all__ = ["Shown", "display", "live_wanted", "notebook_shell", "show_live"]


def notebook_shell() -> Any:
    """Return the running IPython shell, or None; never imports IPython."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None


def display(value: object, *, display_id: bool | None = None) -> Any:
    """Display a value in the running cell; with `display_id` return the handle to replace it."""
    import IPython.display

    untyped: Any = IPython.display.display
    return untyped(value, display_id=display_id)


def live_wanted() -> bool:
    """Whether widgets can be shown here and ``NBTRITON_LIVE=0`` does not forbid it."""
    shell = notebook_shell()
    return getattr(shell, "kernel", None) is not None and os.environ.get("NBTRITON_LIVE") != "0"


def show_live(view: LiveView, static: Callable[[], object] | None = None) -> Shown:
    """Show a live view in the running cell, until it is finished or its page goes away.

    Parameters
    ----------
    view : LiveView
        Closed at the end.
    static : callable, optional
        Makes what stays in its place; ``view.static`` if not given.

    Returns
    -------
    Shown
        ``finish()`` it when the run ends, or use it as a context manager around the run.

    Notes
    -----
    Without a kernel, or with ``NBTRITON_LIVE=0``, only the static form is shown, at the end;
    without IPython nothing is shown at all.

    Examples
    --------
    >>> with show_live(view):  # doctest: +SKIP
    ...     run()
    """
    return Shown(view, static or view.static)


class Shown:
    """A live view that was displayed and will be replaced by its static form."""

    def __init__(self, view: LiveView, static: Callable[[], object]) -> None:
        self.view = view
        self._static = static
        self._lock = threading.Lock()
        self._finished = False
        self._recording: AbstractContextManager[None] | None = None
        self._handle: Any = None
        if live_wanted():
            self._handle = display(view, display_id=True)
            view.handle_displayed()
            view.on_closed(self.finish)

    def finish(self) -> None:
        """Replace the live view by its static form and close it; idempotent."""
        with self._lock:
            if self._finished:
                return
            self._finished = True
        self.view.finish()
        rest = self._static()
        if self._handle is not None:
            self._handle.update(rest)
        elif notebook_shell() is not None and rest is not None:
            display(rest)
        self.view.close()

    def __enter__(self) -> Self:
        self._recording = self.view.recording()
        self._recording.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._recording is not None:
            self._recording.__exit__(kind, error, trace)
        self.finish()
