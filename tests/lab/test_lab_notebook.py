"""Notebook 7: the same views in the shell of one document."""

from __future__ import annotations

import pytest

from tests.lab.conftest import Opened
from tests.lab.test_lab_lesson import MODEL, TRAFFIC, distinct, first_text, notebook_of

pytest.importorskip("notebook", reason="Notebook 7 is not installed")

pytestmark = [
    pytest.mark.lab,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

# What a picture is written with, and the card below it.
COLOURS = """svg => [svg.querySelector("text"), svg.querySelector("rect")].map(
    (shape) => getComputedStyle(shape).fill.match(/[\\d.]+/g).slice(0, 3).map(Number))"""


class Classic(Opened):
    """One notebook open in Notebook 7, which the server of JupyterLab has beside it."""

    # Of its own at load, also with an empty notebook (7.6.5): its settings, and commands of JupyterLab that it lacks.
    known_errors = ("Cannot read properties of undefined (reading 'schema')", "not registered.")

    def open(self) -> None:
        self.start_kernel()
        self.page.goto(f"{self.lab.url}/notebooks/{self.name}?token={self.lab.token}")
        self.wait_idle()

    def close(self) -> bool:
        return False


def test_views_live_and_at_rest_in_notebook_7(open_notebook):
    opened = open_notebook(
        "classic.ipynb",
        notebook_of(
            "%load_ext nbtriton\nimport numpy as np, nbtriton as nt\nserver = nt.server()",
            MODEL,
            "watch = %triton_watch slow",
            TRAFFIC,
            "report = %triton_perf slow -c 1:2 --instances 1,2 --request-count 500",
            "%triton_dag slow",
            "%triton_timeline slow",
            "over.set()\nthread.join()",
        ),
        kind=Classic,
    )
    page = opened.page
    opened.run_all()
    watch = opened.output("%triton_watch").locator(".nbt-host")
    assert len(distinct(page, lambda: first_text(watch), 4)) == 4
    opened.wait_done()
    opened.assert_clean()
    report = opened.output("%triton_perf")
    report.locator("svg:visible").first.wait_for()
    dag = opened.output("%triton_dag")
    dag.locator("svg:visible").first.wait_for()
    # The finished chart has a crosshair and a legend.
    chart = report.locator(".nbt-chart.nbt-on")
    point = chart.locator(".nbt-point[tabindex='0']").filter(visible=True)
    point.focus()
    page.keyboard.press("ArrowRight")
    chart.locator(".nbt-tip strong", has_text="concurrency 2").wait_for()
    legend = chart.locator(".nbt-legend").filter(visible=True).first
    legend.click()
    assert "nbt-off" in legend.get_attribute("class")
    # What is selected in the timeline is selected in the watch.
    opened.output("%triton_timeline").locator("canvas.nbt-timeline-lanes").press("s")
    watch.get_by_text("selected: ").wait_for()
    for theme in ("Dark", "Light"):
        opened.theme(f"JupyterLab {theme}")
        page.wait_for_function(
            "light => document.body.dataset.jpThemeLight === light",
            arg=str(theme == "Light").lower(),
        )
        for output in (watch, report, dag):
            ink, paper = output.locator("svg:visible").first.evaluate(COLOURS)
            assert (sum(paper) > sum(ink)) == (theme == "Light"), (ink, paper)
        opened.screenshot(f"notebook-7-{theme.lower()}")
