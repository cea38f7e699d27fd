"""Live views as a reader meets them: saved while live, reopened, after the kernel has gone."""

from __future__ import annotations

import json

import pytest

from tests.lab.conftest import PATIENCE_MS
from tests.lab.test_lab_lesson import MODEL, TRAFFIC, WIDGET, distinct, first_text, notebook_of
from tests.until import until

pytestmark = [
    pytest.mark.lab,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

FIGURE = """\
figure = nt.lessons.figure("one_instance")
figure
"""


# The comms that the kernel has.
COMMS = """async () => {
    const { kernel } = jupyterapp.shell.currentWidget.sessionContext.session;
    return Object.keys((await kernel.requestCommInfo({})).content.comms).length;
}"""
# Run the cell that holds a text so many times again.
AGAIN = """async ([text, times]) => {
    const notebook = jupyterapp.shell.currentWidget.content;
    notebook.activeCellIndex = notebook.widgets.findIndex(
        (cell) => cell.model.sharedModel.getSource().includes(text));
    for (let i = 0; i < times; i++) await jupyterapp.commands.execute("notebook:run-cell");
}"""


def held(page):
    """The nodes that the page's process holds, detached ones too, and the kernel's comms."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return session.send("Memory.getDOMCounters")["nodes"], page.evaluate(COMMS)


def moved_on(page, from_ms):
    """The arrival of the request that has the focus, once it is later than that."""

    def at_ms():
        return float(page.evaluate("document.activeElement?.dataset.at ?? -1"))

    assert until(lambda: at_ms() > from_ms, PATIENCE_MS / 1000)
    return at_ms()


def test_a_notebook_saved_while_live_opens_with_a_picture_and_a_dead_kernel_is_reported(
    open_notebook,
):
    name = "live.ipynb"
    opened = open_notebook(
        name,
        notebook_of(
            "%load_ext nbtriton\nimport numpy as np, nbtriton as nt\nserver = nt.server()",
            MODEL,
            "watch = %triton_watch slow",
            "stream = %triton_timeline slow --live",
            "table = %triton_status --live",
            FIGURE,
            TRAFFIC,
        ),
    )
    page = opened.page
    opened.run_all()
    watch = opened.output("%triton_watch")
    watch.locator(".nbt-host").wait_for()
    assert len(distinct(page, lambda: first_text(watch.locator(".nbt-host")), 4)) == 4
    opened.wait_done()
    opened.screenshot("live-watch-light", watch)

    # Fifty-one re-runs of cells leave at most two comms, and no view: each has hundreds of nodes. The first run
    # of each cell is left out, as JupyterLab keeps some 260 nodes of its own where the active cell changes.
    before = held(page)[1]
    for text in ("%triton_watch", "%triton_timeline", "nt.lessons.figure"):
        page.evaluate(AGAIN, [text, 1])
        nodes, _ = held(page)
        page.evaluate(AGAIN, [text, 17])
        kept = []
        most = nodes + 33, before + 2
        assert until(
            lambda k=kept, m=most: k.append(held(page)) or (k[-1][0] <= m[0] and k[-1][1] <= m[1])
        ), (most, kept)

    # The timeline is zoomed and walked through while it moves.
    stream = opened.output("%triton_timeline")
    stream.locator("canvas.nbt-timeline-lanes").wait_for()
    finding = stream.locator(".nbt-timeline-finding")
    assert len(distinct(page, lambda: first_text(finding), 3)) == 3
    newest = stream.get_by_role("button", name="follow the newest")
    zoom = stream.get_by_role("button", name="zoom in")
    assert until(lambda: zoom.click() or newest.get_attribute("aria-pressed") == "false")
    life = stream.locator(".nbt-timeline-life")
    canvas = stream.locator("canvas.nbt-timeline-lanes")
    assert until(lambda: canvas.press("ArrowRight") or "it rode in a batch of" in life.inner_text())
    still = finding.inner_text()
    assert len(distinct(page, lambda: first_text(watch.locator(".nbt-host")), 3)) == 3
    assert finding.inner_text() == still
    opened.screenshot("live-timeline-light", stream)
    # A figure is changed on the page: it runs anew, and what has the focus keeps it.
    figure = opened.output("nt.lessons.figure").locator(".nbt-host")
    figure.get_by_text("slow has 1 instance").wait_for()
    figure.get_by_label("instances").fill("2")
    figure.get_by_label("instances").press("Enter")
    figure.get_by_text("slow has 2 instances").wait_for()
    figure.locator(".nbt-life[data-client='3']").focus()
    at_ms = 0.0
    for _ in range(2):  # the second key goes to what has the focus after the first
        page.keyboard.press("ArrowRight")
        at_ms = moved_on(page, at_ms)
    changed = figure.locator(".nbt-figure-finding").inner_text()
    opened.screenshot("live-figure-light", figure)
    # JupyterLab's other theme, and back: the ink on the canvas changes with it.
    for theme, scheme in (("JupyterLab Dark", "dark"), ("JupyterLab Light", "light")):
        opened.theme(theme)
        page.wait_for_function(
            "scheme => document.querySelector('.nbt-timeline.nbt-root')?.style.colorScheme === scheme",
            arg=scheme,
        )
        opened.screenshot(f"live-timeline-{scheme}", stream)

    opened.save()
    saved = json.loads((opened.lab.root / name).read_text())
    assert WIDGET not in json.dumps(saved["cells"])
    read = open_notebook("reopened.ipynb", saved)
    picture = read.output("%triton_watch")
    picture.locator("svg:visible").first.wait_for()
    assert "READY" in picture.inner_text()
    assert read.page.get_by_text("Error displaying widget").count() == 0
    read.screenshot("live-watch-reopened", picture)
    assert "slow" in read.output("%triton_timeline").locator("svg").first.text_content()
    # What is saved of the figure is the change.
    (cell,) = (one for one in saved["cells"] if "nt.lessons.figure" in "".join(one["source"]))
    assert changed in "".join(cell["outputs"][0]["data"]["text/plain"])
    read.output("nt.lessons.figure").locator("svg:visible").first.wait_for()

    page.get_by_role("button", name="Restart the kernel", exact=True).click()
    page.get_by_role("button", name="Confirm Kernel Restart").click()
    watch.get_by_text("kernel gone").wait_for()
    opened.output("%triton_status").get_by_text("kernel gone").wait_for()
    opened.screenshot("live-watch-kernel-gone", watch)
    # The next test's kernels are started where none is still starting.
    opened.wait_idle()
