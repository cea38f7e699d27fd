"""A measurement as a cell shows it: live, stoppable, and at the end the report in its place.

Importing this module imports anywidget, so that is done before the clock of a measurement starts.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from nbtriton.drawing import measure
from nbtriton.engine.interrupts import interrupts_deferred
from nbtriton.perf import PerfProgress, PerfReport
from nbtriton.perf.render import series_of
from nbtriton.widgets import CurveView, Shown, show_live

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["LiveRun", "progress_line"]

# A shorter run is not shown live.
_SHOW_AFTER_S = 0.3


class LiveRun:
    """One measurement in a cell: shown live once it takes long, stoppable, then the report."""

    def __init__(self, shell: InteractiveShell, model: str, *, visible: bool) -> None:
        self._shell = shell
        self._model = model
        self._visible = visible
        self._started_s = time.monotonic()
        self._thread = threading.current_thread()
        self._lock = threading.Lock()
        self._running = True
        self._awaited = False  # an interrupt, since the last window
        self._report: PerfReport | None = None
        self._view: CurveView | None = None
        self._shown: Shown | None = None

    def of(self, measure: Callable[[], PerfReport]) -> PerfReport:
        """Measure; what was shown live is replaced by the report."""
        try:
            self._report = measure()
        finally:
            with interrupts_deferred():
                with self._lock:
                    self._running = False
                if self._shown is not None:
                    self._shown.finish()
        if self._shown is not None:
            _not_again(self._shell, self._report)
        return self._report

    def observe(self, progress: PerfProgress) -> None:
        """Show where the measurement is; called in its thread after each window."""
        if not self._visible:
            return
        # An interrupt must not leave a view half shown.
        with interrupts_deferred():
            if self._view is None:
                if time.monotonic() - self._started_s < _SHOW_AFTER_S:
                    return
                view = self._view = CurveView(title=self._model, on_stop=self._stop)
                self._shown = show_live(view, static=lambda: self._report or view.static())
            self._view.update(series_of(PerfReport(self._model, progress.points)))
            self._view.show_progress(*progress_line(progress))
        if self._view.stop_requested.is_set():
            self._stop_here()

    def _stop_here(self) -> None:
        """Stop now, unless an interrupt of the main thread is on its way."""
        # Python drops an interrupt that comes in a finalizer or in a callback of the garbage
        # collector: one that has not come a whole window later never will.
        if self._thread is threading.main_thread() and not self._awaited:
            self._awaited = True
            return
        with self._lock:
            self._running = False
        raise KeyboardInterrupt

    def _stop(self) -> None:
        """Do what Ctrl-C does; called on whichever thread hears the button."""
        with self._lock:
            if self._running and self._thread is threading.main_thread():
                interrupt_main_thread()


def interrupt_main_thread() -> None:
    """Interrupt the main thread, also where it waits for a lock."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


def progress_line(progress: PerfProgress) -> tuple[str, float | None]:
    """Return what to write beside the bar, and how much of it is done, where that is known."""
    words = [progress.what]
    if progress.levels:
        words[0] += f" (level {progress.level} of {progress.levels})"
    words.append(f"window {progress.window} of at most {progress.max_windows}")
    if progress.infer_per_s:
        words.append(f"{measure(progress.infer_per_s)} infer/s")
    if progress.eta_s is not None:
        words.append(f"about {max(1, round(progress.eta_s))} s left")
    if not progress.levels:
        return " · ".join(words), None
    # A level seldom needs all its windows; half of one is a fair guess.
    within = min(1.0, progress.window / max(1, progress.max_windows / 2))
    return " · ".join(words), (progress.level - 1 + within) / progress.levels


def _not_again(shell: InteractiveShell, report: PerfReport) -> None:
    """Keep ``Out[n]`` from showing once more what stands in place of the live view."""
    formatter = shell.display_formatter.ipython_display_formatter
    kind = type(report)

    def show(value: PerfReport) -> None:
        if value is not report:
            shell.display_pub.publish(value._repr_mimebundle_())

    def restore(*_: object) -> None:
        formatter.pop(kind, None)
        shell.events.unregister("post_run_cell", restore)

    formatter.for_type(kind, show)
    shell.events.register("post_run_cell", restore)
