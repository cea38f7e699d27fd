"""The chart of a finished report in JupyterLab: alive on the page, a picture in the file."""

from __future__ import annotations

import json

import pytest

from tests.lab.test_lab_lesson import MODEL, notebook_of

pytestmark = [
    pytest.mark.lab,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


def test_a_finished_report_answers_and_is_saved_as_a_picture(open_notebook):
    name = "chart.ipynb"
    opened = open_notebook(
        name,
        notebook_of(
            "%load_ext nbtriton", MODEL, "report = %triton_perf slow -c 1,2,4 --request-count 200"
        ),
    )
    opened.run_all()
    opened.wait_done()
    opened.assert_clean()
    output = opened.output("%triton_perf")
    chart = output.locator(".nbt-perf.nbt-on")
    chart.wait_for()
    point = chart.locator(".nbt-point[tabindex='0']").filter(visible=True)
    point.focus()
    assert chart.locator(".nbt-tip strong").inner_text() == "concurrency 1"
    opened.page.keyboard.press("ArrowRight")
    assert chart.locator(".nbt-tip strong").inner_text() == "concurrency 2"
    assert chart.locator("tr.nbt-lit").filter(visible=True).get_attribute("data-point") == "1"
    # The kernel has the batches of that level.
    opened.page.keyboard.press("Enter")
    details = chart.locator(".nbt-details")
    details.locator("svg").wait_for()
    assert "batch" in details.locator("svg").text_content()
    opened.screenshot("chart-open-light", output)
    opened.theme("JupyterLab Dark")
    opened.page.locator("body[data-jp-theme-light=false]").wait_for(state="attached")
    opened.screenshot("chart-open-dark", output)

    opened.save()
    saved = json.loads((opened.lab.root / name).read_text())
    bundles = [o.get("data", {}) for cell in saved["cells"] for o in cell["outputs"]]
    (html,) = ("".join(b["text/html"]) for b in bundles if "nbt-perf" in str(b.get("text/html")))
    for live in ("<script", "tabindex", "nbt-on", "nbt-tip"):
        assert live not in html
    read = open_notebook("chart-reopened.ipynb", saved)
    picture = read.output("%triton_perf").locator(".nbt-perf")
    picture.locator("svg:visible").first.wait_for()
    assert "concurrency" in picture.inner_text()


def test_comparisons_predictions_and_a_live_view_answer_and_copy_their_cell(open_notebook):
    opened = open_notebook(
        "charts.ipynb",
        notebook_of(
            "%load_ext nbtriton\nimport nbtriton as nt",
            MODEL,
            "watch = %triton_watch slow",
            "report = %triton_perf slow -c 1,2 --request-count 200",
            "%triton_profile slow",
            "%triton_whatif slow -c 1,2",
            'nt.compare({"instances": 1}, {"instances": 2}, server=nt.server(), model="slow", concurrency=2,\n'
            "           request_count=50, rounds=2)",
        ),
    )
    page = opened.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.run_all()
    opened.wait_done()
    opened.assert_clean()

    # The measurement lies beneath the prediction: at one load the crosshair has a line of each.
    predicted = opened.output("%triton_whatif").locator(".nbt-chart.nbt-on")
    predicted.locator(".nbt-point[tabindex='0']").filter(visible=True).focus()
    page.keyboard.press("ArrowRight")
    tip = predicted.locator(".nbt-tip")
    assert tip.locator("strong").inner_text() == "concurrency 2"
    assert ["predicted" in line for line in tip.locator("tr").all_inner_texts()].count(True) == 1
    assert tip.locator("tr").count() == 2
    assert "times the predicted throughput" in opened.output("%triton_whatif").inner_text()
    opened.screenshot("chart-whatif", opened.output("%triton_whatif"))

    compared = opened.output("nt.compare").locator(".nbt-chart.nbt-on")
    assert "instances=2" in opened.output("nt.compare").inner_text()
    compared.locator(".nbt-point[tabindex='0']").filter(visible=True).focus()
    page.keyboard.press("ArrowRight")
    assert compared.locator(".nbt-tip strong").inner_text() == "round 2"
    opened.screenshot("chart-compare", opened.output("nt.compare"))

    keep = opened.output("watch = %triton_watch").locator(".nbt-keep")
    keep.locator("summary").click()
    keep.get_by_role("button", name="copy the configuration cell").click()
    page.wait_for_function(
        "async () => (await navigator.clipboard.readText()).startsWith('%%triton_config slow')"
    )
