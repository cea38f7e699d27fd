"""The README's example runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kernels import ARGUMENTS, over_ipc

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_example_runs(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(b) for b in blocks])
    with over_ipc() as config:
        NotebookClient(
            notebook, timeout=120, startup_timeout=120, kernel_name="python3", config=config,
            extra_arguments=ARGUMENTS, resources={"metadata": {"path": str(tmp_path)}},
        ).execute()  # fmt: skip
    outputs = [[o.output_type for o in cell.outputs] for cell in notebook.cells]
    # The third cell ends in a picture.
    assert any("<svg" in o.get("data", {}).get("text/html", "") for o in notebook.cells[2].outputs)
    # One request, one measurement: each shows its result.
    assert {"execute_result", "display_data"} & set(outputs[6])
    assert {"execute_result", "display_data"} & set(outputs[7])
    assert notebook.cells[8].outputs[0].text == "[[2. 2. 2. 2.]]\n1\n"
    assert not any(o.get("name") == "stderr" for cell in notebook.cells for o in cell.outputs)
