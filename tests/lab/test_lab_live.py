"""Live views as a reader meets them: saved while live, reopened, after the kernel has gone."""

from __future__ import annotations

import json

import pytest

from tests.lab.test_lab_lesson import MODEL, WIDGET, distinct, first_text, notebook_of

pytestmark = [
    pytest.mark.lab,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

TRAFFIC = """\
import threading, time
def traffic(seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        server.infer("slow", {"IN": np.ones((2, 4), np.float32)})
        time.sleep(0.02)
thread = threading.Thread(target=traffic, daemon=True)
thread.start()
"""


def test_a_notebook_saved_while_live_opens_with_a_picture_and_a_dead_kernel_is_told(open_notebook):
    name = "live.ipynb"
    opened = open_notebook(
        name,
        notebook_of(
            "%load_ext nbtriton\nimport numpy as np, nbtriton as nt\nserver = nt.server()",
            MODEL,
            "watch = %triton_watch slow",
            "stream = %triton_timeline slow --live",
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

    # The timeline is zoomed and walked through while it moves.
    stream = opened.output("%triton_timeline")
    stream.locator("canvas").wait_for()
    finding = stream.locator(".nbt-timeline-finding")
    assert len(distinct(page, lambda: first_text(finding), 3)) == 3
    stream.get_by_role("button", name="zoom in").click()
    still = finding.inner_text()
    stream.locator("canvas").focus()
    page.keyboard.press("ArrowRight")
    assert "it rode in a batch of" in stream.locator(".nbt-timeline-life").inner_text()
    assert finding.inner_text() == still
    opened.screenshot("live-timeline-light", stream)
    # JupyterLab's other theme, and back: the ink on the canvas changes with it.
    for theme, scheme in (("JupyterLab Dark", "dark"), ("JupyterLab Light", "light")):
        page.keyboard.press("Control+Shift+C")
        page.locator("input.lm-CommandPalette-input:visible").fill(theme)
        page.locator(".lm-CommandPalette-item:visible", has_text=theme).first.click()
        page.wait_for_function(
            "scheme => document.querySelector('.nbt-timeline.nbt-root').style.colorScheme === scheme",
            arg=scheme,
        )
        opened.screenshot(f"live-timeline-{scheme}", stream)

    opened.save()
    saved = json.loads((opened.lab.root / name).read_text())
    assert WIDGET not in json.dumps(saved["cells"])
    read = open_notebook("reopened.ipynb", saved)
    picture = read.output("%triton_watch")
    picture.locator("svg").first.wait_for()
    assert "READY" in picture.inner_text()
    assert read.page.get_by_text("Error displaying widget").count() == 0
    read.screenshot("live-watch-reopened", picture)
    assert "slow" in read.output("%triton_timeline").locator("svg").first.text_content()

    page.get_by_role("button", name="Restart the kernel", exact=True).click()
    page.get_by_role("button", name="Confirm Kernel Restart").click()
    watch.get_by_text("kernel gone").wait_for()
    opened.screenshot("live-watch-kernel-gone", watch)
    # The next test's kernels are started where none is still starting.
    page.get_by_role("button", name="Python 3 (ipykernel) | Idle").wait_for()
