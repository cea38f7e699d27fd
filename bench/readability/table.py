"""Published table and figure: latency and throughput of three placements by batch size."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import nbtriton
from bench.figures import Missing, show
from bench.machine import machine
from bench.readability.build import ENSEMBLE, Pipeline, build, requests
from nbtriton.lab.perf.point import PerfPoint

__all__ = ["COLUMNS", "Measured", "figure", "measure", "table"]

# Published columns by placement.
COLUMNS = {
    "cpu": "all on the CPU",
    "models-on-gpu": "models on the GPU",
    "gpu": "all on the GPU",
}
# Rates of a simulated GPU.
SIMULATED = "simulated:1,module=20,trees=20,copy_gb_per_s=12"
# The forest, and the package that it needs on a real GPU.
FOREST, KERNEL = "cuml", "triton"


@dataclass(frozen=True, slots=True)
class Measured:
    """The points of a run.

    Parameters
    ----------
    pipeline : Pipeline
    gpus : str
        Their names, or the options of the simulation.
    simulated : bool
    concurrency : int
    points : mapping of str to mapping of int to PerfPoint
        By placement and batch size, without failed ones.
    notes : tuple of str
    """

    pipeline: Pipeline
    gpus: str
    simulated: bool
    concurrency: int
    points: Mapping[str, Mapping[int, PerfPoint]]
    notes: tuple[str, ...] = ()

    def title(self, placement: str) -> str:
        """Return the heading of a column, which marks simulated GPUs."""
        mark = " (simulated)" if self.simulated and placement != "cpu" else ""
        return COLUMNS[placement] + mark


def measure(
    pipeline: Pipeline,
    sizes: Sequence[int],
    *,
    gpus: str | None = None,
    concurrency: int = 1,
    count: int = 5,
    say: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Build the pipeline and measure it in three placements.

    Parameters
    ----------
    pipeline : Pipeline
    sizes : sequence of int
        Excerpts of a request.
    gpus : str, optional
        Simulated GPUs; by default this machine's GPUs, else simulated ones.
    concurrency, count : int
        Requests in flight, and requests of a point.
    say : callable
        Called with lines of progress.
    """
    names = _gpus() if gpus is None else []
    simulated = not names
    text = gpus or SIMULATED
    points: dict[str, dict[int, PerfPoint]] = {}
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder), pipeline, say)
        with nbtriton.Server(gpus=text if simulated else None) as server:
            control = server.load_repository(folder)
            if control.errors:
                raise Missing("; ".join(map(str, control.errors.values())))
            steps = [model.name for model in server.models() if model.instances]
            for placement, title in COLUMNS.items():
                found = points.setdefault(placement, {})
                for size in sizes:
                    say(f"{title}, {size} excerpts a request")
                    report = nbtriton.perf(
                        server, ENSEMBLE, inputs=requests(size), request_count=count,
                        concurrency=concurrency, placement=_placed(placement, steps, simulated=simulated),
                    )  # fmt: skip
                    if report.interrupted:
                        raise KeyboardInterrupt
                    (point,) = report.points
                    if point.error_count:
                        notes.append(f"{title}, {size} excerpts: {point.first_error}")
                    else:
                        found[size] = point
    if simulated:
        notes.append(
            "a simulated GPU computes on this machine's processor: a request never takes less than that, and "
            "nothing here says how fast a GPU is"
        )
    else:
        notes += [
            f"{name} on the host in every column: the package '{KERNEL}' is not installed"
            for name in _on_host()
        ]
    return Measured(
        pipeline,
        text if simulated else ", ".join(names),
        simulated,
        concurrency,
        points,
        tuple(notes),
    )


def table(found: Measured) -> str:
    """Return the published rows for the largest batch size, and the throughput by batch size."""
    sizes = sorted({size for points in found.points.values() for size in points})
    largest = sizes[-1]
    columns = list(COLUMNS)
    widths = [max(len(found.title(each)), 12) for each in columns]

    def line(label: str, values: Sequence[str]) -> str:
        cells = (value.rjust(width) for value, width in zip(values, widths, strict=True))
        return "  ".join([label.ljust(44), *cells])

    def cells(size: int, read: Callable[[PerfPoint], float]) -> list[str]:
        here = [found.points[each].get(size) for each in columns]
        return [show(read(point)) if point is not None else "-" for point in here]

    environment = machine()
    mark = " (simulated)" if found.simulated else ""
    where = (
        f"{found.concurrency} request(s) outstanding; GPU: {found.gpus}{mark}; CPU: {environment['cpu']}, {environment['cores']} "
        f"cores, load average {os.getloadavg()[0]:.1f}"
    )
    lines = [
        str(found.pipeline),
        where,
        "",
        line("", [found.title(each) for each in columns]),
        line(f"Latency p50 (ms), batch size {largest}", cells(largest, lambda p: p.latency_p50_us / 1000)),
        line(f"Throughput (excerpts/s), batch size {largest}", cells(largest, lambda p: p.infer_per_s)),
        "",
        *(line(f"Throughput (excerpts/s), batch size {n}", cells(n, lambda p: p.infer_per_s)) for n in sizes),
    ]  # fmt: skip
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines)


def figure(found: Measured, path: Path) -> None:
    """Plot throughput over batch size, one line per placement, into a file of a matplotlib format."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Missing("needs matplotlib: pip install 'nbtriton[plot]'") from None
    drawn = Figure(figsize=(7, 4.5), layout="constrained")
    axes = drawn.subplots()
    for placement, points in found.points.items():
        sizes = sorted(points)
        rates = [points[size].infer_per_s for size in sizes]
        axes.plot(sizes, rates, "o-", label=found.title(placement))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("excerpts a request")
    axes.set_ylabel("excerpts/s")
    axes.set_title(str(found.pipeline), fontsize=8)
    axes.legend()
    drawn.savefig(path)


def _gpus() -> list[str]:
    """Return the names of this machine's GPUs."""
    try:
        import torch
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _on_host() -> tuple[str, ...]:
    """Return the models that cannot run on a real GPU here."""
    return () if find_spec(KERNEL) is not None else (FOREST,)


def _placed(placement: str, steps: Sequence[str], *, simulated: bool) -> str | dict[str, str]:
    """Return a placement; on a real GPU without the models that cannot run there."""
    if simulated or placement == "cpu":
        return placement
    code = ("preprocess", "postprocess") if placement == "models-on-gpu" else ()
    return {step: "cpu" if step in (*code, *_on_host()) else "gpu" for step in steps}
