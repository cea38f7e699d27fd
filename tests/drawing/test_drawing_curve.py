"""The latency/throughput curve."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtriton.drawing.curve import Point, Series, curve_finding, curve_limits, curve_text, top_of
from nbtriton.drawing.panels import curve_scene
from nbtriton.drawing.scene import to_svg
from nbtriton.widgets.static import curve_view
from tests.widgets.samples import sweep

SVG = "{http://www.w3.org/2000/svg}"


def drawn(series, **options):
    return to_svg(curve_scene(series, **options))


def texts(svg):
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter(f"{SVG}text")]


def groups(svg, cls):
    return [g for g in ET.fromstring(svg).iter(f"{SVG}g") if cls in (g.get("class") or "").split()]


def test_throughput_stands_above_latency_and_each_point_has_a_whisker():
    svg = drawn(sweep())
    series = groups(svg, "nbt-series")
    assert [g.get("data-series") for g in series] == [one.name for one in sweep()] * 2
    points = groups(svg, "nbt-point")
    assert len(points) == 2 * sum(len(one.points) for one in sweep())
    assert len(groups(svg, "nbt-hollow")) == 0
    whiskers = [p for p in ET.fromstring(svg).iter(f"{SVG}path") if "nbt-whisker" in p.get("class", "")]  # fmt: skip
    assert len(whiskers) == len(points) / 2


def test_axes_have_their_loads_and_units():
    written = texts(drawn(sweep(), title="digits"))
    assert "digits" in written
    assert "throughput, infer/s, against concurrency" in written
    assert "latency, ms (p50, whisker to p99, log scale), against concurrency" in written
    assert all(written.count(load) >= 2 for load in ("1", "2", "4", "8", "16"))


def test_latencies_below_a_millisecond_are_in_microseconds_everywhere():
    short = Series("m", (Point(1, 10, {50: 0.25, 99: 0.5}), Point(2, 20, {50: 0.3, 99: 0.6})))
    written = " ".join(texts(drawn([short])))
    assert "latency, µs" in written
    assert "p99 600 µs" in written
    assert "p99 µs" in curve_text([short])


def test_far_apart_latencies_get_a_log_axis_that_says_so():
    near = Series("m", (Point(1, 10, {50: 1.0}), Point(2, 20, {50: 2.0})))
    far = Series("m", (Point(1, 10, {50: 1.0}), Point(2, 20, {50: 200.0})))
    assert "latency, ms (p50), against concurrency" in texts(drawn([near]))
    assert "latency, ms (p50, log scale), against concurrency" in texts(drawn([far]))


def hollow():
    points = (
        Point(1, 100, {50: 2.0, 99: 3.0}, "stable", (99.0, 101.0)),
        Point(2, 190, {50: 2.0, 99: 4.0}, "unstable", (150.0, 230.0)),
        Point(4, 300, {50: 3.0, 99: 9.0}, "interrupted", (300.0,)),
    )
    return Series("m", points)


def test_what_is_not_stable_is_hollow_and_so_is_its_ring_where_it_is_the_highest():
    svg = drawn([hollow()])
    assert [g.get("data-load") for g in groups(svg, "nbt-hollow")] == ["2", "4"] * 2
    assert "range of its windows: 150 to 230 infer/s" in svg
    assert "hollow: unstable or interrupted, with the range of its windows" in texts(svg)[-1]
    assert "nbt-best" not in svg
    (ring,) = {node.get("stroke-dasharray") for node in rings(svg)}
    assert ring
    assert "dashed ring: highest, interrupted" in texts(svg)[-1]
    assert "2 of 3 levels not stable" in curve_finding([hollow()])
    first, second, _ = hollow().points
    low = replace(hollow(), points=(first, replace(second, load=8), replace(first, load=64)))
    assert "highest, not stable: 190 (150 to 230)" in texts(drawn([low]))


def rings(svg):
    return [
        node
        for node in ET.fromstring(svg).iter(f"{SVG}circle")
        if {"nbt-best", "nbt-highest"} & set(node.get("class", "").split())
    ]


def level(load, throughput, spread=0.01, **changes):
    windows = (throughput * (1 - spread), throughput, throughput * (1 + spread))
    made = Point(load, throughput, {50: 1.0, 99: load * 1.0}, "stable", windows)
    return replace(made, **changes)


ONE = Series("one", (level(1, 50), level(2, 57)))
# Of two configurations: what is said of them, and the ring.
CLAIMS = {
    "best": (Series("two", (level(1, 90),)), "two is best: up to 90.0 infer/s at concurrency 1", "nbt-best"),
    "ranges overlap": (
        Series("two", (level(1, 60, 0.2),)),
        "no difference in throughput to be seen between two and one (48.0 to 72.0 and 56.4 to 57.6 infer/s); up to 60.0",
        "",
    ),
    "not stable": (
        Series("two", (level(1, 90, outcome="unstable"),)),
        ("two is the highest: up to 90.0 infer/s at concurrency 1, unstable (89.1 to 90.9), p99 1.00 ms; no winner "
        "is named, as it is unstable; 1 of 3 levels not stable"),
        "nbt-highest",
    ),
    "one window": (
        Series("two", (level(1, 90, outcome="not judged", throughputs=(90.0,)),)),
        ("two is the highest: up to 90.0 infer/s at concurrency 1, not judged, p99 1.00 ms; no winner is named, as it "
        "is one window"),
        "nbt-highest",
    ),
    "quick": (
        Series("two", (level(1, 90), level(2, 80, outcome="unstable")), quick=True),
        ("two is the highest: up to 90.0 infer/s at concurrency 1, p99 1.00 ms; no winner is named, as it is a quick "
        "measurement"),
        "",
    ),
    "a few per cent": (
        Series("two", (level(1, 59.5),)),
        ("two is best: up to 59.5 infer/s at concurrency 1, p99 1.00 ms; 4.4% more than one (58.9 to 60.1 against "
        "56.4 to 57.6 infer/s)"),
        "nbt-best",
    ),
    "another load does as well": (
        Series("two", (level(1, 90), level(2, 90.5))),
        ("two is best: up to 90.0 infer/s at concurrency 1, p99 1.00 ms; 1.6 times the throughput of one; no difference "
        "to be seen to concurrency 2"),
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("situation", CLAIMS)
def test_a_winner_is_named_only_where_the_ranges_of_the_windows_do_not_overlap(situation):
    two, said, ring = CLAIMS[situation]
    assert curve_finding([ONE, two]).startswith(said)
    drawn_rings = {name for node in rings(drawn([ONE, two])) for name in node.get("class").split()}
    assert ({ring} if ring else set()) == drawn_rings & {"nbt-best", "nbt-highest"}


def test_less_than_a_per_cent_makes_no_winner():
    alike = [Series(name, (level(1, rate, 0.001),)) for name, rate in (("one", 57), ("two", 57.4))]
    assert curve_finding(alike).startswith(
        "no difference in throughput to be seen between one and two (56.9 to 57.1"
    )


def test_equal_predictions_beyond_the_profile_have_no_highest_and_no_empty_range():
    alike = [
        Series(
            name,
            (level(1, 40.5, outcome="beyond the profile", throughputs=(40.5,)),),
            predicted=True,
        )
        for name in ("one", "two")
    ]
    said = "no difference in throughput to be seen between one (predicted) and two (predicted) (40.5 and 40.5 infer/s); "
    assert curve_finding(alike).startswith(said)
    assert curve_finding(alike).endswith("beyond the profile, p99 1.00 ms with one (predicted)")


def test_of_equal_throughputs_the_highest_has_the_lowest_latency():
    quick = Series("quick", (Point(500, 498, {50: 2.0, 99: 3.0}),))
    slow = Series("slow", (Point(500, 500, {50: 2.0, 99: 9.0}),))
    assert top_of([slow, quick]).series is quick


def test_the_target_is_a_line_and_the_winner_keeps_it():
    slow, fast = sweep()
    assert top_of(sweep(), 20.0).point == fast.points[-1]
    assert top_of(sweep(), 8.0).point == fast.points[2]
    assert top_of(sweep(), 5.0) is None
    assert "no level keeps p99 within 5.00 ms: the lowest is 5.50 ms" in curve_finding(sweep(), 5.0)
    svg = drawn(sweep(), target_ms=20.0)
    assert "nbt-target" in svg
    assert "target 20.0 ms" in texts(svg)
    assert svg.count("nbt-best") == 2
    assert "within the target of 20.0 ms" in curve_finding(sweep(), 20.0)
    assert slow.name in curve_finding(sweep(), 20.0)


def test_predicted_is_dashed_in_the_colour_of_what_was_measured():
    measured = sweep()[1]
    root = ET.fromstring(drawn([measured, replace(measured, predicted=True)]))
    lines = [p for p in root.iter(f"{SVG}path") if "nbt-line" in p.get("class", "")]
    assert [bool(line.get("stroke-dasharray")) for line in lines] == [False, True] * 2
    assert len({line.get("stroke") for line in lines}) == 1
    assert f"{measured.name} (predicted)" in texts(ET.tostring(root))


def test_more_than_four_configurations_have_panels_of_their_own_with_the_same_axes():
    many = [replace(sweep()[0], name=f"instances={n}") for n in range(1, 6)]
    assert len(groups(drawn(many[:4]), "nbt-panels")) == 1
    five = drawn(many)
    assert len(groups(five, "nbt-panels")) == 5
    (ticks,) = {
        tuple(node.text for node in group.iter(f"{SVG}text"))[1:]
        for group in groups(five, "nbt-panels")
    }
    assert "16" in ticks


def test_the_axes_stay_while_a_sweep_runs():
    loads = (1, 2, 4, 8, 16)
    begun = [replace(one, points=one.points[:3]) for one in sweep()[:1]]
    first = curve_limits(begun, loads=loads)
    assert first.loads == loads
    further = [replace(sweep()[0], points=sweep()[0].points[:4])]
    assert curve_limits(further, loads=loads, before=first) in (
        first, replace(first, latency_ms=curve_limits(further, loads=loads, before=first).latency_ms),
    )  # fmt: skip
    # Never shorter, never back from a logarithmic scale.
    last = curve_limits(sweep(), loads=loads, before=first)
    again = curve_limits(begun, loads=loads, before=last)
    assert again == last


def test_the_finding_names_the_best_load_and_its_cost():
    said = curve_finding(sweep()[1:])
    assert "up to 1\u202f670 infer/s at concurrency 16" in said
    assert "p99 13.0 ms" in said
    assert said in ET.fromstring(drawn(sweep()[1:])).get("aria-label")
    both = curve_finding(sweep())
    assert both.startswith("2 instances + dynamic batching is best")
    assert "4.9 times the throughput of 1 instance, no batching" in both


def test_nothing_measured_yet_is_a_sentence():
    for series in ((), (Series("m"),)):
        svg = drawn(series)
        assert texts(svg) == ["nothing measured yet"]
        assert float(ET.fromstring(svg).get("height")) < 80
        assert curve_finding(series) == "nothing measured yet"
        assert curve_view(series).html == '<p class="nbt-curve nbt-static">nothing measured yet</p>'
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


@pytest.mark.medium
@given(
    st.lists(
        st.builds(Series, st.text('ab<&"', max_size=40), st.tuples(points, points)), max_size=3
    )
)
@settings(max_examples=80, deadline=None)
def test_every_measurement_is_drawn_inside(series):
    svg = drawn(series)
    root = ET.fromstring(svg)
    assert "nan" not in svg
    assert "inf " not in svg
    width, height = float(root.get("width")), float(root.get("height"))
    for shape in curve_scene(series).walk():
        attrs = dict(shape.attrs)
        if shape.tag == "circle":
            assert 0 <= attrs["cx"] <= width
            assert 0 <= attrs["cy"] <= height
