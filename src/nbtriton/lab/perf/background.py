"""A measurement in the background: a handle that can be awaited and stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Unpack

from nbtriton.lab.perf.options import PerfOptions
from nbtriton.lab.perf.progress import Observer, PerfProgress, progress_line
from nbtriton.lab.perf.report import PerfReport
from nbtriton.lab.perf.run import run
from nbtriton.lab.perf.settings import PERF, PerfSettings
from nbtriton.options.table import signed
from nbtriton.runtime.engine.interrupts import wait_in_slices

if TYPE_CHECKING:
    from nbtriton.serving.server import Server


@signed(PERF)
class PerfRun:
    """A measurement in a thread of its own, started at once.

    >>> run = nt.PerfRun(server, "double", concurrency=2, request_count=20)
    >>> run.result().points[0].request_count >= 20  # in a notebook also: await run
    True

    Parameters
    ----------
    server, model, observer
        As for `nbtriton.perf`; an `observer` is called in the run's thread.
    **options
        See `nbtriton.lab.perf.settings.PerfSettings`.

    Attributes
    ----------
    progress : PerfProgress or None
        The latest; None before the first.

    Raises
    ------
    InvalidArgumentError
        Invalid options. `result` raises the errors of the run itself.
    """

    def __init__(
        self,
        server: Server | None,
        model: str,
        *,
        observer: Observer | None = None,
        **options: Unpack[PerfSettings],
    ) -> None:
        self._observer = observer
        checked = PerfOptions(server, model, observer=self._observe, **options)
        checked.level_plan()
        self.model = model
        self.progress: PerfProgress | None = None
        self._stopping = False
        self._future: Future[PerfReport] = Future()
        self._future.set_running_or_notify_cancel()  # awaiting code cannot cancel it
        self._thread = threading.Thread(
            target=self._run, args=(checked,), name="nbtriton-perf-run", daemon=True
        )
        self._thread.start()

    def done(self) -> bool:
        """Return whether the run has ended.

        Examples
        --------
        >>> run = nt.PerfRun(server, "double", concurrency=1, request_count=4)
        >>> report = run.result(timeout=60)
        >>> run.done()
        True
        """
        return self._future.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end of the run, and return the error that ended it; None after a report.

        Examples
        --------
        >>> nt.PerfRun(server, "double", concurrency=1, request_count=4).exception(
        ...     timeout=60
        ... ) is None
        True
        """
        self._wait(timeout)
        return self._future.exception()

    def stop(self) -> PerfReport:
        """Stop the run; return the report of the measurements so far, with ``interrupted=True``.

        Raises
        ------
        TritonError
            The run had failed.

        Examples
        --------
        >>> run = nt.PerfRun(server, "double", concurrency=range(1, 100))
        >>> run.stop().interrupted
        True
        """
        self._stopping = True
        return self.result()

    def result(self, timeout: float | None = None) -> PerfReport:
        """Wait for the end of the run, and return the report.

        Raises
        ------
        TimeoutError
            The run has not ended after `timeout` seconds.
        TritonError
            The run failed, as `nbtriton.perf` does.
        """
        self._wait(timeout)
        return self._future.result()

    def _wait(self, timeout: float | None) -> None:
        ended = threading.Event()
        self._future.add_done_callback(lambda _: ended.set())
        if not wait_in_slices(ended.wait, timeout):
            raise TimeoutError(f"'{self.model}' is still being measured after {timeout:g} s")

    def add_done_callback(self, call: Callable[[PerfRun], None]) -> None:
        """Call a function at the end of the run, in its thread; at once if it has ended.

        Examples
        --------
        >>> ended = []
        >>> run = nt.PerfRun(server, "double", concurrency=1, request_count=4)
        >>> run.add_done_callback(ended.append)
        >>> report = run.result(timeout=60)
        """
        self._future.add_done_callback(lambda _: call(self))

    def __await__(self) -> Generator[Any, None, PerfReport]:
        return asyncio.wrap_future(self._future).__await__()

    def __repr__(self) -> str:
        if not self.done():
            line = progress_line(self.progress)[0] if self.progress else "starting"
            return f"<PerfRun {self.model}: {line}>"
        if (error := self._future.exception()) is not None:
            return f"<PerfRun {self.model}: failed: {error}>"
        return f"<PerfRun {self.result().headline}>"

    def _run(self, options: PerfOptions) -> None:
        try:
            report = run(options)
        except BaseException as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(report)

    def _observe(self, progress: PerfProgress) -> None:
        self.progress = progress
        if self._stopping:
            raise KeyboardInterrupt
        if self._observer is not None:
            self._observer(progress)
