"""The timeline in a real browser, on a stub model: zoomed, walked through, read in every host."""

from __future__ import annotations

import base64

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.backends.python import install_pb_utils
from nbtriton.lab.explain.timeline import read_timeline
from nbtriton.widgets.publisher import Hub
from nbtriton.widgets.timeline import LiveTimeline, live_timeline
from tests.engine.support import WAIT_S, Gate, echo, gated
from tests.page.conftest import frame_text
from tests.until import until

pytestmark = pytest.mark.browser

RECORD_TEXT = """() => {
  window.texts = [];
  const draw = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
    window.texts.push(text);
    draw.call(this, text, ...at);
  };
}"""
ROW = np.ones((1, 4), np.float32)


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
    return {"OUT": IN * 2}


@pytest.fixture(scope="module")
def view():
    with nt.Server(gpus=()) as server:
        server.load(
            "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 2000 }"
            "instance_group [{ count: 2 kind: KIND_CPU }]",
            model=double,
            name="digits",
        )
        for many in (1, 3, 5, 8, 2, 6):
            for future in [server.submit("digits", {"IN": ROW}) for _ in range(many)]:
                future.result()
        found = LiveTimeline(read_timeline(server, "digits"), on_hub=Hub(threaded=False))
        found.handle_message({"kind": "open", "view": "v"})
        found.short = read_timeline(server, "digits", 1.0)
        yield found


def sentence(page):
    return page.locator(".nbt-timeline-finding").inner_text()


def test_it_begins_with_the_stretch_that_was_asked_for(open_view, view):
    """As the picture in the file does; all that is recorded is a key away."""
    asked = LiveTimeline(view.short, on_hub=Hub(threaded=False))
    asked.handle_message({"kind": "open", "view": "v"})
    page = open_view(asked)
    assert "within 1 ms" in sentence(page).replace(".00", "")
    seen = sentence(page).partition(" within")[0]
    assert seen == view.short.finding.partition(" within")[0]
    page.locator("canvas.nbt-timeline-lanes").focus()
    page.keyboard.press("0")
    assert not sentence(page).startswith(seen)
    page.keyboard.press("f")
    assert sentence(page).startswith(seen)


def test_it_zooms_pans_and_shows_the_times_of_a_request(open_view, view):
    page = open_view(view)
    assert sentence(page).startswith("digits: ")
    assert page.locator(".nbt-timeline-legend li").count() >= 1
    canvas = page.locator("canvas.nbt-timeline-lanes")
    canvas.focus()
    page.keyboard.press("0")
    whole = sentence(page)
    page.keyboard.press("ArrowRight")
    first = page.locator(".nbt-timeline-life").inner_text()
    assert "Request" in first
    assert "it rode in a batch of" in first
    page.keyboard.press("ArrowRight")
    assert page.locator(".nbt-timeline-life").inner_text() != first
    page.keyboard.press("Escape")
    assert page.locator(".nbt-timeline-life").inner_text() == ""
    for _ in range(3):
        page.keyboard.press("+")
    near = sentence(page)
    assert near != whole
    page.keyboard.press("0")
    assert sentence(page) == whole
    # A brush over the middle selects, one key zooms to it; then the wheel and the buttons.
    box = canvas.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.4, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, y)
    page.mouse.up()
    assert sentence(page) == whole
    page.keyboard.press("z")
    brushed = sentence(page)
    assert brushed != whole
    # Out again, to where there is more to see: when the batches were, nobody knows.
    assert until(lambda: page.mouse.wheel(0, 300) or sentence(page) != brushed)
    page.get_by_role("button", name="all that is recorded").click()
    assert sentence(page) == whole
    page.get_by_text("Save", exact=True).click()
    page.get_by_role("button", name="trace for Perfetto").click()
    assert page.evaluate("sent.some(word => word.kind === 'trace')")


