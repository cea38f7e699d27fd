"""The curves of reports: their data, and the plot by matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from nbtriton.common.packages import needed
from nbtriton.drawing.curve import Point, Series, curve_finding, latency_unit
from nbtriton.drawing.scene import series_colours
from nbtriton.lab.perf.point import COLUMNS, PerfPoint, describe, option_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Of a PNG file: twice the resolution of a usual screen.
DPI = 200


class Curves(Protocol):
    """The part of `nbtriton.types.PerfReport` that is drawn."""

    @property
    def model(self) -> str: ...
    @property
    def points(self) -> tuple[PerfPoint, ...]: ...
    @property
    def measured(self) -> tuple[PerfPoint, ...]: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def simulated(self) -> bool: ...
    @property
    def quick(self) -> bool: ...


def series_of(report: Curves) -> tuple[Series, ...]:
    """Return a curve for each configuration and batch size: p50, p99 and the chosen percentile.

    A curve's name has the options in which the configurations differ.
    """
    measured = [point for point in report.points if point.request_count]
    varying = {
        key
        for point in measured
        for key in point.configuration
        if any(point.configuration[key] != other.configuration.get(key) for other in measured)
    }
    sizes = len({point.batch_size for point in measured}) > 1
    groups: dict[tuple[str, bool], list[tuple[str, PerfPoint]]] = {}
    keyed = [(str(at), point, report.simulated) for at, point in enumerate(report.points)]
    keyed += [(f"measured {at}", point, False) for at, point in enumerate(report.measured)]
    for at, point, predicted in keyed:
        if not point.request_count:
            continue
        options = {key: value for key, value in point.configuration.items() if key in varying}
        name = describe("", options, point.batch_size if sizes else 1) or report.model
        groups.setdefault((name, predicted), []).append((at, point))
    return tuple(
        Series(
            name=name,
            points=tuple(drawn_point(key, point) for key, point in points),
            load_name=COLUMNS.get(points[0][1].mode, "requests/s").replace("_", " "),
            predicted=predicted,
            quick=report.quick,
        )
        for (name, predicted), points in groups.items()
    )


def target_of(report: Curves) -> float | None:
    """Return the latency limit of a report in milliseconds."""
    return report.settings.get("latency_threshold_ms") or None


def overlay(reports: Sequence[tuple[str, Curves]]) -> tuple[Series, ...]:
    """Return the curves of several reports, with the report in their names where needed.

    A measured and a predicted curve of the same name keep it, and are drawn side by side.

    Parameters
    ----------
    reports : sequence of (str, Curves)
        Each with a name; an empty one stands for the model's.
    """
    curves: list[Series] = []
    names: set[tuple[str, bool]] = set()
    for index, (name, report) in enumerate(reports, 1):
        for one in series_of(report):
            alone = one.name == report.model
            label = (name if alone else f"{name}, {one.name}") if name else one.name
            if (label, one.predicted) in names:
                label = f"{label} [{index}]"
            names.add((label, one.predicted))
            points = tuple(replace(point, key=f"{index}.{point.key}") for point in one.points)
            curves.append(replace(one, name=label, points=points))
    return tuple(curves)


def plot(
    series: Sequence[Series], *, title: str = "", ax: Axes | None = None,
    target_ms: float | None = None, finding: str = "",
) -> Figure:  # fmt: skip
    """Draw curves with matplotlib.

    Parameters
    ----------
    series : sequence of Series
    title : str, optional
    ax : Axes, optional
        Gets the latency; without it a new figure has the throughput above the latency.
    target_ms : float, optional
    finding : str, optional
        By default that of the curves.
    """
    with needed("a plot"):
        from matplotlib import pyplot as plt
        from matplotlib.figure import SubFigure

        from nbtriton.drawing.page_figure import PageFigure

    if ax is None:
        figure, (above, below) = plt.subplots(
            2,
            1,
            figsize=(8, 6),
            height_ratios=(2, 3),
            layout="constrained",
            sharex=True,
            FigureClass=PageFigure,
        )
        # The caller shows the figure; a notebook would show an open one a second time.
        plt.close(figure)
        axes = [above, below]
        above.set_ylabel("throughput (inferences/s)")
        finding = finding or curve_finding(series, target_ms)
        above.set_title(f"{title}\n{finding}", wrap=True, fontsize=10)
    else:
        axes = [ax]
        ax.set_title(title)
    unit, per_ms = latency_unit(series)
    colours = series_colours()
    for number, one in enumerate(series):
        if one.drawn:
            for each in axes:
                colour = colours[number % len(colours)]
                _draw(each, one, latency=each is axes[-1], per_ms=per_ms, colour=colour)
    axes[-1].set_ylabel(f"latency ({unit})")
    if ax is None:
        axes[-1].set_title("p50, whisker to the highest percentile", loc="left", fontsize=8)
    axes[-1].set_xlabel(next((one.load_name for one in series if one.drawn), "load"))
    for each in axes:
        each.set_ylim(bottom=0)
    if target_ms is not None:
        axes[-1].axhline(target_ms * per_ms, linestyle="--", color="grey")
    if axes[0].lines:
        axes[0].legend(fontsize=8)
    found: Figure | SubFigure = axes[-1].figure
    # `get_figure(root=True)` came with matplotlib 3.10.
    return found.figure if isinstance(found, SubFigure) else found


def _draw(axes: Axes, one: Series, *, latency: bool, per_ms: float, colour: str) -> None:
    points = one.drawn
    values = [p.low_ms * per_ms if latency else p.throughput for p in points]
    axes.plot(
        [p.load for p in points], values, label=one.label, color=colour,
        linestyle="--" if one.predicted else "-",
    )  # fmt: skip
    for point, value in zip(points, values, strict=True):
        ends = (value, point.high_ms * per_ms)
        if not latency:
            ends = (min(point.throughputs, default=value), max(point.throughputs, default=value))
        if latency or not point.stable:
            axes.vlines(point.load, *ends, color=colour, linewidth=1)
        face = colour if point.stable and not one.predicted else "none"
        axes.scatter(point.load, value, facecolors=face, edgecolors=colour, zorder=3)


def drawn_point(key: str, point: PerfPoint) -> Point:
    """Return a measured point as it is drawn; the key links it to its row of a table."""
    details = [(key, str(option_text(value))) for key, value in point.configuration.items()]
    if point.batch_size != 1:
        details.append(("batch_size", str(point.batch_size)))
    if point.server is not None:
        details.append(("mean batch", f"{point.mean_batch_size:.3g}"))
    return Point(
        point.value, point.infer_per_s, _latency_ms(point), point.outcome, point.throughputs,
        tuple(details), key,
    )  # fmt: skip


def _latency_ms(point: PerfPoint) -> dict[int, float]:
    latencies = {50: point.latency_p50_us / 1000, 99: point.latency_p99_us / 1000}
    chosen = point.percentile
    if chosen is not None and chosen == int(chosen) and point.percentile_us is not None:
        latencies[int(chosen)] = point.percentile_us / 1000
    return latencies
