"""The tools that run and convert notebooks: papermill and jupytext."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CELLS = [
    'concurrency = "1"',
    "%load_ext nbtriton",
    '%%triton_model double --max-batch-size 4\ndef double(IN: "FP32[2]") -> {"OUT": "FP32[2]"}:\n'
    '    return {"OUT": IN * 2}',
    "report = %triton_perf double -c {concurrency} --request-count 20\n"
    "print(len(report.points))",
]


def test_papermill_runs_a_notebook_with_its_parameters_that_jupytext_has_kept(
    tmp_path: Path,
) -> None:
    import jupytext
    import nbformat
    import papermill
    from nbformat.v4 import new_code_cell, new_notebook

    cells = [new_code_cell(text) for text in CELLS]
    cells[0].metadata["tags"] = ["parameters"]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = new_notebook(cells=cells, metadata={"kernelspec": kernel})
    script = tmp_path / "story.py"
    jupytext.write(notebook, script, fmt="py:percent")
    kept = jupytext.read(script)
    assert [cell.source for cell in kept.cells] == CELLS
    nbformat.write(kept, tmp_path / "story.ipynb")
    done = papermill.execute_notebook(
        str(tmp_path / "story.ipynb"), str(tmp_path / "done.ipynb"),
        parameters={"concurrency": "1,2"}, progress_bar=False,
    )  # fmt: skip
    printed = [
        output.text for cell in done.cells for output in cell.get("outputs", ()) if "text" in output
    ]
    assert printed == ["2\n"]
    assert not [cell for cell in done.cells if cell.metadata.papermill.get("exception")]
