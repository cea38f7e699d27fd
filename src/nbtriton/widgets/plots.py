"""Several reports in one picture."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.drawing.curve import Series
from nbtriton.drawing.living import living_page
from nbtriton.lab.perf import curves
from nbtriton.widgets.static import StaticView, curve_rows, curve_view

if TYPE_CHECKING:
    from nbtriton.lab.perf.report import PerfReport
    from nbtriton.widgets.living import LivingCharts


@dataclass(frozen=True, slots=True, repr=False)
class PlotView(StaticView):
    """Curves; saved as ``.svg``, ``.png`` (with matplotlib), ``.csv``, ``.html`` or text.

    Attributes
    ----------
    series : tuple of Series
    title : str
    target_ms : float or None
    """

    series: tuple[Series, ...] = ()
    title: str = ""
    target_ms: float | None = None

    def _display_(self) -> LivingCharts:
        """Return what marimo shows, and VS Code and Colab."""
        from nbtriton.widgets.living import living_chart

        return living_chart(self.html)

    def save(self, path: str | Path) -> Path:
        """Write it to a file in the format of the name's ending."""
        path = Path(path)
        if path.suffix == ".png":
            figure = curves.plot(self.series, title=self.title, target_ms=self.target_ms)
            figure.savefig(path, dpi=curves.DPI)
        elif path.suffix == ".csv":
            columns, rows = curve_rows(self.series)
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerows([columns, *rows])
        elif path.suffix == ".html":
            path.write_text(living_page(self.title, self.html), encoding="utf-8")
        else:
            StaticView.save(self, path)
        return path


def plot(
    *reports: PerfReport, p99_ms: float | None = None, title: str = "", **named: PerfReport
) -> PlotView:
    """Draw the curves of several reports over each other.

    A measurement and the prediction of `nbtriton.whatif` for one configuration have the same colour.

    Parameters
    ----------
    *reports : PerfReport
        Named by their models and configurations.
    p99_ms : float, optional
        A limit of the p99 latency; by default the first one among the reports.
    title : str, optional
    **named : PerfReport
        With names that you choose: ``nt.plot(before=a, after=b)``.

    Examples
    --------
    >>> a = nt.perf(server, "double", concurrency=[1, 2], request_count=4)
    >>> b = nt.perf(server, "double", concurrency=[1, 2], request_count=4)
    >>> figure = nt.plot(before=a, after=b)
    >>> [one.name for one in figure.series]
    ['before', 'after']

    Raises
    ------
    InvalidArgumentError
        There is nothing to draw, or an argument is not a report.
    """
    given: Sequence[tuple[str, PerfReport]] = [("", one) for one in reports] + list(named.items())
    if not given:
        raise InvalidArgumentError("nothing to plot", hint="nt.plot(report, another_report)")
    for _, report in given:
        if not hasattr(report, "points") or not hasattr(report, "simulated"):
            raise InvalidArgumentError(
                f"{type(report).__name__} is not a report", hint="what nt.perf and nt.whatif return"
            )
    if len({report.model for _, report in given}) > 1:
        given = [(name or report.model, report) for name, report in given]
    if p99_ms is None:
        p99_ms = next((t for _, one in given if (t := curves.target_of(one))), None)
    series = curves.overlay(given)
    title = title or " and ".join(dict.fromkeys(report.model for _, report in given))
    view = curve_view(series, title=title, target_ms=p99_ms)
    return PlotView(view.html, view.text, view.svg, series=series, title=title, target_ms=p99_ms)
