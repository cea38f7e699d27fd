"""A measurement in a cell: live and stoppable, replaced by the report at the end.

Importing this module imports anywidget, before the clock of a measurement starts.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from IPython.core.interactiveshell import InteractiveShell

from nbtriton.lab.explain.timeline import Timeline
from nbtriton.lab.perf.api import PerfRun
from nbtriton.lab.perf.curves import series_of
from nbtriton.lab.perf.progress import PerfProgress, TerminalLine, progress_line
from nbtriton.lab.perf.report import PerfReport
from nbtriton.magics.common import read_options
from nbtriton.runtime.interrupts import interrupts_deferred
from nbtriton.widgets.curve import CurveView
from nbtriton.widgets.living import living_charts
from nbtriton.widgets.show import Shown, display, live_wanted, show_live
from nbtriton.widgets.timeline import timeline_picture

# A shorter run is not shown live. It ends before the second report, which comes after 0.25 s.
_SHOW_AFTER_S = 0.2


class Shows(Protocol):
    """A result with its own display: a report or a profile."""

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]: ...


Result = TypeVar("Result", bound=Shows)


class LiveRun:
    """One measurement in a cell: shown live once it takes long, stoppable, then the report.

    A terminal shows a line of progress instead, and then the report, assigned or not, as ``%timeit -o`` does.
    """

    def __init__(
        self, shell: InteractiveShell, model: str, *, visible: bool, quick: bool = False
    ) -> None:
        kernel = getattr(shell, "kernel", None) is not None
        self._shell = shell
        self._model = model
        self._quick = quick
        self._visible = visible and kernel
        self._line = TerminalLine(sys.stderr) if visible and not kernel else None
        self._started_s = time.monotonic()
        # In which the measurement runs; None in the background.
        self._thread: threading.Thread | None = threading.current_thread()
        self._lock = threading.Lock()
        self._running = True
        self._awaited = False  # an interrupt, since the last window
        self._report: Shows | None = None
        self._view: CurveView | None = None
        self._shown: Shown | None = None
        # The newest batches when each level ended, by its place in the report.
        self._batches: dict[int, Timeline] = {}
        self._read: Callable[[], Timeline | None] | None = None

    @classmethod
    def begin(cls, shell: InteractiveShell, model: str, given: dict[str, Any]) -> LiveRun:
        """Return the run of a line's options, which become those of the call: without ``line``, with its observer."""
        # After `;` nothing is shown; a terminal shows the report as any other result.
        visible = not given.pop("line").rstrip().endswith(";")
        read_options(shell, given)
        run = cls(shell, model, visible=visible, quick=given.get("quick", False))
        given["observer"] = run.observe
        return run

    @classmethod
    def named(
        cls, shell: InteractiveShell, options: Namespace, by: str = "name"
    ) -> tuple[str, dict[str, Any], LiveRun]:
        """Return the model of a line, the options of the call, which have the same names, and the run."""
        given = vars(options)
        model = given.pop(by)
        return model, given, cls.begin(shell, model, given)

    def reads(self, newest_batches: Callable[[], Timeline | None]) -> None:
        """Keep the newest batches of each level from now on: its point on the page opens them."""
        self._read = newest_batches

    def of(self, measure: Callable[[], Result]) -> Result:
        """Measure; the report replaces the live view, with the newest batches beneath it."""
        waited = False
        try:
            try:
                found = self._report = measure()
                self._keep_batches(found)
            finally:
                with interrupts_deferred():
                    with self._lock:
                        self._running = False
                    if self._shown is not None:
                        self._shown.stop()
                    if self._line is not None:
                        waited = self._line.written
                        self._line.clear()
        except KeyboardInterrupt:
            if self._report is None:
                raise
            # It came as the measurement ended: the report is there.
        if waited:
            display(found)
        if waited or self._shown is not None:
            _not_again(self._shell, found)
        if self._shown is not None and self._batches:
            display(timeline_picture(self._batches[max(self._batches)]))
        return found

    def in_background(self, start: Callable[[], PerfRun]) -> PerfRun:
        """Start a measurement in its own thread; it is shown at once, the report at the end."""
        self._thread = None
        self._line = None  # threads do not print
        if self._visible:
            self._show()
        try:
            run = start()
        except BaseException:
            if self._shown is not None:
                self._shown.stop()
            raise
        run.add_done_callback(self._ended)
        return run

    def _ended(self, run: PerfRun) -> None:
        with self._lock:
            self._running = False
        # A failed run leaves the drawing; its handle raises the error.
        if run.exception() is None:
            self._report = run.result()
            self._keep_batches(self._report)
        if self._shown is not None:
            self._shown.stop()

    def _keep_batches(self, report: object) -> None:
        points = getattr(report, "points", ())
        if self._shown is not None and points:
            self._read_batches(len(points))
            if self._batches and live_wanted():
                living_charts().keep(report, self._batches)

    def _read_batches(self, ended: int) -> None:
        """Read what the level that has just ended leaves, once."""
        if self._read is None or not ended or ended - 1 in self._batches:
            return
        timeline = self._read()
        if timeline is not None:
            self._batches[ended - 1] = timeline

    def observe(self, progress: PerfProgress) -> None:
        """Show the progress of the measurement; called on its thread."""
        if self._line is not None:
            self._line(progress)
        if not self._visible:
            return
        # An interrupt must not leave a view half shown.
        with interrupts_deferred():
            if self._view is None:
                if time.monotonic() - self._started_s < _SHOW_AFTER_S:
                    return
                self._show()
            assert self._view is not None
            self._view.update(
                series_of(PerfReport(self._model, progress.points, quick=self._quick)),
                loads=progress.loads,
                target_ms=progress.target_ms,
            )
            self._view.show_progress(*progress_line(progress))
        self._read_batches(len(progress.points))
        if self._view.stop_requested.is_set():
            self._stop_here()

    def _show(self) -> None:
        view = self._view = CurveView(title=self._model, on_stop=self._stop)
        self._shown = show_live(view, static=lambda: self._report or view.static())
        if live_wanted():
            living_charts()  # whatever replaces it

    def _stop_here(self) -> None:
        """Stop now, unless an interrupt of the main thread is already on its way."""
        # Python drops an interrupt that comes during a finalizer or a callback of the garbage
        # collector: if it has not come one window later, it never will.
        if self._thread is threading.main_thread() and not self._awaited:
            self._awaited = True
            return
        with self._lock:
            self._running = False
        raise KeyboardInterrupt

    def _stop(self) -> None:
        """Do what Ctrl-C does; called on the thread that receives the button."""
        with self._lock:
            if self._running and self._thread is threading.main_thread():
                interrupt_main_thread()


def interrupt_main_thread() -> None:
    """Interrupt the main thread, even if it is waiting for a lock."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


def _not_again(shell: InteractiveShell, report: Shows) -> None:
    """Keep ``Out[n]`` from showing the replacement of the live view again."""
    formatter = shell.display_formatter.ipython_display_formatter
    kind = type(report)

    def show(value: Shows) -> None:
        if value is not report:
            shell.display_pub.publish(value._repr_mimebundle_())

    def restore(*_: object) -> None:
        formatter.pop(kind, None)
        shell.events.unregister("post_run_cell", restore)

    formatter.for_type(kind, show)
    shell.events.register("post_run_cell", restore)
