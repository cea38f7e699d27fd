"""The picture of requests and batches over time."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nbtriton.drawing.numbers import MISSING
from nbtriton.drawing.scene import text_width, to_svg
from nbtriton.drawing.timeline import Bar, Mark, TimelineLanes, Wait, timeline_scenes, timeline_text

SVG = "{http://www.w3.org/2000/svg}"
FULL = Mark("F", "s1", "full")
IDLE = Mark("I", "s2", "an instance was idle")
MODEL = TimelineLanes(
    "digits",
    ("digits_0", "digits_1"),
    (
        Bar(0, 0.0, 40.0, 1, 1, IDLE),
        Bar(1, 20.0, 60.0, 8, 8, FULL, 20.0),
        Bar(0, 40.0, 41.0, 2, 1, FULL, 12.0, failed=True),
    ),
    (Wait(0.0, 0.0, 0), Wait(5.0, 20.0, 1, "request 2"), Wait(6.0, 20.0, 1), Wait(9.0, 50.0, -1, "", True)),
)  # fmt: skip


def drawn(*models, span_ms=100.0, finding="digits: 3 batches"):
    return ET.fromstring(to_svg(timeline_scenes(models, span_ms=span_ms, finding=finding)[1]))


def roles(root, role):
    return [e for e in root.iter() if e.get("data-role") == role]


def test_every_batch_is_a_bar_with_its_reason_and_every_request_a_line():
    root = drawn(MODEL)
    bars = roles(root, "batch")
    assert [bar.get("data-reason") for bar in bars] == ["I", "F", "F"]
    widths = [float(bar.get("width")) for bar in bars]
    assert widths[0] == widths[1] > 20 * widths[2]
    titles = [bar.find(f"{SVG}title").text for bar in bars]
    assert titles[1] == "F: full. 8 rows of 8 requests, 40.0 ms, the oldest waited 20.0 ms"
    assert titles[2].endswith(", failed")
    assert len(roles(root, "wait")) == 4
    assert len(roles(root, "drop")) == 3  # one never got to an instance
    words = [e.text for e in root.iter(f"{SVG}text")]
    assert {"I 1", "F 8", "digits_0", "F  full"} <= set(words)


def test_batches_that_share_a_lane_at_a_time_share_its_height_and_have_no_text():
    bars = (
        Bar(0, 30, 70, 2, 2, FULL), Bar(0, 0, 40, 1, 1, IDLE), Bar(0, 40, 50, 4, 4, IDLE),
        Bar(0, 70, 99, 3, 3, IDLE), Bar(1, 0, 99, 5, 5, FULL), Bar(0, 0, 40, 1, 1, IDLE),
    )  # fmt: skip
    root = drawn(TimelineLanes("m", ("m", "n"), bars, ()))
    words = {e.text for e in root.iter(f"{SVG}text")}
    assert {"I 3", "F 5"} <= words
    assert not {"I 1", "F 2", "I 4"} & words
    boxes = [
        [float(e.get(name)) for name in ("x", "y", "width", "height")] for e in roles(root, "batch")
    ]
    assert [round(20 / box[3]) for box in boxes] == [3, 3, 3, 1, 1, 3]
    for one, other in itertools.combinations(boxes, 2):
        side = one[0] + one[2] <= other[0] + 0.01 or other[0] + other[2] <= one[0] + 0.01
        assert side or one[1] + one[3] <= other[1] + 0.01 or other[1] + other[3] <= one[1] + 0.01


def test_text_is_never_smaller_than_11_px_and_no_two_meet():
    crowd = tuple(Wait(float(n % 7), 90.0, 0) for n in range(80))
    models = [
        TimelineLanes(f"a very long name of a model {n}", ("x" * 60,), MODEL.bars[:1], crowd)
        for n in range(3)
    ]
    root = drawn(*models, finding="a sentence that is rather long " * 8)
    boxes = []
    for e in root.iter(f"{SVG}text"):
        size = float(e.get("font-size"))
        assert size >= 11
        width = text_width(e.text, size, bold=e.get("font-weight") is not None)
        x = float(e.get("x")) - {"middle": width / 2, "end": width}.get(e.get("text-anchor"), 0)
        y = float(e.get("y"))
        assert x >= -1
        assert x + width <= float(root.get("width")) + 1
        assert y <= float(root.get("height"))
        boxes.append((x, x + width, y - size * 0.75, y))
    for one, other in itertools.combinations(boxes, 2):
        apart = one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]
        assert apart, (one, other)
    assert any("56 more requests" in (e.text or "") for e in root.iter(f"{SVG}text"))


@given(st.lists(st.tuples(st.floats(-50, 150), st.floats(0, 100), st.integers(0, 1)), max_size=40))
def test_nothing_is_drawn_outside_the_plot(spans):
    bars = tuple(Bar(lane, begin, begin + took, 3, 2, FULL) for begin, took, lane in spans)
    waits = tuple(Wait(begin - took, begin, lane) for begin, took, lane in spans)
    root = drawn(TimelineLanes("m", ("a", "b"), bars, waits))
    for e in (*roles(root, "batch"), *roles(root, "wait")):
        assert 150 <= float(e.get("x")) <= 784
        assert float(e.get("x")) + float(e.get("width")) <= 944 + 1.5


def test_the_text_form_has_a_lane_of_letters_and_the_batches():
    text = timeline_text([MODEL], span_ms=100.0, finding="digits: 3 batches")
    lines = text.splitlines()
    assert lines[0] == "digits: 3 batches"
    assert lines[2].startswith("digits_0 |I──────")
    assert lines[3].startswith("digits_1 |            F─────")
    assert "100 ms" in lines[4]
    assert text.count("full") == 2


def test_models_whose_names_differ_at_their_ends_are_told_apart():
    models = [replace(MODEL, name=f"compute_model_{n}_of_the_pair") for n in range(2)]
    for scene in timeline_scenes(models, span_ms=100.0, finding="two"):
        words = [e.text for e in ET.fromstring(to_svg(scene)).iter(f"{SVG}text")]
        assert {one.name for one in models} <= set(words)


def test_what_has_not_ended_has_a_ragged_edge_and_says_so():
    goes_on = TimelineLanes(
        "slow", ("slow_0",), (Bar(0, 10.0, 28_000.0, 1, 1, IDLE, open=True),),
        (Wait(0.0, 28_000.0, -1, open=True),),
    )  # fmt: skip
    root = drawn(goes_on, span_ms=28_000.0)
    assert len(roles(root, "open")) == 2
    assert "I 1 · running 28 s" in [e.text for e in root.iter(f"{SVG}text")]
    (bar,) = roles(root, "batch")
    assert "running for 28 s" in bar.find(f"{SVG}title").text
    assert not roles(drawn(MODEL), "open")
    lines = timeline_text([goes_on], span_ms=28_000.0, finding="slow").splitlines()
    assert lines[2].endswith("──>|")
    assert f" {MISSING} " in lines[-1]  # it took nobody knows how long


def test_nothing_recorded_is_a_picture_too():
    assert "nothing is recorded" in to_svg(
        timeline_scenes([], span_ms=0.0, finding="m: no batch")[-1]
    )
    assert timeline_text([], span_ms=0.0, finding="m: no batch").startswith("m: no batch")
