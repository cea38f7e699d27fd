"""The latency/throughput curve."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from nbtriton.drawing import Point, Series, curve_finding, curve_svg, curve_text
from nbtriton.drawing.curve import curve_scene
from tests.widgets.samples import sweep

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg):
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter(f"{SVG}text")]


def test_each_percentile_has_its_own_dash_and_marker():
    root = ET.fromstring(curve_svg(sweep()))
    series = [g for g in root.iter(f"{SVG}g") if g.get("class") == "nbt-series"]
    assert [g.get("data-series") for g in series] == [one.name for one in sweep()]
    lines = [p for p in series[0].iter(f"{SVG}path") if "nbt-line" in p.get("class", "")]
    assert len({line.get("stroke-dasharray") for line in lines}) == 3
    assert len({line.get("stroke") for line in lines}) == 1


def test_loads_units_and_percentiles_are_written():
    written = texts(curve_svg(sweep(), title="digits"))
    assert "digits" in written
    assert "throughput, inferences per second" in written
    assert any(text.startswith("latency, ms") for text in written)
    assert written.count("16") == 2
    assert {"p50", "p90", "p99"} <= set(written)


def test_far_apart_latencies_get_a_log_axis_that_says_so():
    near = Series("m", (Point(1, 10, {50: 1.0}), Point(2, 20, {50: 2.0})))
    far = Series("m", (Point(1, 10, {50: 1.0}), Point(2, 20, {50: 200.0})))
    assert "latency, ms" in texts(curve_svg([near]))
    assert "latency, ms (log scale)" in texts(curve_svg([far]))


def test_the_finding_names_the_best_load_and_its_cost():
    said = curve_finding(sweep()[1:])
    assert "up to 1\u202f670 infer/s at concurrency 16" in said
    assert "p99 13.0 ms" in said
    assert said in ET.fromstring(curve_svg(sweep()[1:])).get("aria-label")


def test_nothing_measured_yet():
    for series in ((), (Series("m"),)):
        assert "nothing measured yet" in texts(curve_svg(series))
        assert curve_finding(series) == "nothing measured yet"
    assert curve_text(()) == "nothing measured yet"


def test_text_has_a_row_per_load(golden):
    golden("curve.txt", curve_text(sweep(), title="ensemble_model"))


values = st.floats(1e-6, 1e6) | st.just(0.0)
points = st.builds(
    Point,
    load=st.integers(1, 512),
    throughput=values,
    latency_ms=st.dictionaries(st.sampled_from([50, 90, 95, 99]), values, max_size=4),
)


@given(
    st.lists(
        st.builds(Series, st.text('ab<&"', max_size=40), st.tuples(points, points)), max_size=3
    )
)
@settings(max_examples=80, deadline=None)
def test_every_measurement_is_drawn_inside(series):
    svg = curve_svg(series)
    root = ET.fromstring(svg)
    assert "nan" not in svg
    assert "inf " not in svg
    width, height = float(root.get("width")), float(root.get("height"))
    for shape in curve_scene(series).walk():
        attrs = dict(shape.attrs)
        if shape.tag == "circle":
            assert 0 <= attrs["cx"] <= width
            assert 0 <= attrs["cy"] <= height


def test_labels_of_loads_do_not_lie_on_each_other():
    one = sweep()[0]
    crowded = replace(
        one, points=tuple(replace(p, load=p.load + k) for p in one.points for k in (0, 100))
    )
    spots = []
    for node in ET.fromstring(curve_svg([crowded])).iter(f"{SVG}text"):
        if node.get("font-size") == "10" and re.fullmatch(r"\d+", node.text or ""):
            spots.append((float(node.get("x")), float(node.get("y")), 6.4 * len(node.text)))
    assert spots
    for i, (x1, y1, w1) in enumerate(spots):
        for x2, y2, w2 in spots[i + 1 :]:
            assert x1 + w1 <= x2 or x2 + w2 <= x1 or abs(y1 - y2) >= 10
