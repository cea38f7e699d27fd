"""Time and memory of the lessons: each is run from top to bottom in a new kernel.

Three figures a lesson, of the same runs: the time from the start of the first cell to the first picture, the time to
the end of the last cell, and the kernel's peak memory. The targets are for two processors that others also use, so
read them with the load average.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from bench.figures import Figure, Missing, Sides, Wrong, value_at_most
from bench.machine import ROOT
from bench.session import Session

__all__ = ["FIGURES", "PEAK", "Run", "first_picture_s"]

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FIRST_PICTURE_S, WHOLE_S, PEAK_MB = 10, 120, 1000
# Timeout of a cell, for a kernel that hangs.
HANGS_S = 600
# Sets `peak_kib` to the kernel's peak of resident memory. Not ru_maxrss, which includes the memory of the process that
# started the kernel.
PEAK = """
import re
from pathlib import Path
peak_kib = int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
"""
LAST = f"{PEAK}print(peak_kib)"


@dataclass(frozen=True, slots=True)
class Run:
    """Times and memory of one run of a lesson."""

    first_picture_s: float
    whole_s: float
    peak_mb: float


def first_picture_s(cells: Sequence[Any]) -> float:
    """Return the seconds from the start of the first executed code cell to the first picture."""
    begin = _time_of(cells[0], "iopub.execute_input")
    for cell in cells:
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data or "<svg" in data.get("text/html", ""):
                return (_time_of(cell, "iopub.status.idle") - begin).total_seconds()
    raise Wrong("it has no picture")


def run(path: Path) -> Run:
    """Run a lesson as JupyterLab's "Run All Cells" does, without its exercises' solutions."""
    if not Path("/proc/self/status").exists():
        raise Missing("the peak of a kernel's memory is read from /proc")
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    notebook.cells.append(nbformat.v4.new_code_cell(LAST))  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as state:  # does not change the user's progress
        client = NotebookClient(
            notebook,
            timeout=HANGS_S,
            kernel_name="python3",
            resources={"metadata": {"path": str(path.parent)}},
            store_widget_state=False,
        )
        try:
            client.execute(env={**os.environ, "XDG_STATE_HOME": state})
        except CellExecutionError as error:
            raise Wrong(f"a cell failed: {error.ename}: {error.evalue}") from error
    last = notebook.cells[-1]
    begin, end = _time_of(cells[0], "iopub.execute_input"), _time_of(cells[-1], "iopub.status.idle")
    peak_kib = int("".join(output.text for output in last.outputs))
    return Run(first_picture_s(cells), (end - begin).total_seconds(), peak_kib * 1024 / 1e6)


def _time_of(cell: Any, event: str) -> datetime:
    return datetime.fromisoformat(cell.metadata.execution[event])


def sides(
    path: Path, value: Callable[[Run], float]
) -> Callable[[Session], AbstractContextManager[Sides]]:
    """Return the measurement of one of the three figures; the first in a round runs the lesson."""

    @contextmanager
    def measured(session: Session) -> Iterator[Sides]:
        runs = session.resource(path, _runs)
        rounds = itertools.count()

        def once() -> float:
            number = 0 if session.short else next(rounds)
            if number == len(runs):
                runs.append(run(path))
            return value(runs[number])

        yield Sides(once, None)

    return measured


@contextmanager
def _runs() -> Iterator[list[Run]]:
    yield []


def figures(path: Path) -> tuple[Figure, ...]:
    """Return the three figures of a lesson."""
    number, _, words = path.stem.partition("_")
    title, name = f"{number} {words.replace('_', ' ')}", f"lessons.{path.stem}"
    return (
        Figure(
            f"{name}.picture", f"{title}: until the first picture", "s", "lower", "none",
            (value_at_most(FIRST_PICTURE_S),), sides(path, lambda run: run.first_picture_s),
        ),
        Figure(
            f"{name}.whole", f"{title}: from top to bottom", "s", "lower", "none",
            (value_at_most(WHOLE_S),), sides(path, lambda run: run.whole_s),
        ),
        Figure(
            f"{name}.peak", f"{title}: peak memory of the kernel", "MB", "lower", "none",
            (value_at_most(PEAK_MB),), sides(path, lambda run: run.peak_mb),
        ),
    )  # fmt: skip


FIGURES = tuple(figure for path in NOTEBOOKS for figure in figures(path))
