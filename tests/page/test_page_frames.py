"""The frames of a stream in a real browser: the picture, what stands over it, and that it can be read."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.widgets.publisher import Hub
from tests.page.conftest import HOSTS
from tests.widgets.test_widgets_frames import CONFIG, street

pytest.importorskip("PIL", reason="Pillow is not installed")

from nbtriton.extensions.show.view import FramesView

pytestmark = pytest.mark.browser


@pytest.fixture
def view():
    model = street()
    model.go.set()
    with nt.Server(gpus=()) as server:
        server.load(CONFIG, model, name="street")
        found = FramesView(server, "street", {"COUNT": [5]}, ["car"], on_hub=Hub(threaded=False))
        assert found.ended.wait(60)
        found.refresh()
        yield found


def pixel(page):
    """The colour in the middle of the picture that the page shows, once it is decoded."""
    page.evaluate(
        """async () => {
          const picture = new Image();
          picture.src = document.querySelector("#w image").getAttribute("href");
          await picture.decode();
          for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
        }"""
    )
    from PIL import Image

    shot = page.locator("#w svg").screenshot()
    image = np.asarray(Image.open(io.BytesIO(shot)).convert("L"))
    return int(image[image.shape[0] // 2, image.shape[1] // 2])


@pytest.mark.parametrize("host", HOSTS)
def test_frames_and_their_boxes_are_shown_in_every_host(open_view, contrasts, serious, view, host):
    page = open_view(view, host)
    page.wait_for_function("document.querySelectorAll('#w text').length == 2")
    assert page.locator("#w text").all_text_contents() == ["car #5", "class 1"]
    assert page.locator("#w svg").get_attribute("viewBox") == "0 0 100 60"
    assert not [text for text, ratio in contrasts(page) if ratio < 4.5 and "frame" in text]
    assert not serious(page)


def test_the_next_frame_takes_the_place_of_the_one_before(open_view, view):
    from PIL import Image

    page = open_view(view)
    assert abs(pixel(page) - 160) < 12
    kept = io.BytesIO()
    Image.new("RGB", (100, 60), (20, 20, 20)).save(kept, "JPEG")
    changes = {"over": [], "sentence": "street: frame 5", "frame": base64.b64encode(kept.getvalue()).decode()}  # fmt: skip
    before = page.locator("#w image").get_attribute("href")
    page.evaluate("put", changes)
    page.wait_for_function("href => document.querySelector('#w image').getAttribute('href') != href", arg=before)  # fmt: skip
    page.wait_for_function("!document.querySelector('#w text')")
    assert page.locator("#w .nbt-frames-words").text_content() == "street: frame 5"
    assert pixel(page) < 40


def test_leaving_the_page_leaves_nothing_behind(open_view, view):
    page = open_view(view)
    assert page.evaluate("listeners()") > 0
    page.evaluate("cleanup()")
    assert page.evaluate("listeners()") == 0
    assert page.evaluate("document.getElementById('w').children.length") == 0


@pytest.mark.parametrize("host", HOSTS)
def test_what_is_saved_is_the_picture(open_html, view, host):
    page = open_html(view.static().html, host)
    assert page.locator("svg image").count() == 1
    assert page.locator("svg text").all_text_contents() == ["car #5", "class 1"]
