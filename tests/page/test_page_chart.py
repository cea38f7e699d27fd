"""A finished chart on a page: in a cell and in a file without a kernel."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nbtriton.drawing.curve import Point, Series
from nbtriton.drawing.living import living_page
from nbtriton.drawing.panels import frontier_scenes
from nbtriton.drawing.scene import to_svg
from nbtriton.extensions.comparison import Comparison
from nbtriton.lab.perf.report import PerfReport
from nbtriton.widgets.plots import plot
from tests.perf.test_perf_report import point

pytestmark = pytest.mark.browser


def report(**options):
    points = tuple(
        replace(
            point(load),
            configuration={"instances": instances},
            infer_per_s=100.0 * instances * load / (load + 2),
            latency_p50_us=1000.0 * load,
            latency_p90_us=40.0 * load,
            latency_p99_us=3000.0 * load / instances,
        )
        for instances in (1, 2)
        for load in (1, 2, 4)
    )
    return PerfReport("pipeline", points, **options)


@pytest.fixture
def open_file(new_page):
    """Open a file, where no kernel is."""

    def open_(path, width=1000, scheme="light"):
        page = new_page(
            viewport={"width": width, "height": 1000}, color_scheme=scheme, accept_downloads=True
        )
        page.goto(Path(path).as_uri())
        return page

    return open_


@pytest.fixture
def page(open_file, tmp_path):
    path = tmp_path / "report.html"
    report().save(path)
    return open_file(path)


def visible(page, selector):
    return page.locator(selector).filter(visible=True)


def mark(page, key):
    return visible(page, f".nbt-point[data-point='{key}']")


def test_a_saved_report_has_points_for_keys_and_a_crosshair_with_a_line_a_series(page):
    assert visible(page, ".nbt-point[tabindex='0']").count() == 1
    tip = page.locator(".nbt-tip")
    assert not tip.is_visible()
    visible(page, ".nbt-point[tabindex='0']").focus()
    assert tip.locator("strong").inner_text() == "concurrency 1"
    page.keyboard.press("ArrowRight")
    assert tip.locator("strong").inner_text() == "concurrency 2"
    lines = tip.locator("tr").all_inner_texts()
    assert [line.split("\t")[1] for line in lines] == ["instances=1", "instances=2"]
    assert all("infer/s" in line and "p99" in line for line in lines)
    # The same load, the next series.
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.point") == "4"
    assert page.locator(".nbt-cross").count() == 2  # in both panels
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_the_crosshair_snaps_to_the_load_nearest_to_the_pointer(page):
    left, right = (mark(page, key).first.bounding_box() for key in "12")
    y = left["y"] + 30
    for box, load in ((left, "2"), (right, "4")):
        page.mouse.move(box["x"] + 14, y)
        assert page.locator(".nbt-tip strong").inner_text() == f"concurrency {load}"
    page.mouse.move(2, 2)
    assert not page.locator(".nbt-tip").is_visible()


def test_a_point_and_its_row_light_each_other_up(page):
    rows = visible(page, "tr[data-point]")
    rows.nth(4).hover()
    assert set(
        visible(page, ".nbt-point.nbt-lit").evaluate_all("e => e.map(p => p.dataset.point)")
    ) == {"4"}
    mark(page, "2").first.hover()
    assert visible(page, "tr.nbt-lit").evaluate_all("e => e.map(p => p.dataset.point)") == ["2"]
    rows.first.focus()
    page.keyboard.press("ArrowDown")
    assert visible(page, ".nbt-point.nbt-lit").first.get_attribute("data-point") == "1"


def test_the_legend_hides_and_isolates_a_series_with_its_rows(page):
    first, second = (visible(page, ".nbt-legend").nth(at) for at in (0, 1))
    series = visible(page, ".nbt-series")
    rows = visible(page, "tr[data-point]")
    assert (series.count(), rows.count()) == (4, 6)
    first.click()
    assert first.get_attribute("aria-pressed") == "false"
    assert set(series.evaluate_all("e => e.map(s => s.dataset.series)")) == {"instances=2"}
    assert rows.count() == 3
    first.click()
    second.focus()
    page.keyboard.press("Shift+Enter")
    assert set(series.evaluate_all("e => e.map(s => s.dataset.series)")) == {"instances=2"}
    second.dblclick()  # as a touch does
    assert series.count() == 4


def test_the_title_of_panels_of_their_own_hides_and_isolates_them(open_file, tmp_path):
    measured = PerfReport(
        "pipeline",
        tuple(
            replace(point, configuration={"instances": instances})
            for instances in range(1, 6)
            for point in report().points[:3]
        ),
    )
    path = plot(measured, replace(measured, simulated=True)).save(tmp_path / "many.html")
    page = open_file(path)
    titles, series = visible(page, ".nbt-legend"), visible(page, ".nbt-series")
    # A measurement and its prediction, each in two panels.
    assert (titles.count(), series.count()) == (5, 20)
    titles.nth(1).click()
    assert series.count() == 16
    titles.nth(2).focus()
    page.keyboard.press("Shift+Enter")
    assert set(series.evaluate_all("e => e.map(s => s.dataset.series)")) == {"instances=3"}
    assert series.count() == 4
    titles.nth(2).dblclick()
    assert series.count() == 20


def test_one_load_is_a_row_of_figures_for_each_configuration(open_file, tmp_path):
    path = tmp_path / "one.html"
    replace(report(), points=report().points[1::3]).save(path)
    page = open_file(path)
    points, names = visible(page, ".nbt-point"), visible(page, ".nbt-legend")
    assert (points.count(), names.count()) == (4, 2)
    assert not page.get_by_role("button", name="latency against").is_visible()
    picture = visible(page, "svg").first
    assert {"50.0", "100", "p50 2.00 · p99 6.00", "p50 2.00 · p99 3.00"} <= set(
        picture.locator("text").all_text_contents()
    )
    # The bars of one quantity have one scale.
    left = float(visible(page, ".nbt-panel").first.get_attribute("data-box").split()[0])
    ends = [float(mark(page, key).first.get_attribute("data-at").split()[0]) for key in "01"]
    assert (ends[1] - left) / (ends[0] - left) == pytest.approx(2, abs=0.01)
    mark(page, "1").last.hover()
    assert visible(page, "tr.nbt-lit").evaluate_all("e => e.map(p => p.dataset.point)") == ["1"]
    assert page.locator(".nbt-tip tr").count() == 1
    names.first.click()
    assert visible(page, ".nbt-series").count() == 2


def test_a_comparison_is_a_chart_of_its_rounds_with_its_own_verdict(open_file, tmp_path):
    rounds = tuple(
        tuple(replace(point(8), infer_per_s=100.0 + 40 * at + number) for at in range(2))
        for number in range(5)
    )
    found = Comparison(("one", "two"), rounds)
    path = tmp_path / "compare.html"
    path.write_text(living_page("c", found._repr_mimebundle_()["text/html"]), encoding="utf-8")
    page = open_file(path)
    assert found.verdict in visible(page, "svg").first.get_attribute("aria-label")
    # Nothing else is said to be the best.
    assert page.locator("[data-ring]").count() == 0
    visible(page, ".nbt-point[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".nbt-tip strong").inner_text() == "round 2"
    lines = [line.split("\t")[1:3] for line in page.locator(".nbt-tip tr").all_inner_texts()]
    assert lines == [["one", "101 infer/s"], ["two", "141 infer/s"]]
    # Rounds are at equal distances.
    xs = [mark(page, f"0.{number}").first.bounding_box()["x"] for number in range(1, 6)]
    assert np.diff(xs) == pytest.approx(xs[1] - xs[0], abs=5)  # a focused mark is wider


def test_a_head_sorts_and_all_latencies_share_a_unit(page):
    table = page.locator("table").filter(visible=True).first
    heads = [text.split() for text in table.locator("th").all_inner_texts()]
    assert {head[-1] for head in heads if head[0] in ("p50", "p90", "p99")} == {"ms"}
    table.get_by_role("button", name="throughput").click()
    keys = table.locator("tbody tr").evaluate_all("e => e.map(row => row.dataset.point)")
    assert keys == ["0", "1", "2", "3", "4", "5"] or keys[-1] == "5"
    table.get_by_role("button", name="throughput").click()
    assert table.locator("tbody tr").first.get_attribute("data-point") == "5"
    assert table.locator("th[aria-sort=descending]").count() == 1


def test_the_other_axis_puts_latency_against_throughput_and_back(page):
    def places():
        return [mark(page, key).last.bounding_box()["x"] for key in ("0", "1", "2", "3", "4", "5")]

    before = places()
    page.get_by_role("button", name="latency against throughput").click()
    caption = visible(page, ".nbt-panel").last.locator("text").first
    assert caption.text_content().endswith("against throughput, infer/s")
    # In the order of their throughput.
    order = sorted(range(6), key=lambda at: places()[at])
    rates = [one.infer_per_s for one in report().points]
    assert order == sorted(range(6), key=lambda at: rates[at])
    page.get_by_role("button", name="latency against load").click()
    assert places() == before


def test_a_click_opens_a_point_and_the_menu_saves_what_is_shown(page, tmp_path):
    mark(page, "4").first.click()
    assert "instances" in page.locator(".nbt-details").inner_text()
    assert "100 infer/s" in page.locator(".nbt-details").inner_text()
    page.locator(".nbt-keep > summary").click()
    for name in ("PNG", "SVG", "CSV"):
        with page.expect_download() as got:
            page.get_by_role("button", name=name, exact=True).click()
        got.value.save_as(tmp_path / name)
        page.locator(".nbt-keep > summary").click()
    assert (tmp_path / "PNG").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "SVG").read_text(encoding="utf-8")
    rows = list(csv.reader((tmp_path / "CSV").open(encoding="utf-8")))
    assert len(rows) == 7
    assert "p99 ms" in rows[0]


def test_runs_are_laid_over_each_other_and_answer_as_one(open_file, tmp_path):
    measured = report()
    predicted = replace(report(), simulated=True)
    path = plot(measured, predicted).save(tmp_path / "both.html")
    page = open_file(path)
    visible(page, ".nbt-point[tabindex='0']").focus()
    assert page.locator(".nbt-tip tr").count() == 4
    assert visible(page, ".nbt-legend").count() == 4


def test_a_search_is_drawn_with_its_measurements_ringed_and_the_limit(open_file, tmp_path):
    def one(key, rate, p99_ms):
        return Point(8, rate, {99: p99_ms}, key=key)

    series = (
        Series("3 configurations", (one("s0", 10, 5), one("s1", 90, 8), one("s2", 50, 6)), predicted=True),
        Series("measured", (one("0", 80, 9),)),
    )  # fmt: skip
    scenes = frontier_scenes(series, title="m", finding="chosen", target_ms=7.0)
    path = tmp_path / "search.html"
    body = f'<div class="nbt-chart">{"".join(map(to_svg, scenes[-1:]))}</div>'
    path.write_text(living_page("m", body), encoding="utf-8")
    page = open_file(path)
    assert page.locator("path.nbt-target").count() == 1
    assert page.locator(".nbt-point circle[r='8']").count() == 1
    places = [mark(page, key).bounding_box() for key in ("s0", "s2", "s1")]
    assert places == sorted(places, key=lambda box: box["x"])
    assert places == sorted(places, key=lambda box: -box["y"])
    page.mouse.move(places[2]["x"] + 3, places[2]["y"] - 12)
    assert page.locator(".nbt-tip tr").all_inner_texts()[0].endswith("90.0 infer/s\tp99 8.00 ms")
    visible(page, ".nbt-legend").first.click()
    assert visible(page, ".nbt-point").count() == 1
    # One axis is all it has.
    assert not page.get_by_role("button", name="latency against").is_visible()


def test_axe_finds_nothing_serious_in_a_living_chart(open_file, tmp_path, serious):
    path = tmp_path / "a.html"
    body = f'<main id="w">{report()._repr_mimebundle_()["text/html"]}</main>'
    path.write_text(living_page("a", body), encoding="utf-8")
    page = open_file(path, scheme="dark")
    mark(page, "1").first.click()
    assert serious(page) == []
