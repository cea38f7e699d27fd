"""The result of a measurement: plain data with a display in notebooks, which can be written to files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtriton.common.errors import InvalidArgumentError, NotFoundError, nearest
from nbtriton.common.packages import needed
from nbtriton.drawing import counted, highest, measure
from nbtriton.lab.perf import curves, render
from nbtriton.lab.perf.point import PerfPoint, row_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOWEST: Mapping[str, Callable[[PerfPoint], float]] = {
    "avg_latency": lambda point: point.latency_avg_us,
    "p50_latency": lambda point: point.latency_p50_us,
    "p90_latency": lambda point: point.latency_p90_us,
    "p95_latency": lambda point: point.latency_p95_us,
    "p99_latency": lambda point: point.latency_p99_us,
}


@dataclass(frozen=True, slots=True, repr=False)
class PerfReport:
    """The result of `nbtriton.perf`: plain data with a display in notebooks.

    Parameters
    ----------
    model : str
    points : tuple of PerfPoint
        In the order of measurement.
    settings : mapping
        The options of the measurement.
    environment : mapping
        The machine and the packages.
    notes : tuple of str
        Remarks without a point, such as a level over the latency limit.
    elapsed_s : float
    interrupted : bool
        Whether the user stopped it; it has the points until then.
    simulated : bool
        Whether it is a prediction of `nbtriton.whatif`, in virtual time.
    quick : bool
        Whether windows were short: a rough result, not a figure to quote.

    Examples
    --------
    >>> report = nt.perf(server, "double", concurrency=[1, 2], request_count=4)
    >>> report.frame["concurrency"].tolist()
    [1, 2]
    """

    model: str
    points: tuple[PerfPoint, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    interrupted: bool = False
    quick: bool = False
    simulated: bool = False

    @property
    def headline(self) -> str:
        """The number of levels and their time, in one line."""
        url = self.settings.get("url")
        place = f" at {self.settings['protocol']}://{url}" if url else ""
        done = "simulated" if self.simulated else "measured"
        version = self.settings.get("model_version")
        name = self.model if version is None else f"{self.model} version {version}"
        words = f"{name}{place}: {counted(len(self.points), 'level')} {done} in "
        words += f"{measure(self.elapsed_s)} s"
        if self.quick:
            words += ", quick (short windows: good to look at, not to quote)"
        if self.interrupted:
            words += ", interrupted"
        return words

    @property
    def disturbance(self) -> str:
        """What other programs did while it was measured, in a sentence; empty if little or unknown."""
        return render.disturbance_of(self.environment)

    def __repr__(self) -> str:
        return f"<PerfReport {self.headline}>"

    @property
    def frame(self) -> pd.DataFrame:
        """One row per point as a pandas DataFrame; units are in the column names."""
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
        An unstable point is chosen only where no stable one qualifies. Of points whose throughput is within
        1% of the highest, the one with the lowest p99 is the best.

        Examples
        --------
        >>> report = nt.perf(server, "double", concurrency=[1, 2], request_count=4)
        >>> report.best().value in (1, 2)
        True
        """
        if objective != "throughput" and objective not in _LOWEST:
            raise InvalidArgumentError(
                f"unknown objective '{objective}'",
                hint=nearest(objective, ["throughput", *_LOWEST]),
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
        candidates = [p for p in fit if p.stable] or fit
        if objective == "throughput":
            return highest(candidates, lambda p: p.infer_per_s, lambda p: p.latency_p99_us)
        return min(candidates, key=_LOWEST[objective])

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the report with matplotlib: throughput above latency, a line for each configuration.

        Parameters
        ----------
        ax : Axes, optional
            Gets the latency alone: p50, with a whisker to the highest percentile.

        Examples
        --------
        >>> report = nt.whatif(nt.Profile.declared({"bert": 10}), concurrency=[1, 2])
        >>> type(report.plot()).__name__
        'PageFigure'
        """
        return curves.plot(
            curves.series_of(self), title=self.model, ax=ax, target_ms=curves.target_of(self)
        )

    def to_csv(self, path: str | Path) -> None:
        """Write perf_analyzer's CSV columns (microseconds), with one file per composing model.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "report.csv"
        >>> nt.perf(server, "double", concurrency=[1, 2], request_count=4).to_csv(path)
        >>> path.read_text().partition(",")[0]
        'Concurrency'
        """
        render.write_csv(self, Path(path))

    def save(self, path: str | Path) -> None:
        """Write the report as ``.html``, ``.svg``, ``.png``, ``.csv`` or ``.json``, by its suffix.

        A PNG file is drawn by matplotlib.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> report = nt.whatif(nt.Profile.declared({"bert": 10}), concurrency=[1, 2])
        >>> path = Path(tempfile.mkdtemp()) / "report.svg"
        >>> report.save(path)
        >>> path.read_text()[:4]
        '<svg'
        """
        render.save(self, Path(path))

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        bundle = {"text/plain": render.text(self), "text/html": render.html(self)}
        if any(point.request_count for point in self.points):
            bundle["image/svg+xml"] = render.svg(self)
        return bundle
