"""What a measurement leaves in the user's hands: points, the report, progress. Data only.

How a report looks and which files it can become is in `nbtriton.perf.render`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nbtriton.drawing import measure
from nbtriton.errors import InvalidArgumentError, NotFoundError, nearest
from nbtriton.packages import needed
from nbtriton.perf.breakdown import ServerBreakdown
from nbtriton.perf.windows import Outcome, StreamSummary

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LoadMode", "Observer", "PerfPoint", "PerfProgress", "PerfReport", "describe", "row_of"]

LoadMode = Literal["concurrency", "request_rate", "intervals"]

_OBJECTIVES: Mapping[str, Callable[[PerfPoint], float]] = {
    "throughput": lambda point: point.infer_per_s,
    "avg_latency": lambda point: -point.latency_avg_us,
    "p50_latency": lambda point: -point.latency_p50_us,
    "p90_latency": lambda point: -point.latency_p90_us,
    "p95_latency": lambda point: -point.latency_p95_us,
    "p99_latency": lambda point: -point.latency_p99_us,
}


@dataclass(frozen=True, slots=True, repr=False)
class PerfPoint:
    """One level of load on one configuration, measured.

    Parameters
    ----------
    mode : {"concurrency", "request_rate", "intervals"}
        Closed loop with `value` requests outstanding, or open loop at `value` requests/s.
    value : float
    configuration : mapping
        The swept options this point was measured with; empty if none was swept.
    batch_size : int
        Rows per request.
    infer_per_s : float
        Inferences per second: successful requests * batch size / window (PA4).
    request_count, error_count : int
        Requests that ended well, and those that ended with an error, in the windows that count.
    first_error : str
    latency_avg_us, latency_std_us, latency_p50_us, latency_p90_us, latency_p95_us, latency_p99_us
        Seen by the client, in microseconds; nan if no request succeeded.
    percentile, percentile_us : float or None
        The extra percentile that was asked for.
    window_s : float
        Real length of the merged windows in seconds.
    outcome : str
        ``"stable"``, ``"unstable"``, ``"failed"`` (only errors), ``"empty"`` (nothing ended in
        time) or ``"interrupted"``.
    delayed_fraction, lateness_avg_us : float
        Open loop: the share of requests sent over 1 ms later than due, and by how much requests
        were late on average (PA14).
    server : ServerBreakdown or None
        The server's own account of the time; None if it answered nothing.
    composing : tuple of ServerBreakdown
        The same for every composing model of an ensemble.
    sequence_count : int or None
        Sequences that ended; None for a model that takes none (PA25).
    stream : StreamSummary or None
        Responses, the time to the first one and between them, where streams were measured.
    notes : tuple of str
        perf_analyzer's remarks on this level.
    """

    mode: LoadMode
    value: float
    configuration: Mapping[str, Any]
    batch_size: int
    infer_per_s: float
    request_count: int
    error_count: int
    first_error: str
    latency_avg_us: float
    latency_std_us: float
    latency_p50_us: float
    latency_p90_us: float
    latency_p95_us: float
    latency_p99_us: float
    percentile: float | None
    percentile_us: float | None
    window_s: float
    outcome: Outcome
    delayed_fraction: float = 0.0
    lateness_avg_us: float = 0.0
    server: ServerBreakdown | None = None
    composing: tuple[ServerBreakdown, ...] = ()
    sequence_count: int | None = None
    stream: StreamSummary | None = None
    notes: tuple[str, ...] = ()

    @property
    def stable(self) -> bool:
        """True if the last three windows agreed (PA5)."""
        return self.outcome == "stable"

    @property
    def sequences_per_s(self) -> float:
        """Sequences that ended per second; nan for a model that takes none."""
        if self.sequence_count is None or not self.window_s:
            return math.nan
        return self.sequence_count / self.window_s

    @property
    def mean_batch_size(self) -> float:
        """Inferences per execution; nan without a server side."""
        return self.server.mean_batch_size if self.server else math.nan

    @property
    def label(self) -> str:
        """The configuration in a few words, such as ``instances=2, batch_size=8``."""
        return describe("", self.configuration, self.batch_size)

    def __repr__(self) -> str:
        load = f"{self.mode.replace('_', ' ')} {self.value:g}"
        return (
            f"<PerfPoint {describe(load, self.configuration, self.batch_size)}: "
            f"{measure(self.infer_per_s)} infer/s, p99 {measure(self.latency_p99_us / 1000)} ms, "
            f"{self.outcome}>"
        )


@dataclass(frozen=True, slots=True)
class PerfProgress:
    """Where a running measurement is; the observer gets one after every window.

    Parameters
    ----------
    level, levels : int, int or None
        The current level, counted from 1, and how many there are; None where a search decides.
    what : str
        Such as ``"concurrency 8, instances=2"``.
    window, max_windows : int
        Windows of this level that are over, and how many there can be.
    elapsed_s : float
    eta_s : float or None
        Time left in seconds, None where nobody can know.
    infer_per_s : float
        Inferences per second in the latest window; 0 before the first.
    points : tuple of PerfPoint
        Levels that are done.
    """

    level: int
    levels: int | None
    what: str
    window: int
    max_windows: int
    elapsed_s: float
    eta_s: float | None
    infer_per_s: float
    points: tuple[PerfPoint, ...]


Observer = Callable[[PerfProgress], None]


@dataclass(frozen=True, slots=True, repr=False)
class PerfReport:
    """The result of `nbtriton.perf`: shows itself in a notebook, and is plain data.

    Parameters
    ----------
    model : str
    points : tuple of PerfPoint
        In the order in which they were measured.
    settings : mapping
        How it was measured.
    environment : mapping
        Where it was measured.
    notes : tuple of str
        Remarks that belong to no point, such as a level that went over the latency limit.
    elapsed_s : float
    interrupted : bool
        True if the user stopped it; the points are those measured until then.
    quick : bool
        True if it was measured with short windows: good to look at, not to quote.
    """

    model: str
    points: tuple[PerfPoint, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    interrupted: bool = False
    quick: bool = False

    @property
    def headline(self) -> str:
        """What was measured and how long it took, in one line."""
        count = len(self.points)
        url = self.settings.get("url")
        place = f" at {self.settings['protocol']}://{url}" if url else ""
        words = f"{self.model}{place}: {count} level{'' if count == 1 else 's'} measured in "
        words += f"{measure(self.elapsed_s)} s"
        if self.quick:
            words += ", quick (short windows: good to look at, not to quote)"
        if self.interrupted:
            words += ", interrupted"
        return words

    def __repr__(self) -> str:
        return f"<PerfReport {self.headline}>"

    @property
    def frame(self) -> pd.DataFrame:
        """One row a point as a pandas DataFrame; units are in the column names."""
        with needed("a report's frame"):
            import pandas as pd

        return pd.DataFrame([row_of(point) for point in self.points])

    def best(self, objective: str = "throughput", *, p99_ms: float | None = None) -> PerfPoint:
        """Return the best point.

        Parameters
        ----------
        objective : str
            ``"throughput"``, or the lowest ``"avg_latency"``, ``"p50_latency"``,
            ``"p90_latency"``, ``"p95_latency"`` or ``"p99_latency"``.
        p99_ms : float, optional
            Only points whose p99 latency is at most this many milliseconds.

        Raises
        ------
        NotFoundError
            No point qualifies.

        Notes
        -----
        An unstable point is chosen only where no stable one qualifies.
        """
        if objective not in _OBJECTIVES:
            raise InvalidArgumentError(
                f"unknown objective '{objective}'", hint=nearest(objective, _OBJECTIVES)
            )
        limit_us = math.inf if p99_ms is None else p99_ms * 1000
        fit = [p for p in self.points if p.request_count and p.latency_p99_us <= limit_us]
        if not fit:
            lowest = min(
                (p.latency_p99_us for p in self.points if p.request_count), default=math.nan
            )
            raise NotFoundError(
                f"no measured point of '{self.model}' qualifies",
                hint="no request succeeded"
                if math.isnan(lowest)
                else f"the lowest p99 measured is {lowest / 1000:.3g} ms",
            )
        return max([p for p in fit if p.stable] or fit, key=_OBJECTIVES[objective])

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw throughput over p99 latency with matplotlib, one line a configuration."""
        from nbtriton.perf import render

        return render.plot(self, ax)

    def to_csv(self, path: str | Path) -> None:
        """Write perf_analyzer's CSV columns (microseconds), and one file a composing model."""
        from nbtriton.perf import render

        render.write_csv(self, Path(path))

    def save(self, path: str | Path) -> None:
        """Write the report as ``.html``, ``.svg``, ``.csv`` or ``.json``, by the name's ending."""
        from nbtriton.perf import render

        render.save(self, Path(path))

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        from nbtriton.perf import render

        return {"text/plain": render.text(self), "text/html": render.html(self)}


