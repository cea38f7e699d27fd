"""The static form of the live view of a server."""

from __future__ import annotations

import html
import itertools
import math
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtriton.drawing.activity import Lane, ModelActivity, batch_bins, bin_counts
from nbtriton.drawing.scene import text_width, to_json
from nbtriton.drawing.watch import (
    leading,
    watch_finding,
    watch_html,
    watch_scenes,
    watch_svg,
    watch_text,
)

SVG = "{http://www.w3.org/2000/svg}"
ACTIVE = ModelActivity(
    "digits",
    ages_s=(3.0, 2.0, 1.0, 0.0),
    depths=(0, 2, 8, 3),
    queued=3,
    executing=4,
    lanes=(Lane("digits_0_0", (0.0, 0.5, 1.0, 0.5), 4, 12, 0.5), Lane("digits_0_1", (0.0,) * 4)),
    bins=(("1", 2), ("2", 10)),
    infer_per_s=123.4,
    queue_ms=2.5,
    compute_ms=1.5,
    inference_count=1200,
    execution_count=300,
    mean_batch=4.0,
    drawn_inferences=1200,
    quiet_s=0.1,
)


@given(st.integers(0, 4096), st.dictionaries(st.integers(1, 5000), st.integers(1, 100)))
def test_every_execution_is_in_one_bar(max_batch_size, sizes):
    bins = batch_bins(max_batch_size)
    assert bins[0][0] == 1
    assert bins[-1][1] == max(1, max_batch_size)
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(bins))
    assert len(bins) <= 14
    assert sum(n for _, n in bin_counts(bins, sizes)) == sum(sizes.values())


def test_bars_double_beyond_a_dozen():
    assert batch_bins(32) == ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32))


def parts(role, **model):
    root = ET.fromstring(watch_svg([ACTIVE], **model))
    return [node for node in root.iter() if node.get("data-role") == role]


def test_the_queue_is_drawn_against_time():
    (line,) = parts("queue-line", span_s=4.0)
    # From a quarter of the width to the right edge; the scale's top is 8.
    assert line.get("d") == "M317.5 72.5V72.5H385.0V38.0H452.5V66.8H520.0"


def test_a_burst_is_not_drawn_across_the_pause_after_it():
    # Of a pause the recorder keeps its first and its last moment: the burst was before the first.
    paused = replace(ACTIVE, ages_s=(4.0, 3.0, 1.0, 0.0), depths=(0.0, 8.0, 0.0, 4.0))
    root = ET.fromstring(watch_svg([paused], span_s=4.0))
    (line,) = [node for node in root.iter() if node.get("data-role") == "queue-line"]
    assert line.get("d") == "M250.0 38.0V38.0H317.5V84.0H452.5V61.0H520.0"


def test_each_instance_has_a_lane_with_its_batch():
    assert len(parts("lane")) == 2
    assert [node.text for node in parts("lane-text")] == ["50% · batch 4", "0% · idle"]


def test_the_tallest_bar_fills_the_room():
    low, high = parts("bar")
    assert float(high.get("height")) == float(high.get("data-room"))
    assert float(low.get("height")) == round(float(high.get("data-room")) / 5, 2)


@pytest.mark.parametrize("width", range(3))
@pytest.mark.parametrize("sizes", [1, 8, 32])
def test_the_bars_fill_their_axis(width, sizes):
    bins = bin_counts(batch_bins(sizes), {sizes: 3})
    scene = watch_scenes([replace(ACTIVE, bins=bins)])[width]
    bars = [one[1] for one in map(to_json, scene.walk()) if one[1].get("data-role") == "bar"]
    (top,) = [one[1] for one in map(to_json, scene.walk()) if one[1].get("data-role") == "bar-top"]
    beyond = float(top["x"]) - float(bars[-1]["x"]) - float(bars[-1]["width"])
    assert 0 <= beyond < float(bars[-1]["width"])


def test_samples_older_than_the_span_are_left_out():
    (line,) = parts("queue-line", span_s=1.5)
    assert line.get("d").count("H") == 1


def test_many_instances_are_counted_beyond_eight():
    lanes = tuple(Lane(f"i{i}", ()) for i in range(11))
    svg = watch_svg([ModelActivity("big", lanes=lanes)])
    assert "and 3 more instances" in svg


def test_html_holds_the_numbers_as_a_table_too():
    page = watch_html([ACTIVE])
    assert '<table class="nbt-watch-table"' in page
    assert "1\u202f200" in page
    assert "<script" not in page


def test_text(golden):
    models = [ACTIVE, ModelActivity("idle", state="UNAVAILABLE")]
    golden("watch.txt", watch_text(models, "digits: 80% of a request's time is queue"))


STEP = replace(ACTIVE, name="step", drawn_inferences=10**6)
WHOLE = replace(ACTIVE, name="all", platform="ensemble", shares=(("step", 1.0),), quiet_s=0.1)
HUNG = replace(ACTIVE, name="hung", infer_per_s=0.0, stalled_s=28.3, queued=4, executing=1)
RESTED = replace(
    ACTIVE, quiet_s=10.2, queued=0, executing=0, drawn_inferences=52007, peak_per_s=9250.0
)

