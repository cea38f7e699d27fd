"""One selection for all views of a page: timeline, watch and graph, a link of an explanation, and Python."""

from __future__ import annotations

import csv
import json
import os
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.widgets.dag import DagView
from nbtriton.widgets.publisher import Hub
from nbtriton.widgets.timeline import live_timeline
from nbtriton.widgets.watch import WatchView
from tests.page.conftest import frame_text

pytestmark = pytest.mark.browser

ROW = np.ones((1, 4), np.float32)
ENSEMBLE = """platform: "ensemble" max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling {
  step { model_name: "first" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "x" } }
  step { model_name: "second" model_version: -1 input_map { key: "IN" value: "x" } output_map { key: "OUT" value: "OUT" } }
}"""
# A second widget in the page that a first one is in, with a model of its own.
SECOND = """async ([esm, css, state]) => {
  const style = document.createElement("style");
  style.textContent = css;
  document.head.append(style);
  const subs = new Map();
  state.frame = new DataView(Uint8Array.from(atob(state.frame), (c) => c.charCodeAt(0)).buffer);
  const model = {
    get: (name) => state[name],
    set: (name, value) => { state[name] = value; for (const call of subs.get(`change:${name}`) ?? []) call(); },
    on: (event, call) => subs.set(event, [...(subs.get(event) ?? []), call]),
    off() {},
    send() {},
    save_changes() {},
  };
  window.second = model;
  const url = URL.createObjectURL(new Blob([esm], { type: "text/javascript" }));
  (await import(url)).default.render({ model, el: document.getElementById("w2") });
}"""


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
    return {"OUT": IN * 2}


@pytest.fixture(scope="module")
def server():
    with nt.Server(gpus=()) as server:
        for name in ("first", "second"):
            server.load("max_batch_size: 4 dynamic_batching { }", model=double, name=name)
        server.load(ENSEMBLE, name="both")
        for many in (1, 3, 8, 2):
            for future in [server.submit("both", {"IN": ROW}) for _ in range(many)]:
                future.result()
        server.infer("both", {"IN": ROW}, request_id="the-one")
        yield server


@pytest.fixture
def timeline(server):
    view = live_timeline(server, "both", on_hub=Hub(threaded=False))
    view.handle_message({"kind": "open", "view": "v"})
    view.refresh()
    yield view
    view.close()


def add(page, view):
    state = {name: getattr(view, name) for name in view.keys if not name.startswith("_")}
    state = {
        k: v for k, v in state.items() if isinstance(v, str | int | float | bool | list | dict)
    }
    state["frame"] = frame_text(view)
    page.evaluate(SECOND, [view._esm, view._css, json.loads(json.dumps(state))])


def select_end(page):
    """From a third of what is recorded to its last request: when those before it came, nobody knows."""
    canvas = page.locator("canvas.nbt-timeline-lanes")
    canvas.focus()
    page.keyboard.press("0")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 12)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 12)
    page.mouse.up()
    return page.evaluate("model.get('selected')")


def test_a_stretch_of_the_timeline_has_its_numbers_and_is_marked_in_the_watch(
    open_view, server, timeline
):
    page = open_view(timeline)
    watch = WatchView(server, on_hub=Hub(threaded=False))
    watch.refresh()
    add(page, watch)
    assert page.locator(".nbt-band").count() == 0
    chosen = select_end(page)
    panel = page.locator(".nbt-timeline-panel")
    rows = [row.split("\t") for row in panel.locator("table").inner_text().splitlines()]
    unit = rows[0][2].removeprefix("p50 ")  # one for the table, by its longest time
    assert rows[0] == [
        "model",
        "requests",
        f"p50 {unit}",
        f"p99 {unit}",
        f"mean wait {unit}",
        "batches",
        "mean rows",
        "reasons",
    ]
    numbers = {row[0]: int(row[1]) for row in rows[1:]}
    # What Python calls selected is what the panel counts.
    timeline.selected = chosen
    frame = timeline.selection
    assert frame["model"].value_counts().to_dict() == numbers
    longest_us = frame.groupby("model")["total_us"].max()
    assert unit == ("[ms]" if longest_us.max() >= 1000 else "[µs]")
    for name, _, _, p99, *_ in rows[1:]:
        us = float(p99.replace("\u202f", "")) * (1000 if unit == "[ms]" else 1)
        assert us == pytest.approx(longest_us[name], rel=0.01)  # of fewer than fifty requests
    assert page.locator(".nbt-band").count() == 3
    assert "selected: " in page.locator(".nbt-watch-picked").inner_text()
    assert page.evaluate("second.get('selected')") == chosen
    page.locator(".nbt-watch-picked button").click()
    assert panel.is_hidden()
    assert page.locator(".nbt-band").count() == 0