def test_a_long_pause_takes_no_room_in_the_overview(open_view, view):
    numbers = np.frombuffer(view.frame).copy()
    batches = int(numbers[2])
    last = 8 + 10 * batches
    lanes, requests = numbers[8:last].reshape(-1, 10), numbers[last:].reshape(-1, 8)
    # Batches end a millisecond apart, whatever the machine did, and 100 s lie between their halves.
    ends = np.sort(lanes[:, 3])
    places = ends[0] + np.arange(batches) + 100_000.0 * (np.arange(batches) >= batches // 2)
    for rows, times in ((lanes, (2, 3)), (requests, (2, 3, 4))):
        at = np.searchsorted(ends, rows[:, times[-1]]).clip(max=batches - 1)
        rows[:, times] = places[at, None] - (0.8, 0.5, 0.0)[-len(times) :]
    lanes[:, 7] = 0.1  # how long its first request waited: a busy machine records any number
    numbers[0] += 1
    page = open_view(view)
    page.evaluate(RECORD_TEXT)
    page.evaluate("frame => put({ frame })", base64.b64encode(numbers.tobytes()).decode())
    canvas, head = (
        page.locator("canvas.nbt-timeline-lanes"),
        page.locator("canvas.nbt-timeline-head"),
    )
    canvas.focus()
    page.keyboard.press("0")
    page.wait_for_function("texts.includes('100 s')")
    for _ in range(10):
        page.keyboard.press("+")
    assert "no batch" in sentence(page)
    box = head.bounding_box()
    # At both sides of the break there are batches, however long the pause between them.
    for share in (0.3, 0.9):
        page.mouse.click(box["x"] + box["width"] * share, box["y"] + 10)
        assert "no batch" not in sentence(page), share


@pytest.mark.parametrize("width", [600, 900, 1600])
def test_text_on_the_canvas_is_never_small(open_view, view, width):
    page = open_view(view, width=width)
    # What is drawn after this is measured.
    sizes = page.evaluate(
        """() => {
          const found = [], draw = CanvasRenderingContext2D.prototype.fillText;
          CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
            const scale = this.getTransform().a / devicePixelRatio;
            found.push([parseFloat(this.font.match(/[0-9.]+px/)[0]) * scale, text, x,
              this.measureText(text).width, this.textAlign]);
            draw.call(this, text, x, y);
          };
          document.querySelector("canvas.nbt-timeline-lanes").focus();
          document.querySelector("button[aria-label='zoom out']").click();
          return found;
        }"""
    )
    assert len(sizes) > 5
    assert min(size for size, *_ in sizes) >= 11
    shown = page.locator("canvas.nbt-timeline-lanes").bounding_box()
    assert shown["width"] <= width
    for _, text, x, wide, align in sizes:
        left = x - {"center": wide / 2, "right": wide}.get(align, 0)
        assert left >= -1, text
        assert left + wide <= shown["width"] + 1, text


@pytest.mark.parametrize("host", ["plain-dark", "lab-light", "lab-dark", "vscode-dark"])
def test_text_and_ink_stand_out_in_every_host(open_view, contrasts, serious, view, host):
    page = open_view(view, host)
    weak = [(text, round(ratio, 2)) for text, ratio in contrasts(page) if ratio < 4.5]
    assert not weak
    assert serious(page) == []


def test_frames_add_to_what_was_sent(open_view, view):
    page = open_view(view)
    before = sentence(page)
    # The same frame once more changes nothing: each is read once.
    page.evaluate("frame => { for (let i = 0; i < 3; i++) put({ frame }); }", frame_text(view))
    page.wait_for_function("sent.some(word => word.kind === 'ack')")
    assert sentence(page) == before


@pytest.mark.parametrize("host", ["plain-light", "plain-dark"])
def test_a_model_that_hangs_has_an_open_bar_that_says_for_how_long(open_view, host):
    install_pb_utils()
    gate = Gate()
    with nt.Server(gpus=()) as server:
        server.load(echo(), gated(gate), name="slow")
        futures = [server.submit("slow", {"IN": ROW}) for _ in range(5)]
        gate.wait_entered()
        found = live_timeline(server, "slow", on_hub=Hub(threaded=False))
        found.handle_message({"kind": "open", "view": "v"})
        found.refresh()
        page = open_view(found, host)
        said = sentence(page)
        page.locator("canvas.nbt-timeline-lanes").focus()
        page.keyboard.press("ArrowRight")
        life = page.locator(".nbt-timeline-life").inner_text()
        gate.open()
        for future in futures:
            future.result(WAIT_S)
        found.close()
    assert said.startswith("slow: 1 batch running, for up to ")
    assert said.endswith(", 4 requests waiting")
    assert "not answered yet" in life
    assert "has run" in life
