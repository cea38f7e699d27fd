"""A lesson as a reader runs it: its own cells in one kernel, with every exercise solved where it stands."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

from tests.kernels import ARGUMENTS, over_ipc

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
# What the kernel has used, and what of nbtriton runs on after the extension is unloaded.
LAST = """
import json, threading
get_ipython().run_line_magic("unload_ext", "nbtriton")
own = [t for t in threading.enumerate() if t.name.startswith("nbtriton")]
for thread in own:
    thread.join(30)  # it may be on its way out
left = [t.name for t in own if t.is_alive()]
print(json.dumps({"mib": peak_kib // 1024, "left": left}))
"""
# A task is solved by the cell that its solution is, an answer by its expression.
SOLVE = """
import ast, json
def _solve(exercise, experiment, shell=get_ipython()):
    from time import monotonic
    end_s = monotonic() + 200
    def marked(answer):
        while True:
            mark = shell.run_line_magic("triton_check", f"{{exercise.name}} {{answer}}")
            if "machine was busy" not in mark.feedback or monotonic() > end_s:
                return [mark.correct, mark.feedback]
            for cell in experiment:  # as the mark asks for
                shell.run_cell(cell).raise_error()
    wrong = [marked(mistake) for mistake in exercise.mistakes]
    unlisted = None
    if exercise.is_task:
        wrong.append(marked(""))
        shell.run_cell(exercise.solution).raise_error()
    else:
        form = type(ast.literal_eval(exercise.example))
        unlisted = marked({{list: "[7, 7, 7]", str: "'other'"}}.get(form, "77777"))
    right = marked("" if exercise.is_task else exercise.solution)
    print(json.dumps({{"name": exercise.name, "wrong": wrong, "right": right, "unlisted": unlisted,
                      "solution": exercise.solution}}))
_solve({name}, {experiment!r})
"""


class Lesson:
    """An executed notebook."""

    def __init__(self, path: Path, state: Path) -> None:
        # Here, as nbformat imports jsonschema, which takes two seconds of each process that only collects the tests.
        import nbformat
        from nbclient import NotebookClient

        from bench.lessons import PEAK

        self.state = state
        self.source = nbformat.read(path, as_version=4)
        cells: list[Any] = []
        sources = [""]
        for cell in self.source.cells:
            cells.append(nbformat.from_dict(cell))
            if cell.cell_type == "code":
                sources.append(cell.source)
            for name in asked(cell):
                code = SOLVE.format(name=name, experiment=sources[-2:])
                cells.append(nbformat.v4.new_code_cell(code, id=f"solve-{name}"))
        cells.append(nbformat.v4.new_code_cell(PEAK + LAST, id="last"))
        self.notebook = nbformat.from_dict({**self.source, "cells": cells})
        started = time.monotonic()
        with over_ipc() as config:
            NotebookClient(
                self.notebook,
                timeout=300,
                kernel_name="python3",
                config=config,
                startup_timeout=120,
                extra_arguments=ARGUMENTS,
                resources={"metadata": {"path": str(path.parent)}},
                # As JupyterLab saves it: without the state of widgets.
                store_widget_state=False,
            ).execute(env={**_environment(), "XDG_STATE_HOME": str(state)})
        self.took_s = time.monotonic() - started

    @property
    def code_cells(self) -> list[Any]:
        """The lesson's own, as a reader would save them."""
        return [
            cell
            for cell in self.notebook.cells
            if cell.cell_type == "code" and not re.match("solve-|last", cell.id)
        ]

    @property
    def solved(self) -> list[dict[str, Any]]:
        """What became of each exercise."""
        cells = [cell for cell in self.notebook.cells if cell.id.startswith("solve-")]
        return [json.loads(stream(cell).splitlines()[-1]) for cell in cells]

    @property
    def last(self) -> dict[str, Any]:
        return json.loads(stream(self.notebook.cells[-1]).splitlines()[-1])

    def find(self, text: str) -> Any:
        return next(cell for cell in self.code_cells if text in cell.source)

    def first_picture_s(self) -> float:
        """Seconds from the start of the first cell until the first picture is there."""
        from bench.lessons import first_picture_s

        return first_picture_s(self.code_cells)


def asked(cell: Any) -> list[str]:
    """The exercises that a cell marks."""
    if cell.cell_type != "code":
        return []
    return re.findall(r"^(?:\w+ = )?%triton_check (\w+)\b(?! +--)", cell.source, re.MULTILINE)


def stream(cell: Any) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def shown(cell: Any) -> list[Any]:
    return [output.data for output in cell.outputs if "data" in output]


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}