def test_a_box_of_the_graph_leaves_its_lanes(open_view, server, timeline):
    page = open_view(timeline)
    dag = DagView.of(server, "both", on_hub=Hub(threaded=False))
    dag.refresh()
    add(page, dag)
    tall = page.locator("canvas.nbt-timeline-lanes").bounding_box()["height"]
    page.locator("[data-node]").filter(has_text="second").first.click()
    assert page.evaluate("model.get('selected')") == {"model": "second"}
    assert "only second is shown" in page.locator(".nbt-timeline-panel").inner_text()
    assert page.locator("canvas.nbt-timeline-lanes").bounding_box()["height"] < tall
    page.get_by_role("button", name="Clear").click()
    assert page.locator("canvas.nbt-timeline-lanes").bounding_box()["height"] == tall
    assert page.locator(".nbt-only").count() == 0


def test_a_slow_request_of_an_explanation_is_a_link_to_the_timeline(open_view, server, timeline):
    for _ in range(200):
        server.infer("both", {"IN": ROW})
    html = nt.why(server, "both")._repr_html_()
    timeline.refresh()
    page = open_view(timeline)
    page.evaluate("html => { document.getElementById('w2').innerHTML = html }", html)
    link = page.locator(f'a[href^="#nbt-{os.getpid()}-"]').first
    number = int(link.get_attribute("href").split("-")[-1])
    link.click()
    assert page.evaluate("model.get('selected').request") == number
    assert f"Request {number} " in page.locator(".nbt-timeline-life").inner_text()
    # One that the page does not have is asked of the kernel.
    page.evaluate(
        "() => { document.querySelector('#w2 a').href = `#nbt-${model.get('kernel')}-999999999` }"
    )
    page.locator("#w2 a").first.click()
    assert page.evaluate("sent.some(word => word.kind === 'find' && word.text === '999999999')")


def test_the_search_takes_a_name_a_share_of_time_and_an_id(open_view, timeline):
    page = open_view(timeline)
    search = page.get_by_role("searchbox")
    matches = page.locator(".nbt-timeline-matches")
    for text, found in (
        ("second", "1 of 3"),
        ("failed", "0 of 3"),
        ("busy > 101%", "0 of 3"),
        ("busy < 101 %", "3 of 3"),
    ):
        search.fill(text)
        assert matches.inner_text().startswith(found), text
    search.fill("the-one")
    search.press("Enter")
    assert page.evaluate("sent.some(word => word.kind === 'find' && word.text === 'the-one')")
    timeline.handle_message({"kind": "find", "text": "the-one"})
    frame = timeline.selection
    assert frame["request_id"].iloc[0] == "the-one"
    assert sorted(frame["model"]) == ["both", "first", "second"]


def test_python_selects_what_the_page_shows(open_view, server, timeline):
    page = open_view(timeline)
    slowest = nt.events(server, by="request").nlargest(3, "total_us")
    timeline.select(slowest)
    page.evaluate("selected => put({ selected })", timeline.selected)
    assert page.locator(".nbt-timeline-panel table").is_visible()
    assert set(slowest["request"]) <= set(timeline.selection["request"])
    timeline.select("first")
    assert set(timeline.selection["model"]) == {"first"}
    timeline.select(None)
    assert not len(timeline.selection)
    with pytest.raises(nt.errors.NotFoundError, match="no request 999999999 is recorded"):
        timeline.select(999999999)


