"""The widgets' front ends in a real browser, on a stub model, in imitated hosts."""

from __future__ import annotations

import base64
import math
import re
from dataclasses import replace

import pandas as pd
import pytest

from nbtriton.drawing.curve import Point, Series
from nbtriton.drawing.scene import to_json
from nbtriton.drawing.table import compact_html
from nbtriton.drawing.watch import watch_scenes
from nbtriton.lab.perf.curves import plot
from nbtriton.widgets.activity import activities, covered_s, encode
from nbtriton.widgets.curve import CurveView
from nbtriton.widgets.dag import DagView
from nbtriton.widgets.graphs import graph_of
from nbtriton.widgets.publisher import Hub
from nbtriton.widgets.static import curve_view, dag_view
from nbtriton.widgets.table import TableView
from nbtriton.widgets.watch import WatchView
from tests.page.conftest import HOSTS, frame_text
from tests.widgets.samples import (
    SECOND,
    FakeServer,
    chain,
    digits_graph,
    loaded,
    model,
    sweep,
)

pytestmark = pytest.mark.browser

MODELS = ("image_preprocess_model", "classification_model", "segmentation_model")


def busy_server(at, queued=5):
    return (
        loaded(MODELS[0], at, rate=400, batch=8, queued=queued),
        loaded(MODELS[1], at, rate=200, batch=4, queued=queued // 2),
        model(MODELS[2], state="UNAVAILABLE", fail_count=3),
    )


@pytest.fixture
def server():
    return FakeServer(*busy_server(0))


@pytest.fixture
def watch(server):
    view = WatchView(server, on_hub=Hub(threaded=False))
    for i in range(1, 100):
        server.now_ns += SECOND // 4
        server.shown = busy_server(i / 4, round(9 + 8 * math.sin(i / 8)))
        server.history()
    view.refresh()
    return view


@pytest.fixture
def dag(server):
    server.shown = busy_server(5)
    view = DagView(digits_graph(), server, on_hub=Hub(threaded=False))
    view.refresh()
    return view


@pytest.fixture
def curve():
    view = CurveView(title="ensemble_model", on_hub=Hub(threaded=False))
    view.update(sweep())
    view.show_progress("concurrency 8 of 16 · window 2/3 · about 14 s left", 0.4)
    view.refresh()
    return view


@pytest.fixture
def views(watch, dag, curve):
    return {"watch": watch, "dag": dag, "curve": curve}


def sent(page, kind):
    return [word for word in page.evaluate("sent") if word["kind"] == kind]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("name", ["watch", "dag", "curve"])
def test_text_can_be_read_in_every_host(open_view, contrasts, views, name, host):
    page = open_view(views[name], host)
    weak = [(text, round(ratio, 2)) for text, ratio in contrasts(page) if ratio < 4.5]
    assert not weak


@pytest.mark.parametrize("host", HOSTS)
def test_static_text_can_be_read_without_script(open_html, contrasts, views, host):
    html = "".join(
        view.html
        for view in (dag_view(digits_graph()), curve_view(sweep()), views["watch"].static())
    )
    page = open_html(html, host)
    figures = page.locator(".nbt-dag-svg, .nbt-curve-svg, .nbt-watch-svg")
    assert figures.filter(visible=True).count() == 3
    weak = [(text, round(ratio, 2)) for text, ratio in contrasts(page) if ratio < 4.5]
    assert not weak


def test_static_pictures_are_readable_without_their_style_sheet(open_html, contrasts):
    html = dag_view(digits_graph()).html + curve_view(sweep()).html
    start, end = "<style>", "</style>"
    while start in html:
        html = html[: html.index(start)] + html[html.index(end) + len(end) :]
    page = open_html(html, "plain-dark")
    weak = [(text, round(ratio, 2)) for text, ratio in contrasts(page) if ratio < 4.5]
    # The summary is the page's own text, and this page has no colours for it.
    assert {text for text, _ in weak} <= {"the numbers as a table"}


@pytest.mark.parametrize("name", ["watch", "dag", "curve"])
def test_axe_finds_nothing_serious(open_view, serious, views, name):
    page = open_view(views[name], "lab-dark")
    if name != "watch":  # with its details open
        page.locator("[data-node='step:0'], .nbt-point").first.click()
    assert serious(page) == []


def test_vs_code_white_wrapper_is_painted_over(open_view, curve):
    page = open_view(curve, "vscode-dark")
    root = page.locator(".nbt-root")
    assert root.evaluate("e => getComputedStyle(e).backgroundColor") == "rgb(30, 30, 30)"
    assert root.evaluate("e => getComputedStyle(e).color") == "rgb(212, 212, 212)"
    # What the browser draws, such as a checkbox and a scroll bar, is dark too.
    assert root.evaluate("e => getComputedStyle(e).colorScheme") == "dark"


@pytest.mark.parametrize("name", ["watch", "dag", "curve"])
def test_shown_twice_and_taken_down_without_a_trace(open_view, views, name):
    page = open_view(views[name])
    once = page.evaluate("listeners()")
    assert once > 0
    page.evaluate(
        "async () => { window.second = await widget.render("
        "{ model, el: document.getElementById('w2') }); }"
    )
    assert page.evaluate("listeners()") == 2 * once
    assert page.locator(f"#w2 .nbt-{name}").count() == 1
    page.evaluate("cleanup()")
    assert page.locator("#w > *").count() == 0
    assert page.locator(f"#w2 .nbt-{name}").count() == 1
    page.evaluate("second()")
    assert page.evaluate("listeners()") == 0
    assert len(sent(page, "open")) == 2
    opened = {word["view"] for word in sent(page, "open")}
    assert {word["view"] for word in sent(page, "close")} == opened
    assert len(opened) == 2


def table():
    frame = pd.DataFrame({"model": ["digits"], "requests": [3]})
    view = TableView(lambda: frame, FakeServer(), on_hub=Hub(threaded=False))
    view.refresh()
    return view


def test_a_live_table_shows_its_rows(open_view):
    assert "digits" in open_view(table()).locator("table").inner_text()


@pytest.mark.parametrize("name", ["watch", "table"])
def test_a_view_whose_kernel_restarts_says_so_and_throws_nothing(open_view, watch, name):
    view = {"watch": watch, "table": table()}[name]
    page = open_view(view)
    page.evaluate("() => { model.send = () => { throw new Error('Cannot send'); }; }")
    frame = frame_text(view)
    for _ in range(3):  # a page answers every third frame
        page.evaluate("([frame]) => put({frame})", [frame])
        page.evaluate("new Promise(requestAnimationFrame)")
    page.get_by_text("kernel gone, stopped at").wait_for()
    page.evaluate("cleanup()")


def test_a_view_that_has_failed_says_what_failed_until_it_follows_again(open_view, watch):
    page = open_view(watch)
    page.evaluate("put({ failure: 'ZeroDivisionError: division by zero' })")
    page.get_by_text("this view has failed: ZeroDivisionError: division by zero").wait_for()
    assert page.locator(".nbt-watch.nbt-gone").count() == 1
    page.evaluate("put({ failure: '' })")
    page.get_by_text("this view has failed").wait_for(state="detached")
    assert page.locator(".nbt-watch.nbt-gone").count() == 0


@pytest.mark.parametrize("name", ["watch", "dag", "curve"])
def test_every_third_frame_is_acknowledged_by_the_view_that_drew_it(open_view, views, name):
    page = open_view(views[name])
    for _ in range(3):
        assert not sent(page, "ack")
        page.evaluate("frame => put({ frame })", frame_text(views[name]))
    page.wait_for_function("sent.some(word => word.kind === 'ack')")
    assert sent(page, "ack")[0]["view"] == sent(page, "open")[0]["view"]


@pytest.mark.parametrize("name", ["watch", "dag", "curve"])
def test_many_frames_at_once_are_drawn_once(open_view, views, name):
    page = open_view(views[name])
    page.evaluate(
        "frame => { for (let i = 0; i < 50; i++) put({ frame }); }", frame_text(views[name])
    )
    page.wait_for_function("sent.some(word => word.kind === 'ack')")
    assert len(sent(page, "ack")) < 5


# -- watch ----------------------------------------------------------------------------------------


def role(page, name, part):
    return page.locator(f'.nbt-watch [data-model="{name}"] [data-role="{part}"]').first


def numbers(path):
    return [float(number) for number in re.findall(r"[\d.]+", path)]


def cell(page, name, column):
    return page.locator(
        f'.nbt-watch-table tr[data-model="{name}"] td[data-column="{column}"]'
    ).inner_text()


def test_watch_draws_the_static_picture(open_view, watch, server):
    """The live view redraws every strip and bar from the frame: nothing may move by that."""
    page = open_view(watch)
    models = activities(server.history())
    wanted = {}
    span = covered_s(server.history())
    for shape in watch_scenes(models, span_s=span)[1].walk():
        attrs = dict(shape.attrs)
        if attrs.get("data-role") in ("queue-line", "queue-area", "lane"):
            wanted.setdefault(attrs["data-role"], []).append(attrs.get("d", ""))
    for name, paths in wanted.items():
        drawn = page.locator(f'[data-role="{name}"]').evaluate_all(
            "all => all.map(e => e.getAttribute('d') ?? '')"
        )
        assert len(drawn) == len(paths)
        for ours, theirs in zip(paths, drawn, strict=True):
            assert re.sub(r"[\d.]+", "", ours) == re.sub(r"[\d.]+", "", theirs)
            # Python and JavaScript round a tie to either side.
            assert numbers(theirs) == pytest.approx(numbers(ours), abs=0.11)


def test_watch_updates_numbers_and_table(open_view, watch, server):
    page = open_view(watch)
    assert cell(page, MODELS[0], "queued") == role(page, MODELS[0], "queue-now").text_content()
    server.now_ns += SECOND
    server.shown = busy_server(25.75, queued=4321)
    watch.refresh()
    # The table changes twice a second at most; the next frame after that carries it.
    page.evaluate(
        "([frame, finding]) => { window.again = setInterval(() => put({ finding, frame }), 100); }",
        [frame_text(watch), watch.finding],
    )
    page.wait_for_function(
        "document.querySelector('[data-column=queued]').textContent === '4\u202f321'"
    )
    assert page.locator(".nbt-watch-finding").inner_text() == watch.finding != ""
    assert role(page, MODELS[0], "queue-now").text_content() == "4\u202f321"
    assert role(page, MODELS[0], "queue-top").text_content() == "0 to 5\u202f000"
    assert cell(page, MODELS[2], "state") == "UNAVAILABLE"
    assert cell(page, MODELS[2], "failed") == "3"
    assert "batch 8" in role(page, MODELS[0], "lane-text").text_content()


def test_watch_sorts_its_table_by_click(open_view, watch):
    page = open_view(watch)
    page.evaluate("frame => put({ frame })", frame_text(watch))
    names = page.locator(".nbt-watch-table tbody td:first-child")
    assert names.all_inner_texts() == list(MODELS)
    page.get_by_role("button", name="throughput").click()
    page.mouse.move(0, 0)
    assert page.locator("th[aria-sort='descending']").inner_text().startswith("throughput")
    rates = [
        float(text.replace("\u202f", ""))
        for text in page.locator('td[data-column="throughput"]').all_inner_texts()
    ]
    assert rates == sorted(rates, reverse=True)
    page.get_by_role("button", name="model", exact=True).click()
    assert names.all_inner_texts() == sorted(MODELS)


def test_watch_follows_models_that_come_and_go(open_view, watch, server):
    page = open_view(watch)
    models = activities(server.history())[:1]
    state = {
        "scenes": [to_json(one) for one in watch_scenes(models)],
        "models": watch.models[:1],
        "frame": base64.b64encode(encode(2, models)).decode(),
    }
    page.evaluate("state => put(state)", state)
    page.wait_for_function("document.querySelectorAll('.nbt-watch [data-model]').length === 2")
    assert page.locator(".nbt-watch-table tbody tr").count() == 1


def test_watch_ignores_a_frame_of_another_structure(open_view, watch, server):
    page = open_view(watch)
    before = role(page, MODELS[0], "rate").text_content()
    frame = base64.b64encode(encode(2, activities(server.history())[:1])).decode()
    page.evaluate("frame => { for (let i = 0; i < 3; i++) put({ frame }); }", frame)
    page.wait_for_function("sent.some(word => word.kind === 'ack')")
    assert role(page, MODELS[0], "rate").text_content() == before


def test_a_name_is_text_never_markup(open_view, server):
    server.shown = (model("<img src=x onerror=alert(1)>"),)
    page = open_view(WatchView(server, on_hub=Hub(threaded=False)))
    assert page.locator("img").count() == 0
    assert page.locator(".nbt-watch-table td").first.inner_text() == server.shown[0].name


# -- dag ------------------------------------------------------------------------------------------


def focused(page):
    return page.evaluate("document.activeElement.getAttribute('data-node')")


def test_dag_is_walked_by_keyboard(open_view, dag):
    page = open_view(dag)
    page.keyboard.press("Tab")
    page.evaluate(
        "() => { window.stolen = []; document.body.addEventListener('keydown', "
        "event => stolen.push(event.key)); }"
    )
    walk = []
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown", "Home", "End"):
        page.keyboard.press(key)
        walk.append(focused(page))
    assert walk == [
        "step:0",
        "step:1",
        "output:CLASSIFICATION",
        "step:1",
        "step:2",
        "input:IMAGE",
        "output:SEGMENTATION",
    ]
    # These keys do not reach the notebook.
    assert page.evaluate("stolen") == []


def test_dag_shows_details_on_enter_and_hides_them_on_escape(open_view, dag):
    page = open_view(dag)
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    details = page.locator(".nbt-details")
    assert not details.is_visible()
    page.keyboard.press("Enter")
    assert details.is_visible()
    assert "max_batch_size" in details.inner_text()
    node = page.locator('[data-node="step:0"]')
    assert node.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert not details.is_visible()
    assert focused(page) == "step:0"
    node.click()
    assert details.is_visible()


def test_dag_focus_can_be_seen(open_view, dag):
    page = open_view(dag)
    page.keyboard.press("Tab")
    width = page.locator('[data-node="input:IMAGE"] .nbt-box').evaluate(
        "e => getComputedStyle(e).strokeWidth"
    )
    assert width == "3.5px"


def test_dag_shows_what_waits_and_runs(open_view, dag, server):
    page = open_view(dag)
    node = page.locator('[data-node="step:0"]')
    assert node.locator(".nbt-badge").text_content() == "5 queued · 8 running"
    assert "5 queued" in node.get_attribute("aria-label")
    assert "nbt-busy" in node.get_attribute("class")
    assert page.locator('[data-node="step:2"] .nbt-badge').text_content() == "UNAVAILABLE"
    server.shown = ()
    dag.refresh()
    page.evaluate("frame => put({ frame })", frame_text(dag))
    page.wait_for_function("!document.querySelector('.nbt-busy')")


@pytest.mark.parametrize(("motion", "name"), [("reduce", "none"), ("no-preference", "nbt-flow")])
def test_dag_moves_only_where_motion_is_welcome(open_view, dag, motion, name):
    page = open_view(dag, motion=motion)
    path = page.locator(".nbt-flow path").first
    assert path.evaluate("e => getComputedStyle(e).animationName") == name


def test_dag_without_live_numbers_has_no_badges(open_view):
    page = open_view(DagView(digits_graph(), on_hub=Hub(threaded=False)))
    assert page.locator(".nbt-badge").count() == 0


# The size on the screen of each text of the pictures that are shown, in pixels.
TEXT_SIZES = """() => [...document.querySelectorAll("svg text")]
  .filter((text) => text.getClientRects().length)
  .map((text) => {
    const svg = text.ownerSVGElement;
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    return parseFloat(getComputedStyle(text).fontSize) * scale;
  })"""
PAGES = (600, 900, 1600)
COLLISIONS = """() => {
  const texts = [...document.querySelectorAll("svg text")].filter((t) => t.getClientRects().length);
  const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
  const found = [];
  boxes.forEach(([one, a], i) => boxes.slice(i + 1).forEach(([two, b]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    // The box of a text has room for accents above and for tails below.
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 0.5 && high > 4) found.push([one, two]);
  }));
  return found;
}"""


# A view sees its width after the frame that has it is laid out.
REBUILT = """(width) => new Promise((done) => {
  const look = () => requestAnimationFrame(innerWidth === width ? () => requestAnimationFrame(done) : look);
  look();
})"""


def spread(page, width, *, script=True):
    """Give a page another width; return the sizes of its texts and whether it fits."""
    page.set_viewport_size({"width": width, "height": 700})
    if script:  # the view is built anew for another width
        page.evaluate(REBUILT, width)
    cards = (
        page.locator("svg")
        .filter(visible=True)
        .evaluate_all("all => all.map(svg => svg.getBoundingClientRect().right)")
    )
    return page.evaluate(TEXT_SIZES), all(right <= width for right in cards)


@pytest.mark.parametrize("length", [3, 12, 30])
def test_text_of_a_graph_is_11_pixels_or_more_at_any_width(open_view, open_html, length):
    graph = graph_of(*chain(length))
    live = open_view(DagView(graph, on_hub=Hub(threaded=False)))
    for page, script in ((live, True), (open_html(dag_view(graph).html), False)):
        for width in PAGES:
            sizes, fits = spread(page, width, script=script)
            assert len(sizes) >= length
            assert min(sizes) >= 10.99, width
            assert fits, width


def test_a_click_opens_a_model_of_a_chain(open_view):
    page = open_view(DagView(graph_of(*chain(12)), on_hub=Hub(threaded=False)))
    page.locator('[data-node="step:7"]').click()
    assert "stage_07" in page.locator(".nbt-details").inner_text()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert "stage_08" in page.locator(".nbt-details").inner_text()
    # Another width builds the picture anew; what was open stays open, what had the focus keeps it.
    spread(page, 600)
    assert focused(page) == "step:8"
    assert page.locator('[data-node="step:8"]').get_attribute("aria-expanded") == "true"


@pytest.mark.parametrize("many", [3, 12])
def test_a_page_of_600_pixels_shows_the_whole_watch(open_view, open_html, server, many):
    server.shown = tuple(
        loaded(f"{MODELS[at % 3]}_{at}", 5.0, rate=40_000, batch=8, queued=1234)
        for at in range(many)
    )
    view = WatchView(server, on_hub=Hub(threaded=False))
    server.now_ns += SECOND
    view.refresh()
    live = open_view(view, width=600)
    # With many models the table is a click away.
    live.locator("details:not(.nbt-keep)").evaluate("e => { e.open = true; }")
    for part in (".nbt-root", ".nbt-watch-scroll"):
        assert live.locator(part).evaluate("e => e.scrollWidth <= e.clientWidth"), part
    for page in (live, open_html(view.static().html, width=600)):
        sizes, fits = spread(page, 600, script=page is live)
        assert min(sizes) >= 10.99
        assert fits
        assert page.evaluate(COLLISIONS) == []
    # A notebook beside its files has the wide picture, and as many columns as it has room for.
    spread(live, 800)
    assert live.locator(".nbt-watch-scroll").evaluate("e => e.scrollWidth <= e.clientWidth")
    spread(live, 1000)
    assert live.locator("svg").evaluate("e => e.getBoundingClientRect().width") == 800
    assert live.locator("[data-column=compute]").first.is_visible()


def test_a_page_of_600_pixels_shows_a_whole_report_and_one_key_opens_the_rest(open_html):
    """Two swept options and the steps of an ensemble: 13 columns."""
    heads = (
        "concurrency", "instances", "dynamic_batching", "infer_per_s", "p50_ms", "p90_ms", "p99_ms", "queue_ms",
        "compute_ms", "interpreter_wait_percent", "errors", "outcome", "mean batch of pre / classify / segment",
    )  # fmt: skip
    row = (
        16,
        2,
        "off",
        1234.5,
        123.4,
        234.5,
        1345.6,
        87.9,
        22.5,
        4.26,
        0,
        "unstable",
        "3.98 / 7.23 / 5.43",
    )
    page = open_html(compact_html(heads, [row] * 4, (0, 1, 2, 3, 4, 6, 11)), width=556)
    short = page.locator("table").first
    assert short.evaluate("e => e.getBoundingClientRect().right") <= 556
    heads_shown = short.locator("th").all_inner_texts()
    assert [head.split("\n")[0] for head in heads_shown[:4]] == [
        "concurrency", "instances", "dynamic batching", "throughput"
    ]  # fmt: skip
    assert "outcome" in heads_shown
    whole = page.locator("details table")
    assert not whole.is_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert whole.locator("th").count() == len(heads)
    assert whole.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 556


@pytest.mark.parametrize("host", ["plain-light", "lab-dark"])
def test_a_figure_of_matplotlib_has_the_colours_of_its_page(open_html, contrasts, host):
    import matplotlib as mpl

    mpl.use("agg")
    figure = plot(sweep(), title="two models")
    page = open_html(f"<div>{figure._repr_html_()}</div>", host)
    rows = contrasts(page)
    assert {"concurrency", "two models"} <= {text for text, _ in rows}
    assert min(ratio for _, ratio in rows) >= 4.5
    # Neither the figure nor its axes and its legend have paper of their own.
    fills = page.locator("svg path").evaluate_all("all => all.map(p => getComputedStyle(p).fill)")
    assert "rgb(255, 255, 255)" not in fills


# -- curve ----------------------------------------------------------------------------------------


def eight():
    """As a sweep over three options finds them: long names, points close to each other."""
    return [
        replace(
            sweep()[at % 2],
            name=f"instances={1 + at // 4}, dynamic_batching={('off', 'on')[at % 2]}, "
            f"max_queue_delay_us={100 * (at // 2 % 2)}",
            points=tuple(
                replace(
                    p,
                    throughput=p.throughput * (1 + at / 50),
                    outcome=("stable", "unstable")[i % 2],
                )
                for i, p in enumerate(sweep()[at % 2].points)
            ),
        )
        for at in range(8)
    ]


@pytest.mark.parametrize("count", [4, 8])
def test_labels_do_not_collide_and_can_be_read(open_html, count):
    page = open_html(curve_view(eight()[:count], title="pipeline", target_ms=20.0).html)
    for width in PAGES:
        sizes, fits = spread(page, width, script=False)
        assert min(sizes) >= 10.99, width
        assert fits, width
        assert page.evaluate(COLLISIONS) == [], width


def test_a_point_opens_its_configuration(open_view):
    view = CurveView(title="pipeline", on_hub=Hub(threaded=False))
    points = (
        Point(1, 100, {50: 2.0, 99: 3.0}, details=(("instances", "2"),)),
        Point(2, 150, {50: 3.0}),
    )
    view.update([Series("m", points)], loads=(1, 2, 4))
    view.refresh()
    page = open_view(view)
    details = page.locator(".nbt-details")
    assert not details.is_visible()
    page.locator(".nbt-point").first.click()
    assert "instances" in details.inner_text()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert "150 infer/s" in details.inner_text()
    page.keyboard.press("Escape")
    assert not details.is_visible()


def test_before_a_point_is_measured_there_is_a_sentence(open_view):
    page = open_view(CurveView(title="pipeline", on_hub=Hub(threaded=False)))
    assert page.locator("svg").count() == 0
    assert page.locator(".nbt-curve-finding").inner_text() == "nothing measured yet"


def test_curve_shows_progress_and_grows(open_view, curve):
    page = open_view(curve)
    assert page.locator(".nbt-curve-line").inner_text().startswith("concurrency 8 of 16")
    assert page.get_by_role("progressbar").get_attribute("aria-valuenow") == "40"
    assert page.locator(".nbt-series").count() == 4
    curve.update((*sweep(), *sweep()[:1]))
    curve.refresh()
    page.evaluate("state => put(state)", {"scenes": curve.scenes, "frame": frame_text(curve)})
    page.wait_for_function("document.querySelectorAll('.nbt-series').length === 6")


def test_curve_stops_once(open_view, curve):
    page = open_view(curve)
    button = page.get_by_role("button", name="Stop")
    box = button.bounding_box()
    assert min(box["width"], box["height"]) >= 24
    button.click()
    assert button.is_disabled()
    assert button.inner_text() == "Stopping"
    assert len(sent(page, "stop")) == 1
    page.evaluate("put({ running: false, progress: 'done in 12 s' })")
    page.wait_for_function("document.querySelector('.nbt-curve-stop').hidden")
    assert page.locator(".nbt-curve-line").inner_text() == "done in 12 s"


def test_curve_says_its_finding(open_view, curve):
    page = open_view(curve)
    assert "up to 1\u202f670 infer/s" in page.get_by_role("status").inner_text()
    assert "p99" in page.locator("svg").get_attribute("aria-label")


@pytest.mark.parametrize("name", ["watch", "dag", "curve"])
def test_a_narrow_page_clips_nothing(open_view, views, name):
    page = open_view(views[name], width=420)
    svg = page.locator(f".nbt-{name} svg").bounding_box()
    # Pictures keep the size of their text, and are moved sideways.
    scrolls = page.locator("#w > .nbt-root").evaluate("e => e.scrollWidth > e.clientWidth")
    assert svg["x"] + svg["width"] <= 420 or scrolls
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
