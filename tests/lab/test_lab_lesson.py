"""The lesson about ensembles and its widgets in a real JupyterLab."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.lab.conftest import PATIENCE_MS
from tests.until import until

pytestmark = [
    pytest.mark.lab,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

LESSON = Path(__file__).parents[2] / "notebooks" / "01_five_cells.ipynb"
WIDGET = "application/vnd.jupyter.widget-view+json"
MODEL = """\
%%triton_model slow --max-batch-size 8
import time
def slow(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    time.sleep(0.002)
    return {"OUT": IN * 2}
"""
TRAFFIC = """\
import threading
over = threading.Event()  # or the kernel's end
def traffic():
    while not over.wait(0.02):
        server.infer("slow", {"IN": np.ones((2, 4), np.float32)})
thread = threading.Thread(target=traffic, daemon=True)
thread.start()
"""


def notebook_of(*cells: str) -> dict[str, Any]:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": kernel},
        "cells": [
            {
                "cell_type": "code",
                "id": f"c{number}",
                "metadata": {},
                "outputs": [],
                "execution_count": None,
                "source": source,
            }
            for number, source in enumerate(cells)
        ],
    }


def distinct(page: Any, read: Any, enough: int, seconds: float = PATIENCE_MS / 1000) -> list[str]:
    """The first `enough` different texts that `read` returns."""
    seen: list[str] = []
    deadline = time.monotonic() + seconds
    while len(seen) < enough and time.monotonic() < deadline:
        text = read()
        if text and text not in seen:
            seen.append(text)
        page.wait_for_timeout(50)
    return seen


def first_text(locator: Any) -> str:
    texts = locator.all_inner_texts()
    return texts[0] if texts else ""


def press_stop(sweep: Any) -> None:
    """Press Stop; once more where the page moved the button while it was pressed."""
    button = sweep.get_by_role("button", name="Stop", exact=True)
    button.click()
    if not until(lambda: not button.count()):
        button.click()


def screenshots_of_results(opened: Any, theme: str) -> None:
    assert opened.page.locator("body").get_attribute("data-jp-theme-light") == (
        "true" if theme == "light" else "false"
    )
    for text, what in (
        ("%triton_timeline", "timeline"),
        ("both = %triton_perf", "report"),
        ("%triton_dag", "graph"),
        ("image = np.random", "result"),
    ):
        opened.screenshot(f"lesson-{what}-{theme}", opened.output(text))


def test_the_lesson_runs_and_its_widgets_move(open_notebook):
    name = "lesson.ipynb"
    # Windows of a second, or a page that stands for a moment misses a whole sweep.
    lesson = LESSON.read_text().replace("measurement-interval 250", "measurement-interval 1000")
    opened = open_notebook(name, json.loads(lesson))
    shutil.copytree(LESSON.parent / "exercises", opened.lab.root / "exercises", dirs_exist_ok=True)
    opened.record()
    opened.run_all()
    sweep = opened.output("report = %triton_perf")
    sweep.locator(".nbt-curve:visible").first.wait_for()  # live, or at rest already
    opened.screenshot("lesson-sweep-live", sweep)

    opened.wait_done()
    # While the sweeps ran, their progress and their pictures moved.
    for text, said in (
        ("report = %triton_perf", "concurrency"),
        ("both = %triton_perf", "batching"),
    ):
        shown = opened.recorded(text)
        assert len([line for line in shown["lines"] if said in line]) >= 2, shown
        assert len(shown["points"]) >= 2, shown
    opened.assert_clean()
    for text in ("report = %triton_perf", "both = %triton_perf"):
        output = opened.output(text)
        output.scroll_into_view_if_needed()
        assert output.locator("svg").count() >= 1, text
        assert output.locator(".nbt-curve-stop, .nbt-host").count() == 0, text
    screenshots_of_results(opened, "light")
    summary = opened.output("claim(said, both)").inner_text()
    assert re.search(r"[\d.]+ times the throughput", summary)

    opened.save()
    saved = json.loads((opened.lab.root / name).read_text())
    kinds = {kind for cell in saved["cells"] for o in cell.get("outputs", []) for kind in o.get("data", {})}  # fmt: skip
    assert WIDGET not in kinds
    assert {"text/html", "image/svg+xml", "text/plain"} <= kinds

    # Reopened, by a reader with the other theme: all measurements are shown without running a cell.
    read = open_notebook(name, saved, "JupyterLab Dark")
    for text in ("%triton_timeline", "both = %triton_perf", "%triton_dag"):
        output = read.output(text)
        output.scroll_into_view_if_needed()
        output.locator("svg:visible").first.wait_for()  # a graph has one for each width
    assert read.page.get_by_text("Error displaying widget").count() == 0
    screenshots_of_results(read, "dark")


def test_a_watch_moves_while_load_runs_in_another_cell(open_notebook):
    opened = open_notebook(
        "watch.ipynb",
        notebook_of(
            "%load_ext nbtriton\nimport numpy as np, nbtriton as nt",
            MODEL,
            "watch = %triton_watch slow",
            "graph = %triton_dag slow --live",
            "report = %triton_perf slow -c 8:500 --request-count 2000",
            "watch.stop(); graph.stop()",
        ),
        "JupyterLab Dark",
    )
    page = opened.page
    opened.run_all()
    watch = opened.output("%triton_watch")
    watch.locator(".nbt-root").wait_for(state="attached")
    pictures = distinct(page, lambda: first_text(watch.locator(".nbt-root")), 4)
    assert len(pictures) == 4
    paths = distinct(
        page,
        lambda: str(watch.locator("svg path").evaluate_all("all => all.map(p => p.getAttribute('d'))")),
        3,
    )  # fmt: skip
    assert len(paths) == 3
    opened.screenshot("watch-live-dark", watch)
    opened.screenshot("graph-live-dark", opened.output("%triton_dag"))
    press_stop(opened.output("%triton_perf"))
    opened.wait_done()
    opened.assert_clean()
    for text in ("%triton_watch", "%triton_dag"):
        assert opened.output(text).locator("svg").count() >= 1
        assert opened.output(text).locator(".nbt-host").count() == 0
    assert "READY" in watch.inner_text()


def test_the_stop_button_ends_the_sweep_and_keeps_what_was_measured(open_notebook):
    opened = open_notebook(
        "stop.ipynb",
        notebook_of(
            "%load_ext nbtriton",
            MODEL,
            "report = %triton_perf slow -c 1:500 --request-count 1000",
            "print('interrupted', report.interrupted, 'points', len(report.points) > 0)",
            "%triton_infer slow IN=[[1, 2, 3, 4]]",
        ),
    )
    opened.run_all()
    sweep = opened.output("%triton_perf")
    # At least one level was measured; minutes of them are ahead. No windows: one without an answer would
    # end the sweep on a busy machine.
    opened.page.wait_for_function(
        "() => /level ([2-9]|\\d\\d)/.test(document.querySelector('.nbt-curve-line')?.textContent ?? '')"
    )
    opened.screenshot("stop-live", sweep)
    press_stop(sweep)
    opened.wait_done()
    opened.assert_clean()
    assert "interrupted True points True" in opened.output("print('interrupted'").inner_text()
    assert "interrupted" in sweep.inner_text()
    assert sweep.locator("svg").count() >= 1
    assert "2, 4, 6, 8" in opened.output("%triton_infer").inner_text()
