"""What the views of a notebook say of a model that hangs, of one at rest, and of one that fails."""

from __future__ import annotations

import re

import pytest

from tests.lab.test_lab_lesson import MODEL, notebook_of

pytestmark = [
    pytest.mark.lab,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

HUNG = """\
%%triton_model hung --max-batch-size 8
import threading
released = threading.Event()
def hung(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    released.wait()
    return {"OUT": IN}
"""
FAILS = """\
%%triton_model a_model_that_fails --max-batch-size 8
def a_model_that_fails(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    if IN[0, 0]:
        raise ValueError("no")
    return {"OUT": IN}
"""
ENSEMBLE = """\
%%triton_ensemble both --max-batch-size 8
OUT = a_model_that_fails(IN=x)
DONE = slow(IN=OUT)
"""
FAILURES = """\
for n in range(1000):
    try:
        server.infer("both", {"x": np.full((1, 4), n, np.float32)})
    except nt.TritonError:
        pass
"""
ASKED = ("watch = %triton_watch hung", "%triton_timeline hung", "%triton_why hung",
         "%triton_events hung", "%triton_dag hung")  # fmt: skip
# The words of a picture that reach over the box that they stand in, or over the picture.
BEYOND = """svg => [...svg.querySelectorAll("text")].filter((text) => {
    const box = text.closest(".nbt-node")?.querySelector("rect") ?? svg;
    const [inner, outer] = [text.getBoundingClientRect(), box.getBoundingClientRect()];
    return inner.width && (inner.left < outer.left - 0.5 || inner.right > outer.right + 0.5);
}).map((text) => text.textContent)"""

# When all was read: three seconds later the watch is at rest.
RELEASE = """() => {
    const { kernel } = jupyterapp.shell.currentWidget.sessionContext.session;
    return kernel.requestExecute({ code: "released.set()" }).done.then(() => {});
}"""


def test_a_model_that_hangs_is_no_silence_a_rest_has_a_rate_and_failures_fit_their_box(
    open_notebook,
):
    opened = open_notebook(
        "truth.ipynb",
        notebook_of(
            "%load_ext nbtriton\nimport numpy as np, nbtriton as nt\nserver = nt.server()",
            MODEL,
            HUNG,
            FAILS,
            ENSEMBLE,
            "rest = %triton_watch slow",
            'for _ in range(100): server.infer("slow", {"IN": np.ones((2, 4), np.float32)})',
            FAILURES,
            "%triton_dag both",
            'inside = [server.submit("hung", {"IN": np.ones((1, 4), np.float32)}) for _ in range(5)]',
            *ASKED,
        ),
    )
    opened.run_all()
    opened.wait_done()
    opened.assert_clean()
    for cell in ASKED:
        output = opened.output(cell)
        output.locator("svg:visible, table:visible, .nbt-why").first.wait_for()
        said = output.inner_text().lower()
        assert not re.search(r"no request|no batch|nothing(?! has ended)", said), (cell, said)
    opened.page.evaluate(RELEASE)

    graph = opened.output("%triton_dag both").locator("svg:visible").first
    assert "999 failed" in graph.text_content()
    assert graph.evaluate(BEYOND) == []

    watch = opened.output("rest = %triton_watch")
    watch.get_by_text("at rest since").wait_for()
    finding = watch.locator(".nbt-finding").inner_text()
    (rate,) = re.findall(r"up to ([\d.\u202f]+)/s", finding)
    assert float(rate.replace("\u202f", "")) > 0
    opened.screenshot("truth-watch-at-rest", watch)
    opened.screenshot("truth-failures", opened.output("%triton_dag both"))
