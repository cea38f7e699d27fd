"""The pages that run in a browser alone: their notebooks need no thread, no socket and no compiled package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "lite" / "contents").glob("*.ipynb"))


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Return what came of each notebook, run in one process as a browser would have to."""
    scratch = tmp_path_factory.mktemp("lite")
    program = Path(__file__).with_name("in_a_browser.py")
    environment = {
        **os.environ,
        # A compiled core is not what a browser has.
        "PYTHONPATH": str(ROOT / "src"),
        "IPYTHONDIR": str(scratch / "ipython"),
        "XDG_STATE_HOME": str(scratch / "state"),
        # The wheel of a browser is pure Python.
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python",
    }
    done = subprocess.run(
        [sys.executable, program, *NOTEBOOKS],
        cwd=scratch, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads((scratch / "result.json").read_text("utf-8"))


@pytest.mark.medium
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_cells_run_without_threads_and_its_exercises_mark(path, executed):
    found = executed[str(path)]
    assert found["errors"] == []
    pictures = [data for data in found["shown"] if "<svg" in data.get("text/html", "")]
    assert len(pictures) >= 3
    assert found["marks"]
    for name, marks in found["marks"]:
        *wrong, right = marks
        assert wrong, name
        assert not any(wrong), name
        assert right is True, name


@pytest.mark.medium
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_committed_without_output(path):
    import nbformat  # and with it jsonschema: two seconds

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < 40_000
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None


def test_each_page_leads_to_one_that_exists():
    names = {path.name for path in NOTEBOOKS}
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text())["cells"]:
            linked = [part.partition(")")[0] for part in "".join(cell["source"]).split("](")[1:]]
            assert {one for one in linked if one.endswith(".ipynb")} <= names
