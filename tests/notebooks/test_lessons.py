"""Every notebook, executed once in a real kernel; its exercises solved, and failed by wrong answers."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from tests.notebooks.lessons import NOTEBOOKS, Lesson, asked, shown, stream

ALL = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.mark.medium
@pytest.mark.parametrize("name", ALL)
def test_it_is_committed_as_a_lesson(name):
    import nbformat

    path = NOTEBOOKS / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < 40_000
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs, cell.source
            assert cell.execution_count is None, cell.source
            assert len(cell.source.splitlines()) <= 64, cell.source
            # A page of 1280 pixels beside JupyterLab's file browser has room for 105 characters.
            assert max(map(len, cell.source.splitlines())) <= 100, cell.source
    assert any(asked(cell) for cell in notebook.cells), "it has no exercise"


# By what a section of Triton's tutorials is about: the lesson whose cells do it, and how.
SECTIONS = {
    "instances on GPUs": ("02_concurrent_execution", "gpus: [ 0, 1 ]"),
    "global resources": ("02_concurrent_execution", "global: true"),
    "preserve_ordering": ("04_queues", "preserve_ordering: true"),
    "optimization": ("06_slow_requests", "optimization {"),
    "input_map": ("07_ensembles", "input_map"),
    "finalize": ("09_conversations", "def finalize"),
    "a stateful model inside an ensemble": ("09_conversations", "%%triton_ensemble listener"),
    "backend stub and environment": ("11_readability", "EXECUTION_ENV_PATH"),
    "FORCE_CPU_ONLY_INPUT_TENSORS": ("11_readability", "FORCE_CPU_ONLY_INPUT_TENSORS"),
    "ragged batches": ("13_configuration", "allow_ragged_batch: true"),
    "versions": ("14_lifecycle", "version_policy"),
    "warm-up": ("14_lifecycle", "model_warmup"),
    "response cache": ("14_lifecycle", "response_cache"),
    "clients over HTTP and gRPC": ("15_production", "tritonclient.{protocol}"),
    "shared memory": ("15_production", "SharedMemoryPool"),
    "perf_analyzer": ("15_production", "perf_analyzer"),
    "video and tracking": ("17_street", "bytetrack"),
}


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_of_the_tutorials_has_its_cell(section):
    name, words = SECTIONS[section]
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert any(words in source for source in code)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Return a function that runs a lesson, each once for all tests of this file."""
    return cache(
        lambda name: Lesson(NOTEBOOKS / f"{name}.ipynb", tmp_path_factory.mktemp(name) / "state")
    )


def pictures_of(cell) -> int:
    return sum("image/png" in data or "<svg" in data.get("text/html", "") for data in shown(cell))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ALL)
def test_it_runs_and_its_exercises_mark(name, executed):
    import nbformat

    lesson = executed(name)
    print(f"{name}: first picture after {lesson.first_picture_s():.1f} s, all within {lesson.took_s:.0f} s")  # fmt: skip
    for cell in lesson.code_cells:
        for output in cell.outputs:
            assert output.output_type != "error", cell.source
            assert output.get("name") != "stderr", (cell.source, output.text)
        for data in shown(cell):
            # Live views have become pictures.
            assert WIDGET not in data, cell.source
    own = [cell for cell in lesson.notebook.cells if not re.match("solve-|last", cell.id)]
    drawn = [cell.cell_type == "code" and pictures_of(cell) > 0 for cell in own]
    assert 3 * (drawn.index(True) + 1) <= len(own), "its first picture comes late"
    for one in lesson.solved:
        assert one["wrong"], f"{one['name']} has no wrong answer to be tested with"
        for correct, feedback in one["wrong"]:
            assert correct is False, one
            assert len(feedback) > 10, one
        assert one["right"][0] is True, one
        if one["unlisted"] is not None:
            correct, feedback = one["unlisted"]
            assert correct is False, one
            given_away = re.search(rf"(?<!\w){re.escape(one['solution'])}(?!\w)", feedback)
            assert not given_away, one
    assert (lesson.state / "nbtriton" / "exercises.json").is_file()
    pictures = sum(len(d.get("image/png", "")) for cell in lesson.code_cells for d in shown(cell))
    own = nbformat.from_dict({**lesson.notebook, "cells": lesson.code_cells})
    assert len(nbformat.writes(own)) - pictures < 700_000
    assert pictures < 300_000
    assert lesson.last["mib"] < 1024
    assert lesson.last["left"] == []


def test_readers_are_led_from_one_to_the_next():
    paths = [Path(path) for path in NOTEBOOKS.glob("*.ipynb")]
    assert len(paths) >= len(ALL)
    for path in paths:
        text = path.read_text()
        for name in ALL:
            stem = name.split("_", 1)[0]
            if f"({stem}_" in text:
                assert f"({name}.ipynb)" in text, (path.name, name)


# --- ensembles, with real models ---------------------------------------------------------------


@pytest.fixture
def ensembles(executed):
    return executed("07_ensembles")


def accuracies(cell) -> list[float]:
    """The first percentage of each line that has one."""
    return [float(number) for number in re.findall(r"(?m)^[^%\n]*?: (\d+\.\d)%", stream(cell))]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_server_answers_as_the_trained_networks_do(ensembles):
    trained = accuracies(ensembles.find("digit_network = fit("))
    served = accuracies(ensembles.find("server.submit("))
    assert len(trained) == 2
    assert min(trained) > 95
    assert served == pytest.approx(trained, abs=0.05)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_it_shows_has_every_form(ensembles):
    (graph,) = shown(ensembles.find("%triton_dag"))
    assert set(graph) >= {"text/plain", "text/html", "image/svg+xml"}
    for name in ("IMAGE", "preprocessed_image", "CLASSIFICATION", "SEGMENTATION"):
        assert name in graph["text/plain"]
    steps, result = shown(ensembles.find("%triton_infer"))
    assert 'data-role="batch"' in steps["text/html"]
    for form in ("text/plain", "text/html"):
        assert "compute infer" in result[form]
    for text in ("%triton_watch", "alone = %triton_perf", "report = %triton_perf"):
        data, *batches = shown(ensembles.find(text))
        assert all('data-role="batch"' in one["text/html"] for one in batches)
        assert len(batches) == ("triton_perf" in text)
        assert "<svg" in data["text/html"]
        assert "<table" in data["text/html"]
        assert "text/plain" in data


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_its_prose_has_the_numbers_of_its_tables(ensembles):
    report, summary = (
        ensembles.find("report = %triton_perf"),
        ensembles.find("frame = report.frame"),
    )
    text = shown(report)[0]["text/plain"]
    assert "dynamic batching" in text
    assert "instances" in text
    said = re.search(r"([\d.]+) x the throughput, p99 ([\d.]+) -> ([\d.]+) ms", stream(summary))
    assert said
    table = shown(summary)[0]["text/plain"]
    for number in said.groups():
        assert any(abs(float(number) - float(cell)) <= 0.05 + 1e-9 for cell in re.findall(r"[\d.]+", table))  # fmt: skip
    assert "the bottleneck" in stream(ensembles.find("nt.why("))
