"""The result of a measurement: plain data with a display in notebooks, which can be written to files."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtriton.common.errors import InvalidArgumentError, NotFoundError, nearest
from nbtriton.common.packages import needed
from nbtriton.drawing.curve import curve_finding, highest
from nbtriton.drawing.living import living_page
from nbtriton.drawing.numbers import counted, measure
from nbtriton.drawing.panels import curve_scenes
from nbtriton.drawing.scene import Shape, beside, fitting, to_svg
from nbtriton.drawing.table import Column, compact_html, in_units, notes_html, table_text
from nbtriton.lab.perf.breakdown import ServerBreakdown, network_us
from nbtriton.lab.perf.curves import DPI, plot, series_of, target_of
from nbtriton.lab.perf.machine import disturbance
from nbtriton.lab.perf.point import COLUMNS, PerfPoint, ended, option_text, row_of
from nbtriton.lab.perf.windows import DRIFT

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# The columns to compare; `PerfReport.frame` has all of them.
_TABLE: Mapping[str, Column] = {
    "concurrency": Column("concurrency"),
    "request_rate_per_s": Column("request rate", "1/s"),
    "periodic_concurrency": Column("periodic concurrency"),
    "speed": Column("speed"),
    "model": Column("model"),
    "instances": Column("instances"),
    "max_batch_size": Column("max batch"),
    "dynamic_batching": Column("dynamic batching"),
    "max_queue_delay_us": Column.of("max_queue_delay_us"),
    "preferred": Column("preferred"),
    "isolation": Column("isolation"),
    "placement": Column("placement"),
    "kind": Column("kind"),
    "cache": Column("cache"),
    "rate_limit": Column("rate limiter"),
    "chained": Column("chained by the client"),
    "times": Column("times"),
    "batch_size": Column("batch size"),
    "infer_per_s": Column("throughput", "infer/s"),
    "infer_per_s_low": Column("at least", "infer/s"),
    "infer_per_s_high": Column("at most", "infer/s"),
    "sequences_per_s": Column("sequences", "1/s"),
    "responses_per_s": Column("responses", "1/s"),
    "first_response_p50_us": Column("first p50", "µs"),
    "first_response_p99_us": Column("first p99", "µs"),
    "between_responses_p50_us": Column("between p50", "µs"),
    "between_responses_p99_us": Column("between p99", "µs"),
    "latency_p50_us": Column("p50", "µs"),
    "latency_p90_us": Column("p90", "µs"),
    "latency_p99_us": Column("p99", "µs"),
    "latency_p99_low_us": Column("p99 at least", "µs"),
    "latency_p99_high_us": Column("p99 at most", "µs"),
    "server_queue_us": Column("queue", "µs"),
    "server_compute_us": Column("compute", "µs"),
    "server_mean_batch_size": Column("mean batch"),
    "interpreter_wait_percent": Column("interpreter wait", "%"),
    "errors": Column("errors"),
    "delayed_percent": Column("delayed", "%"),
    "outcome": Column("outcome"),
}
# Columns with room on a narrow page: the differences between the levels, and the main results.
_CHOICES = tuple(_TABLE)[: tuple(_TABLE).index("infer_per_s")]
_FIGURES = (
    "infer_per_s", "infer_per_s_low", "infer_per_s_high", "latency_p50_us", "latency_p99_us",
    "latency_p99_low_us", "latency_p99_high_us", "errors", "outcome", "server_mean_batch_size",
    "responses_per_s", "first_response_p50_us", "sequences_per_s", "delayed_percent",
)  # fmt: skip
_ONE_WINDOW = "one window: whether the level is stable is not judged"
# More of them are one figure: their names make a head of a line each.
_MOST_STEPS = 4
# Columns that are left out where every row has this value.
_NEVER = object()
_PLAIN: Mapping[str, object] = {
    "batch_size": 1,
    "errors": 0,
    "delayed_percent": 0.0,
    "interpreter_wait_percent": 0.0,
}


def finding_of(report: PerfReport) -> str:
    """Return the finding of a report in a sentence; not about a measurement beneath a prediction."""
    series = [one for one in series_of(report) if one.predicted == report.simulated]
    if report.points and not series:
        return "no request succeeded"
    found = curve_finding(series, target_of(report))
    return f"of what was measured, {found}" if report.failure else found


def _scenes(report: PerfReport) -> list[Shape]:
    series, target_ms = series_of(report), target_of(report)
    finding = finding_of(report)
    return curve_scenes(series, title=report.model, target_ms=target_ms, finding=finding)


def text(report: PerfReport) -> str:
    """Format the report for a terminal."""
    columns, rows, _ = _table(report)
    parts = [report.headline]
    if rows:
        parts = [finding_of(report), report.headline, table_text(columns, rows)]
    parts += [f"note: {note}" for note in _notes(report)]
    return "\n".join(parts)


def html(report: PerfReport) -> str:
    """Format the report as HTML: the curve, the table, the notes."""
    columns, rows, first = _table(report)
    data = f'data-name="{escape(report.model)}" data-cells="{escape(json.dumps(_cells(report)))}"'
    parts = [f'<div class="nbt-perf nbt-chart" {data}><p>{escape(report.headline)}</p>']
    if rows:
        # The picture begins with the finding.
        picture = fitting(_scenes(report)) if series_of(report) else f"<p>{finding_of(report)}</p>"
        keys = [str(at) for at in range(len(rows))]
        parts.append(beside(picture, compact_html(columns, rows, first, keys=keys)))
    notes = _notes(report)
    if notes:
        parts.append(notes_html(notes))
    parts.append("</div>")
    return "".join(parts)


def write_csv(report: PerfReport, path: Path) -> None:
    """Write perf_analyzer's columns (perf_analyzer ``-f``), whole microseconds, slowest first.

    Swept options follow in columns of their own at the end. Each composing model of an ensemble gets a file
    ``<model>_v<version>.<name>`` beside it.
    """
    points = sorted(report.points, key=lambda point: point.infer_per_s)
    extras = list(dict.fromkeys(key for p in points for key in p.configuration))
    if len({p.batch_size for p in points}) > 1:
        extras.append("batch_size")
    rows = []
    for point in points:
        percentiles = {float(p): getattr(point, f"latency_p{p}_us") for p in (50, 90, 95, 99)}
        if point.percentile is not None and point.percentile_us is not None:
            percentiles[point.percentile] = point.percentile_us
        row = _csv_row(point, point.infer_per_s, point.server, network_us(
            point.latency_avg_us, point.server
        ))  # fmt: skip
        row |= {f"p{p:g} latency": _whole(us) for p, us in sorted(percentiles.items())}
        flat = row_of(point)
        row |= {name: flat.get(name, "") for name in extras}
        rows.append(row)
    _write_rows(path, rows)
    steps: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        for step in point.composing:
            ratio = step.success_count / point.server.success_count if point.server else 0.0
            steps.setdefault(f"{step.model}_v{step.version}.{path.name}", []).append(
                _csv_row(point, point.infer_per_s * ratio, step, step.overhead_us)
            )
    for name, step_rows in steps.items():
        _write_rows(path.with_name(name), step_rows)


def _csv_row(
    point: PerfPoint, infer_per_s: float, server: ServerBreakdown | None, network: float
) -> dict[str, Any]:
    return {
        COLUMNS.get(point.mode, "request_rate").replace("_", " ").title(): f"{point.value:g}",
        "Inferences/Second": f"{infer_per_s:.6g}",
        **(
            {}
            if point.stream is None
            else {"Response Throughput": f"{point.stream.responses_per_s:.6g}"}
        ),
        # Without marshalling, which a process does not need.
        "Client Send": 0,
        "Network+Server Send/Recv": _whole(network),
        "Server Queue": _whole(server.queue_us if server else 0.0),
        "Server Compute Input": _whole(server.compute_input_us if server else 0.0),
        "Server Compute Infer": _whole(server.compute_infer_us if server else 0.0),
        "Server Compute Output": _whole(server.compute_output_us if server else 0.0),
        "Client Recv": 0,
    }


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _whole(us: float) -> int:
    return int(us) if math.isfinite(us) else 0


def _table(report: PerfReport) -> tuple[list[Column], list[list[object]], list[int]]:
    """Return the columns, the rows, and the indices of the columns that a narrow page shows first."""
    rows = []
    for point in report.points:
        row = row_of(point)
        if (rate := row.get("request_rate_per_s", 0.5)) == int(rate):
            row["request_rate_per_s"] = int(rate)  # it was asked for, and is written whole
        if point.server is not None:
            server = point.server
            row["server_compute_us"] = server.accounted_us - server.queue_us
        if point.composing:
            # An ensemble runs request by request; its steps have batches.
            row.pop("server_mean_batch_size", None)
            row["steps_mean_batch_size"] = _mean_batches(point.composing)
        rows.append(row)
    columns = dict(_TABLE)
    steps = next((point.composing for point in report.points if point.composing), ())
    of = " / ".join(step.model for step in steps)
    columns["steps_mean_batch_size"] = Column(
        f"mean batch of {of if len(steps) <= _MOST_STEPS else f'the {len(steps)} steps'}"
    )
    for point in report.points:
        if point.percentile is not None:
            columns.setdefault(
                f"latency_p{point.percentile:g}_us", Column(f"p{point.percentile:g}", "µs")
            )
    shown = [
        name
        for name in columns
        if any(name in row for row in rows)
        and not all(row.get(name) == _PLAIN.get(name, _NEVER) for row in rows)
    ]
    cells = [[_cell(row.get(name)) for name in shown] for row in rows]
    varying = [name for name in shown if any(row.get(name) != rows[0].get(name) for row in rows)]
    chosen = [name for name in shown if name not in _TABLE and name.startswith("latency_")]
    important = (*filter(varying.__contains__, _CHOICES), *_FIGURES, *chosen)
    first = [shown.index(name) for name in important if name in shown]
    return *in_units([columns[name] for name in shown], cells), first


def _mean_batches(steps: Sequence[ServerBreakdown]) -> str:
    """Return the mean batch size of each step; of many steps the lowest and the highest."""
    sizes = [step.mean_batch_size for step in steps]
    if len(sizes) <= _MOST_STEPS:
        return " / ".join(map(measure, sizes))
    return f"{measure(min(sizes))} to {measure(max(sizes))}"


def _cell(value: object) -> object:
    return option_text(value) if isinstance(value, bool) else value


def _notes(report: PerfReport) -> list[str]:
    """Return the notes; levels with the same note share a line, unstable ones are only counted."""
    levels: dict[str, list[str]] = {}
    for point in report.points:
        level = f"{point.value:g}" + (f" ({point.label})" if point.label else "")
        one = (_ONE_WINDOW,) if point.outcome == "not judged" else ()
        for note in (*one, *point.notes[point.outcome == "unstable" :]):
            # A line number in a model's file follows, which the error of one request shows better.
            levels.setdefault(note.partition("\n\nAt:")[0], []).append(level)
    mode = report.points[0].mode.replace("_", " ") if report.points else ""
    notes = [f"{mode} {', '.join(names)}: {note}" for note, names in levels.items()]
    unstable = [point for point in report.points if point.outcome == "unstable"]
    if unstable:
        words = f"{len(unstable)} of {len(report.points)} levels did not become stable"
        if not all(any(note.startswith(DRIFT) for note in point.notes) for point in unstable):
            words += (
                "; longer windows (--measurement-interval) or more of them (--max-trials) may help"
            )
        notes.insert(0, words)
    return [*notes, *report.notes, *filter(None, [report.failure, report.disturbance])]


def _cells(report: PerfReport) -> dict[str, str]:
    """Return the cells that set the configuration of each point, the best one first; equal ones once."""
    points = {str(at): point for at, point in enumerate(report.points) if point.request_count}
    if report.points and points:
        best = report.best()
        points = dict(sorted(points.items(), key=lambda item: item[1] is not best))
    cells: dict[str, str] = {}
    for key, point in points.items():
        cell = "" if point.source is None else point.source.cells(point.configuration)
        if cell and cell not in cells.values():
            cells[key] = cell
    return cells


def _plain(value: Any) -> Any:
    """Return a value for JSON, which has no nan: a missing number is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