SAYS = {
    "traffic": ([ACTIVE], "digits: 80% of a request's time is queue"),
    "nothing comes out": ([ACTIVE, HUNG], "hung: nothing has ended for 28 s; 1 running, 4 waiting"),
    "nothing came out of the whole": (
        [replace(HUNG, name="all", platform="ensemble"), HUNG],
        "hung: nothing has ended for 28 s; 1 running, 4 waiting",
    ),
    "it has just begun": ([replace(HUNG, stalled_s=0.9)], "hung: 1 running, 4 waiting"),
    "at rest": (
        [RESTED],
        (
            "nothing for 10 s; in the 24 s before now digits had 52\u202f007 inferences, up to 9\u202f250/s. "
            "digits: 80% of a request's time is queue"
        ),
    ),
    "nothing for some seconds": (
        [replace(RESTED, infer_per_s=0.0, queue_ms=math.nan, compute_ms=math.nan, quiet_s=4.0)],
        (
            "nothing for 4 s; in the 24 s before now digits had 52\u202f007 inferences, up to 9\u202f250/s. "
            "digits: 80% of a request's time is queue"
        ),
    ),
    "never": ([ModelActivity("m")], "no request in the last 24 s"),
    "no model": ([], ""),
}


@pytest.mark.parametrize("situation", SAYS)
def test_the_sentence_is_of_what_is_drawn(situation):
    models, said = SAYS[situation]
    traffic = "digits: 80% of a request's time is queue"
    assert watch_finding(models, traffic, span_s=24.0) == said
    for form in (
        watch_text(models, traffic, span_s=24.0),
        watch_html(models, traffic, span_s=24.0),
    ):
        assert said in html.unescape(form)


def test_the_leading_model_is_the_one_whose_requests_take_the_most_time_and_no_step():
    assert leading([STEP, WHOLE]) is WHOLE
    assert leading([ACTIVE, STEP]) is STEP
    # The queues of its steps are the time of an ensemble.
    other = replace(ACTIVE, name="other", drawn_inferences=10)
    assert leading([WHOLE, STEP, other]) is WHOLE
    assert leading([replace(ACTIVE, drawn_inferences=0)]) is None


def test_what_no_request_had_is_a_dash():
    drawn = watch_svg([ModelActivity("m")])
    assert "wait \u2013 ms" in drawn
    assert "compute \u2013 ms" in drawn


def test_no_models():
    assert watch_text([]) == "no models are loaded"
    assert "no models are loaded" in watch_svg([])


def test_names_are_escaped():
    svg = watch_svg([ModelActivity("<script>", reason='"&')])
    assert "<script>" not in svg
    assert ET.fromstring(svg) is not None


def test_an_ensemble_shows_what_is_in_flight():
    svg = watch_svg([ModelActivity("all", platform="ensemble", ages_s=(0.0,), depths=(7,))])
    assert "requests in flight" in svg
    assert "queue depth" not in svg


def words(*models, **options):
    return [e.text for e in ET.fromstring(watch_svg(models, **options)).iter(f"{SVG}text")]


def test_the_first_and_the_last_bar_are_always_labelled():
    bins = bin_counts(batch_bins(32), {1: 1712})
    svg = ET.fromstring(watch_svg([replace(ACTIVE, bins=bins)]))
    found = {e.text: e for e in svg.iter(f"{SVG}text")}
    assert {"1", "17\u201332"} <= set(found)
    # The last one does not stand out of its card.
    end = float(found["17\u201332"].get("x")) + text_width("17\u201332", 11) / 2
    assert end <= float(found["1\u202f712"].get("x")) + 0.1


def test_an_ensemble_shows_its_steps_and_no_queue():
    shown = words(replace(ACTIVE, platform="ensemble", lanes=(), shares=(("a", 0.25), ("b", 0.75))))
    assert {"a", "b", "25%", "75%"} <= set(shown)
    assert not any((text or "").startswith(("wait", "batch sizes")) for text in shown)


def test_many_models_are_lines_and_fit_a_screen():
    models = [replace(ACTIVE, name=f"stage_{at:02}") for at in range(25)]
    root = ET.fromstring(watch_svg(models))
    assert float(root.get("height")) < 1000
    shown = [e.text for e in root.iter(f"{SVG}text")]
    assert {"stage_00", "stage_24", "busy 25%"} <= set(shown)


def test_text_is_never_smaller_than_11_px():
    for models in ([ACTIVE], [ACTIVE] * 25):
        root = ET.fromstring(watch_svg(models))
        assert "max-width:none" in root.get("style")
        assert min(float(e.get("font-size")) for e in root.iter(f"{SVG}text")) >= 11


def test_a_change_is_a_mark_in_the_strip_with_its_words():
    changed = replace(ACTIVE, changes=((2.0, "2 instances"),))
    (mark,) = [
        e
        for e in ET.fromstring(watch_svg([changed], span_s=4.0)).iter()
        if e.get("data-role") == "changes"
    ]
    assert mark.get("d").startswith("M385.0")
    assert "2 instances" in words(changed)