def describe(load: str, configuration: Mapping[str, Any], batch_size: int) -> str:
    """Name a level, or without `load` a configuration: ``concurrency 8, instances=2``."""
    words = [load] if load else []
    words += [f"{key}={_short(value)}" for key, value in configuration.items()]
    if batch_size != 1:
        words.append(f"batch_size={batch_size}")
    return ", ".join(words)


def row_of(point: PerfPoint) -> dict[str, Any]:
    """Flatten a point to named columns: one row of the frame."""
    row: dict[str, Any] = {
        "concurrency" if point.mode == "concurrency" else "request_rate_per_s": point.value,
        **{key: _short(value) for key, value in point.configuration.items()},
        "batch_size": point.batch_size,
        "infer_per_s": point.infer_per_s,
        "requests": point.request_count,
        "errors": point.error_count,
        "latency_avg_us": point.latency_avg_us,
        "latency_std_us": point.latency_std_us,
        "latency_p50_us": point.latency_p50_us,
        "latency_p90_us": point.latency_p90_us,
        "latency_p95_us": point.latency_p95_us,
        "latency_p99_us": point.latency_p99_us,
    }
    if point.percentile is not None:
        row[f"latency_p{point.percentile:g}_us"] = point.percentile_us
    if point.sequence_count is not None:
        row["sequences"] = point.sequence_count
        row["sequences_per_s"] = point.sequences_per_s
    if point.stream is not None:
        row |= _stream_columns(point.stream)
    row |= {"outcome": point.outcome, "window_s": point.window_s}
    if point.mode != "concurrency":
        row["delayed_percent"] = point.delayed_fraction * 100
        row["lateness_avg_us"] = point.lateness_avg_us
    if point.server is not None:
        row |= _server_columns(point.server, "server_")
    for step in point.composing:
        row |= _server_columns(step, f"{step.model}.")
    return row


def _stream_columns(stream: StreamSummary) -> dict[str, Any]:
    return {
        "responses": stream.response_count,
        "responses_per_s": stream.responses_per_s,
        **{
            f"{name}_{key}": value
            for name, times in (
                ("first_response", stream.first),
                ("between_responses", stream.between),
            )
            for key, value in (
                ("avg_us", times.avg_us),
                ("p50_us", times.p50_us),
                ("p90_us", times.p90_us),
                ("p99_us", times.p99_us),
            )
        },
    }


def _server_columns(server: ServerBreakdown, prefix: str) -> dict[str, Any]:
    return {
        f"{prefix}queue_us": server.queue_us,
        f"{prefix}compute_input_us": server.compute_input_us,
        f"{prefix}compute_infer_us": server.compute_infer_us,
        f"{prefix}compute_output_us": server.compute_output_us,
        f"{prefix}overhead_us": server.overhead_us,
        f"{prefix}executions": server.execution_count,
        f"{prefix}inferences": server.inference_count,
        f"{prefix}mean_batch_size": server.mean_batch_size,
    }


def _short(value: object) -> object:
    """Lists become ``4,8``: a table cell and a legend have no room for brackets."""
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return value