_LOWEST = tuple(f"{each}_latency" for each in ("avg", "p50", "p90", "p95", "p99"))


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
    measured : tuple of PerfPoint
        Of a prediction: an earlier measurement of the same loads and configurations, drawn with it.
    failure : str
        The error that ended it after the first point, in a sentence; empty without.

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
    measured: tuple[PerfPoint, ...] = ()
    failure: str = ""

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
        return words + ended(self.interrupted, self.failure)

    @property
    def disturbance(self) -> str:
        """What other programs did while it was measured, in a sentence; empty if little or unknown."""
        cores, cpus = (self.environment.get(name) for name in ("other_programs_cores", "cpus"))
        return disturbance(cores, cpus or 1)

    def __repr__(self) -> str:
        return f"<PerfReport {self.headline}>"

    @property
    def frame(self) -> pd.DataFrame:
        """One row per point as a pandas DataFrame; units are in the column names."""
        with needed("a report's frame"):
            import pandas as pd

        return pd.DataFrame([row_of(point) for point in self.points])

    def best(self, objective: str = "throughput", *, p99_ms: float | None = None) -> PerfPoint:
        """Return the best point of those that were measured.

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
        figure = f"latency_{objective.removesuffix('_latency')}_us"
        return min(candidates, key=lambda point: float(getattr(point, figure)))

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the report with matplotlib: throughput above latency, a line for each configuration.

        Parameters
        ----------
        ax : Axes, optional
            Gets the latency alone: p50, with a whisker to the highest percentile.

        Examples
        --------
        >>> report = nt.whatif(nt.types.Profile.declared({"bert": 10}), concurrency=[1, 2])
        >>> type(report.plot()).__name__
        'PageFigure'
        """
        return plot(
            series_of(self), title=self.model, ax=ax, target_ms=target_of(self), finding=finding_of(self),
        )  # fmt: skip

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
        write_csv(self, Path(path))

    def save(self, path: str | Path) -> None:
        """Write the report as ``.html``, ``.svg``, ``.png``, ``.csv`` or ``.json``, by its suffix.

        The HTML file needs nothing else: its chart answers to pointer and keys as in the notebook. A PNG file
        is drawn by matplotlib.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> report = nt.whatif(nt.types.Profile.declared({"bert": 10}), concurrency=[1, 2])
        >>> path = Path(tempfile.mkdtemp()) / "report.svg"
        >>> report.save(path)
        >>> path.read_text()[:4]
        '<svg'
        """
        place = Path(path)
        match place.suffix.lower():
            case ".html":
                page = living_page(f"{self.model}: performance", html(self))
                place.write_text(page, encoding="utf-8")
            case ".svg":
                place.write_text(to_svg(_scenes(self)[-1]), encoding="utf-8")
            case ".png":
                self.plot().savefig(place, dpi=DPI)
            case ".csv":
                write_csv(self, place)
            case ".json":
                content = asdict(self)
                for point in (*content["points"], *content["measured"]):
                    del point["source"]
                document = json.dumps(_plain(content), indent=1, ensure_ascii=False)
                place.write_text(document, encoding="utf-8")
            case other:
                raise InvalidArgumentError(
                    f"cannot save a report as '{other}'",
                    hint="known: .html, .svg, .png, .csv, .json",
                )

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        bundle = {"text/plain": text(self), "text/html": html(self)}
        if any(point.request_count for point in self.points):
            bundle["image/svg+xml"] = to_svg(_scenes(self)[-1])
        return bundle
