"""The progress of a measurement, as passed to its observer."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from nbtriton.drawing.numbers import count, measure
from nbtriton.lab.perf.point import PerfPoint

_log = logging.getLogger("nbtriton.lab.perf")


@dataclass(frozen=True, slots=True)
class LevelProgress:
    """The progress of one level: windows and requests that have ended, and the latest rate."""

    windows: int
    requests: int
    requests_per_s: float


@dataclass(frozen=True, slots=True)
class PerfProgress:
    """The progress of a measurement.

    The observer gets it at the start of a level, after every window, and four times a second in between.

    Parameters
    ----------
    level, levels : int, int or None
        The current level, counted from 1, and their number; None where a search decides.
    what : str
        The level, such as ``"concurrency 8, instances=2"``.
    window, max_windows : int
        Ended windows of this level, and their largest number.
    requests, max_requests : int
        Ended requests of this level, and their total number, 0 if unknown.
    elapsed_s : float
    eta_s : float or None
        Estimated time left in seconds, None if unknown.
    infer_per_s : float
        Inferences per second in the latest window, or since the latest report; 0 at the start.
    points : tuple of PerfPoint
        The points of ended levels.
    loads : tuple of float
        All levels to measure; empty where a search decides.
    target_ms : float or None
        The latency limit.
    """

    level: int
    levels: int | None
    what: str
    window: int
    max_windows: int
    requests: int
    max_requests: int
    elapsed_s: float
    eta_s: float | None
    infer_per_s: float
    points: tuple[PerfPoint, ...]
    loads: tuple[float, ...] = ()
    target_ms: float | None = None

    @classmethod
    def step(
        cls,
        done: int,
        total: int | None,
        what: str,
        elapsed_s: float,
        eta_s: float | None,
        points: Sequence[PerfPoint] = (),
    ) -> PerfProgress:
        """Return the progress of work whose steps have no windows: so many of them are done."""
        level = done + 1 if total is None else min(done + 1, total)
        eta_s = None if eta_s is None else max(0.0, eta_s)
        return cls(level, total, what, 0, 0, 0, 0, elapsed_s, eta_s, 0.0, tuple(points))


Observer = Callable[[PerfProgress], None]


class GuardedObserver:
    """Calls an observer, which must not hurt a measurement: after an error it is not called again."""

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer

    def __call__(self, progress: PerfProgress) -> None:
        try:
            if self._observer is not None:
                self._observer(progress)
        except Exception:
            _log.exception("the observer of a measurement raised and was removed")
            self._observer = None


def progress_line(progress: PerfProgress) -> tuple[str, float | None]:
    """Return the text beside the progress bar, and the completed share if known."""
    words = [progress.what]
    if progress.levels:
        noun = "level" if progress.max_windows or progress.max_requests else "step"
        words[0] += f" ({noun} {progress.level} of {progress.levels})"
    if progress.max_requests:
        words.append(f"{count(progress.requests)} of {count(progress.max_requests)} requests")
    elif progress.max_windows:
        words.append(f"window {progress.window} of at most {progress.max_windows}")
    if progress.infer_per_s:
        words.append(f"{measure(progress.infer_per_s)} infer/s")
    if progress.eta_s is not None:
        words.append(f"about {max(1, round(progress.eta_s))} s left")
    if not progress.levels:
        if progress.eta_s is None or not progress.elapsed_s:
            return " · ".join(words), None
        return " · ".join(words), progress.elapsed_s / (progress.elapsed_s + progress.eta_s)
    if progress.max_requests:
        within = progress.requests / progress.max_requests
    else:  # a level seldom needs all its windows: half of them on average
        within = min(1.0, progress.window / max(1, progress.max_windows / 2))
    return " · ".join(words), (progress.level - 1 + within) / progress.levels


# Into something else than a terminal a line is written after this time in seconds, and as often.
_LINE_S = 2.0


class TerminalLine:
    """An observer that writes the progress to one line of a terminal, replacing the previous text.

    Parameters
    ----------
    stream : text file
        If it is no terminal but a pipe or a file, it gets a line every two seconds.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._replaces = stream.isatty()
        self._due_s = _LINE_S
        self.written = False  # whether the line is on the terminal

    def __call__(self, progress: PerfProgress) -> None:
        line, _share = progress_line(progress)
        if self._replaces:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r{line[:width]:<{width}}")
            self.written = True
        elif progress.elapsed_s >= self._due_s:
            self._due_s = progress.elapsed_s + _LINE_S
            self._write(f"{line}\n")

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self.written:
            self._write(f"\r{'':<{shutil.get_terminal_size().columns - 1}}\r")
            self.written = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