def test_the_overview_moves_the_window_and_the_axis_stays_above_the_lanes(open_view, timeline):
    page = open_view(timeline)
    page.locator("canvas.nbt-timeline-lanes").focus()
    page.keyboard.press("0")
    for _ in range(4):
        page.keyboard.press("+")
    before = page.locator(".nbt-timeline-finding").inner_text()
    head = page.locator("canvas.nbt-timeline-head").bounding_box()
    page.mouse.click(head["x"] + head["width"] * 0.95, head["y"] + 10)
    after = page.locator(".nbt-timeline-finding").inner_text()
    assert (
        page.get_by_role("button", name="follow the newest").get_attribute("aria-pressed")
        == "false"
    )
    assert (
        head["y"] + head["height"] <= page.locator(".nbt-timeline-scroll").bounding_box()["y"] + 1
    )
    assert before.partition(":")[0] == after.partition(":")[0] == "both"


def test_of_forty_models_those_at_rest_are_one_line_and_the_busy_ones_stand_first(open_view):
    names = [f"model_{at:02}" for at in range(40)]
    steps = "".join(
        f'step {{ model_name: "{name}" model_version: -1 input_map {{ key: "IN" value: "{f"x{at}" if at else "IN"}" }} '
        f'output_map {{ key: "OUT" value: "{"OUT" if at == 39 else f"x{at + 1}"}" }} }}'
        for at, name in enumerate(names)
    )
    with nt.Server(gpus=()) as server:
        for name in names:
            server.load("max_batch_size: 4", model=double, name=name)
        ends = ENSEMBLE.partition("ensemble_scheduling")[0]
        server.load(f"{ends} ensemble_scheduling {{ {steps} }}", name="all")
        watch = WatchView(server, on_hub=Hub(threaded=False))
        for _ in range(3):
            server.infer("model_31", {"IN": ROW})
        server.infer("model_07", {"IN": ROW})
        models = [one["name"] for one in watch.models]
        assert len(models) == 41
        watch = WatchView(server, on_hub=Hub(threaded=False))
        page = open_view(watch)
        cards = page.locator(".nbt-model").evaluate_all("all => all.map(e => e.dataset.model)")
        assert len(cards) < 41
        assert {"model_07", "model_31"} <= set(cards)
        assert "idle models: " in page.locator(".nbt-watch-picture").text_content()
        # The table has all of them, a click away.
        assert not page.locator("table").is_visible()
        page.get_by_text("the numbers as a table").click()
        assert page.locator("tbody tr").count() == 41
        line = live_timeline(server, "all", on_hub=Hub(threaded=False))
        line.handle_message({"kind": "open", "view": "v"})
        line.refresh()
        page = open_view(line)
        lanes = page.locator("canvas.nbt-timeline-lanes")
        small = lanes.bounding_box()["height"]
        assert small < 100
        page.get_by_role("button", name="fold or unfold all models").click()
        assert lanes.bounding_box()["height"] > small
        line.close()


@pytest.mark.parametrize("kind", ["watch", "dag", "timeline"])
def test_the_menu_of_a_view_saves_what_is_shown(open_view, server, timeline, tmp_path, kind):
    hub = Hub(threaded=False)
    views = {
        "watch": lambda: WatchView(server, on_hub=hub),
        "dag": lambda: DagView.of(server, "both", on_hub=hub),
    }
    view = views.get(kind, lambda: timeline)()
    page = open_view(view)
    if kind == "timeline":
        page.get_by_role("button", name="all that is recorded").click()
    for name in ("PNG", "SVG", "CSV"):
        page.get_by_text("Save", exact=True).click()
        with page.expect_download() as got:
            page.get_by_role("button", name=name, exact=True).click()
        got.value.save_as(tmp_path / name)
    assert (tmp_path / "PNG").read_bytes().startswith(b"\x89PNG")
    picture = ET.parse(tmp_path / "SVG").getroot()
    words = " ".join(picture.itertext())
    assert "first" in words
    assert "second" in words
    rows = list(csv.reader((tmp_path / "CSV").open(encoding="utf-8")))
    named = [row for row in rows if "first" in row]
    assert len(named) == (len(server.requests("first")) if kind == "timeline" else 1)
    assert {len(row) for row in rows} == {len(rows[0])}
    page.get_by_text("Save", exact=True).click()
    page.get_by_role("button", name="copy the configuration cell").click()
    question = page.evaluate("sent.find(word => word.kind === 'cell')")
    answers = []
    view.send = answers.append
    view.handle_message(question)
    (answer,) = answers
    assert answer["question"] == question["question"]
    assert answer["text"].startswith("%%triton_config ")
    assert "max_batch_size: 4" in answer["text"]
