"""The quickstart, executed in a real kernel."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "01_quickstart.ipynb"
PEAK = "import resource\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
THREADS = (
    "import threading\n"
    "%unload_ext nbtriton\n"
    "print([t.name for t in threading.enumerate() if t.name.startswith('nbtriton')])"
)


def execute(notebook: nbformat.NotebookNode) -> None:
    NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(QUICKSTART.parent)}},
        # As JupyterLab saves it: without the state of widgets.
        store_widget_state=False,
    ).execute()


@pytest.fixture(scope="module")
def executed() -> nbformat.NotebookNode:
    """All cells, all of them once more in the same kernel, then what the kernel has used."""
    notebook = nbformat.read(QUICKSTART, as_version=4)
    again = [nbformat.from_dict({**cell, "id": f"again-{cell.id}"}) for cell in notebook.cells]
    asked = [nbformat.v4.new_code_cell(source) for source in (PEAK, THREADS)]
    both = nbformat.from_dict({**notebook, "cells": [*notebook.cells, *again, *asked]})
    execute(both)
    return both


@pytest.fixture(scope="module")
def first(executed) -> nbformat.NotebookNode:
    """The first run alone, as a person would save it."""
    count = (len(executed.cells) - 2) // 2
    return nbformat.from_dict({**executed, "cells": executed.cells[:count]})


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def stream(cell: nbformat.NotebookNode) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def find(notebook: nbformat.NotebookNode, text: str) -> nbformat.NotebookNode:
    return next(cell for cell in code_cells(notebook) if text in cell.source)


def shown(cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output.data for output in cell.outputs if "data" in output]


def test_it_is_committed_without_outputs():
    notebook = nbformat.read(QUICKSTART, as_version=4)
    assert all(not cell.outputs and not cell.execution_count for cell in code_cells(notebook))
    assert QUICKSTART.stat().st_size < 30_000


def test_nothing_goes_to_stderr_or_fails(executed):
    for cell in code_cells(executed):
        for output in cell.outputs:
            assert output.output_type != "error", cell.source
            assert output.get("name") != "stderr", output.text


def test_loading_is_silent(first):
    assert code_cells(first)[0].outputs == []


def accuracies(cell: nbformat.NotebookNode) -> list[float]:
    """The first percentage of each line that has one."""
    return [float(number) for number in re.findall(r"(?m)^[^%\n]*?: (\d+\.\d)%", stream(cell))]


@pytest.mark.parametrize("cell", ["digit_network = fit(", "server.submit("])
def test_held_out_accuracy_is_above_95_percent(first, cell):
    said = accuracies(find(first, cell))
    assert len(said) == 2
    assert min(said) > 95


def test_the_server_answers_as_the_networks_do(first):
    trained = accuracies(find(first, "digit_network = fit("))
    served = accuracies(find(first, "server.submit("))
    assert served == pytest.approx(trained, abs=0.05)


def test_the_graph_has_every_form(first):
    (data,) = shown(find(first, "%triton_dag"))
    assert set(data) >= {"text/plain", "text/html", "image/svg+xml"}
    for name in ("IMAGE", "preprocessed_image", "CLASSIFICATION", "SEGMENTATION"):
        assert name in data["text/plain"]


def test_one_request_says_where_the_time_went(first):
    (data,) = shown(find(first, "%triton_infer"))
    assert "compute infer" in data["text/html"]
    assert "compute infer" in data["text/plain"]


def test_live_views_have_become_pictures(first):
    for text in ("%triton_watch", "alone = %triton_perf", "report = %triton_perf"):
        (data,) = shown(find(first, text))
        assert "<svg" in data["text/html"]
        assert "<table" in data["text/html"]
        assert "text/plain" in data
    for cell in code_cells(first):
        for data in shown(cell):
            assert "application/vnd.jupyter.widget-view+json" not in data


def test_it_says_what_batching_and_instances_bring(first):
    report, summary = find(first, "report = %triton_perf"), find(first, "frame = report.frame")
    text = shown(report)[0]["text/plain"]
    assert "dynamic batching" in text
    assert "instances" in text
    said = re.search(r"([\d.]+) x the throughput, p99 ([\d.]+) -> ([\d.]+) ms", stream(summary))
    assert said
    assert "<table" in shown(summary)[0]["text/html"]


def test_it_ends_with_threads_and_processes_side_by_side(first):
    report, summary = find(first, "turns = %triton_perf"), code_cells(first)[-1]
    assert summary.source.startswith("frame = turns.frame")
    text = shown(report)[0]["text/plain"]
    assert re.search(r"\b1\s+thread\b", text)
    assert re.search(r"\b2\s+process\b", text)
    said = shown(summary)[0]["text/plain"]
    assert "interpreter wait [%]" in said
    assert said.count("thread") == said.count("process") == 1  # one group of rows each


def test_it_stays_small(first):
    pictures = sum(len(d.get("image/png", "")) for cell in code_cells(first) for d in shown(cell))
    assert len(nbformat.writes(first)) - pictures < 300_000
    assert pictures < 150_000


def test_it_needs_less_than_a_gigabyte(executed):
    assert int(stream(executed.cells[-2])) < 1024


def test_nothing_runs_on_after_it(executed):
    assert stream(executed.cells[-1]).strip() == "[]"
